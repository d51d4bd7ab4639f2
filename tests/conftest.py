"""What all tests share: none depends on how fast the machine is."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from halrp.training.loop import Training
from tests.timing import uses_timing


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
