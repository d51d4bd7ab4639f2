"""Allocations against exhaustive search on small cases, and their bounds."""

import dataclasses
import itertools
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from halrp.errors import SettingError
from halrp.method import allocate
from tests.timing import lines_of

Curves = dict[str, tuple[list[float], list[int]]]


def tensors(**layers: list[float]) -> dict[str, Tensor]:
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in layers.items()}


def value(scores: Mapping[str, Tensor], ranks: Mapping[str, int]) -> float:
    return sum(float(scores[layer][:rank].sum()) for layer, rank in ranks.items())


# --- by loss rate -------------------------------------------------------------------------------------------------


def test_the_shortest_pooled_prefix_reaching_the_rate_is_kept() -> None:
    scores = tensors(a=[5, 3, 1], b=[4, 2])
    assert allocate.by_loss_rate(scores, 0.1) == {"a": 1, "b": 0}
    assert allocate.by_loss_rate(scores, 0.5) == {"a": 1, "b": 1}
    assert allocate.by_loss_rate(scores, 0.9) == {"a": 2, "b": 2}
    assert allocate.by_loss_rate(scores, 1.0) == {"a": 3, "b": 2}


def test_a_rate_met_exactly_is_enough_unless_strict() -> None:
    scores = tensors(a=[7, 1], b=[2])
    assert allocate.by_loss_rate(scores, 0.7) == {"a": 1, "b": 0}
    assert allocate.by_loss_rate(scores, 0.7, strict=True) == {"a": 1, "b": 1}
    assert allocate.by_loss_rate(scores, 0.9) == {"a": 1, "b": 1}
    assert allocate.by_loss_rate(scores, 0.9, strict=True) == {"a": 2, "b": 1}


@pytest.mark.parametrize("strict", [False, True])
def test_rate_one_keeps_every_component_that_is_not_zero_however_small(strict: bool) -> None:
    scores = tensors(a=[1, 1e-30, 0, 0], b=[0, 0], c=[1e-3, 0])
    assert allocate.by_loss_rate(scores, 1.0, strict) == {"a": 2, "b": 0, "c": 1}


def test_a_tiny_rate_keeps_one_component_in_all() -> None:
    assert allocate.by_loss_rate(tensors(a=[2, 1], b=[3, 1]), 1e-9) == {"a": 0, "b": 1}


def test_scores_of_zero_give_rank_zero_everywhere() -> None:
    assert allocate.by_loss_rate(tensors(a=[0, 0], b=[], c=[0]), 0.9) == {"a": 0, "b": 0, "c": 0}
    assert allocate.by_loss_rate({}, 0.9) == {}


def test_ties_go_to_the_layer_named_first_and_form_a_prefix() -> None:
    scores = tensors(z=[1, 1, 1], a=[1, 1, 1])
    assert allocate.by_loss_rate(scores, 0.5) == {"z": 3, "a": 0}
    assert allocate.by_loss_rate(scores, 0.6) == {"z": 3, "a": 1}


def test_scores_that_rise_inside_a_layer_are_reached_through_those_before() -> None:
    scores = tensors(a=[3, 1, 1.5], b=[2])
    assert allocate.by_loss_rate(scores, 0.6) == {"a": 1, "b": 1}
    assert allocate.by_loss_rate(scores, 1.0) == {"a": 3, "b": 1}


score_lists = st.lists(st.floats(0, 100, allow_subnormal=False), min_size=0, max_size=6)


@given(st.lists(score_lists, min_size=1, max_size=4), st.floats(0.01, 1), st.floats(0.01, 1))
@settings(deadline=None, derandomize=True)
def test_the_rate_is_reached_and_ranks_rise_with_it(layers: list[list[float]], rate_a: float, rate_b: float) -> None:
    scores = {str(n): torch.tensor(layer, dtype=torch.float64) for n, layer in enumerate(layers)}
    low, high = (allocate.by_loss_rate(scores, rate) for rate in sorted((rate_a, rate_b)))
    assert all(low[layer] <= high[layer] <= len(scores[layer]) for layer in scores)
    total = sum(float(layer.sum()) for layer in scores.values())
    # The share is summed in another order here: a few units of float64 rounding.
    assert value(scores, high) >= max(rate_a, rate_b) * total * (1 - 1e-12)


