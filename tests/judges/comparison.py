"""What a judge says."""

from __future__ import annotations

from typing import NamedTuple


class Comparison(NamedTuple):
    """A number of ours and a library's, or how many of several were compared."""

    label: str
    ours: float
    theirs: float
    tolerance: float = 1e-9

    @property
    def agrees(self) -> bool:
        """Whether they are equal, up to rounding."""
        return abs(self.ours - self.theirs) <= self.tolerance

    def __str__(self) -> str:
        """A line for the terminal."""
        return (
            f"{'agrees' if self.agrees else 'DIFFERS':7} {self.label}: ours {self.ours:.6g}, theirs {self.theirs:.6g}"
        )
