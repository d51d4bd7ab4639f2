"""The file of a base: every parameter and buffer by name."""

from __future__ import annotations

from collections.abc import Mapping

import safetensors.torch
import torch
from safetensors import SafetensorError

from halrp.errors import DamagedError, WrongBaseError
from halrp.model import views
from halrp.model.base import Base
from halrp.model.layers.head import APPENDED
from halrp.model.usable import base_problem
from halrp.store import atomic
from halrp.store.manifest import Manifest
from halrp.store.tensors import copy_of

_CONVERSIONS = {
    torch.float64: "double",
    torch.float32: "float",
    torch.bfloat16: "bfloat16",
    torch.float16: "half",
}
"""How a model's precision is changed."""


def write(base: Base) -> bytes:
    """The file of a base. The same weights give the same bytes."""
    return safetensors.torch.save({name: copy_of(tensor) for name, tensor in base.tensors.items()})


def largest(base: Base) -> int:
    """Bytes that a file of a store on this base may have: a head may be wide, but not beyond all measure."""
    return max(atomic.LARGEST, 4 * sum(tensor.nbytes for tensor in base.tensors.values()))


def read(content: bytes, manifest: Manifest, like: Base, source: str) -> Base:
    """A base on the architecture of `like`, checked against its manifest; `source` names the file in errors."""
    base = parse(content, manifest, like, source)
    if base.fingerprint != manifest.fingerprint:
        ours, theirs = base.fingerprint[:12], manifest.fingerprint[:12]
        raise DamagedError(f"{source} has the fingerprint {ours}…, not {theirs}…")
    return base


def parse(content: bytes, manifest: Manifest, like: Base, source: str) -> Base:
    """The same for a base that may be another one than the manifest's: its fingerprint is not compared."""
    try:
        tensors = safetensors.torch.load(content)
    except (SafetensorError, LookupError, ValueError, TypeError, RuntimeError) as error:
        raise DamagedError(f"{source} cannot be read: {error}") from error
    if manifest.head != like.plan.head:
        raise WrongBaseError(f"{source} was made with {_named(manifest.head)}, the model has {_named(like.plan.head)}")
    classes = _classes_of(tensors, like, source)
    problem = base_problem(tensors, dict(like.module.named_buffers()))
    if problem:
        raise DamagedError(f"{source}: {problem}")
    net = views.clone(like.module)
    if like.plan.head:
        views.replace_output(net, like.module, like.plan, classes, torch.device("meta"))
        net.get_submodule(like.plan.output).to_empty(device=like.device)
    for name, tensor in tensors.items():
        # A copy lies in memory as a trained tensor does; the last bits of a product may depend on it.
        views.get_tensor(net, name).data = tensor.to(like.device, copy=True)
    return Base(net, like.plan, manifest.channels_last, counts_head=manifest.counts_head, call=like.call)


def _named(head: str) -> str:
    """A head in words, and how to ask for it."""
    if head in APPENDED:
        return "a head on top of the model (head=nn.Linear(...))"
    return f"the head {head!r}" if head else "its own outputs kept (head=False)"


def _classes_of(tensors: Mapping[str, torch.Tensor], like: Base, source: str) -> int:
    """The classes of a stored base's head, or an error if its tensors do not fit the architecture of `like`."""
    ours, plan = like.tensors, like.plan
    weight = f"{plan.output}.weight"
    classes = like.outputs
    if plan.head:
        axis, shape = plan.parameters[weight].output_axis, tensors[weight].shape if weight in tensors else ()
        classes = shape[axis] if axis < len(shape) else 0
    shapes = {n: plan.shape_for(n, tuple(t.shape), classes) for n, t in ours.items()}
    wrong = sorted(ours.keys() ^ tensors.keys()) or [n for n in ours if shapes[n] != tuple(tensors[n].shape)]
    other_types = [] if wrong else [n for n in ours if ours[n].dtype != tensors[n].dtype]
    if other_types:
        name = other_types[0]
        stored = tensors[name].dtype
        convert = f"model.{_CONVERSIONS[stored]}()" if stored in _CONVERSIONS else "tensors of the stored types"
        raise WrongBaseError(
            f"{source} holds {name} as {stored}, the model has {ours[name].dtype} ({len(other_types)} such tensors); "
            f"pass the model it was made with, in its precision: {convert}"
        )
    if wrong or not classes:
        raise WrongBaseError(
            f"{source} does not fit the model at {', '.join(wrong[:3]) or weight}; pass the model it was made with"
        )
    return classes
