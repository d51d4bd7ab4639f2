"""`sensors`: six sets of series of measurements, from the wheel of aeon, which has files of the UCR and UEA archives.

    pip download --no-deps aeon

A series has up to 12 channels, filled up with zeros, and is interpolated to 128 steps; each channel is standardised by
the mean and deviation of the published part that trains. Up to 200 series of a class are in use, a fifth of which
validates, and up to 100 of the published part for tests do. Of equal series one is in use.
"""

from __future__ import annotations

import functools
import os
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch

from halrp.lab.data import DataDamaged
from halrp.lab.data.packages import SERIES, zipped
from halrp.lab.streams.few import distinct, few
from halrp.lab.streams.protocol import drawn_orders, identities_of
from halrp.lab.streams.stream import Split, Stream, Task

NAME = "sensors"
CHANNELS, STEPS = 12, 128
MOST, TESTED = 200, 100


class Files(NamedTuple):
    """A set: the start of its files' names, and their checksums."""

    stem: str
    train: str
    test: str


SETS = {
    "gun-point": Files(
        "GunPoint/GunPoint",
        "f842401779fd9800d247d8b33121a1a4643710a19b24917dbdd9a060ca8630d5",
        "79332750788a6227b325b96bd0d70130c8eb707b9731f8d7dec62b7a7d36017e",
    ),
    "power-demand": Files(
        "ItalyPowerDemand/ItalyPowerDemand",
        "341269cb7e6cef96846b30e774580beec79addb93848ba360145219115a74b7c",
        "26122451f87dd0387ef90b18bc8a86c041371b8a1c068004922b939971247144",
    ),
    "arrow-heads": Files(
        "ArrowHead/ArrowHead",
        "a83c470aaf611a5f5284377cce27a5fc9f6292bc3d110257b0fd4905ced5ee72",
        "5417dab42626d41df5e435bb22458c2df40dfad4bcd3b59559bbe72e20e84904",
    ),
    "leaves": Files(
        "OSULeaf/OSULeaf",
        "86b9d6e860414ffd26cebc62fff84ffb37fa588ef3e5bf79e4094a437c36ddfc",
        "6c549dd354f9e42d5985fa5fab75321ca9acefc7873457e71467fc8a31f107ce",
    ),
    "motions": Files(
        "BasicMotions/BasicMotions",
        "8dc43cc6306cb679c888c01e26f91772ac4441a916da43bac8b79734a538b9d6",
        "79213102bc6fca1a398ad98ce1185dff0208fa3d1465e687f48288946b0ff8dc",
    ),
    "vowels": Files(
        "JapaneseVowels/JapaneseVowels_eq",
        "8958279c6296b97c8e34038346407935222db171492b84dffa3b930d087bc2d6",
        "bb83bb1aa6bfb17faae269f6829b7cac71de36fdd3264ee34137fe90270d5895",
    ),
}


def load(order: str, seed: int, fraction: float, data: str | PathLike[str] | None = None) -> Stream:
    """Load the stream."""
    identities, names = identities_of(NAME, drawn_orders(len(SETS)), order), list(SETS)
    folder = None if data is None else os.fspath(data)

    def make(identity: int) -> Task:
        name = names[identity]
        x, y, held, tested, classes = _set(name, folder)
        parts = few(f"{NAME} {name}", y, range(len(classes)), seed, fraction, most=MOST, tested=TESTED, test=tested)
        mean, deviation = x.mean((0, 2), keepdims=True), x.std((0, 2), keepdims=True)
        train, val, test = distinct(
            *(
                Split(torch.from_numpy(_fitted((rows[chosen] - mean) / np.where(deviation > 0, deviation, 1))), label)
                for rows, chosen, label in (
                    (x, parts.train, torch.from_numpy(y[parts.train])),
                    (x, parts.val, torch.from_numpy(y[parts.val])),
                    (held, parts.test, torch.from_numpy(tested[parts.test])),
                )
            )
        )
        return Task(name, identity, len(classes), train, val, test, class_names=classes)

    return Stream(NAME, order, seed, fraction, identities, make, (CHANNELS, STEPS))


@functools.lru_cache(maxsize=8)
def _set(name: str, data: str | None) -> tuple[Any, Any, Any, Any, tuple[str, ...]]:
    files = SETS[name]
    (x, y), (held, tested) = (
        parsed(zipped(SERIES, f"aeon/datasets/data/{files.stem}_{part}.ts", sha256, data).decode("utf-8", "replace"))
        for part, sha256 in (("TRAIN", files.train), ("TEST", files.test))
    )
    classes = sorted(set(y))
    positions = {label: i for i, label in enumerate(classes)}
    if not set(tested) <= set(y):
        raise DataDamaged(f"{files.stem} tests classes that it has no series to learn from; download the package again")
    numbers = [np.array([positions[label] for label in labels], dtype=np.int64) for labels in (y, tested)]
    return x, numbers[0], held, numbers[1], tuple(classes)


def parsed(content: str) -> tuple[Any, list[str]]:
    """Series (series, channels, steps) and their labels, of a file in the format ts.

    A line has the channels and the label between colons.
    """
    lines = [line.strip() for line in content.splitlines()]
    start = next((i for i, line in enumerate(lines) if line.lower() == "@data"), None)
    rows = [] if start is None else [line.split(":") for line in lines[start + 1 :] if line]
    try:
        series = np.array([[[float(value) for value in channel.split(",")] for channel in row[:-1]] for row in rows])
    except ValueError as error:
        raise DataDamaged(f"a file of series is damaged ({error}); download the package again") from error
    if series.ndim != 3 or not np.isfinite(series).all():
        raise DataDamaged("a file of series has none, or series of several lengths; download the package again")
    return series, [row[-1] for row in rows]


def _fitted(x: Any) -> Any:
    """Series (series, 12, 128), float32."""
    steps = np.linspace(0, x.shape[2] - 1, STEPS)
    out = np.zeros((len(x), CHANNELS, STEPS), dtype=np.float32)
    for i, row in enumerate(x):
        for channel, values in enumerate(row):
            out[i, channel] = np.interp(steps, np.arange(len(values)), values)
    return out
