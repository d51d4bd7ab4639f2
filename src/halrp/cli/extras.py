"""A package of the `lab` extra that is not installed is an error in one line, with the command that installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from halrp.errors import SettingError

PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn", "scipy": "scipy"}
"""Names on PyPI, by the names of the modules."""


@contextmanager
def needs_lab_extra() -> Iterator[None]:
    """Turn a missing package of the `lab` extra into a `SettingError`, for a block."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in PACKAGES:
            raise
        raise SettingError(f"this needs {PACKAGES[missing]}; run: pip install 'halrp[lab]'") from error
