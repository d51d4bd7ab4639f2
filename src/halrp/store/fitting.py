"""Whether a task that was read fits a base: `check`."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from halrp.errors import DamagedError, WrongBaseError
from halrp.model import int4, task_parts
from halrp.model.base import Base
from halrp.model.codec import Coded, unpack
from halrp.model.copies import held
from halrp.model.delta import Delta
from halrp.model.layout import DTYPES, Layout
from halrp.model.usable import task_problem
from halrp.store.requirements import require


def check(delta: Delta, base: Base, source: str) -> Delta:
    """Compare a delta with a base and return it on the base's device, or raise; `source` names it in errors."""
    if delta.base != base.fingerprint:
        raise WrongBaseError(
            f"{source} belongs to a base with fingerprint {delta.base[:12]}…, not to {base.fingerprint[:12]}…; "
            "load it with the base it was learned on"
        )
    try:
        if delta.is_base:
            require(delta.classes == base.task.classes, "its classes are not those of the base's head")
        else:
            if delta.has_parts:
                _check_parts(delta, base)
            else:
                _check_weights(delta, base)
                _check_plain(delta, base)
            problem = task_problem(delta, base.numbers)
            require(not problem, problem)
    except DamagedError as error:
        raise DamagedError(f"{source}: {error}") from error
    return _moved(delta, base)


def _check_parts(delta: Delta, base: Base) -> None:
    plan, tensors, slots = base.plan, base.tensors, delta.layout.by_name
    adapted, buffers = plan.named("adapted").keys(), {name for name, _ in base.module.named_buffers()}
    require(delta.coded.keys() == delta.precisions.keys(), "it has parts without a precision")
    # Those of its own layout; an earlier version may have planned fewer weights to be adapted.
    require(delta.recovered.keys() <= adapted, "what it recovered is not that of the adapted weights")
    missing = sorted(base.layout.head - {task_parts.name_of(key) for key in delta.precisions})
    require(not missing, f"it lacks {', '.join(missing[:3])}")
    ranks = delta.ranks
    for key, precision in delta.precisions.items():
        kind, name = task_parts.kind_of(key), task_parts.name_of(key)
        known = name in (plan.named("owned").keys() | adapted | buffers if kind == "plain" else adapted)
        require(known and name in slots, f"it holds {key}, which a task cannot own")
        slot = slots[name]
        shape, dtype = plan.shape_for(name, tuple(tensors[name].shape), delta.classes), tensors[name].dtype
        require(slot.shape_in(delta.classes) == shape, f"{name} has shape {slot.shape}, expected {shape}")
        require(slot.torch_dtype == dtype, f"{name} has type {slot.torch_dtype}, expected {dtype}")
        part = task_parts.shape_of(kind, slot, ranks.get(name, 0), delta.view, delta.classes)
        matrix = held(delta.coded)[key]
        fits = (matrix.rows, matrix.columns) == task_parts.matrix_shape(kind, part)
        require(fits, f"{key} is {matrix.rows} × {matrix.columns}, expected {part}")
        _check_coded(matrix, key, precision, dtype, finite=name not in buffers)


def _check_weights(delta: Delta, base: Base) -> None:
    weights = dict(base.module.named_parameters())
    written_as_they_are = _written_as_they_are(delta, base)
    adapted = base.plan.named("adapted").keys() - written_as_they_are
    small = {n for n, p in base.plan.named("owned").items() if p.role == "weight"} - written_as_they_are
    require(delta.scales.keys() <= adapted, "it adapts weights that the model does not adapt")
    dense = set(delta.dense)
    require(
        dense == (adapted - delta.scales.keys()) | small,
        "it has weights that are neither adapted nor dense, or both",
    )
    recovered = delta.recovered.keys()
    require(not recovered or recovered == adapted, "what it recovered is not that of the adapted weights")
    slots = _known_layout(delta.layout, base).by_name
    for name in delta.scales:
        _check_factors(delta, name, weights[name], slots[name].columns(delta.view))
    for name in delta.dense:
        slot, weight = delta.layout.by_name[name], weights[name]
        require(slot.shape == tuple(weight.shape), f"{name} has shape {slot.shape}")
        require(DTYPES[slot.dtype] == weight.dtype, f"{name} has type {DTYPES[slot.dtype]}")
        _check_coded(delta.coded[f"dense/{name}"], f"dense/{name}", delta.precision, weight.dtype)


def _written_as_they_are(delta: Delta, base: Base) -> set[str]:
    """Parameters that tasks adapt, and this one holds in full: an earlier version planned them otherwise."""
    weights = {n for n, p in base.plan.parameters.items() if p.kind == "adapted" or p.role == "weight"}
    return (weights & delta.plain.keys()) - delta.scales.keys() - {*delta.dense}


