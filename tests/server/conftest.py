"""One learner whose store is served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from halrp import Learner, StorePredictor
from halrp.server.limits import Limits
from halrp.server.service import Service
from tests.server.asking import build
from tests.store.stores import learned


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    """Tasks t0 to t2, of three and four classes, on a base that the first made."""
    return learned("mlp", tasks=3, store=tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def store(learner: Learner) -> Path:
    """Its folder."""
    assert learner._committed.store is not None
    return learner._committed.store.folder


@pytest.fixture
def service(store: Path) -> Iterator[Service]:
    """A service with small limits."""
    limits = Limits(body=20_000, text=12_000, bodies=30_000, rows=32, queue=2, seconds=20.0, batch=16, delay=0.0)
    service = Service(StorePredictor.open(store, build(), follow_every=0.0), limits)
    yield service
    service.close()
