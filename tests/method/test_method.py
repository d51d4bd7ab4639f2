"""The presets against the paper and the released code, field by field, and the refusal of impossible settings."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest

from halrp import Budget, Exact, Flat, GradientNorm, Halrp, Keep, Legacy, LossRate, MeanSquare, Plain, Prune, Whitened
from halrp.errors import SettingError
from halrp.model.size import Size


def test_the_paper_preset_follows_the_equations() -> None:
    method = Halrp.paper(rate=0.8, growth=0.3, l1=2e-4, l2=3e-4)
    # Eq. 11: the share reaches the rate, ranks are bounded by nothing.
    assert method.allocate == LossRate(rate=0.8, strict=False, floor=0, cap=None)
    # Squared gradients are summed; a kernel's repeated component is not counted once per position.
    assert method.importance == GradientNorm()
    assert method.importance.counts_kernel is False
    # Eqs. 4 and 7: least squares once each, the residual averaged over the kernel.
    assert method.scales == Exact(sweeps=1)
    assert method.view == "mean"
    assert method.decompose == Plain()
    assert method.initial == "components"
    # The (1 − γ)-percentile over all layers of all tasks, committed ones included, once growth has reached γ.
    assert method.compress == Prune(
        kind="mixed", value=1e-5, growth=0.3, scope="all", bound=False, wait=True, committed=True
    )
    # Eq. 13 has λ₁‖·‖², the library λ/2‖·‖²; the base is trained by cross-entropy alone.
    assert (method.l1, method.l2, method.base_l2) == (2e-4, 6e-4, 0.0)
    assert method.warm_up == 1


def test_the_official_preset_follows_the_released_code() -> None:
    method = Halrp.official(rate=0.8, growth=0.3, cap=120, l1=2e-4, l2=3e-4)
    assert method.allocate == LossRate(rate=0.8, strict=True, floor=1, cap=120)
    assert method.importance == MeanSquare()
    assert method.importance.counts_kernel is True
    assert method.scales == Legacy()
    assert method.view == "mean"
    assert method.decompose == Plain()
    assert method.initial == "components"
    # Each task's own pool of all its layers; as much as γ asks for; committed tasks again and again.
    assert method.compress == Prune(
        kind="mixed", value=1e-5, growth=0.3, scope="task", bound=True, wait=False, committed=True
    )
    assert (method.l1, method.l2, method.base_l2) == (2e-4, 3e-4, 3e-4)
    assert method.warm_up == 1


def test_the_presets_defaults_are_the_published_settings() -> None:
    for method in (Halrp.paper(), Halrp.official()):
        assert isinstance(method.allocate, LossRate)
        assert isinstance(method.compress, Prune)
        assert method.allocate.rate == 0.9
        assert method.compress.growth == 0.2
        assert method.l1 == 1e-4
    assert Halrp.paper().l2 == 2e-4
    assert Halrp.official().l2 == 1e-4
    assert Halrp.official().allocate == LossRate(0.9, strict=True, floor=1, cap=100)


@pytest.mark.parametrize("preset", [Halrp.paper, Halrp.official, Halrp.budget])
def test_every_preset_takes_the_epochs_of_its_warm_up(preset: Callable[..., Halrp]) -> None:
    assert preset().warm_up == 1
    assert preset(warm_up=25) == dataclasses.replace(preset(), warm_up=25)
    with pytest.raises(SettingError, match="warm_up=0"):
        preset(warm_up=0)


def test_the_budget_preset_bounds_a_task_and_never_touches_committed_ones() -> None:
    method = Halrp.budget(200_000)
    assert method.allocate == Budget(bytes=200_000)
    assert method.compress == Keep()
    assert method.importance == MeanSquare()
    assert method.scales == Exact(sweeps=1)
    assert method.decompose == Plain()
    assert method.view == "validation"
    # Bytes are bounded by default, with the precision that recovers the most per byte; numbers are stored as they are.
    assert method.precision == Halrp.budget().precision == Halrp.budget(bytes_total=900, tasks=3).precision == "int8"
    assert Halrp.budget(parameters_per_task=5000).precision == Halrp.budget(growth_per_task=0.1).precision == "float32"
    assert Halrp.budget(200_000, precision="float32").precision == "float32"
    assert Halrp.budget(growth_per_task=0.1, precision="bfloat16").precision == "bfloat16"
    assert (method.l1, method.l2, method.base_l2) == (1e-4, 1e-4, 1e-4)
    assert Halrp.budget(parameters_per_task=5000).allocate == Budget(parameters=5000)
    assert Halrp.budget(growth_per_task=0.1).allocate == Budget(growth=0.1)
    assert Halrp.budget(view="full").view == "full"
    assert Halrp.budget(l2=3e-4).base_l2 == 3e-4


def test_without_a_bound_a_tasks_file_may_have_two_hundredths_of_the_bases_bytes() -> None:
    allocate = Halrp.budget().allocate
    assert isinstance(allocate, Budget)
    assert allocate.limit(Size(parameters=9_000_000, bytes=10_000_000)) == 200_000


def test_a_bound_for_a_known_number_of_tasks_is_shared_out() -> None:
    assert Halrp.budget(bytes_total=1_000_001, tasks=4).allocate == Budget(bytes=250_000)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bytes_total": 1000}, "bytes_total=1000 and tasks=None go together"),
        ({"tasks": 3}, "bytes_total=None and tasks=3 go together"),
        ({"bytes_total": 1000, "tasks": 0}, "tasks=0 must be at least 1"),
        ({"bytes_total": 1000, "tasks": 3, "bytes_per_task": 10}, "not all of them"),
        ({"bytes_total": 1000, "tasks": 3, "growth_per_task": 0.1}, "bytes and growth"),
        ({"bytes_total": 2, "tasks": 3}, "bytes=0"),
    ],
)
def test_a_bound_for_all_tasks_that_says_too_little_or_too_much_is_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        Halrp.budget(**settings)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"view": "middle"}, "view='middle'"),
        ({"initial": "zeros"}, "initial='zeros'"),
        ({"precision": "int4"}, "precision='int4'"),
        ({"warm_up": 0}, "warm_up=0"),
        ({"trial": 0.0}, "trial=0.0"),
        ({"trial": 1.5}, "trial=1.5"),
        ({"trial": math.nan}, "trial=nan"),
        ({"l1": -1e-4}, "l1=-0.0001"),
        ({"l2": -1.0}, "l2=-1.0"),
        ({"base_l2": -1.0}, "base_l2=-1.0"),
    ],
)
def test_a_setting_that_algorithm_1_cannot_use_is_refused_by_name(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingError) as refusal:
        Halrp(allocate=Flat(3), **settings)
    assert named in str(refusal.value)


def test_two_bounds_are_refused() -> None:
    with pytest.raises(SettingError, match="bytes and growth"):
        Halrp.budget(200_000, growth_per_task=0.1)


def test_a_method_is_frozen_hashable_and_replaceable() -> None:
    method = Halrp.budget(200_000)
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.l1 = 0.0  # type: ignore[misc]
    assert method == Halrp.budget(200_000)
    assert hash(method) == hash(Halrp.budget(200_000))
    presets = {Halrp.paper(), Halrp.official(), Halrp.budget(), method}
    assert len(presets) == 4
    ablations = [
        dataclasses.replace(method, decompose=Whitened()),
        dataclasses.replace(method, importance=GradientNorm()),
        dataclasses.replace(method, initial="random"),
        dataclasses.replace(method, allocate=Flat(100)),
    ]
    assert len({method, *ablations}) == 5
    assert method == Halrp.budget(200_000)
    with pytest.raises(SettingError):
        dataclasses.replace(method, warm_up=0)
