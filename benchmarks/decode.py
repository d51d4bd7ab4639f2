"""Decoding each data set from its stored form, against reading it from the cache.

The first read of a set decodes its pictures and keeps the arrays; later reads map them. Both are measured in an empty
cache of their own, and the mapped arrays are also read to the last byte. Sets that are not in the data directory are
left out.

    python -m benchmarks.decode --data ../shared/data --json results/benchmarks/decode.json
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import __version__ as pillow

from halrp.lab.data import SETS, LoadedDataSet, read, status

Result = TypeVar("Result")


@dataclass(frozen=True)
class Row:
    """One line of the table: the stored and the decoded size in MB, and seconds."""

    name: str
    layout: str
    images: int
    stored: float
    decoded: float
    first: float
    """The first read: checksum, decoding, and keeping the arrays."""
    again: float
    """A later read, which maps them."""
    through: float
    """A later read, and adding up every byte."""


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Run `work` and return its result and the seconds it took."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def total(data: LoadedDataSet) -> int:
    """Touch every byte of the images."""
    return sum(int(part.images.sum(dtype=np.int64)) for part in data.parts.values())


def measure(name: str, data: Path | None) -> Row:
    decoded, first = timed(lambda: read(name, data))
    again = timed(lambda: read(name, data))[1]
    through = timed(lambda: total(read(name, data)))[1]
    size = sum(part.images.nbytes for part in decoded.parts.values())
    images = sum(len(part.labels) for part in decoded.parts.values())
    return Row(name, decoded.layout, images, status(name, data).bytes / 1e6, size / 1e6, first, again, through)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the directory that holds the data sets")
    parser.add_argument("--sets", nargs="*", default=list(SETS), choices=list(SETS), help="only these")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    rows = []
    print(f"{'set':<15}{'layout':<24}{'images':>8}{'MB':>7}{'→ MB':>8}{'first s':>9}{'again s':>9}{'through s':>10}")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        for name in options.sets:
            if not status(name, options.data).present:
                print(f"{name:<15}not there")
                continue
            row = measure(name, options.data)
            rows.append(row)
            print(
                f"{row.name:<15}{row.layout:<24}{row.images:8d}{row.stored:7.1f}{row.decoded:8.1f}{row.first:9.2f}"
                f"{row.again:9.3f}{row.through:10.3f}",
                flush=True,
            )
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        record = {"numpy": np.__version__, "pillow": pillow, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
