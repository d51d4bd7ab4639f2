"""What all tests share: none depends on how fast the machine is."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from halrp.training.loop import Training


@pytest.fixture(scope="session", autouse=True)
def reports_at_the_end_of_epochs() -> Iterator[None]:
    """Training reports inside an epoch only if that takes long; here it never does, unless a test says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "REPORT_EVERY", math.inf)
        yield