@given(st.lists(score_lists, min_size=1, max_size=4), st.floats(0.01, 1))
@settings(deadline=None, derandomize=True)
def test_no_smaller_selection_of_descending_scores_reaches_the_rate(layers: list[list[float]], rate: float) -> None:
    scores = {str(n): torch.tensor(sorted(layer, reverse=True), dtype=torch.float64) for n, layer in enumerate(layers)}
    count = sum(allocate.by_loss_rate(scores, rate).values())
    pooled = torch.cat(list(scores.values())).sort(descending=True).values
    if count:
        assert float(pooled[: count - 1].sum()) <= rate * float(pooled.sum()) * (1 + 1e-12)


def test_scaling_all_scores_by_a_power_of_two_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = {name: torch.rand(20, generator=generator).sort(descending=True).values for name in "abc"}
    scaled = {name: layer * 2.0**-40 for name, layer in scores.items()}
    for rate in (0.1, 0.5, 0.9, 0.99):
        assert allocate.by_loss_rate(scores, rate) == allocate.by_loss_rate(scaled, rate)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan")])
def test_a_rate_outside_its_range_is_named(rate: float) -> None:
    with pytest.raises(SettingError, match="rate is"):
        allocate.by_loss_rate(tensors(a=[1]), rate)
    with pytest.raises(SettingError, match="rate is"):
        allocate.LossRate(rate)


@pytest.mark.parametrize("bad", [[1, -1], [float("nan")], [float("inf")]])
def test_scores_that_cannot_be_predicted_losses_are_refused(bad: list[float]) -> None:
    with pytest.raises(SettingError, match="layer 'b'"):
        allocate.by_loss_rate(tensors(a=[1], b=bad), 0.9)
    with pytest.raises(SettingError, match="layer 'b'"):
        allocate.by_budget(tensors(a=[1], b=bad), {"a": 1, "b": 1}, 3)
    with pytest.raises(SettingError, match="1-D"):
        allocate.by_loss_rate({"a": torch.ones(2, 2)}, 0.9)


# --- by budget ----------------------------------------------------------------------------------------------------


def optimum(curves: Curves, budget: int) -> float:
    """Try every combination of ranks."""
    best = 0.0
    for ranks in itertools.product(*(range(len(scores) + 1) for scores, _ in curves.values())):
        spent = sum(sum(costs[:rank]) for rank, (_, costs) in zip(ranks, curves.values(), strict=True))
        if spent <= budget:
            recovered = sum(sum(scores[:rank]) for rank, (scores, _) in zip(ranks, curves.values(), strict=True))
            best = max(best, recovered)
    return best


def largest_segment(scores: list[float], costs: list[int]) -> float:
    """Walk the upper concave envelope by brute force: from each vertex to the point of steepest ascent."""
    largest, start = 0.0, 0
    while start < len(scores):
        steps = [(sum(scores[start:end]), sum(costs[start:end]), end) for end in range(start + 1, len(scores) + 1)]
        gain, _, start = max(steps, key=lambda step: (step[0] / step[1], -step[2]))
        largest = max(largest, gain)
    return largest


def buy(curves: Curves, budget: int) -> float:
    """Allocate, check the hard bound, and return the score it reaches."""
    scores = {layer: torch.tensor(values, dtype=torch.float64) for layer, (values, _) in curves.items()}
    prices = {layer: torch.tensor(costs, dtype=torch.int64) for layer, (_, costs) in curves.items()}
    ranks = allocate.by_budget(scores, prices, budget)
    assert list(ranks) == list(curves)
    assert all(0 <= rank <= len(curves[layer][0]) for layer, rank in ranks.items())
    assert sum(int(prices[layer][:rank].sum()) for layer, rank in ranks.items()) <= budget
    return value(scores, ranks)


components = st.lists(st.tuples(st.floats(0, 10, allow_subnormal=False), st.integers(1, 6)), max_size=4)


@given(st.lists(components, min_size=1, max_size=3), st.integers(0, 40))
@settings(deadline=None, derandomize=True, max_examples=300)
def test_with_any_costs_the_result_is_within_one_segment_of_the_optimum(
    layers: list[list[tuple[float, int]]], budget: int
) -> None:
    curves = {str(n): ([s for s, _ in layer], [c for _, c in layer]) for n, layer in enumerate(layers)}
    slack = max((largest_segment(*curve) for curve in curves.values()), default=0.0)
    assert buy(curves, budget) + slack >= optimum(curves, budget) - 1e-9


