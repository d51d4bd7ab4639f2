"""All that one task owns, its size, and its file.

A `Delta` is immutable: fine-tuning works on copies, pruning makes a new one. It holds its factors as they are written
(`codec`), in the precision of the method, and predictions are computed from what reading them gives. So a task is the
same to the bit before it is saved and after it is loaded, and its size is the size of its file: factors, scales,
biases, norm parameters *and* buffers, head, header. The paper's own count (non-zeros, without biases and statistics)
stands beside it because its tables use it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeAlias

import safetensors.torch
import torch
from torch import Tensor

from halrp.model import codec
from halrp.model.codec import Coded, Precision
from halrp.model.factors import Factors
from halrp.model.plan import Role

Content: TypeAlias = bytes  # inside the class, `bytes` is a size
FORMAT = 1
"""The version of the task file's layout."""
METADATA = "halrp"
"""The one key of a task file's metadata; its value is JSON. One key, because their order in a file is not fixed."""


@dataclass(frozen=True)
class Recovered:
    """What the allocation predicted for one layer, and how much of that loss its components recover."""

    importance: float
    """What a unit of squared error in this layer costs the loss."""
    predicted: float
    """Predicted loss of dropping the whole residual of this layer."""
    share: float
    """Share of that loss which the stored components recover, 0 … 1."""


_WIDEST = Recovered(-1.2345678901234567e-300, -1.2345678901234567e-300, -1.2345678901234567e-300)
"""Numbers that need as many digits in a file as any."""


