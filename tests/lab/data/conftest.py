"""For tests that decode data sets, a cache of their own; for those that download, a server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.data.server import CONTENT, Site, serving


@pytest.fixture
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return this library's part of an empty cache directory, in which nothing else is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HALRP_DATA", raising=False)
    return tmp_path / "cache" / "halrp"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A well-behaved server of CONTENT, to be spoiled by the test."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving(Site(CONTENT)) as running:
        yield running
