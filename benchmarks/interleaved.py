"""Ratios that a noisy machine cannot bend: variants take turns in one process, in a rotating order.

Every round gives one ratio per variant to the reference of the same round; the median and the quartiles over rounds are
reported. Time is the process's own, so that a busy neighbour costs nothing but cache.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Row:
    """One line of the table: milliseconds, and the ratio to the reference with its quartiles."""

    name: str
    milliseconds: float
    ratio: float
    lower: float
    upper: float


def measure(
    variants: Mapping[str, Callable[[], object]], reference: str, rounds: int, inverse: bool = False
) -> list[Row]:
    """Run each variant once per round, after one round that warms up, and compare within rounds.

    A ratio is a variant's time to the reference's, or the other way round if `inverse`.
    """
    names = list(variants)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-1, rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            start = time.process_time()
            variants[name]()
            if number >= 0:
                seconds[name].append(time.process_time() - start)
    rows = []
    for name, values in seconds.items():
        ratios = [value / other for value, other in zip(values, seconds[reference], strict=True)]
        ratios = [1 / ratio for ratio in ratios] if inverse else ratios
        lower, ratio, upper = statistics.quantiles(ratios, n=4, method="inclusive")
        rows.append(Row(name, 1e3 * statistics.median(values), ratio, lower, upper))
    return rows


def parser(description: str | None, rounds: int, networks: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The options every benchmark has, and which of some networks are measured."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=rounds)
    options.add_argument("--json", type=Path, help="write the rows to this file")
    if networks:
        options.add_argument("--networks", nargs="+", choices=networks, default=list(networks), help="only these")
    return options


def arguments(description: str | None, rounds: int, networks: Sequence[str] = ()) -> argparse.Namespace:
    """The given options; torch is set to one thread."""
    torch.set_num_threads(1)
    return parser(description, rounds, networks).parse_args()


def report(rows: list[Row], target: Path | None) -> None:
    """Print the table, and write it as JSON if asked to."""
    print(f"{'variant':<46}{'ms':>9}{'ratio':>8}  quartiles")
    for row in rows:
        print(f"{row.name:<46}{row.milliseconds:9.1f}{row.ratio:8.3f}  {row.lower:.3f} – {row.upper:.3f}")
    if target:
        target.parent.mkdir(parents=True, exist_ok=True)
        record = {"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": [asdict(r) for r in rows]}
        target.write_text(json.dumps(record, indent=1) + "\n")
