"""Data for the tests of streams: made ones, and the real ones when they are beside the repository."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.streams.made import read_made

SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "data"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let streams read the made data sets, all of them whole."""
    read_made(monkeypatch)


@pytest.fixture(scope="module")
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the directory of the real data, when it has all folders that the module `NEEDS`.

    Decoded images are kept in pytest's own cache from run to run, or for this run when it has none.
    """
    missing = [folder for folder in request.module.NEEDS if not (SHARED / folder).is_dir()]
    if missing:
        pytest.skip(f"the real images are not in ../shared/data beside the repository: {', '.join(missing)}")
    cache = getattr(request.config, "cache", None)
    path = cache.mkdir("data") if cache else tmp_path_factory.getbasetemp() / "decoded"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(path))
        yield SHARED
