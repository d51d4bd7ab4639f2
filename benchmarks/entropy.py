"""Whether entropy coding of quantised parts would make task files smaller: real streams against coders and entropies.

A network is trained on the first task of scikit-learn's digits and given as the base of the others, which are learned
in eight and in four bits. The whole numbers of their files are taken as they lie there, and compared with what zlib,
lzma and bzip2 make of them, and with the order-0 entropy: the bits that an ideal coder needs if entries are independent
and it knows how frequent each is. "entropy by part" knows that of each part, whose description is not counted; so no
coder of independent entries reaches it. Scales are not coded.

    python -m benchmarks.entropy [--tasks 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import bz2
import json
import lzma
import math
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from benchmarks.starts import RECIPE, pretrained
from halrp import FromProbe, Halrp, Learner, Recipe
from halrp.lab.streams import load
from halrp.model import int4
from halrp.model.codec import Coded, unpack
from halrp.model.delta import Delta
from halrp.store import atomic

BOUND = 20_000
"""Bytes of a task's file."""
STREAM, BACKBONE = "digits", "digits-net"
PRECISIONS: tuple[Literal["int8", "int4"], ...] = ("int8", "int4")


def entropy(values: Tensor) -> float:
    """Bytes of whole numbers in an ideal code for their own frequencies."""
    counts = values.flatten().unique(return_counts=True)[1].double()
    return float((counts * (counts.sum() / counts).log2()).sum()) / 8


def numbers(part: Coded) -> Tensor:
    """The whole numbers of a quantised part, zeros included."""
    values = part.parts["values"]
    if values.dtype == torch.uint8:
        return int4.numbers(values, part.columns)
    if "mask" not in part.parts:
        return values
    whole = values.new_zeros(part.rows * part.columns)
    whole[unpack(part.parts["mask"], whole.numel())] = values
    return whole


def stream(part: Coded) -> Tensor:
    """The bytes of a quantised part without its scales: its numbers, or a bit for each and those that are not zero."""
    written = [part.parts[name] for name in ("mask", "values") if name in part.parts]
    return torch.cat([tensor.contiguous().view(torch.uint8).flatten() for tensor in written])


def quantised(deltas: list[Delta], precision: str) -> dict[str, Coded]:
    """The parts in a precision that some tasks store."""
    parts = {f"{number}/{key}": part for number, delta in enumerate(deltas) for key, part in delta.coded.items()}
    chosen = {key: deltas[int(key.partition("/")[0])].precisions[key.partition("/")[2]] for key in parts}
    return {key: part for key, part in parts.items() if chosen[key] == precision}


def measure(deltas: list[Delta], precision: str) -> dict[str, Any]:
    """Bytes of the entries in this precision as they are stored, and as coders and entropies have them."""
    parts = quantised(deltas, precision)
    content = bytes(torch.cat([stream(part) for part in parts.values()]).tolist())
    values = [numbers(part) for part in parts.values()]
    coded = {
        "zlib": len(zlib.compress(content, 9)),
        "lzma": len(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME, format=lzma.FORMAT_ALONE)),
        "bzip2": len(bz2.compress(content, 9)),
        "entropy": entropy(torch.cat([v.flatten() for v in values])),
        "entropy by part": sum(entropy(v) for v in values),
    }
    files = sum(delta.bytes for delta in deltas)
    rows = {
        name: {
            "bytes": math.ceil(size),
            "of stream %": 100 * size / len(content),
            "of files %": 100 * (files - len(content) + size) / files,
        }
        for name, size in coded.items()
    }
    return {"precision": precision, "files": files, "stream": len(content), "parts": len(parts), "coders": rows}


def learned(bits: Literal["int8", "int4"], tasks: int) -> list[Delta]:
    """The tasks after the first, with components of these bits."""
    tasks_of = load(STREAM, "A", 0, 1.0, None)
    model = pretrained(BACKBONE, tasks_of.shape, tasks_of[0], 0)
    method = replace(Halrp.budget(BOUND), start=FromProbe(bits=bits, precision=bits))
    recipe = Recipe.auto(epochs=RECIPE.epochs, batch=RECIPE.batch)
    learner = Learner(model, method=method, recipe=recipe, base="given", progress=None)
    return [learner.learn(str(i), tasks_of[i].train, classes=tasks_of[i].classes) for i in range(1, 1 + tasks)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(learned(bits, options.tasks), bits) for bits in PRECISIONS]
    for row in rows:
        print(f"{row['precision']}: {row['stream']:,} bytes of entries in files of {row['files']:,}")
        for name, coder in row["coders"].items():
            print(f"  {name:<18}{coder['bytes']:8,}  {coder['of stream %']:6.1f} %  files {coder['of files %']:6.1f} %")
    if options.json:
        record = {"torch": torch.__version__, "bound": BOUND, "tasks": options.tasks, "rows": rows}
        atomic.write(options.json, (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
