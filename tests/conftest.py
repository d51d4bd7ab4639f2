"""What all tests share: none depends on how fast the machine is."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from halrp.method import probe
from halrp.training.loop import Training
from tests.timing import STARTING, uses, uses_timing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests whose module could depend on how fast something runs, so that no author has to remember it."""
    for item in items:
        if uses_timing(item.path):
            item.add_marker("timing")


@pytest.fixture(scope="session", autouse=True)
def reports_at_the_end_of_epochs() -> Iterator[None]:
    """Training reports inside an epoch only if that takes long; here it never does, unless a test says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "REPORT_EVERY", math.inf)
        yield


@pytest.fixture(scope="session", autouse=True)
def output_goes_to_a_pipe() -> Iterator[None]:
    """Tables are as wide as in a pipe, whatever terminal the tests were started from, unless a test says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COLUMNS", raising=False)
        yield


@pytest.fixture(scope="module", autouse=True)
def heads_are_fitted_quickly(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fit heads with few penalties, folds and steps: all of them take most of the time of learning a tiny task.

    Modules that start processes keep the full fit: such a process would have it, and must give the same bits; tests in
    them that start none may use `quick_heads`. Those that override this fixture ask how well a head is fitted.
    """
    if uses(request.path, STARTING):
        yield
        return
    with _quick_heads():
        yield


@pytest.fixture
def quick_heads() -> Iterator[None]:
    """Heads are fitted quickly in this test."""
    with _quick_heads():
        yield


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it."""
    folder, docs = tmp_path_factory.mktemp("site"), Path(__file__).parent.parent / "docs"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(docs), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@contextmanager
def _quick_heads() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "PENALTIES", probe.PENALTIES[1::4])
        patch.setattr(probe, "FOLDS", 2)
        patch.setattr(probe, "ITERATIONS", 8)
        yield
