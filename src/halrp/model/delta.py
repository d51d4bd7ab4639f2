"""All that one task owns, and its size.

A `Delta` is immutable: fine-tuning works on copies, pruning makes a new one, and whoever reads its tensors gets copies,
so that writing to them changes nothing that is committed. It holds its factors as they are written
(`codec`), in the precision of the method, and predictions are computed from what decoding them gives. So a task is
bit-identical before it is saved and after it is loaded, and its size is the size of its file: factors, scales, biases,
norm parameters *and* buffers, head, header. The paper's own count (non-zeros, without biases and statistics) is there
too because its tables use it.

There are two kinds. `pack` makes one that has a part of everything, its matrices in one precision. `of_parts` makes one
of any parts, each in a precision of its own (`task_parts`). Some of these are differences to the base, so such a delta
knows the base's tensors.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from halrp.errors import ModelError, SettingError
from halrp.model import codec, file_size, task_parts
from halrp.model.codec import PRECISIONS, Coded, Precision
from halrp.model.copies import Copies, held
from halrp.model.description import FORMAT, PARTS_FORMAT, Description, described
from halrp.model.factors import Factors
from halrp.model.layout import DTYPES, Layout, dtype_name
from halrp.model.plan import Role
from halrp.model.task_parts import PartSize


@dataclass(frozen=True)
class Recovered:
    """What the allocation predicted for one layer, and how much of that loss its components recover."""

    importance: float
    """What a unit of squared error in this layer costs the loss."""
    predicted: float
    """Predicted loss of dropping the whole residual of this layer."""
    share: float
    """Share of that loss which the stored components recover, 0 … 1."""

    def stored(self) -> Recovered:
        """The numbers as files hold them: in float32, and beyond its range its largest number."""
        largest = torch.finfo(torch.float32).max
        bounded = [min(max(number, -largest), largest) for number in (self.importance, self.predicted, self.share)]
        return Recovered(*struct.unpack("<3f", struct.pack("<3f", *bounded)))


@dataclass(frozen=True, eq=False, kw_only=True)
class Delta(Description):
    """What one task adds to the base. One that owns nothing is the base's own task. Made by `pack` or `of_parts`."""

    layout: Layout
    """What tasks of the base may own."""
    scales: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """r and s by the name of the adapted weight, unless parts have precisions of their own."""
    coded: Mapping[str, Coded] = field(default_factory=dict)
    """Matrices as they are written: `p/NAME` (components × J), `q/NAME` (components × columns), and `dense/NAME`, the
    rows of a dense weight; or every part, if each has a precision of its own."""
    precisions: Mapping[str, Precision] = field(default_factory=dict)
    """The precision of each part, if each has its own."""
    plain: Mapping[str, Tensor] = field(default_factory=dict)
    """Full private tensors that are written as they are: head, biases, norm parameters, changed buffers; none if
    parts have precisions of their own."""
    recovered: Mapping[str, Recovered] = field(default_factory=dict)
    """For each adapted weight, what its components recover; for all of them or for none."""
    probe: Mapping[str, Tensor] = field(default_factory=dict)
    """A few inputs by name, and the `outputs` that the task gave for them when it was committed."""
    statistics: Mapping[str, Tensor] = field(default_factory=dict)
    """What task inference compares inputs with."""
    origin: Mapping[str, Tensor] = field(default_factory=dict)
    """The base's tensors that parts are differences to, themselves. They are no part of the task's file."""

    def __post_init__(self) -> None:
        """Make the mappings read-only, and give copies of what they hold."""
        super().__post_init__()
        for name in ("scales", "coded", "precisions", "plain", "recovered", "probe", "statistics", "origin"):
            object.__setattr__(self, name, Copies(getattr(self, name)))

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone, without the base: what was computed from them is computed again elsewhere."""
        return {part.name: getattr(self, part.name) for part in fields(self)} | {"origin": Copies({})}

    def __copy__(self) -> Delta:
        """Itself: it never changes."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Delta:
        """Itself: it never changes."""
        return self

    @staticmethod
    def pack(
        description: Description,
        layout: Layout,
        factors: Mapping[str, Factors],
        owned: Mapping[str, Tensor],
        recovered: Mapping[str, Recovered] | None = None,
    ) -> Delta:
        """Encode factors and dense weights in the task's precision; other tensors are not copied."""
        if description.precision not in PRECISIONS:
            raise SettingError(
                f"matrices of one precision cannot be in {description.precision!r}; choose one of "
                f"{', '.join(map(repr, PRECISIONS))}, or a method that stores parts (Delta.of_parts)"
            )
        _refuse_misfits(layout, owned, description.classes)
        dense = {n: t for n, t in owned.items() if layout.by_name[n].encoded}
        coded = {f"dense/{n}": codec.encode(t.reshape(t.shape[0], -1), description.precision) for n, t in dense.items()}
        return Delta(
            **described(description) | {"format": FORMAT},
            layout=layout,
            scales={n: (f.r, f.s) for n, f in factors.items()},
            coded=coded | _coded(factors, description.precision),
            plain={n: t for n, t in owned.items() if n not in dense},
            recovered={n: values.stored() for n, values in (recovered or {}).items()},
        )

    @staticmethod
    def of_parts(
        description: Description,
        layout: Layout,
        origin: Mapping[str, Tensor],
        parts: Mapping[str, tuple[Tensor, Precision]],
        recovered: Mapping[str, Recovered] | None = None,
    ) -> Delta:
        """Encode parts by their keys, each in its precision; what is not given is the base's (`task_parts`).

        Values are those that were trained, also where differences are stored: r (J,), s (I,), p (J, k), q (k, columns),
        and tensors in their own shapes; they are copied. `origin` are the base's tensors, which are not.
        """
        given = {
            key: part for key, part in parts.items() if task_parts.kind_of(key) not in ("p", "q") or part[0].numel()
        }
        task_parts.refuse_misfits(layout, description.view, description.classes, origin, given)
        coded = {}
        for key in task_parts.ordered(given, layout):
            kind, name = task_parts.kind_of(key), task_parts.name_of(key)
            base = origin.get(name) if kind in ("dense", "plain") else None
            coded[key] = task_parts.encode(kind, layout.by_name[name], *given[key], base)
        made = Delta(
            **described(description) | {"format": PARTS_FORMAT, "precision": "float32"},
            layout=layout,
            coded=coded,
            precisions={key: given[key][1] for key in coded},
            recovered={n: values.stored() for n, values in (recovered or {}).items()},
        )
        return made.on(origin)

    def on(self, base: Mapping[str, Tensor]) -> Delta:
        """The same delta, which knows the tensors of its base by their names; itself if it needs none it has not."""
        differences = self.differences
        if differences <= self.origin.keys():
            return self
        return replace(self, origin={name: base[name] for name in sorted(differences) if name in base})

    @property
    def has_parts(self) -> bool:
        """Whether every part has a precision of its own."""
        return self.format == PARTS_FORMAT

    @cached_property
    def differences(self) -> frozenset[str]:
        """The tensors that are stored as differences to the base's."""
        slots = self.layout.by_name
        kinds = ((task_parts.kind_of(key), task_parts.name_of(key), p) for key, p in held(self.precisions).items())
        owned = (
            (name, task_parts.is_difference(kind, slots[name], p)) for kind, name, p in kinds if kind not in "rspq"
        )
        return frozenset(name for name, is_difference in owned if is_difference)

    @property
    def base(self) -> str:
        """Fingerprint of the base this delta belongs to."""
        return self.layout.fingerprint

    @property
    def is_base(self) -> bool:
        """Whether this is the base's own task: it owns nothing, and its outputs are the base's."""
        return not (self.plain or self.coded or self.scales)

    @property
    def lowers_precision(self) -> bool:
        """Whether the task computes with weights of less than float32, in autocast or in the model."""
        return self.autocast is not None or any(self.layout.by_name[name].itemsize < 4 for name in self.ranks)

    @property
    def factors(self) -> Mapping[str, Factors]:
        """Low-rank deltas by the name of the adapted weight."""
        return MappingProxyType({name: part.map(torch.clone) for name, part in self.held_factors.items()})

    @property
    def owned(self) -> Mapping[str, Tensor]:
        """Every full private tensor, dense weights included."""
        return MappingProxyType({name: tensor.clone() for name, tensor in self.held_owned.items()})

    @property
    def held_factors(self) -> Mapping[str, Factors]:
        """The factors that predictions are computed from, decoded. Never written to, and not for users."""
        if self.has_parts:
            return MappingProxyType(task_parts.factors(self.layout, self.view, held(self.coded), held(self.precisions)))
        decoded = {}
        for name, (r, s) in held(self.scales).items():
            p, q = (codec.decode(held(self.coded)[f"{part}/{name}"], r.dtype).to(r.device) for part in "pq")
            decoded[name] = Factors(r, s, p.mT, q)
        return MappingProxyType(decoded)

    @property
    def held_owned(self) -> Mapping[str, Tensor]:
        """The owned tensors that predictions are computed from, decoded. Never written to, and not for users."""
        if self.has_parts:
            coded, precisions, origin = held(self.coded), held(self.precisions), held(self.origin)
            return MappingProxyType(task_parts.owned(self.layout, self.classes, coded, precisions, origin))
        slots = self.layout.by_name
        dense = {
            n: codec.decode(held(self.coded)[f"dense/{n}"], DTYPES[slots[n].dtype]).reshape(slots[n].shape)
            for n in self.dense
        }
        return MappingProxyType({**held(self.plain), **dense})

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of the tensors that the task changes."""
        return (*self.ranks, *self.roles)

    @property
    def dense(self) -> tuple[str, ...]:
        """The names of weights that are stored in full, in the task's precision."""
        return tuple(key.removeprefix("dense/") for key in self.coded if key.startswith("dense/"))

    @property
    def roles(self) -> dict[str, Role]:
        """The role of each full private tensor."""
        plain = [task_parts.name_of(key) for key in self.precisions if task_parts.kind_of(key) == "plain"]
        return {name: self.layout.by_name[name].role for name in (*self.plain, *plain, *self.dense)}

    @property
    def ranks(self) -> dict[str, int]:
        """The rank of each adapted weight. A dense weight is absent."""
        if self.has_parts:
            return task_parts.ranks(held(self.coded))
        return {name: held(self.coded)[f"q/{name}"].rows for name in self.scales}

    @property
    def importance(self) -> dict[str, float]:
        """What a unit of squared error in each layer costs the loss."""
        return {name: layer.importance for name, layer in self.recovered.items()}

    @property
    def parameters(self) -> int:
        """Numbers to store: scales, factors (the non-zeros if pruned), and every owned tensor."""
        return sum(part.entries for part in self.stored.values())

    @cached_property
    def stored(self) -> Mapping[str, PartSize]:
        """What each part takes in the file: its precision, its numbers and its bytes, by its key (`task_parts`)."""
        coded, precisions = dict(held(self.coded)), dict(held(self.precisions))
        if not self.has_parts:
            for name, (r, s) in held(self.scales).items():
                coded |= {f"r/{name}": _plain(r), f"s/{name}": _plain(s)}
            coded |= {f"plain/{n}": _plain(tensor) for n, tensor in held(self.plain).items()}
            lossless = ("r", "s", "plain")
            precisions = {k: "float32" if task_parts.kind_of(k) in lossless else self.precision for k in coded}
        return MappingProxyType(task_parts.sizes(self.layout, coded, precisions))

    @cached_property
    def entries(self) -> Mapping[str, file_size.TensorEntry]:
        """The tensors of the task's file."""
        extra = {
            name: file_size.TensorEntry(dtype_name(tensor.dtype), tuple(tensor.shape))
            for name, tensor in self.extra_tensors.items()
        }
        if self.is_base:
            return file_size.ordered(extra)
        counts: dict[str, int] = {}
        pairs = [tensor for pair in held(self.scales).values() for tensor in pair]
        written = [part for matrix in held(self.coded).values() for part in matrix.parts.values()]
        for tensor in (*pairs, *written, *held(self.plain).values()):
            dtype = dtype_name(tensor.dtype)
            counts[dtype] = counts.get(dtype, 0) + tensor.numel()
        return file_size.entries(self.layout, counts, bool(self.recovered), extra, parts=self.has_parts)

    @property
    def extra_tensors(self) -> dict[str, Tensor]:
        """Probe and statistics by their names in the file."""
        return {f"probe/{n}": t for n, t in self.probe.items()} | {
            f"statistics/{n}": t for n, t in self.statistics.items()
        }

    @cached_property
    def bytes(self) -> int:
        """The size of the task's file as this version writes it; 0 if it holds no numbers, as the base's own task."""
        return 0 if self.is_base and not self.statistics else file_size.file_bytes(self, self.layout, self.entries)

    @property
    def header(self) -> int:
        """Bytes of the file that are not tensors."""
        return self.bytes - sum(entry.bytes for entry in self.entries.values())

    def paper_count(self, dense: bool = False) -> int:
        """The paper's count: scales, entries of p and q above 1e-8 (all if `dense`), norm affine parameters, head."""
        components = sum(t.numel() if dense else _above(t) for f in self.held_factors.values() for t in (f.p, f.q))
        roles, rest = self.roles, 0
        for key, part in self.stored.items():
            kind, name = task_parts.kind_of(key), task_parts.name_of(key)
            if kind in ("r", "s") or (kind in ("dense", "plain") and roles[name] in ("norm", "head", "weight")):
                rest += part.entries
        return components + rest

    def with_factors(self, factors: Mapping[str, Factors]) -> Delta:
        """The same delta with other factors, in the same precisions; the scales stay, and a proof is left out."""
        if not self.has_parts:
            dense = {key: coded for key, coded in held(self.coded).items() if key.startswith("dense/")}
            return replace(self, coded=dense | _coded(factors, self.precision))
        matrices = {key: coded for key, coded in held(self.coded).items() if task_parts.kind_of(key) not in ("p", "q")}
        precisions = held(self.precisions)
        for name, part in factors.items():
            if part.rank:
                matrices |= _coded({name: part}, precisions.get(f"p/{name}", "float32"))
        keys = task_parts.ordered(matrices, self.layout)
        return replace(
            self,
            coded={key: matrices[key] for key in keys},
            precisions={key: precisions.get(key, "float32") for key in keys},
            probe={},
        )

    def __repr__(self) -> str:
        """Show what matters: task, ranks and size."""
        ranks = ", ".join(f"{name}: {rank}" for name, rank in self.ranks.items())
        return f"Delta({self.task!r}, classes={self.classes}, ranks={{{ranks}}}, bytes={self.bytes:,})"


