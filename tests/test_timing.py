"""The marker of tests that could depend on how fast something runs, the counts of work, and the repetition."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests import repeat
from tests.timing import ROOT, calls_of, lines_of, uses_timing


@pytest.mark.parametrize(
    ("source", "uses"),
    [
        ("import threading", True),
        ("from concurrent.futures import ThreadPoolExecutor", True),
        ("import http.server", True),
        ("import os\nos.fork()", True),
        ("def test():\n    import time", True),
        ("from tests.lab.run.gates import gated", True),
        ("from tests.lab.run import gates", True),
        ("from timeit import default_timer\nimport torch", False),
        ("import json", False),
    ],
)
def test_a_module_that_could_depend_on_speed_is_recognised(source: str, uses: bool, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(source)
    assert uses_timing(tmp_path / "test_it.py") is uses


def test_tests_are_marked_by_what_their_modules_use(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("timing") is not None, "it repeats tests in another process"
    assert uses_timing(ROOT / "tests/lab/run/test_local_engine.py")
    assert uses_timing(ROOT / "tests/reliability/test_faults.py")
    assert not uses_timing(ROOT / "tests/method/test_scales.py")


def test_work_is_counted_and_the_same_each_time() -> None:
    for count in (lines_of, calls_of):
        few, many = ([count(lambda n=n: [abs(i) for i in range(n)]) for _ in range(2)] for n in (10, 1000))  # type: ignore[misc]
        assert few[0] == few[1] < many[0] == many[1]


ODD = """
from pathlib import Path

def test_even():
    path = Path(__file__).with_name("runs")
    runs = len(path.read_text()) if path.exists() else 0
    path.write_text("x" * (runs + 1))
    assert runs % 2 == 0

def test_always():
    pass
"""


def test_a_test_that_fails_now_and_then_is_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_odd.py").write_text(ODD)
    file = tmp_path / "records" / "repeat.json"
    assert repeat.main(["--times", "2", "--load", "yes", "--marked", "", "--json", str(file), str(tmp_path)]) == 1
    printed = capfd.readouterr().out
    assert "load 1: 2 tests, 0 failed" in printed
    assert "load 2: 2 tests, 1 failed" in printed
    assert "load: 2 runs, 1 failures" in printed
    # The path before the name is relative to what pytest takes for the root, which depends on where the project lies.
    assert re.search(r"^ +1 (\S+\.)?test_odd::test_even$", printed, re.MULTILINE)
    runs = json.loads(file.read_text())["runs"]
    assert [(run["kind"], run["tests"], len(run["failed"])) for run in runs] == [("load", 2, 0), ("load", 2, 1)]
    assert runs[1]["failed"][0].endswith("test_odd::test_even")
    assert all({"seconds", "load", "marked", "workers"} <= set(run) for run in runs)
