"""Groups of parameters that are optimised alike: rates by unit and by kind."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from halrp import Recipe
from halrp.training.groups import Group, by_kind, by_unit


def parameters(count: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(2)) for _ in range(count)]


def rates(groups: list[Group]) -> dict[nn.Parameter, float]:
    return {parameter: group.lr for group in groups for parameter in group.parameters}


@pytest.mark.parametrize(
    ("unit", "rounded"),
    [(1.0, 1), (1.1, 1), (1.3, math.sqrt(2)), (1.9, 2), (0.7, math.sqrt(0.5)), (0.013, 2**-6.5), (1e-9, 2**-30)],
)
def test_rates_are_multiplied_by_units_rounded_to_powers_of_the_root_of_two(unit: float, rounded: float) -> None:
    fast, slow = parameters(2)
    scaled = rates(by_unit([Group([fast], lr=3.0), Group([slow], lr=0.5)], {fast: unit, slow: unit}))
    assert scaled[fast] == pytest.approx(3 * rounded)
    assert scaled[slow] == pytest.approx(0.5 * rounded)


def test_a_rounded_unit_is_within_a_fourth_root_of_two_of_the_measured_one() -> None:
    for unit in torch.logspace(-12, 12, 200, dtype=torch.float64).tolist():
        (parameter,) = parameters(1)
        rate = rates(by_unit([Group([parameter])], {parameter: unit}))[parameter]
        assert abs(math.log2(rate / unit)) <= 0.25 + 1e-9


def test_parameters_without_a_unit_keep_their_rates_and_all_keep_their_penalties() -> None:
    known, unknown = parameters(2)
    groups = by_unit([Group([known, unknown], l1=1e-4, l2=2e-4, lr=0.3, decays=False)], {known: 8.0})
    assert rates(groups) == {known: pytest.approx(2.4), unknown: 0.3}
    assert {(group.l1, group.l2, group.decays) for group in groups} == {(1e-4, 2e-4, False)}


def test_parameters_of_close_units_stay_in_one_group() -> None:
    many = parameters(6)
    units = dict(zip(many, (1.0, 1.02, 0.95, 4.0, 4.1, 3.9), strict=True))
    assert [len(group.parameters) for group in by_unit([Group(many)], units)] == [3, 3]


def test_every_parameter_is_in_one_group_once() -> None:
    many = parameters(9)
    units = {parameter: 3.0**number for number, parameter in enumerate(many[:7])}
    groups = by_unit([Group(many[:5]), Group(many[5:])], units)
    assert sorted(id(p) for group in groups for p in group.parameters) == sorted(map(id, many))


def test_units_come_on_top_of_the_rates_of_kinds() -> None:
    head, scale = parameters(2)
    kinds = by_kind([Group([head, scale])], {head: "head", scale: "scales"}, Recipe(rates={"head": 10.0}))
    assert rates(by_unit(kinds, {head: 2.0, scale: 2.0})) == {head: 20.0, scale: 2.0}
