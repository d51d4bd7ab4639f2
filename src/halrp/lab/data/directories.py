"""Where data sets and what is made of them lie."""

import json
import os
from collections.abc import Mapping
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any


def data_directory(data: str | PathLike[str] | None = None) -> Path:
    """Return the directory that holds the data sets: `data`, else `HALRP_DATA`, else `halrp/data` in the cache."""
    chosen = data or os.environ.get("HALRP_DATA")
    return Path(chosen).expanduser() if chosen else cache_directory() / "data"


def cache_directory() -> Path:
    """Return this library's part of the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "halrp"


@cache
def facts(name: str) -> Mapping[str, Any]:
    """Read published facts that come with the package, such as the paper's task orders; not to be written to."""
    found: Mapping[str, Any] = json.loads(
        (resources.files("halrp.lab") / "reference" / f"{name}.json").read_text("utf-8")
    )
    return found