@dataclass(frozen=True, eq=False)
class Delta:
    """What one task adds to the base. One that owns nothing is the base itself. Made by `pack`."""

    task: str
    classes: int
    base: str
    """Fingerprint of the base this delta belongs to."""
    scales: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """r and s by the name of the adapted weight."""
    coded: Mapping[str, Coded] = field(default_factory=dict)
    """Matrices as they are written: `p/NAME` (components × J), `q/NAME` (components × columns), and `own/NAME`, the
    rows of a weight owned outright."""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of the weights owned outright."""
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    """And their types."""
    plain: Mapping[str, Tensor] = field(default_factory=dict)
    """Full private tensors that are written as they are: head, biases, norm parameters, changed buffers."""
    roles: Mapping[str, Role] = field(default_factory=dict)
    """The role of each owned tensor."""
    recovered: Mapping[str, Recovered] = field(default_factory=dict)
    """For each adapted weight, the predicted loss that its components recover."""
    view: str = ""
    """The convolution view that was used: "mean" or "full"."""
    precision: Precision = "float32"
    """How factors and weights owned outright are written."""
    class_names: tuple[str, ...] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """How the task was learned: method, recipe, seed and library version, as plain JSON."""

    def __post_init__(self) -> None:
        """Make the mappings read-only."""
        for name in ("scales", "coded", "shapes", "dtypes", "plain", "roles", "recovered", "provenance"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @staticmethod
    def pack(
        task: str,
        classes: int,
        base: str,
        factors: Mapping[str, Factors],
        owned: Mapping[str, Tensor],
        roles: Mapping[str, Role],
        recovered: Mapping[str, Recovered] | None = None,
        view: str = "",
        precision: Precision = "float32",
        class_names: tuple[str, ...] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> Delta:
        """Write what a task owns in a precision. Tensors that are written as they are, are kept as they are."""
        outright = {n: t for n, t in owned.items() if roles[n] == "weight" and t.dim() > 1}
        coded = {f"own/{n}": codec.encode(t.reshape(t.shape[0], -1), precision) for n, t in outright.items()}
        return Delta(
            task=task,
            classes=classes,
            base=base,
            scales={n: (f.r, f.s) for n, f in factors.items()},
            coded=coded | _coded(factors, precision),
            shapes={n: tuple(t.shape) for n, t in outright.items()},
            dtypes={n: t.dtype for n, t in outright.items()},
            plain={n: t for n, t in owned.items() if n not in outright},
            roles=roles,
            recovered=recovered or {},
            view=view,
            precision=precision,
            class_names=class_names,
            provenance=provenance or {},
        )

    @cached_property
    def factors(self) -> Mapping[str, Factors]:
        """Low-rank deltas by the name of the adapted weight."""
        read = {}
        for name, (r, s) in self.scales.items():
            p, q = (codec.decode(self.coded[f"{part}/{name}"], r.dtype).to(r.device) for part in "pq")
            read[name] = Factors(r, s, p.mT, q)
        return MappingProxyType(read)

    @cached_property
    def owned(self) -> Mapping[str, Tensor]:
        """Every full private tensor, weights owned outright included."""
        outright = {
            n: codec.decode(self.coded[f"own/{n}"], self.dtypes[n]).reshape(shape) for n, shape in self.shapes.items()
        }
        return MappingProxyType({**self.plain, **outright})

    @property
    def is_base(self) -> bool:
        """Whether this is the base's own task: it owns nothing, and its outputs are the base's."""
        return not (self.plain or self.coded or self.scales)

    @property
    def ranks(self) -> dict[str, int]:
        """The rank of each adapted weight. A weight owned outright is absent."""
        return {name: self.coded[f"q/{name}"].rows for name in self.scales}

    @property
    def importance(self) -> dict[str, float]:
        """What a unit of squared error in each layer costs the loss."""
        return {name: recovered.importance for name, recovered in self.recovered.items()}

    @property
    def parameters(self) -> int:
        """Numbers to store: scales, factors (the non-zeros if pruned), and every owned tensor."""
        scales = sum(r.numel() + s.numel() for r, s in self.scales.values())
        components = sum(int(t.count_nonzero()) for f in self.factors.values() for t in (f.p, f.q))
        return scales + components + sum(tensor.numel() for tensor in self.owned.values())

    @cached_property
    def bytes(self) -> int:
        """The size of the task's file. The base's own task has none."""
        return 0 if self.is_base else len(self.to_bytes())

    def paper_count(self, dense: bool = False) -> int:
        """The paper's count: scales, entries of p and q above 1e-8 (all if `dense`), norm affine parameters, head."""
        scales = sum(r.numel() + s.numel() for r, s in self.scales.values())
        components = sum(t.numel() if dense else _above(t) for f in self.factors.values() for t in (f.p, f.q))
        rest = sum(t.numel() for name, t in self.owned.items() if self.roles[name] in ("norm", "head", "weight"))
        return scales + components + rest

    def with_factors(self, factors: Mapping[str, Factors]) -> Delta:
        """The same delta with other factors."""
        kept = {key: coded for key, coded in self.coded.items() if key.startswith("own/")}
        return replace(self, coded=kept | _coded(factors, self.precision))

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the task's file, by key."""
        found = {f"{part}/{n}": t for n, pair in self.scales.items() for part, t in zip("rs", pair, strict=True)}
        found |= {f"{key}.{part}": t for key, coded in self.coded.items() for part, t in coded.parts.items()}
        found |= {f"plain/{n}": t for n, t in self.plain.items()}
        return {key: tensor.detach().contiguous().cpu() for key, tensor in found.items()}

    def metadata(self) -> dict[str, Any]:
        """All of the task that is not a tensor, as plain JSON."""
        return {
            "format": FORMAT,
            "task": self.task,
            "classes": self.classes,
            "class_names": None if self.class_names is None else list(self.class_names),
            "base": self.base,
            "view": self.view,
            "precision": self.precision,
            "ranks": self.ranks,
            "columns": {name: self.coded[f"q/{name}"].columns for name in self.scales},
            "shapes": {n: list(shape) for n, shape in self.shapes.items()},
            "types": {n: str(dtype) for n, dtype in self.dtypes.items()},
            "bought": {n: [r.importance, r.predicted, r.share] for n, r in self.recovered.items()},
            "how": dict(self.provenance),
        }

    def to_bytes(self) -> Content:
        """The task's file. The same delta gives the same bytes."""
        text = json.dumps(self.metadata(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return safetensors.torch.save(self.tensors(), {METADATA: text})

    @property
    def header(self) -> int:
        """Bytes of the file that are not tensors."""
        return len(self.to_bytes()) - sum(t.numel() * t.element_size() for t in self.tensors().values())

    def header_bound(self) -> int:
        """A bound on the header of any task like this one, whatever its ranks: `self` has no components yet."""
        # The header tells the budget: at its widest, or a minimum named for one budget would not do as the next.
        method = {**self.provenance.get("method", {}), "allocate": "." * 96}
        widest = replace(
            self, recovered=dict.fromkeys(self.scales, _WIDEST), provenance={**self.provenance, "method": method}
        )
        return widest.header + 32 * len(widest.tensors())  # ranks and offsets may have more digits than here

    def __repr__(self) -> str:
        """Say what matters: task, ranks and size."""
        ranks = ", ".join(f"{name}: {rank}" for name, rank in self.ranks.items())
        return f"Delta({self.task!r}, classes={self.classes}, ranks={{{ranks}}}, bytes={self.bytes:,})"


def _coded(factors: Mapping[str, Factors], precision: Precision) -> dict[str, Coded]:
    """The components of factors as rows: those of p are its columns."""
    found = {}
    for name, part in factors.items():
        found[f"p/{name}"] = codec.encode(part.p.mT.contiguous(), precision)
        found[f"q/{name}"] = codec.encode(part.q.contiguous(), precision)
    return found


def _above(tensor: Tensor) -> int:
    """Entries above the paper's threshold for a stored number."""
    return int((tensor.abs() > 1e-8).sum())
