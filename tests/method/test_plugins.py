"""Choices from outside the package: a method made of foreign parts learns, saves, loads and predicts as ours do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from halrp import Delta, Halrp, Keep, Learner
from halrp.errors import SettingError
from halrp.method.protocols import Allocation, Compression, LayerOptions, TaskCosts
from halrp.model.size import Size
from halrp.provenance import describe, method_settings
from halrp.training.batches import Data
from tests.helpers import FAST, net, tiny_task


@dataclass(frozen=True)
class WeightSize:
    """An importance by the weights alone."""

    power: float = 2.0
    counts_kernel: ClassVar[bool] = True

    def __call__(self, module: nn.Module, weights: Mapping[str, Tensor], data: Data, batch: int) -> dict[str, Tensor]:
        assert not module.training
        return {name: weight.detach().abs().pow(self.power).mean() for name, weight in weights.items()}


@dataclass(frozen=True)
class ByEigenvalues:
    """A decomposition by the eigenvectors of B Bᵀ; it checks that it is given the curvature that it asks for."""

    needs_curvature: ClassVar[bool] = True

    def __call__(
        self, matrix: Tensor, curvature: tuple[Tensor, Tensor] | None = None, rank: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert curvature is not None
        assert curvature[0].shape == (matrix.shape[1], matrix.shape[1])
        values, vectors = torch.linalg.eigh(matrix @ matrix.T)
        count = min(*matrix.shape, rank or len(values))
        u, sigma = vectors.flip(1)[:, :count], values.flip(0)[:count].clamp(min=1e-12).sqrt()
        return u, sigma, matrix.T @ u / sigma

    def dropped_loss(self, matrix: Tensor, curvature: tuple[Tensor, Tensor]) -> Tensor:
        return matrix.square().sum()


class EveryOther:
    """An allocation that gives rank 2 to every other weight and stores none densely. No dataclass."""

    def price(self, size: Size) -> int:
        return size.bytes

    def limit(self, base: Size) -> int | None:
        return None

    def allocate(self, options: Mapping[str, LayerOptions], costs: TaskCosts, base: Size) -> Allocation:
        return Allocation({name: 2 * (i % 2) for i, name in enumerate(options)})

    def check(self, task: Size, base: Size, late: Sequence[str]) -> None:
        assert task.bytes > 0


@dataclass(frozen=True)
class Halve(Compression):
    """A compression that halves the newest task's factors, and inherits its properties from the protocol."""

    def compress(self, tasks: Mapping[str, Delta], newest: str, base_parameters: int) -> dict[str, Delta]:
        delta = tasks[newest]
        halved = {name: factors.map(lambda tensor: tensor / 2) for name, factors in delta.factors.items()}
        return {**tasks, newest: delta.with_factors(halved)}


def unit_scales(free: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
    """No scales at all."""
    return base.new_ones(base.shape[0]), base.new_ones(base.shape[1])


FOREIGN = Halrp(
    allocate=EveryOther(),
    scales=unit_scales,
    decompose=ByEigenvalues(),
    importance=WeightSize(1.0),
    compress=Halve(),
    view="full",
)


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_a_method_of_foreign_parts_learns_saves_loads_and_predicts_bit_identically(kind: str, tmp_path: Path) -> None:
    learner = Learner(net(kind), method=FOREIGN, recipe=FAST)
    for seed, name in enumerate(("base", "a", "b")):
        learner.learn(name, tiny_task(kind, seed), val=tiny_task(kind, 10 + seed))
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, net(kind))
    x = tiny_task(kind, 1)[0]
    for name in learner.tasks:
        assert torch.equal(learner.predict(x, name), loaded.predict(x, name))
    assert list(learner.tasks["a"].ranks.values()) == [2 * (i % 2) for i in range(len(learner.tasks["a"].ranks))]
    assert loaded.tasks["b"].provenance["method"] == method_settings(FOREIGN)


def test_a_foreign_method_learns_on_the_next_task_alone() -> None:
    together, alone = (Learner(net("conv"), method=FOREIGN, recipe=FAST, base="given") for _ in range(2))
    together.learn("a", tiny_task("conv", 0))
    x = tiny_task("conv", 1)[0]
    before = together.predict(x, "a")
    for learner in (together, alone):
        learner.learn("b", tiny_task("conv", 1))
    assert torch.equal(together.predict(x, "b"), alone.predict(x, "b"))
    assert torch.equal(together.predict(x, "a"), before)


def test_foreign_parts_are_described_by_fields_or_by_name() -> None:
    described = describe(FOREIGN)
    assert described["importance"] == {"type": "WeightSize", "power": 1.0}
    assert described["decompose"] == {"type": "ByEigenvalues"}
    assert described["compress"] == {"type": "Halve"}
    assert described["scales"] == f"{__name__}.unit_scales"
    assert described["allocate"] == f"{__name__}.EveryOther"


class Lacking:
    """Has none of the calls."""


@pytest.mark.parametrize(
    ("field", "calls"),
    [
        ("scales", "__call__"),
        ("decompose", "needs_curvature, __call__, dropped_loss"),
        ("importance", "counts_kernel, __call__"),
        ("allocate", "price, limit, allocate, check"),
        ("compress", "independent, changes_committed, compress"),
    ],
)
def test_a_value_that_lacks_a_call_is_refused_by_name(field: str, calls: str) -> None:
    settings: dict[str, Any] = {"allocate": EveryOther(), field: Lacking()}
    with pytest.raises(SettingError, match=f"Halrp\\({field}=.*lacks {calls}; .*protocols"):
        Halrp(**settings)


def test_a_class_instead_of_a_value_is_refused() -> None:
    wrong: Any = Keep
    with pytest.raises(SettingError, match=r"Halrp\(compress=Keep\) is a class; give an instance, such as Keep\(\)"):
        Halrp(allocate=EveryOther(), compress=wrong)


@dataclass(frozen=True)
class Meddling(Halve):
    """Changes a committed task without declaring it."""

    def compress(self, tasks: Mapping[str, Delta], newest: str, base_parameters: int) -> dict[str, Delta]:
        return super().compress(tasks, next(iter(tasks)), base_parameters)


def test_a_compression_that_changes_committed_tasks_must_declare_it() -> None:
    learner = Learner(net("mlp"), method=Halrp(allocate=EveryOther(), compress=Meddling()), recipe=FAST, base="given")
    learner.learn("a", tiny_task("mlp", 0))
    before = learner.tasks["a"]
    with pytest.raises(SettingError, match=r"Meddling.*'a'.*changes_committed"):
        learner.learn("b", tiny_task("mlp", 1))
    assert dict(learner.tasks) == {"a": before}


def test_an_importance_that_leaves_out_a_weight_is_refused() -> None:
    def nothing(module: nn.Module, weights: Mapping[str, Tensor], data: Data, batch: int) -> dict[str, Tensor]:
        return {}

    nothing.counts_kernel = True  # type: ignore[attr-defined]
    method = Halrp(allocate=EveryOther(), importance=nothing)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="scalar tensor for each weight"):
        Learner(net("mlp"), method=method, recipe=FAST, base="given").learn("a", tiny_task("mlp", 0))
