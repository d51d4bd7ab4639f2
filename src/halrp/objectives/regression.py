"""Regression: one or more numbers per example, squared or Huber loss, and the share of variance that is explained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor

from halrp.checks import is_number
from halrp.errors import DataError, SettingError
from halrp.objectives.classification import in_float
from halrp.objectives.labels import given_classes
from halrp.objectives.objective import Objective, check_finite, register


@register
@dataclass(frozen=True)
class Regression(Objective):
    """Numbers per example. Outputs of the model are in standard units of the training targets, answers in theirs.

    With mean m and standard deviation s of the training targets, a target t is learned as (t − m) / s, and an output z
    is answered as m + s z. Validation scores are 1 − mean((z − (t − m) / s)²), the share of the training variance that
    is explained: R² on the training data, 0 for whoever answers m.
    """

    name: ClassVar[str] = "regression"
    dims: ClassVar[tuple[int, ...]] = (2,)

    values: int | None = None
    """How many numbers an example has; by default those of the training targets."""
    error: Literal["squared", "huber"] = "squared"
    """The loss: squared error, or Huber's, which is linear beyond `delta`."""
    delta: float = 1.0
    """From which error on Huber's loss is linear, in standard units."""
    standardise: bool = True
    """Whether the training targets give the units; if not, outputs are in the targets' own."""
    mean: tuple[float, ...] | None = None
    """Means of the training targets."""
    deviation: tuple[float, ...] | None = None
    """Standard deviations of the training targets; 1 for one that does not vary."""

    def __post_init__(self) -> None:
        """Refuse values that no training could use."""
        if self.values is not None:
            object.__setattr__(self, "values", given_classes(self.values, "Regression: values as"))
        if self.error not in ("squared", "huber"):
            raise SettingError(f"Regression(error={self.error!r}) is unknown; choose 'squared' or 'huber'")
        if not (is_number(self.delta) and self.delta > 0):
            raise SettingError(f"Regression(delta={self.delta!r}) is out of range; give a number above 0")
        for name in ("mean", "deviation"):
            numbers: Any = getattr(self, name)
            if numbers is not None and not all(is_number(n) and (n > 0 or name == "mean") for n in numbers):
                above = "" if name == "mean" else " above 0"
                raise SettingError(f"Regression({name}={numbers!r}): give a finite number{above} for each value")
        if (self.mean is None) != (self.deviation is None):
            raise SettingError("Regression: give both mean and deviation, or neither")

    @property
    def outputs(self) -> int | None:
        """One output per number."""
        return self.values

    @property
    def is_fitted(self) -> bool:
        """Whether neither the number of values nor their units depend on the training targets."""
        return self.values is not None and (not self.standardise or self.mean is not None)

    def fitted(self, targets: Iterable[Tensor], name: str) -> Regression:
        """Count the values, and compute their means and deviations, in float64 and in one pass (Chan's update)."""
        count, mean, spread = 0, torch.zeros(()), torch.zeros(())
        for batch in targets:
            rows = batch.detach().double().cpu()
            shift = rows.mean(0) - mean
            total = count + len(rows)
            spread = spread + (rows - rows.mean(0)).square().sum(0) + shift.square() * (count * len(rows) / total)
            mean, count = mean + shift * (len(rows) / total), total
        if not self.standardise or self.mean is not None:
            return replace(self, values=mean.numel())
        deviation = (spread / max(count, 1)).sqrt()
        still = deviation <= 1e-12 * mean.abs().clamp(min=1e-300)
        units = torch.where(still, 1.0, deviation)
        return replace(self, values=mean.numel(), mean=tuple(mean.tolist()), deviation=tuple(units.tolist()))

    def with_outputs(self, outputs: int) -> Regression:
        """As many values as outputs."""
        return self if self.values == outputs else replace(self, values=outputs)

    def check(self, targets: Tensor, name: str) -> Tensor:
        """Refuse what are no numbers, (N,) or (N, values)."""
        if targets.dim() not in (1, 2) or targets.is_complex() or targets.dtype == torch.bool or 0 in targets.shape[1:]:
            raise DataError(
                f"{name}: targets of a regression must be numbers of shape (examples,) or (examples, values), got "
                f"{targets.dtype} of shape {tuple(targets.shape)}"
            )
        targets = self.convert(targets)
        if self.values is not None and targets.shape[1] != self.values:
            raise DataError(f"{name}: targets have {targets.shape[1]} values, not {self.values}")
        check_finite(targets, name)
        return targets

    def convert(self, targets: Tensor) -> Tensor:
        """Numbers in a floating type, (N, values)."""
        targets = targets if targets.is_floating_point() else targets.float()
        return targets.unsqueeze(1) if targets.dim() == 1 else targets

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Mean error over examples and values, in standard units, (,)."""
        wanted = self._standard(targets, outputs)
        if self.error == "huber":
            return F.huber_loss(outputs, wanted, delta=self.delta)
        return F.mse_loss(outputs, wanted)

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The share of the training variance that is explained, (,)."""
        return 1 - F.mse_loss(outputs, self._standard(targets, outputs))

    def constant_score(self, targets: Iterable[Tensor]) -> float | None:
        """The score of the mean of these targets: R² of whoever has more than it is above 0."""
        wanted = torch.cat([self._standard(batch.detach(), batch).double().cpu() for batch in targets])
        variance = float((wanted - wanted.mean(0)).square().mean())
        return 1 - variance if variance > 0 else None

    def decode(self, outputs: Tensor, class_names: Sequence[str] | None = None) -> Values:
        """The numbers in the units of the targets."""
        values = in_float(outputs)
        if self.mean is not None:
            mean, deviation = self._units(values)
            values = mean + deviation * values
        return Values(values, None if class_names is None else tuple(class_names))

    def _standard(self, targets: Tensor, like: Tensor) -> Tensor:
        if self.mean is None:
            return targets.to(like.dtype)
        exact = targets if targets.dtype == torch.float64 else targets.float()
        mean, deviation = self._units(exact)
        return ((exact - mean) / deviation).to(like.dtype)

    def _units(self, like: Tensor) -> tuple[Tensor, Tensor]:
        mean, deviation = torch.tensor([self.mean, self.deviation], dtype=like.dtype, device=like.device)
        return mean, deviation


@dataclass(frozen=True, eq=False)
class Values:
    """The numbers that a regression answers for some rows."""

    values: Tensor
    """(N, values), in the units of the training targets."""
    names: tuple[str, ...] | None = None
    """What the values are called, if the task says so."""

    def __len__(self) -> int:
        return len(self.values)
