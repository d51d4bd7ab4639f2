"""Reading a task's file: bytes → `Delta`, believing nothing.

`parse` takes the bytes apart and `check` holds the result against a base. Every mistake, by accident or by intent, is
one `DamagedError` (or `FormatError`, `WrongBaseError`) that names it. Nothing is allocated beyond what the file holds
before its shapes are known to be those of the base.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from halrp.errors import DamagedError, FormatError, WrongBaseError
from halrp.model.base import Base
from halrp.model.codec import PRECISIONS, Coded, unpack
from halrp.model.delta import FORMAT, METADATA, Delta, Recovered

_PARTS = ("values", "scale", "mask")
_DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)}


def parse(content: bytes, what: str) -> Delta:
    """Take a task's file apart. `what` names the file in errors."""
    try:
        tensors = safetensors.torch.load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        text = header["__metadata__"][METADATA]
        facts = json.loads(text)
        if facts["format"] != FORMAT:
            raise FormatError(f"{what} has format {facts['format']!r}; this version reads format {FORMAT}")
        delta = _delta(facts, tensors)
        # So that what is read can be written again, to the byte: no unknown facts, no NaN, no other spelling.
        written = json.dumps(delta.metadata(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        _require(written == text, "its facts are not written as this library writes them")
        return delta
    except (DamagedError, FormatError) as error:
        raise type(error)(f"{what}: {error}" if not str(error).startswith(what) else str(error)) from error
    except (SafetensorError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise DamagedError(f"{what} is damaged or not a task's file ({type(error).__name__}: {error})") from error


def _delta(facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Delta:
    classes, names = facts["classes"], facts["class_names"]
    ranks, columns, shapes = facts["ranks"], facts["columns"], facts["shapes"]
    _require(isinstance(facts["task"], str) and facts["task"] != "", "its task has no name")
    _require(_whole(classes, 1), f"it has {classes!r} classes")
    _require(
        names is None or (isinstance(names, list) and len(names) == classes and all(isinstance(n, str) for n in names)),
        "its class names do not fit its classes",
    )
    _require(isinstance(facts["base"], str), "its base has no fingerprint")
    _require(facts["view"] in ("", "mean", "full"), f"its view is {facts['view']!r}")
    _require(facts["precision"] in PRECISIONS, f"its precision is {facts['precision']!r}")
    _require(isinstance(facts["how"], dict), "it does not say how it was learned")
    _require(ranks.keys() == columns.keys(), "ranks and columns name different weights")
    _require(all(_whole(v, 0) for v in (*ranks.values(), *columns.values())), "a rank or width is not a whole number")
    _require(
        all(isinstance(s, list) and s and all(_whole(n, 1) for n in s) for s in shapes.values()), "a shape is not one"
    )
    _require(facts["types"].keys() == shapes.keys(), "shapes and types name different weights")
    _require(all(t in _DTYPES for t in facts["types"].values()), "a type is not a floating one")
    recovered = {}
    for name, values in facts["bought"].items():
        _require(
            len(values) == 3 and all(_number(v) for v in values), f"the recovered loss of {name} is not three numbers"
        )
        recovered[name] = Recovered(*map(float, values))
    left = dict(tensors)

    def coded(key: str, rows: int, width: int) -> Coded:
        parts = {part: left.pop(f"{key}.{part}") for part in _PARTS if f"{key}.{part}" in left}
        _require("values" in parts, f"{key} has no values")
        return Coded(rows, width, parts)

    scales, matrices = {}, {}
    for name, rank in ranks.items():
        scales[name] = (left.pop(f"r/{name}"), left.pop(f"s/{name}"))
        matrices[f"p/{name}"] = coded(f"p/{name}", rank, scales[name][0].numel())
        matrices[f"q/{name}"] = coded(f"q/{name}", rank, columns[name])
    for name, shape in shapes.items():
        matrices[f"own/{name}"] = coded(f"own/{name}", shape[0], math.prod(shape[1:]))
    plain = {key.removeprefix("plain/"): left.pop(key) for key in list(left) if key.startswith("plain/")}
    _require(not left, f"it holds unknown tensors: {', '.join(sorted(left)[:3])}")
    return Delta(
        task=facts["task"],
        classes=classes,
        base=facts["base"],
        scales=scales,
        coded=matrices,
        shapes={name: tuple(shape) for name, shape in shapes.items()},
        dtypes={name: _DTYPES[facts["types"][name]] for name in shapes},
        plain=plain,
        recovered=recovered,
        view=facts["view"],
        precision=facts["precision"],
        class_names=None if names is None else tuple(names),
        provenance=facts["how"],
    )


def check(delta: Delta, base: Base, what: str) -> Delta:
    """Hold a delta against a base and return it on the base's device with its roles, or raise."""
    if delta.base != base.fingerprint:
        raise WrongBaseError(
            f"{what} belongs to a base with fingerprint {delta.base[:12]}…, not to {base.fingerprint[:12]}…; "
            "load it with the base it was learned on"
        )
    plan, weights = base.plan, dict(base.module.named_parameters())
    try:
        if delta.is_base:
            _require(delta.classes == base.task.classes, "its classes are not those of the base's head")
            return delta
        adapted = plan.named("adapted")
        small = {n for n, t in plan.named("owned").items() if t.role == "weight"}
        _require(delta.scales.keys() <= adapted.keys(), "it adapts weights that the model does not adapt")
        _require(
            delta.shapes.keys() == (adapted.keys() - delta.scales.keys()) | small,
            "weights that are neither adapted nor owned, or both",
        )
        for name, (r, s) in delta.scales.items():
            _check_factors(delta, name, r, s, weights[name])
        for name, shape in delta.shapes.items():
            _require(shape == tuple(weights[name].shape), f"{name} has shape {shape}")
            _require(delta.dtypes[name] == weights[name].dtype, f"{name} has type {delta.dtypes[name]}")
            _check_coded(delta.coded[f"own/{name}"], f"own/{name}", delta.precision, weights[name].dtype)
        _check_plain(delta, base)
    except DamagedError as error:
        raise DamagedError(f"{what}: {error}") from error
    return _placed(delta, base)


def _check_factors(delta: Delta, name: str, r: Tensor, s: Tensor, weight: Tensor) -> None:
    rows, inputs = weight.shape[:2]
    p, q = delta.coded[f"p/{name}"], delta.coded[f"q/{name}"]
    _check_tensor(r, f"r of {name}", (rows,), weight.dtype)
    _check_tensor(s, f"s of {name}", (inputs,), weight.dtype)
    _require(q.columns in (inputs, weight[0].numel()), f"{name} has {q.columns} columns")
    _require(q.rows <= min(rows, q.columns), f"{name} has rank {q.rows}, above {min(rows, q.columns)}")
    for key, matrix in (("p", p), ("q", q)):
        _check_coded(matrix, f"{key}/{name}", delta.precision, weight.dtype)


def _check_coded(matrix: Coded, key: str, precision: str, dtype: torch.dtype) -> None:
    values, scale, mask = (matrix.parts.get(part) for part in _PARTS)
    assert values is not None  # parse saw to it
    wanted = {"float32": dtype, "bfloat16": torch.bfloat16, "int8": torch.int8}[precision]
    entries = matrix.rows * matrix.columns
    if mask is None:
        _check_tensor(values, key, (matrix.rows, matrix.columns), wanted)
    else:
        _require(mask.dim() == 1, f"{key} has a mask of shape {tuple(mask.shape)}")
        _check_tensor(values, key, (int(unpack(mask, entries).sum()),), wanted)
    _require((scale is not None) == (precision == "int8"), f"{key} has scales that do not fit {precision}")
    if scale is not None:
        _check_tensor(scale, f"scale of {key}", (matrix.rows,), torch.float32)


def _check_plain(delta: Delta, base: Base) -> None:
    plan, buffers = base.plan, dict(base.module.named_buffers())
    owned = {n for n, t in plan.named("owned").items() if n not in delta.shapes}
    missing = owned - delta.plain.keys()
    _require(not missing, f"it lacks {', '.join(sorted(missing)[:3])}")
    tensors = base.tensors
    for name, tensor in delta.plain.items():
        _require(name in owned or name in buffers, f"it holds {name}, which is not the task's to own")
        shape, dtype = tuple(tensors[name].shape), tensors[name].dtype
        if plan.role(name) == "head" and name not in buffers:
            shape = (delta.classes, *shape[1:])
        # A buffer holds what the model puts there: placeholders may well be NaN.
        _check_tensor(tensor, name, shape, dtype, finite=name not in buffers)


def _check_tensor(tensor: Tensor, what: str, shape: tuple[int, ...], dtype: torch.dtype, finite: bool = True) -> None:
    _require(tuple(tensor.shape) == shape, f"{what} has shape {tuple(tensor.shape)}, expected {shape}")
    _require(tensor.dtype == dtype, f"{what} has type {tensor.dtype}, expected {dtype}")
    if finite and tensor.is_floating_point():
        _require(bool(tensor.isfinite().all()), f"{what} holds NaN or infinity")


def _placed(delta: Delta, base: Base) -> Delta:
    # Copies, because the last bits of a product may depend on how its factors lie in memory: a file's tensors begin
    # anywhere and have their channels first, those that were trained begin at multiples of 64 and may not.
    def place(tensor: Tensor) -> Tensor:
        tensor = tensor.to(base.device, copy=True)
        last = base.channels_last and tensor.dim() == 4
        return tensor.contiguous(memory_format=torch.channels_last) if last else tensor

    return replace(
        delta,
        scales={n: (place(r), place(s)) for n, (r, s) in delta.scales.items()},
        coded={
            key: Coded(c.rows, c.columns, {part: place(t) for part, t in c.parts.items()})
            for key, c in delta.coded.items()
        },
        plain={n: place(t) for n, t in delta.plain.items()},
        roles={n: base.plan.role(n) for n in (*delta.plain, *delta.shapes)},
    )


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**40


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _require(good: bool, problem: str) -> None:
    if not good:
        raise DamagedError(problem)
