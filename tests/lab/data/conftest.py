"""A cache of its own for tests that decode data sets."""

from pathlib import Path

import pytest


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return this library's part of an empty cache directory, in which nothing else is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HALRP_DATA", raising=False)
    return tmp_path / "cache" / "halrp"
