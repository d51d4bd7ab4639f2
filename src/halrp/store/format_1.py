"""Reading task files of format 1, which earlier versions wrote. Nothing is written in it any more.

Such a file names every tensor: `r/NAME`, `s/NAME`, `plain/NAME`, and for each matrix `p/NAME`, `q/NAME` and `own/NAME`
its `.values`, and where they apply `.scale` and `.mask`. Ranks, shapes and types are in its metadata.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import safetensors.torch
from torch import Tensor

from halrp.checks import is_whole
from halrp.errors import DamagedError
from halrp.model.codec import PRECISIONS, Coded
from halrp.model.delta import Delta, Recovered
from halrp.model.layout import DTYPES, Layout, Slot, SlotKind, dtype_name
from halrp.store.requirements import require

FORMAT = 1
_PARTS = ("values", "scale", "mask")
_FLOATS = {str(DTYPES[name]): name for name in ("F32", "F64", "F16", "BF16")}
_LARGEST = 2**40
_AUTOCAST = {None: None} | {f"torch.{name}": name for name in ("bfloat16", "float16", "float32", "float64")}
PREDICTED = "bought"
"""What format 1 calls importance, predicted loss and the share that is recovered."""
_FIELDS = {
    "format",
    "task",
    "classes",
    "class_names",
    "base",
    "view",
    "precision",
    "ranks",
    "columns",
    "shapes",
    "types",
    PREDICTED,
    "how",
}


def read(content: bytes, text: str) -> Delta:
    """A task's file as a delta whose layout is what the file shows; `text` is its metadata."""
    tensors = safetensors.torch.load(content)
    facts = json.loads(text)
    _check(facts)
    # So that no byte of a file goes unnoticed: no unknown facts, no NaN, no other spelling.
    written = json.dumps({**facts, "format": FORMAT}, sort_keys=True, separators=(",", ":"), allow_nan=False)
    require(written == text and facts.keys() == _FIELDS, "its facts are not written as this library writes them")
    remaining = dict(tensors)
    scales, matrices = _factors(facts, remaining)
    for name, shape in facts["shapes"].items():
        matrices[f"dense/{name}"] = _matrix(remaining, f"own/{name}", shape[0], math.prod(shape[1:]))
    plain = {key.removeprefix("plain/"): remaining.pop(key) for key in list(remaining) if key.startswith("plain/")}
    require(not remaining, f"it holds unknown tensors: {', '.join(sorted(remaining)[:3])}")
    names = facts["class_names"]
    return Delta(
        task=facts["task"],
        classes=facts["classes"],
        class_names=None if names is None else tuple(names),
        view=facts["view"],
        precision=facts["precision"],
        autocast=_autocast(facts["how"]),
        provenance=facts["how"],
        layout=_layout(facts, scales, plain),
        scales=scales,
        coded=matrices,
        plain=plain,
        recovered={name: Recovered(*map(float, values)).stored() for name, values in facts[PREDICTED].items()},
    )


def _autocast(provenance: Mapping[str, Any]) -> str | None:
    """The precision of forward passes, which only the recipe in such a file names."""
    recipe = provenance.get("recipe")
    named = recipe.get("autocast") if isinstance(recipe, Mapping) else None
    require(named in _AUTOCAST, f"its forward passes are in {named!r}")
    return _AUTOCAST[named]


def _check(facts: Mapping[str, Any]) -> None:
    classes, names = facts["classes"], facts["class_names"]
    ranks, columns, shapes = facts["ranks"], facts["columns"], facts["shapes"]
    require(isinstance(facts["task"], str) and facts["task"] != "", "its task has no name")
    require(is_whole(classes, 1, _LARGEST), f"it has {classes!r} classes")
    require(
        names is None or (isinstance(names, list) and len(names) == classes and all(isinstance(n, str) for n in names)),
        "its class names do not fit its classes",
    )
    require(isinstance(facts["base"], str), "its base has no fingerprint")
    require(facts["view"] in ("", "mean", "full"), f"its view is {facts['view']!r}")
    require(facts["precision"] in PRECISIONS, f"its precision is {facts['precision']!r}")
    require(isinstance(facts["how"], dict), "it does not record how it was learned")
    require(ranks.keys() == columns.keys(), "ranks and columns name different weights")
    numbers = (*ranks.values(), *columns.values())
    require(all(is_whole(n, 0, _LARGEST) for n in numbers), "a rank or width is not a whole number")
    sizes = (isinstance(s, list) and s and all(is_whole(n, 1, _LARGEST) for n in s) for s in shapes.values())
    require(all(sizes), "a shape is not a list of positive whole numbers")
    require(facts["types"].keys() == shapes.keys(), "shapes and types name different weights")
    require(all(t in _FLOATS for t in facts["types"].values()), "a type is not a floating one")
    for name, values in facts[PREDICTED].items():
        # Format 1 wrote floats, 1.0 and not 1: another spelling is not a file of this library.
        good = isinstance(values, list) and len(values) == 3 and all(isinstance(v, float) for v in values)
        require(good and all(map(math.isfinite, values)), f"what it recovered of {name} is not three finite floats")


def _factors(
    facts: Mapping[str, Any], remaining: dict[str, Tensor]
) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Coded]]:
    """Scales and matrices of the weights with a rank, taken from the remaining tensors."""
    scales, matrices = {}, {}
    for name, rank in facts["ranks"].items():
        scales[name] = (remaining.pop(f"r/{name}"), remaining.pop(f"s/{name}"))
        matrices[f"p/{name}"] = _matrix(remaining, f"p/{name}", rank, scales[name][0].numel())
        matrices[f"q/{name}"] = _matrix(remaining, f"q/{name}", rank, facts["columns"][name])
    return scales, matrices


def _matrix(remaining: dict[str, Tensor], key: str, rows: int, columns: int) -> Coded:
    parts = {part: remaining.pop(f"{key}.{part}") for part in _PARTS if f"{key}.{part}" in remaining}
    if "values" not in parts:
        raise DamagedError(f"{key} has no values")
    return Coded(rows, columns, parts)


def _layout(
    facts: Mapping[str, Any], scales: Mapping[str, tuple[Tensor, Tensor]], plain: Mapping[str, Tensor]
) -> Layout:
    """What the file shows of its base's layout; the base has the rest."""
    slots = [
        Slot(name, "adapted", "weight", dtype_name(r.dtype), (r.numel(), facts["columns"][name]))
        for name, (r, _) in scales.items()
    ]
    for name, shape in facts["shapes"].items():
        kind: SlotKind = "adapted" if name in facts[PREDICTED] else "owned"
        slots.append(Slot(name, kind, "weight", _FLOATS[facts["types"][name]], tuple(shape)))
    slots += [Slot(name, "owned", "other", dtype_name(t.dtype), tuple(t.shape)) for name, t in plain.items()]
    return Layout(facts["base"], tuple(sorted(slots)), partial=True)