def _refuse_misfits(layout: Layout, owned: Mapping[str, Tensor], classes: int) -> None:
    """Refuse what no file could hold: a tensor whose shape or type training changed."""
    for name, tensor in owned.items():
        slot = layout.by_name.get(name)
        if slot is None:
            raise ModelError(f"{name}: a task cannot own it; it is shared with the base, or not part of it")
        shape = slot.shape_in(classes)
        if tuple(tensor.shape) != shape or tensor.dtype != DTYPES[slot.dtype]:
            raise ModelError(
                f"{name}: training changed it from {shape}, {DTYPES[slot.dtype]} to {tuple(tensor.shape)}, "
                f"{tensor.dtype}; a task's tensors keep the shapes and types of the base"
            )


def _coded(factors: Mapping[str, Factors], precision: Precision) -> dict[str, Coded]:
    """The components of factors as rows: those of p are its columns."""
    matrices = {}
    for name, part in factors.items():
        matrices[f"p/{name}"] = codec.encode(part.p.mT.contiguous(), precision)
        matrices[f"q/{name}"] = codec.encode(part.q.contiguous(), precision)
    return matrices


def _plain(tensor: Tensor) -> Coded:
    """A tensor that is written as it is, in one row."""
    return Coded(1, tensor.numel(), {"values": tensor})


def _above(tensor: Tensor) -> int:
    """Entries above the paper's threshold for a stored number."""
    return int((tensor.abs() > 1e-8).sum())
