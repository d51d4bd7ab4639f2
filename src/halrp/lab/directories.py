"""The directories of data sets, and of what is cached for the user."""

import os
from os import PathLike
from pathlib import Path


def data_directory(data: str | PathLike[str] | None = None) -> Path:
    """Return the directory that holds the data sets: `data`, else `HALRP_DATA`, else `halrp/data` in the cache."""
    chosen = data or os.environ.get("HALRP_DATA")
    return Path(chosen).expanduser() if chosen else cache_directory() / "data"


def cache_directory() -> Path:
    """Return this library's part of the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halrp"
