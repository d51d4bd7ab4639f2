"""Figures of the server as Prometheus reads them: `Metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of seconds."""


class Metrics:
    """Counts of requests and their times. Only the thread of the event loop writes to it.

    No figure names a task: names may be secret, and there may be many.
    """

    def __init__(self) -> None:
        self._requests: dict[tuple[str, int], int] = {}
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    def add(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request; the times are those of inferences."""
        self._requests[endpoint, status] = self._requests.get((endpoint, status), 0) + 1
        if endpoint == "infer":
            self._buckets[sum(seconds > bound for bound in BOUNDS)] += 1
            self._seconds += seconds

    def text(self, gauges: Mapping[str, tuple[str, float]], counters: Mapping[str, tuple[str, float]]) -> str:
        """All figures; `gauges` and `counters` are further ones by name, each with what it means."""
        lines = list(_described("halrp_requests_total", "counter", "Requests by endpoint and status."))
        lines += [
            f'halrp_requests_total{{endpoint="{endpoint}",status="{status}"}} {count}'
            for (endpoint, status), count in sorted(self._requests.items())
        ]
        lines += _described("halrp_infer_seconds", "histogram", "Seconds from a request's first byte to its answer.")
        cumulative = list(accumulate(self._buckets))
        bounds = (*map(str, BOUNDS), "+Inf")
        lines += [
            f'halrp_infer_seconds_bucket{{le="{bound}"}} {count}'
            for bound, count in zip(bounds, cumulative, strict=True)
        ]
        lines += [f"halrp_infer_seconds_sum {self._seconds}", f"halrp_infer_seconds_count {cumulative[-1]}"]
        for kind, figures in (("gauge", gauges), ("counter", counters)):
            for name, (meaning, value) in figures.items():
                lines += [*_described(name, kind, meaning), f"{name} {value}"]
        return "\n".join(lines) + "\n"


def _described(name: str, kind: str, meaning: str) -> Iterable[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"
