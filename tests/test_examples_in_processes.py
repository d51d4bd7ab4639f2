"""The examples that start processes, as a person starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.timing import PATIENCE

EXAMPLES = Path(__file__).parent.parent / "examples"
pytestmark = pytest.mark.slow


def printed_by(example: str, folder: Path) -> str:
    """What an example prints."""
    command = [sys.executable, str(EXAMPLES / example)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tasks_that_are_learned_in_parallel_have_the_bits_of_those_learned_in_turn(tmp_path: Path) -> None:
    assert printed_by("parallel_tasks.py", tmp_path).count("bit-identical to learning it here: True") == 4


def test_a_client_asks_a_server_for_every_task(tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    lines = printed_by("serving_client.py", tmp_path).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["digit", "parity", "size", "mixed"]
    digit, parity, size, mixed = (line.partition("[")[2].partition("]")[0].split(", ") for line in lines)
    assert mixed == [digit[0], parity[1], size[2]]