@given(st.lists(st.tuples(score_lists, st.integers(1, 7)), min_size=1, max_size=3), st.integers(0, 60))
@settings(deadline=None, derandomize=True, max_examples=200)
def test_with_descending_scores_the_result_is_within_one_component_of_the_optimum(
    layers: list[tuple[list[float], int]], budget: int
) -> None:
    curves = {str(n): (sorted(scores, reverse=True), [price] * len(scores)) for n, (scores, price) in enumerate(layers)}
    largest = max((scores[0] for scores, _ in curves.values() if scores), default=0.0)
    assert buy(curves, budget) + largest >= optimum(curves, budget) - 1e-9


@given(st.lists(score_lists, min_size=1, max_size=3), st.integers(0, 20))
@settings(deadline=None, derandomize=True, max_examples=200)
def test_with_unit_costs_and_descending_scores_the_result_is_the_optimum(
    layers: list[list[float]], budget: int
) -> None:
    curves = {str(n): (sorted(scores, reverse=True), [1] * len(scores)) for n, scores in enumerate(layers)}
    assert buy(curves, budget) == pytest.approx(optimum(curves, budget), rel=1e-12)


def test_a_good_last_step_is_found_behind_a_poor_one() -> None:
    scores = tensors(owned=[1, 0.1, 9], other=[2, 2, 2])
    price = {"owned": torch.tensor([4, 4, 1]), "other": torch.tensor([4, 4, 4])}
    assert allocate.by_budget(scores, price, 9) == {"owned": 3, "other": 0}
    # One short of the whole segment: its poor beginning must not be chosen instead of the other layer.
    assert allocate.by_budget(scores, price, 8) == {"owned": 0, "other": 2}
    assert allocate.by_budget(scores, price, 13) == {"owned": 3, "other": 1}


def test_what_fits_of_a_segment_is_taken_when_nothing_else_is_for_sale() -> None:
    scores, price = tensors(a=[1, 0.1, 9]), {"a": torch.tensor([4, 4, 1])}
    assert [allocate.by_budget(scores, price, budget)["a"] for budget in (3, 4, 8, 9)] == [0, 1, 2, 3]


def test_the_rest_of_the_budget_is_filled_with_cheaper_components() -> None:
    scores = tensors(big=[100, 90], small=[1, 0.5, 0.25])
    assert allocate.by_budget(scores, {"big": 10, "small": 2}, 15) == {"big": 1, "small": 2}


def test_worthless_components_are_not_bought() -> None:
    scores = tensors(a=[1, 0, 0], b=[0, 0])
    assert allocate.by_budget(scores, {"a": 1, "b": 1}, 100) == {"a": 1, "b": 0}
    assert allocate.by_budget(tensors(a=[0, 0, 3, 0]), {"a": 1}, 100) == {"a": 3}


def test_components_that_cost_nothing_are_bought_with_nothing() -> None:
    scores = tensors(a=[1, 1, 0, 2, 0], b=[5, 1])
    assert allocate.by_budget(scores, {"a": 0, "b": torch.tensor([3, 0])}, 0) == {"a": 4, "b": 0}
    assert allocate.by_budget(scores, {"a": 0, "b": torch.tensor([3, 0])}, 3) == {"a": 4, "b": 2}


def test_an_empty_stream_of_layers_and_empty_layers_are_fine() -> None:
    assert allocate.by_budget({}, {}, 5) == {}
    assert allocate.by_budget(tensors(a=[], b=[1]), {"a": 1, "b": 1}, 5) == {"a": 0, "b": 1}


def test_ties_in_score_per_cost_go_to_the_layer_named_first() -> None:
    assert allocate.by_budget(tensors(z=[2, 2], a=[1, 1]), {"z": 2, "a": 1}, 4) == {"z": 2, "a": 0}


@pytest.mark.parametrize("owned", [False, True])
def test_work_grows_with_the_number_of_components_not_with_its_square(owned: bool) -> None:
    def work(layers: int, components: int) -> int:
        generator = torch.Generator().manual_seed(0)
        scores, price = {}, {}
        for layer in range(layers):
            name = str(layer)
            scores[name] = torch.rand(components, generator=generator).sort(descending=True).values
            costs = torch.full((components,), 100 + 7 * layer)
            if owned:
                costs[-1] = 1
                scores[name][-1] = 50.0
            price[name] = costs
        half = sum(int(costs.sum()) for costs in price.values()) // 2
        ranks: dict[str, int] = {}
        lines = lines_of(lambda: ranks.update(allocate.by_budget(scores, price, half)))
        assert 0.9 * half < sum(int(price[layer][:rank].sum()) for layer, rank in ranks.items()) <= half
        return lines

    assert work(80, 800) < 6 * work(40, 400), "four times the components; the square of that is sixteen"


