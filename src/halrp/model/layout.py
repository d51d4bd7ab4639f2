"""What the tasks of a base may own, tensor by tensor: names, types and shapes, once for all tasks.

A task's file names nothing: it holds numbers in the order of its base's layout. The order is that of the names, so that
it does not depend on the order in which a model defines its layers.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor

from halrp.errors import DamagedError, FormatError
from halrp.model.plan import Plan, Role

FORMATS = (1, 2)
"""The versions of a layout's file: 2 if the first dimension of a head's parameter does not count the task's outputs."""
SlotKind = Literal["adapted", "owned", "buffer"]
DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Types of numbers by the names that safetensors gives them."""
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Slot(NamedTuple):
    """One tensor of the base that a task may own, or adapt."""

    name: str
    kind: SlotKind
    """Adapted by factors or replaced by a dense copy; always owned; or a buffer, owned if training changed it."""
    role: Role
    dtype: str
    """As safetensors names it."""
    shape: tuple[int, ...]
    """In the base."""
    kernel: bool = False
    """Whether the dimensions after the second are positions of a convolution's kernel."""
    output_axis: int = 0
    """Of an owned parameter of the head: the dimension that counts the task's outputs; −1 if none does."""

    @property
    def facts(self) -> list[Any]:
        """The slot in the layout's file, where the first dimension is meant if no other is named."""
        return list(self) if self.output_axis else list(self)[:-1]

    @property
    def encoded(self) -> bool:
        """Whether a full copy is written in the task's precision, as a matrix."""
        return self.kind == "adapted" or (self.kind == "owned" and self.role == "weight" and len(self.shape) > 1)

    @property
    def is_head(self) -> bool:
        """Whether it is a parameter of the head, which every task replaces."""
        return self.role == "head" and self.kind == "owned"

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of its entries."""
        return DTYPES[self.dtype]

    @property
    def itemsize(self) -> int:
        """Bytes of an entry."""
        return self.torch_dtype.itemsize

    def shape_in(self, classes: int) -> tuple[int, ...]:
        """The shape in a task with a number of classes."""
        if not self.is_head or self.output_axis < 0:
            return self.shape
        return (*self.shape[: self.output_axis], classes, *self.shape[self.output_axis + 1 :])

    def columns(self, view: str) -> int:
        """The width of a component's row in a view of convolutions."""
        return self.shape[1] if self.kernel and view == "mean" else math.prod(self.shape[1:])


@dataclass(frozen=True)
class Layout:
    """The slots of a base, in the order of their names."""

    fingerprint: str
    """Of the base."""
    slots: tuple[Slot, ...] = ()
    partial: bool = False
    """Whether these are only the slots that a file of format 1 shows."""

    @staticmethod
    def of(fingerprint: str, plan: Plan, tensors: Mapping[str, Tensor]) -> Layout:
        """The layout of a base with a plan; `tensors` are its parameters and buffers."""
        slots = []
        for name in sorted(tensors):
            parameter, tensor = plan.parameters.get(name), tensors[name]
            if parameter is not None and parameter.kind == "shared":
                continue
            kind: SlotKind = "buffer" if parameter is None else cast(SlotKind, parameter.kind)
            kernel = parameter is not None and parameter.kernel
            axis = 0 if parameter is None else parameter.output_axis
            dtype, shape = dtype_name(tensor.dtype), tuple(tensor.shape)
            slots.append(Slot(name, kind, plan.role(name), dtype, shape, kernel, axis))
        return Layout(fingerprint, tuple(slots))

    @cached_property
    def by_name(self) -> Mapping[str, Slot]:
        """Slots by name."""
        return {slot.name: slot for slot in self.slots}

    @cached_property
    def adapted(self) -> tuple[Slot, ...]:
        """Slots that factors may adapt."""
        return tuple(slot for slot in self.slots if slot.kind == "adapted")

    @cached_property
    def head(self) -> frozenset[str]:
        """The names of the head's parameters, which every task replaces."""
        return frozenset(slot.name for slot in self.slots if slot.is_head)

    @cached_property
    def content(self) -> bytes:
        """The layout's file."""
        version = FORMATS[any(slot.output_axis for slot in self.slots)]
        facts = {"format": version, "fingerprint": self.fingerprint, "slots": [slot.facts for slot in self.slots]}
        return json.dumps(facts, separators=(",", ":")).encode()

    @cached_property
    def digest(self) -> str:
        """The name of this layout in task files: 16 digits of the checksum of its file."""
        return hashlib.sha256(self.content).hexdigest()[:16]

    @staticmethod
    def parse(content: bytes, source: str) -> Layout:
        """Read a layout's file, trusting nothing; `source` names it in errors."""
        try:
            facts = json.loads(content)
            if facts["format"] not in FORMATS:
                raise FormatError(f"{source} has format {facts['format']!r}; this version reads formats 1 and 2")
            layout = Layout(facts["fingerprint"], tuple(_slot(values) for values in facts["slots"]))
            names = [slot.name for slot in layout.slots]
            if names != sorted(set(names)) or not isinstance(layout.fingerprint, str) or layout.content != content:
                raise DamagedError(f"{source} is not written as this library writes a layout")
            return layout
        except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, (DamagedError, FormatError)):
                raise
            raise DamagedError(f"{source} is not a layout ({type(error).__name__}: {error})") from error


def _slot(values: list[Any]) -> Slot:
    name, kind, role, dtype, shape, kernel, *axes = values
    axis = axes[0] if axes else 0
    sizes = isinstance(shape, list) and all(type(n) is int and 0 <= n < 2**40 for n in shape)
    matrix = kind != "adapted" or (len(shape) > 1 and min(shape) > 0)
    known = kind in get_args(SlotKind) and role in get_args(Role) and dtype in DTYPES
    counted = len(axes) < 2 and type(axis) is int and -1 <= axis < max(1, len(shape))
    if not (isinstance(name, str) and isinstance(kernel, bool) and known and sizes and matrix and counted):
        raise DamagedError(f"a layout has a slot that makes no sense: {str(values)[:80]}")
    return Slot(name, kind, role, dtype, tuple(shape), kernel, axis)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a type in files."""
    if dtype not in DTYPE_NAMES:
        raise FormatError(f"tensors of type {dtype} cannot be written to files; convert the buffer or parameter")
    return DTYPE_NAMES[dtype]
