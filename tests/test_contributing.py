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


@pytest.mark.parametrize("section", SECTIONS)
def test_the_steps_of_a_section_work_as_written(section: str, tmp_path: Path) -> None:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    commands = 0
    for language, text in blocks(section):
        if language == "python":
            name = re.match(r"# (\S+\.py)\n", text)
            assert name is not None, f"the first line of a file names it: {text[:40]}"
            (tmp_path / name[1]).write_text(text)
        elif language == "sh":
            for command in text.splitlines():
                run = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
                assert run.returncode == 0, f"{command}\n{run.stdout}\n{run.stderr}"
                commands += 1
    assert commands, "a section shows how to try what it adds"


def test_files_that_are_named_exist() -> None:
    names = set(re.findall(r"`((?:src|tests|docs)/[\w/.-]+|halrp/[\w/]+\.py)`", TEXT))
    missing = [name for name in names if not ((ROOT / name).exists() or (ROOT / "src" / name).exists())]
    assert missing == []
