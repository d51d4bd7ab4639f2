"""`tabular`: five tables of measurements that come with scikit-learn; nothing to download.

Iris, wine, breast cancer, handwritten digits as 64 numbers, and diabetes with its outcome in thirds. A row is
standardised by the mean and deviation of all rows that may train, and filled up with zeros to 64 numbers, so that one
base fits all tasks. Up to 200 rows of a class are in use, a fifth of which validates; a third of each class tests, the
same for every seed. Of equal rows one is in use.
"""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import Any

import numpy as np
import torch

from halrp.lab.streams.few import distinct, few
from halrp.lab.streams.protocol import drawn_orders, identities_of
from halrp.lab.streams.stream import Split, Stream, Task

NAME = "tabular"
WIDTH = 64
TABLES = ("iris", "wine", "breast_cancer", "digits", "diabetes")
MOST, TESTED = 200, 100


def load(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load the stream; `data` is not needed."""
    identities = identities_of(NAME, drawn_orders(len(TABLES)), order)

    def make(identity: int) -> Task:
        table = TABLES[identity]
        x, y, names = _table(table)
        classes = range(int(y.max()) + 1)
        parts = few(f"{NAME} {table}", y, classes, seed, fraction, most=MOST, tested=TESTED)
        free = np.setdiff1d(np.arange(len(y)), parts.test)
        x = (x - x[free].mean(0)) / np.where(x[free].std(0) > 0, x[free].std(0), 1)
        x = np.pad(x, ((0, 0), (0, WIDTH - x.shape[1]))).astype(np.float32)
        train, val, test = distinct(
            *(Split(torch.from_numpy(x[chosen]), torch.from_numpy(y[chosen])) for chosen in parts)
        )
        return Task(table.replace("_", "-"), identity, len(classes), train, val, test, class_names=names)

    return Stream(NAME, order, seed, fraction, identities, make, (WIDTH,))


def _table(name: str) -> tuple[Any, Any, tuple[str, ...]]:
    from sklearn import datasets  # slow to import, and few streams need it

    read: Callable[[], Any] = getattr(datasets, f"load_{name}")
    bunch = read()
    x, y = bunch.data.astype(np.float64), bunch.target
    if name != "diabetes":
        return x, y.astype(np.int64), tuple(map(str, bunch.target_names))
    thirds = np.searchsorted(np.quantile(y, [1 / 3, 2 / 3]), y, side="right")
    return x, thirds.astype(np.int64), ("low", "middle", "high")
