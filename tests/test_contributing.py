"""CONTRIBUTING.md, followed literally: its files are written and its commands run, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (Add .+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


def blocks(section: str) -> list[tuple[str, str]]:
    """The code blocks of a section: their language and text."""
    return [(language, textwrap.dedent(text)) for _, language, text in BLOCK.findall(SECTIONS[section])]


def test_the_sections_are_those_that_a_contributor_looks_for() -> None:
    assert {"Add a layer", "Add an objective", "Add a method", "Add a stream"} <= SECTIONS.keys()


def commands(section: str) -> list[str]:
    """The commands of a section."""
    return [line for language, text in blocks(section) if language == "sh" for line in text.splitlines()]


TESTS = "python -m pytest -q "
TESTED = [section for section in SECTIONS if all(command.startswith(TESTS) for command in commands(section))]
"""Sections that only run tests."""


def write_files(section: str, folder: Path) -> None:
    """Write the files of a section."""
    for text in (text for language, text in blocks(section) if language == "python"):
        name = re.match(r"# (\S+\.py)\n", text)
        assert name is not None, f"the first line of a file names it: {text[:40]}"
        assert not (folder / name[1]).exists()
        (folder / name[1]).write_text(text)


def assert_runs(command: str, folder: Path) -> None:
    """Run a command as a shell does."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    run = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, f"{command}\n{run.stdout}\n{run.stderr}"


def test_a_section_shows_how_to_try_what_it_adds() -> None:
    assert all(commands(section) for section in SECTIONS)
    assert len(TESTED) == 3


def test_the_tests_of_sections_pass_as_written(tmp_path: Path) -> None:
    """All in one process, which loads torch once."""
    for section in TESTED:
        write_files(section, tmp_path)
    files = [command.removeprefix(TESTS) for section in TESTED for command in commands(section)]
    assert_runs(f"{TESTS}{' '.join(files)}", tmp_path)


@pytest.mark.parametrize("section", [section for section in SECTIONS if section not in TESTED])
def test_the_steps_of_a_section_work_as_written(section: str, tmp_path: Path) -> None:
    write_files(section, tmp_path)
    for command in commands(section):
        assert_runs(command, tmp_path)


def test_files_that_are_named_exist() -> None:
    names = set(re.findall(r"`((?:src|tests|docs)/[\w/.-]+|halrp/[\w/]+\.py)`", TEXT))
    missing = [name for name in names if not ((ROOT / name).exists() or (ROOT / "src" / name).exists())]
    assert missing == []
