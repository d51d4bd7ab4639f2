"""Prototypes: what a task's file says of its inputs, from which the task of an input is inferred.

The features x (D) of the frozen base before the head are made comparable and projected to D' numbers,

    z = Pᵀ u / ‖u‖,    u = sign(x) √|x|,

by a matrix P (D, D') with orthonormal columns that is a function of the base's fingerprint and of the two widths; where
D' is not below D it is the identity. A task's z are modelled by Gaussians around prototypes m_c with one covariance,

    S = σ² (1 − VᵀV)⁻¹,

in which the rows of V (k, D') are the directions in which the task's own examples vary the most. The score of a row is
its logarithmic density,

    s(z) = log Σ_c exp(o_c − (‖z − m_c‖² − ‖V (z − m_c)‖²) / 2σ²),

with an offset o_c that has the weight of a prototype and the normalisation. It is a function of the task's file and of
the base alone, so no other task changes it, and densities of tasks with the same D' can be compared.

In a file these are three tensors: `statistics/prototypes` (U8) and `statistics/scales` (BF16), the rows of m and then
those of V in int4 (`int4`), and `statistics/numbers` (F32): the offsets, then 1/σ², the score below which a row is of
no task, and the temperature of the task's logits.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from halrp import seeding
from halrp.errors import DamagedError
from halrp.model import int4
from halrp.model.file_size import TensorEntry

PROTOTYPES, SCALES, NUMBERS = "prototypes", "scales", "numbers"
"""Names of the tensors among the statistics of a file."""
LEVELS = 3
"""Numbers besides the offsets."""
LARGEST_SCALE, LARGEST_NUMBER = 1e3, 1e12
"""Prototypes are of length 1 and directions shorter, so that greater numbers come from no task; all that is computed
from smaller ones is finite."""


@dataclass(frozen=True)
class Shape:
    """How much a task stores of its inputs."""

    prototypes: int
    directions: int
    width: int
    """D', the numbers of a row, which is even."""

    @property
    def entries(self) -> dict[str, TensorEntry]:
        """The tensors in the task's file."""
        rows = self.prototypes + self.directions
        return {
            f"statistics/{NUMBERS}": TensorEntry("F32", (self.prototypes + LEVELS,)),
            f"statistics/{PROTOTYPES}": TensorEntry("U8", (rows, self.width // 2)),
            f"statistics/{SCALES}": TensorEntry("BF16", (rows, int4.groups(self.width))),
        }


@dataclass(frozen=True, eq=False)
class TaskPrototypes:
    """The prototypes of one task as they are computed with."""

    prototypes: Tensor
    """m (R, D')."""
    directions: Tensor
    """V (k, D')."""
    offsets: Tensor
    """o (R,)."""
    precision: float
    """1 / σ²."""
    least: float
    """The score below which a row is of no task."""
    temperature: float
    """By which the task's logits are divided so that they are as certain as they are right."""

    @property
    def width(self) -> int:
        """D'."""
        return self.prototypes.shape[1]

    def scores(self, z: Tensor) -> Tensor:
        """s(z) of projected features (N, D'), (N,)."""
        far = _squares(z, self.prototypes) - _squares(z @ self.directions.mT, self.prototypes @ self.directions.mT)
        return torch.logsumexp(self.offsets - 0.5 * self.precision * far, 1)

    @property
    def bytes(self) -> int:
        """What the tensors take in memory."""
        return self.prototypes.nbytes + self.directions.nbytes + self.offsets.nbytes

    def stored(self) -> dict[str, Tensor]:
        """The tensors among the statistics of a file."""
        scales, packed = int4.encode(torch.cat([self.prototypes, self.directions]))
        levels = torch.tensor([self.precision, self.least, self.temperature])
        numbers = torch.cat([self.offsets, levels]).float()
        return {PROTOTYPES: packed, SCALES: scales, NUMBERS: numbers}


def _squares(a: Tensor, b: Tensor) -> Tensor:
    """Squared distances (N, R) of rows (N, D) and (R, D)."""
    return (a.square().sum(1, keepdim=True) - 2 * a @ b.mT + b.square().sum(1)).clamp(min=0)


def has_prototypes(statistics: Mapping[str, Tensor]) -> bool:
    """Whether a task's statistics are prototypes."""
    return statistics.keys() == {PROTOTYPES, SCALES, NUMBERS}


def refuse_misfits(statistics: Mapping[str, Tensor]) -> None:
    """Raise `DamagedError` for prototypes that no task could have been written with."""
    if not has_prototypes(statistics):
        return
    packed, scales, numbers = (statistics[name] for name in (PROTOTYPES, SCALES, NUMBERS))
    types = packed.dtype, scales.dtype, numbers.dtype
    shapes = [tuple(tensor.shape) for tensor in (packed, scales, numbers)]
    good = types == (torch.uint8, torch.bfloat16, torch.float32) and list(map(len, shapes)) == [2, 2, 1]
    good = good and min(shapes[0]) > 0 and shapes[1] == (shapes[0][0], int4.groups(2 * shapes[0][1]))
    count = numbers.numel() - LEVELS
    if not (good and 0 < count <= shapes[0][0]):
        raise DamagedError(f"its prototypes have shapes {shapes} and types {types}, which do not fit together")
    if problem := int4.problem(packed, 2 * packed.shape[1]):
        raise DamagedError(f"its prototypes have {problem}")
    positive = float(numbers[count]) > 0 and float(numbers[count + 2]) > 0 and bool((scales >= 0).all())
    bounded = float(scales.max()) <= LARGEST_SCALE and float(numbers.abs().max()) <= LARGEST_NUMBER
    if not (positive and bounded):
        raise DamagedError("its prototypes have numbers that no inputs give")


def read(statistics: Mapping[str, Tensor]) -> TaskPrototypes | None:
    """The prototypes among a task's statistics, if it has them."""
    if not has_prototypes(statistics):
        return None
    packed, scales, numbers = (statistics[name] for name in (PROTOTYPES, SCALES, NUMBERS))
    rows = int4.decode(scales, packed, (packed.shape[0], 2 * packed.shape[1]))
    count = numbers.numel() - LEVELS
    return TaskPrototypes(rows[:count], rows[count:], numbers[:count].clone(), *numbers[count:].tolist())


def comparable(x: Tensor) -> Tensor:
    """The roots u / ‖u‖ of features (N, D): of length 1, so that one large number does not decide."""
    return F.normalize(x.sign() * x.abs().sqrt(), dim=1)


@functools.lru_cache(maxsize=16)
def projection(fingerprint: str, width: int, size: int) -> Tensor:
    """P (width, size): gaussian columns made orthonormal one after the other."""
    drawn = torch.randn(
        width, size, generator=seeding.generator("prototypes", fingerprint, width, size), dtype=torch.float64
    )
    q, r = torch.linalg.qr(drawn)
    orthonormal: Tensor = q * r.diagonal().sign()
    return orthonormal.float()


def projected(x: Tensor, fingerprint: str, size: int) -> Tensor:
    """The numbers z (N, size) of features (N, D); where `size` is more than D, the last column is 0."""
    z = comparable(x)
    if size < z.shape[1]:
        return z @ projection(fingerprint, z.shape[1], size)
    return F.pad(z, (0, size - z.shape[1]))


def even(width: int) -> int:
    """The width of rows that hold features of a width in full."""
    return width + width % 2
