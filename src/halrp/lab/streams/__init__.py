"""Benchmarks by name: `load("cifar100-split", order="B", seed=3, fraction=0.25)`.

A stream is tasks in an order. Three arguments choose one of a benchmark's variants: `order` names the order
in which its tasks are learned, `seed` the repeat, which draws the images of every split, and `fraction` the
share of training and validation images that a task may use. The images of a task depend on its identity, the
seed and the fraction, never on the order. Adding a benchmark is a file with a function and a line in
`STREAMS`.
"""

import difflib
from collections.abc import Callable
from os import PathLike

from halrp.errors import SettingError
from halrp.lab.streams import cifar100, digits
from halrp.lab.streams.data import DataDamaged, DataMissing
from halrp.lab.streams.stream import Split, Stream, Task

__all__ = ["STREAMS", "DataDamaged", "DataMissing", "Split", "Stream", "Task", "load"]

STREAMS: dict[str, Callable[[str, int, float, str | PathLike[str] | None], Stream]] = {
    "digits": digits.load,
    "cifar100-split": cifar100.load_split,
}


def load(
    name: str,
    order: str = "A",
    seed: int = 0,
    fraction: float = 1.0,
    data: str | PathLike[str] | None = None,
) -> Stream:
    """Load the benchmark `name`: its tasks in `order`, with images drawn by `seed`.

    `data` is the directory that holds the data sets; without it the environment variable `HALRP_DATA` says where, and
    without that `halrp/data` in the user's cache directory is searched.
    """
    if name not in STREAMS:
        nearest = difflib.get_close_matches(str(name), STREAMS, n=1, cutoff=0.0)[0]
        raise SettingError(
            f"no stream is called {name!r}; the nearest name is {nearest!r}, and all of them are {', '.join(STREAMS)}"
        )
    if not 0.0 < fraction <= 1.0:
        raise SettingError(f"fraction={fraction} of stream {name!r} must be more than 0 and at most 1")
    return STREAMS[name](order, seed, fraction, data)
