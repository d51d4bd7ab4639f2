"""What a file must satisfy, as one call: `require`."""

from __future__ import annotations

from halrp.errors import DamagedError


def require(good: object, problem: str) -> None:
    """Raise `DamagedError` with the problem unless `good` is true."""
    if not good:
        raise DamagedError(problem)