def test_bad_budgets_and_costs_are_named() -> None:
    scores = tensors(a=[1, 1])
    with pytest.raises(SettingError, match="budget is -1"):
        allocate.by_budget(scores, {"a": 1}, -1)
    with pytest.raises(SettingError, match="layer 'a' has scores but no cost"):
        allocate.by_budget(scores, {}, 1)
    with pytest.raises(SettingError, match="one per component"):
        allocate.by_budget(scores, {"a": torch.tensor([1])}, 1)
    with pytest.raises(SettingError, match="one per component"):
        allocate.by_budget(scores, {"a": torch.tensor([1.0, 2.0])}, 1)
    with pytest.raises(SettingError, match="falls to -2"):
        allocate.by_budget(scores, {"a": -2}, 1)


# --- the rest -----------------------------------------------------------------------------------------------------


def test_flat_gives_one_rank_within_each_limit() -> None:
    assert allocate.flat({"conv1": 3, "fc1": 800}, 100) == {"conv1": 3, "fc1": 100}
    assert allocate.Flat(2)(tensors(a=[0, 0, 0], b=[1])) == {"a": 2, "b": 1}
    assert allocate.flat({"a": 3}, 0) == {"a": 0}
    assert allocate.Flat(0)(tensors(a=[1.0])) == {"a": 0}
    assert allocate.Flat().rank == 100  # as in the released code
    with pytest.raises(SettingError, match="rank is -1"):
        allocate.flat({}, -1)
    with pytest.raises(SettingError, match=r"Flat.rank is -1"):
        allocate.Flat(-1)


def test_random_components_are_a_sorted_seeded_choice() -> None:
    state = torch.get_rng_state()
    chosen = allocate.random_components(100, 10, torch.Generator().manual_seed(1))
    assert torch.equal(chosen, allocate.random_components(100, 10, torch.Generator().manual_seed(1)))
    assert not torch.equal(chosen, allocate.random_components(100, 10, torch.Generator().manual_seed(2)))
    assert chosen.unique().tolist() == chosen.tolist()
    assert len(chosen) == 10
    assert allocate.random_components(5, 5, torch.Generator()).tolist() == [0, 1, 2, 3, 4]
    assert allocate.random_components(5, 0, torch.Generator()).tolist() == []
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(SettingError, match="rank is -1"):
        allocate.random_components(5, -1, torch.Generator())
    with pytest.raises(SettingError, match="rank is 6"):
        allocate.random_components(5, 6, torch.Generator())


def test_a_rule_without_a_rank_cannot_allocate() -> None:
    with pytest.raises(NotImplementedError):
        allocate.RankRule()(tensors(a=[1.0]))


@pytest.mark.parametrize("rule", [allocate.LossRate(), allocate.Flat()])
def test_rules_are_frozen(rule: allocate.RankRule) -> None:
    for field in dataclasses.fields(rule):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(rule, field.name, 0)


def test_loss_rate_clamps_to_its_floor_its_cap_and_the_components_there_are() -> None:
    scores = tensors(a=[9, 8, 7, 6], b=[1e-9], c=[], d=[1e-9, 0, 0])
    assert allocate.LossRate(0.9)(scores) == {"a": 4, "b": 0, "c": 0, "d": 0}
    assert allocate.LossRate(0.9, floor=1, cap=3)(scores) == {"a": 3, "b": 1, "c": 0, "d": 1}
    assert allocate.LossRate(0.9, floor=2)(scores) == {"a": 4, "b": 1, "c": 0, "d": 2}
    assert allocate.LossRate(0.3)(tensors(a=[7, 3])) == {"a": 1}
    assert allocate.LossRate(0.7, strict=True)(tensors(a=[7, 3])) == {"a": 2}
    with pytest.raises(SettingError, match="floor 3 and cap 2"):
        allocate.LossRate(floor=3, cap=2)