def _check_factors(delta: Delta, name: str, weight: Tensor, columns: int) -> None:
    rows, inputs = weight.shape[:2]
    r, s = delta.scales[name]
    p, q = delta.coded[f"p/{name}"], delta.coded[f"q/{name}"]
    _check_tensor(r, f"r of {name}", (rows,), weight.dtype)
    _check_tensor(s, f"s of {name}", (inputs,), weight.dtype)
    require(q.columns == columns, f"{name} has {q.columns} columns, expected {columns}")
    require(q.rows <= min(rows, q.columns), f"{name} has rank {q.rows}, above {min(rows, q.columns)}")
    for key, matrix in (("p", p), ("q", q)):
        _check_coded(matrix, f"{key}/{name}", delta.precision, weight.dtype)


def _check_coded(matrix: Coded, key: str, precision: str, dtype: torch.dtype, finite: bool = True) -> None:
    values, scale, mask = matrix.parts["values"], matrix.parts.get("scale"), matrix.parts.get("mask")
    if precision == "int4":
        require(scale is not None and mask is None, f"{key} has parts that do not fit int4")
        _check_tensor(values, key, (matrix.rows, int4.packed_columns(matrix.columns)), torch.uint8)
        _check_tensor(
            matrix.parts["scale"], f"scale of {key}", (matrix.rows, int4.groups(matrix.columns)), torch.bfloat16
        )
        return
    wanted = {"float32": dtype, "bfloat16": torch.bfloat16, "int8": torch.int8}[precision]
    entries = matrix.rows * matrix.columns
    if mask is None:
        _check_tensor(values, key, (matrix.rows, matrix.columns), wanted, finite)
    else:
        require(mask.dim() == 1, f"{key} has a mask of shape {tuple(mask.shape)}")
        _check_tensor(values, key, (int(unpack(mask, entries).sum()),), wanted, finite)
    require((scale is not None) == (precision == "int8"), f"{key} has scales that do not fit {precision}")
    if scale is not None:
        _check_tensor(scale, f"scale of {key}", (matrix.rows,), torch.float32)


def _check_plain(delta: Delta, base: Base) -> None:
    plan, buffers = base.plan, dict(base.module.named_buffers())
    dense = set(delta.dense)
    owned = {n for n in plan.named("owned") if n not in dense} | _written_as_they_are(delta, base)
    missing = owned - delta.plain.keys()
    require(not missing, f"it lacks {', '.join(sorted(missing)[:3])}")
    tensors = base.tensors
    for name, tensor in delta.plain.items():
        require(name in owned or name in buffers, f"it holds {name}, which a task cannot own")
        shape, dtype = plan.shape_for(name, tuple(tensors[name].shape), delta.classes), tensors[name].dtype
        # A buffer holds what the model puts there: placeholders may well be NaN.
        _check_tensor(tensor, name, shape, dtype, finite=name not in buffers)


def _check_tensor(tensor: Tensor, name: str, shape: tuple[int, ...], dtype: torch.dtype, finite: bool = True) -> None:
    require(tuple(tensor.shape) == shape, f"{name} has shape {tuple(tensor.shape)}, expected {shape}")
    require(tensor.dtype == dtype, f"{name} has type {tensor.dtype}, expected {dtype}")
    if finite and tensor.is_floating_point():
        require(bool(tensor.isfinite().all()), f"{name} holds NaN or infinity")


def _moved(delta: Delta, base: Base) -> Delta:
    """The delta on the base's device, with tensors in memory as trained ones are."""

    # Copies, because the last bits of a product may depend on how its factors lie in memory: a file's tensors begin
    # anywhere and have their channels first, those that were trained begin at multiples of 64 and may not.
    def move(tensor: Tensor) -> Tensor:
        tensor = tensor.to(base.device, copy=True)
        last = base.channels_last and tensor.dim() == 4
        return tensor.contiguous(memory_format=torch.channels_last) if last else tensor

    return replace(
        delta,
        layout=_known_layout(delta.layout, base),
        scales={n: (move(r), move(s)) for n, (r, s) in delta.scales.items()},
        coded={
            key: Coded(c.rows, c.columns, {part: move(t) for part, t in c.parts.items()})
            for key, c in delta.coded.items()
        },
        plain={n: move(t) for n, t in delta.plain.items()},
        origin={},
    ).on(base.tensors)


def _known_layout(layout: Layout, base: Base) -> Layout:
    """The layout of a task that fits a base: one object for all tasks if it is the base's."""
    return base.layout if layout.partial or layout == base.layout else layout
