"""Figures of the server as Prometheus reads them: `Metrics`, of all processes of the server together.

No figure names a task: names may be secret, and there may be many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from halrp.server.board import Board

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of seconds."""
OF_STORE = ("halrp_tasks", "halrp_store_generation", "halrp_store_problem")
"""Gauges that are about the store, which processes share; of others there is a sum."""

Described = Mapping[str, tuple[str, float]]
"""Figures by name, each with what it means."""


class Metrics:
    """Counts of requests and their times. Only the thread of the event loop writes to it."""

    def __init__(self, board: Board | None = None, number: int = 0) -> None:
        """Count for a process of a server; one that replaces another continues its counts."""
        self._board, self._number = board, number
        before = (board.read(number) if board is not None else None) or {}
        self._counts: Counter[str] = Counter(before.get("counts", {}))
        """Requests by `endpoint status`, inferences by the bucket of their time, and seconds."""
        self._before: Mapping[str, float] = before.get("counters", {})

    def add(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request; the times are those of inferences."""
        self._counts[f"{endpoint}/{status}"] += 1
        if endpoint == "infer":
            self._counts[f"bucket/{sum(seconds > bound for bound in BOUNDS)}"] += 1
            self._counts["seconds"] += seconds  # type: ignore[assignment]

    def share(self, gauges: Described, counters: Described) -> None:
        """Let the other processes know."""
        if self._board is not None:
            self._board.write(self._number, self._counted(gauges, counters))

    def text(self, gauges: Described, counters: Described) -> str:
        """All figures; `gauges` and `counters` are further ones of this process."""
        every = [self._counted(gauges, counters), *self._others()]
        counts: Counter[str] = Counter()
        for facts in every:
            counts.update(facts["counts"])
        requests = {tuple(key.split("/")): n for key, n in counts.items() if "/" in key and key[:7] != "bucket/"}
        lines = list(_described("halrp_requests_total", "counter", "Requests by endpoint and status."))
        lines += [
            f'halrp_requests_total{{endpoint="{endpoint}",status="{status}"}} {count}'
            for (endpoint, status), count in sorted(requests.items())
        ]
        lines += _described("halrp_infer_seconds", "histogram", "Seconds from a request's first byte to its answer.")
        cumulative = list(accumulate(counts[f"bucket/{number}"] for number in range(len(BOUNDS) + 1)))
        bounds = (*map(str, BOUNDS), "+Inf")
        lines += [
            f'halrp_infer_seconds_bucket{{le="{bound}"}} {count}'
            for bound, count in zip(bounds, cumulative, strict=True)
        ]
        lines += [f"halrp_infer_seconds_sum {counts['seconds']}", f"halrp_infer_seconds_count {cumulative[-1]}"]
        for kind, figures, key in (("gauge", gauges, "gauges"), ("counter", counters, "counters")):
            for name, (meaning, _) in figures.items():
                values = [facts[key].get(name, 0) for facts in every]
                lines += [
                    *_described(name, kind, meaning),
                    f"{name} {max(values) if name in OF_STORE else sum(values)}",
                ]
        return "\n".join(lines) + "\n"

    def _counted(self, gauges: Described, counters: Described) -> dict[str, Any]:
        return {
            "counts": dict(self._counts),
            "gauges": {name: value for name, (_, value) in gauges.items()},
            "counters": {name: value + self._before.get(name, 0) for name, (_, value) in counters.items()},
        }

    def _others(self) -> Iterable[dict[str, Any]]:
        for number in range(0 if self._board is None else self._board.count):
            facts = None if number == self._number or self._board is None else self._board.read(number)
            if facts is not None:
                yield facts


def _described(name: str, kind: str, meaning: str) -> Iterable[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"
