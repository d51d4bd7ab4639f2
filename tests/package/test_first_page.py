"""The first page, followed as printed: from `pip install` to learned tasks, in an empty environment."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.package import wheels

PAGE = (wheels.ROOT / "docs" / "index.md").read_text("utf-8")
FOLLOWED = PAGE[PAGE.index("## Install") : PAGE.index("## Tutorials")]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", FOLLOWED, re.MULTILINE | re.DOTALL)
FIRST = "python -m venv .venv"
"""The command after which the environment is there, still empty."""


def test_the_page_has_commands_and_a_program_that_its_text_names() -> None:
    assert [language for language, _ in BLOCKS] == ["sh", "python", "sh"]
    assert BLOCKS[0][1].startswith(f"{FIRST}\n")
    assert BLOCKS[1][1].startswith("# first.py\n")
    assert "python first.py\n" in BLOCKS[2][1]


@pytest.mark.slow
def test_a_person_who_has_torch_follows_the_first_page(tmp_path: Path) -> None:
    """All commands in one shell, after the environment was made; torch is there, and the index has this version."""
    wheel, torch = wheels.build(tmp_path), wheels.needed_packages(tmp_path)
    folder = tmp_path / "person"
    folder.mkdir()
    (folder / "first.py").write_text(BLOCKS[1][1], "utf-8")
    before, commands = (text for language, text in BLOCKS if language == "sh")
    shell = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # the page's `python`
        "PIP_CONSTRAINT": str(wheels.ROOT / "constraints.txt"),
        "PIP_FIND_LINKS": f"{os.environ.get('PIP_FIND_LINKS', '')} {wheel.parent}".strip(),
    }
    wheels.run(["sh", "-e", "-c", FIRST], folder, **shell)
    wheels.Environment(folder / ".venv").read(torch)
    printed = wheels.run(["sh", "-e", "-c", before.removeprefix(FIRST) + commands], folder, **shell)
    results = re.findall(r"^(.+): (\d+) % right, ([\d,]+) bytes$", printed, re.MULTILINE)
    assert [name for name, _, _ in results] == ["which digit", "even or odd", "above four"]
    assert all(int(share) > 70 for _, share, _ in results)
    assert all(int(size.replace(",", "")) <= 8_000 for _, _, size in results)
    assert "all good" in printed
