"""Whether the numbers of a base and of its tasks can be computed with. Loading and `verify` both ask here.

Numbers that are not finite, and numbers so large that products of two of them are not, give outputs that are not finite
for every input. They come from a file that was damaged or made by hand, never from training, which is refused when it
diverges. What finite numbers of ordinary size give depends on the inputs, and cannot be known from a file.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

import torch
from torch import Tensor

from halrp.model import task_parts
from halrp.model.copies import held
from halrp.model.delta import Delta
from halrp.model.factors import Factors


class BaseNumbers:
    """The tensors of a base by name, and the largest magnitude of each, computed once."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self._largest: dict[str, float] = {}

    def largest(self, name: str) -> float:
        """The largest magnitude of a tensor."""
        if name not in self._largest:
            self._largest[name] = _largest(self.tensors[name])
        return self._largest[name]


def base_problem(tensors: Mapping[str, Tensor], buffers: Container[str]) -> str:
    """Why a base cannot be computed with, or nothing. A buffer holds what the model puts there, NaN included."""
    names = [n for n, t in tensors.items() if n not in buffers and t.is_floating_point() and bool(t.isnan().any())]
    return f"NaN in {', '.join(names[:3])}" if names else ""


def task_problem(delta: Delta, base: BaseNumbers | None) -> str:
    """Why a task of a base cannot be computed with, or nothing. Without its base, as far as the task alone shows."""
    return next(_task_problems(delta, base), "")


def _task_problems(delta: Delta, base: BaseNumbers | None) -> Iterator[str]:
    if delta.has_parts:
        yield from _part_problems(delta)
        if base is None or not _fits(delta, base):
            return
        delta = delta.on(base.tensors)
    for name, part in delta.held_factors.items():
        for letter, tensor in zip("rspq", part.tensors(), strict=True):
            yield from _number_problems(tensor, f"{letter} of {name}", delta.autocast)
        if base is not None and name in base.tensors:
            yield from _merged_problems(part, name, base, delta.autocast)
    for name, tensor in delta.held_owned.items():
        known = None if base is None else base.tensors.get(name)
        if known is not None and known.shape == tensor.shape:
            yield from _owned_problems(tensor, name, known, delta.autocast)
        elif delta.layout.by_name[name].kind != "buffer":
            yield from _number_problems(tensor, name, delta.autocast)


def _part_problems(delta: Delta) -> Iterator[str]:
    """Of what is stored, values and differences alike; nothing else needs memory."""
    for key, part in held(delta.coded).items():
        kind, name = task_parts.kind_of(key), task_parts.name_of(key)
        slot = delta.layout.by_name[name]
        if slot.kind != "buffer":
            label = name if kind in ("dense", "plain") else f"{kind} of {name}"
            yield from _number_problems(task_parts.decode(kind, slot, part, delta.classes), label, delta.autocast)


def _fits(delta: Delta, base: BaseNumbers) -> bool:
    """Whether the base has the tensors that parts belong to; heads have shapes of their own."""
    slots = (delta.layout.by_name[task_parts.name_of(key)] for key in delta.coded)
    return all(s.name in base.tensors and (s.is_head or base.tensors[s.name].shape == s.shape) for s in slots)


def _number_problems(tensor: Tensor, name: str, autocast: str | None) -> Iterator[str]:
    if tensor.is_floating_point() and tensor.numel():
        if not bool(tensor.isfinite().all()):
            yield f"NaN or infinity in {name}"
        limit, largest = _limit(tensor.dtype, autocast), _largest(tensor)
        if largest > limit:
            yield f"{name} has a number of {largest:.1e}, too large to compute with (limit {limit:.1e})"


def _merged_problems(part: Factors, name: str, base: BaseNumbers, autocast: str | None) -> Iterator[str]:
    """Whether r ∘ W ∘ s + p q is finite: by a bound on its entries, and only if that fails by computing it."""
    weight = base.tensors[name]
    limit = _limit(weight.dtype, autocast)
    r, s, p, q = (_largest(tensor) for tensor in part.tensors())
    if r * base.largest(name) * s + part.rank * p * q > limit and weight.shape[:2] == (len(part.r), len(part.s)):
        largest = _largest(part.merged(weight))
        if not largest <= limit:
            yield f"{name} has a merged weight of {largest:.1e}, too large to compute with (limit {limit:.1e})"


def _owned_problems(tensor: Tensor, name: str, base: Tensor, autocast: str | None) -> Iterator[str]:
    """A task's number may be unusual only where the base's is: a buffer holds what the model puts there."""
    if not tensor.is_floating_point() or not tensor.numel():
        return
    base = base.to(tensor.device)
    if bool((base.isfinite() & ~tensor.isfinite()).any()):
        yield f"NaN or infinity in {name}"
    limit = _limit(tensor.dtype, autocast)
    large = (base.abs() <= limit) & (tensor.abs() > limit)
    if bool(large.any()):
        number = _largest(tensor[large])
        yield f"{name} has a number of {number:.1e}, too large to compute with (limit {limit:.1e})"
    if name.endswith("running_var") and bool(((base >= 0) & (tensor < 0)).any()):
        yield f"{name} has a variance below 0"


def _limit(dtype: torch.dtype, autocast: str | None) -> float:
    """The largest usable magnitude: the root of the largest number of a type, so that the product of two is finite.

    float16 has so small a range that ordinary weights exceed the root; there it is the largest number itself.
    """
    most = torch.finfo(torch.float16 if autocast == "float16" else dtype).max
    return float(most**0.5 if most > 1e30 else most)


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0
