"""Which way of computing a mixed batch is the fastest, by what calls of its size took: `Costs`.

One pass over rows of all tasks shares the large products of the network and pays for what tasks change in ways that
cannot be shared; one task after another pays for small batches. Which is cheaper depends on the network, on the tasks,
on the numbers of both tasks and rows, and on the processor. No rule about layers foresees that, so it is measured: each
way is timed twice on calls that come, then the faster one is taken. The other one is tried again now and
then, the more rarely the slower it was, so that trying costs at most 4 % of the time, and a way that has become faster
is noticed.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from threading import Lock
from typing import Literal, get_args

Way = Literal["one pass", "task by task"]
WAYS: tuple[Way, ...] = get_args(Way)
TRIALS = 2
"""Timed calls of each way before one is preferred; the faster of them counts, as the first may build something."""
SHARE = 0.04
"""Of the time that trying a slower way again may cost."""
RARELY = 5
"""Calls between two trials, at least."""
MOST_SIZES = 4096
"""Sizes that are remembered; beyond them all are timed again."""
FASTER, SLOWER = 0.5, 0.2
"""Weights of a new time in the running mean, if it is below the mean or above: what disturbs a call makes it slower."""


@dataclass
class _Times:
    """What is known of one way, for batches of one size."""

    calls: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        if self.calls == 0:
            self.seconds = seconds
        elif self.calls < TRIALS:
            self.seconds = min(self.seconds, seconds)
        else:  # a single call that had to build something, or met a busy processor, counts as twice the mean at most
            weight = FASTER if seconds < self.seconds else SLOWER
            self.seconds += weight * (min(seconds, 2 * self.seconds) - self.seconds)
        self.calls += 1


@dataclass
class _Sizes:
    """What is known for batches of one size."""

    times: dict[Way, _Times] = field(default_factory=lambda: {way: _Times() for way in WAYS})
    since: int = 0
    """Calls since the slower way was tried."""


class Costs:
    """Times by the kind and size of batches. Threads may use it at the same time."""

    def __init__(self) -> None:
        self.chosen: dict[Way, int] = dict.fromkeys(WAYS, 0)
        """How often each way was chosen."""
        self._sizes: dict[Hashable, _Sizes] = {}
        self._lock = Lock()

    def choose(self, size: Hashable) -> Way:
        """The way for the next batch of a size."""
        with self._lock:
            if len(self._sizes) >= MOST_SIZES and size not in self._sizes:
                self._sizes.clear()
            way = self._choice(self._sizes.setdefault(size, _Sizes()))
            self.chosen[way] += 1
            return way

    def add(self, size: Hashable, way: Way, seconds: float) -> None:
        """Note what a call took."""
        with self._lock:
            self._sizes.setdefault(size, _Sizes()).times[way].add(seconds)

    def seconds(self, size: Hashable) -> dict[Way, float]:
        """What is known of a size: the ways that have been timed."""
        with self._lock:
            known = self._sizes.get(size, _Sizes())
            return {way: times.seconds for way, times in known.times.items() if times.calls}

    @staticmethod
    def _choice(known: _Sizes) -> Way:
        fewest = min(WAYS, key=lambda way: known.times[way].calls)
        best, other = sorted(WAYS, key=lambda way: known.times[way].seconds)
        calls = known.times[fewest].calls
        if calls < TRIALS:
            return fewest
        known.since += 1
        excess = known.times[other].seconds / max(known.times[best].seconds, 1e-9) - 1
        if known.since >= max(RARELY, excess / SHARE):
            known.since = 0
            return other
        return best


def bucket(number: int) -> int:
    """A number rounded up to a power of two: batches of about the same size share their times."""
    return 1 << (number - 1).bit_length()
