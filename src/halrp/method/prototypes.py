"""From a task's examples to the prototypes that its file holds: `Prototypes`, a choice of the method.

One pass over the training data takes the sums of the projected features z of each class (`model.prototypes`). The
covariance around the prototypes is shrunk halfway to a multiple of the identity; its leading eigenvectors become the
directions, and the mean of its other eigenvalues the variance,

    V_i = e_i √(1 − σ² / λ_i).

One pass over the validation data, or over a part of the training data that was held out from the sums, gives the
threshold and the temperature. Everything is computed from the rounded prototypes, as files hold them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.checks import is_number, is_whole
from halrp.errors import ModelError, SettingError
from halrp.model import batch as tree
from halrp.model import prototypes as stored
from halrp.model.base import Base
from halrp.model.batch import Batch
from halrp.model.delta import Delta
from halrp.model.description import PARTS_FORMAT
from halrp.model.features import Features
from halrp.model.file_size import TensorEntry
from halrp.model.inference import task_logits
from halrp.model.prototypes import Shape, TaskPrototypes
from halrp.objectives import Classification, Objective
from halrp.training import held_out
from halrp.training.batches import Data
from halrp.training.run import TaskRun

SHRINKAGE = 0.5
"""Of the covariance."""
HELD_OUT = 0.2
"""The share of the training data for threshold and temperature, where there are no validation data."""
MOST_CALIBRATED = 4096
"""Examples for threshold and temperature, at most."""
LARGEST_DIRECTION = 0.98
"""The largest eigenvalue of VᵀV: rounding must not make a variance infinite."""
LEAST_VARIANCE = 1e-6
TEMPERATURES = tuple(2 ** (k / 4) for k in range(-12, 17))


@dataclass(frozen=True)
class Prototypes:
    """Store prototypes of a task's inputs, so that `identify` can tell which task an input is of.

    A classification has a prototype for each class, any other task has one. Each of these, and each direction, takes
    `width` / 2 bytes and two for every 32 numbers; a class more or less changes nothing else. Scores can be compared
    between tasks of one width.
    """

    width: int = 352
    """Numbers of a prototype, at most those of a row of the features. Ten classes take less than 4 KB."""
    directions: int = 8
    """Directions in which the task's examples vary the most."""
    unknown: float = 0.05
    """The share of the task's own validation examples that scores are below where the answer is "no task"."""

    def __post_init__(self) -> None:
        """Refuse what no file could hold."""
        if not is_whole(self.width, 2, 2**16) or self.width % 2:
            raise SettingError(f"Prototypes(width={self.width!r}) must be an even number from 2 to {2**16 - 2}")
        if not is_whole(self.directions, 0, 2**12):
            raise SettingError(f"Prototypes(directions={self.directions!r}) must be a whole number of 0 to {2**12 - 1}")
        if not (is_number(self.unknown, 0) and self.unknown < 1):
            raise SettingError(f"Prototypes(unknown={self.unknown!r}) must be a share of less than 1; 0 rejects least")

    def shape(self, objective: Objective, classes: int, features: int) -> Shape:
        """What a task stores whose base gives that number of features."""
        width = min(self.width, stored.even(features))
        return Shape(_count(objective, classes), min(self.directions, width // 2), width)

    def entries(self, objective: Objective, classes: int, base: Base, rows: Batch) -> dict[str, TensorEntry]:
        """The tensors in the task's file, or a `ModelError` if the base has no features of rows like these."""
        given = Features(base)(rows, tree.rows(rows))
        if given is None:
            raise ModelError(
                "Halrp(prototypes=...): the head gets no tensor with a row for each example, so inputs have no "
                "features to be recognised by; leave prototypes out"
            )
        return self.shape(objective, classes, given.shape[1]).entries

    def fitted(self, delta: Delta, base: Base, run: TaskRun) -> Delta:
        """The delta with its prototypes."""
        data = run.data
        if data.val is None:
            data = held_out.split(data, HELD_OUT, *run.seed_key, "prototypes") or data._replace(val=data.train)
        assert data.val is not None
        features, batch = Features(base), run.recipe.batch
        with seeding.isolated(*run.seed_key, "prototypes", device=base.device), torch.no_grad():
            sums = None
            for x, y in data.train.batches(batch, None):
                rows = _some(features, x, batch)
                sums = sums or Sums(self.shape(data.objective, data.width, rows.shape[1]))
                sums.add(stored.projected(rows, base.fingerprint, sums.shape.width), _groups(data.objective, y))
            assert sums is not None
            model = sums.model()
            scores, logits, targets = list[Tensor](), list[Tensor](), list[Tensor]()
            module = base.serving_view(delta)
            for x, y in _first(data.val, batch):
                rows = _some(features, x, batch)
                scores.append(model.scores(stored.projected(rows, base.fingerprint, sums.shape.width)))
                if isinstance(data.objective, Classification):
                    logits.append(task_logits(module, data.val.call, x, delta).float().cpu())
                    targets.append(y.cpu())
        least = torch.cat(scores).double().quantile(self.unknown)
        temperature = temperature_of(torch.cat(logits), torch.cat(targets)) if logits else 1.0
        statistics = replace(model, least=float(least), temperature=temperature).stored()
        # The base's own task has no tensors in format 2.
        return replace(delta, statistics=statistics, format=PARTS_FORMAT if delta.is_base else delta.format)


def _count(objective: Objective, classes: int) -> int:
    return classes if isinstance(objective, Classification) else 1


def _groups(objective: Objective, y: Tensor) -> Tensor:
    """The prototype that each example belongs to, (N,)."""
    return y.cpu() if isinstance(objective, Classification) else torch.zeros(len(y), dtype=torch.int64)


def _some(features: Features, x: Batch, batch: int) -> Tensor:
    rows = features(x, batch)
    assert rows is not None, "the first rows had features"
    return rows


def _first(data: Data, batch: int) -> Iterator[tuple[Batch, Tensor]]:
    read = 0
    for x, y in data.batches(batch, None):
        yield x, y
        read += len(y)
        if read >= MOST_CALIBRATED:
            return


class Sums:
    """Numbers, sums and products of projected features, from which prototypes follow."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._counts = torch.zeros(shape.prototypes, dtype=torch.float64)
        self._sums = torch.zeros(shape.prototypes, shape.width, dtype=torch.float64)
        self._products = torch.zeros(shape.width, shape.width, dtype=torch.float64)

    def add(self, z: Tensor, group: Tensor) -> None:
        """Add rows z (N, D') that belong to prototypes `group` (N,)."""
        z = z.double()
        self._counts.index_add_(0, group, torch.ones(len(z), dtype=torch.float64))
        self._sums.index_add_(0, group, z)
        self._products += z.mT @ z

    def model(self) -> TaskPrototypes:
        """The prototypes as they are stored, without threshold and temperature."""
        number = self._counts.sum()
        means = self._sums / self._counts.clamp(min=1).unsqueeze(1)
        means[self._counts == 0] = self._sums.sum(0) / number  # a class that was held out as a whole
        scatter = self._products - (means * self._counts.unsqueeze(1)).mT @ means
        covariance = scatter / (number - self.shape.prototypes).clamp(min=1)
        values, vectors = torch.linalg.eigh(covariance)
        values = (1 - SHRINKAGE) * values + SHRINKAGE * values.mean()
        k = self.shape.directions
        values, vectors = values.flip(0).clamp(min=LEAST_VARIANCE), vectors.flip(1)
        variance = values[k:].mean()
        lengths = (1 - variance / values[:k]).clamp(0, LARGEST_DIRECTION).sqrt()
        model = TaskPrototypes(
            means.float(), (vectors[:, :k] * lengths).mT.float(), torch.zeros(len(means)), 1.0, 0.0, 1.0
        )
        model = _rounded(model)
        while k and (most := float(torch.linalg.eigvalsh(_gram(model))[-1])) > LARGEST_DIRECTION:
            model = _rounded(replace(model, directions=model.directions * (0.99 * LARGEST_DIRECTION / most) ** 0.5))
        log_det = self.shape.width * variance.log() - torch.logdet(torch.eye(k, dtype=torch.float64) - _gram(model))
        offsets = (self._counts.clamp(min=1) / number).log() - 0.5 * log_det
        return replace(model, offsets=offsets.float(), precision=float(1 / variance))


def _gram(model: TaskPrototypes) -> Tensor:
    v = model.directions.double()
    return v @ v.mT


def _rounded(model: TaskPrototypes) -> TaskPrototypes:
    """A model as it is read from its file."""
    read = stored.read(model.stored())
    assert read is not None
    return read


def temperature_of(logits: Tensor, targets: Tensor) -> float:
    """The temperature at which logits (N, classes) give the least cross-entropy."""
    losses = [float(nn.functional.cross_entropy(logits / t, targets)) for t in TEMPERATURES]
    return TEMPERATURES[losses.index(min(losses))]
