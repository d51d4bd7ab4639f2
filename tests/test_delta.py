"""What a task owns, counted by hand on LeNet, and read-only."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from halrp.delta import Bought, Delta
from halrp.lab.backbones import build
from halrp.layers import Factors
from halrp.plan import plan

RANKS = {"conv1.weight": 3, "conv2.weight": 20, "linear1.weight": 100, "linear2.weight": 100}
NON_PRUNABLE = 13_143
PRUNABLE = 531_469
BIASES = 20 + 50 + 800 + 500
STATISTICS = 2 * (20 + 50 + 800 + 500)
COUNTERS = 4


def factors(rows: int, columns: int, rank: int, dtype: torch.dtype = torch.float32) -> Factors:
    def ones(*shape: int) -> Tensor:
        return torch.ones(shape, dtype=dtype)

    return Factors(ones(rows), ones(columns), ones(rows, rank), ones(rank, columns))


def lenet_delta() -> Delta:
    """A delta of LeNet at the ranks of the published runs, factors without any zero."""
    model = build("lenet", classes=10)
    layout = plan(model)
    adapted = layout.named("adapted")
    assert set(adapted) == set(RANKS)
    owned = {n: p.detach() for n, p in model.named_parameters() if n not in adapted} | dict(model.named_buffers())
    return Delta(
        task="second",
        classes=10,
        base="fingerprint",
        factors={n: factors(t.shape[0], t.shape[1], RANKS[n]) for n, t in adapted.items()},
        owned=owned,
        roles={n: layout.role(n) for n in owned},
        bought={n: Bought(1.0, 2.0, 0.5) for n in adapted},
        view="mean",
    )


def small(p: Tensor, q: Tensor, owned: Mapping[str, Tensor] | None = None) -> Delta:
    layer = Factors(torch.ones(len(p), dtype=p.dtype), torch.ones(q.shape[1], dtype=p.dtype), p, q)
    return Delta("t", 2, "f", {"w": layer}, owned or {}, dict.fromkeys(owned or {}, "other"), {})


def test_the_base_of_the_published_runs_has_2_995_620_parameters() -> None:
    assert sum(p.numel() for p in build("lenet", classes=10).parameters()) == 2_995_620


def test_the_papers_count_of_lenet_is_the_closed_form() -> None:
    delta = lenet_delta()
    assert delta.paper_count(dense=True) == NON_PRUNABLE + PRUNABLE
    assert delta.paper_count() == NON_PRUNABLE + PRUNABLE
    assert delta.ranks == RANKS
    assert delta.importance == dict.fromkeys(RANKS, 1.0)


def test_the_honest_count_adds_biases_statistics_and_counters() -> None:
    delta = lenet_delta()
    assert delta.parameters == NON_PRUNABLE + PRUNABLE + BIASES + STATISTICS + COUNTERS
    # Counters of batch norm are 8-byte integers.
    assert delta.bytes == 4 * (NON_PRUNABLE + PRUNABLE + BIASES + STATISTICS) + 8 * COUNTERS


def test_pruned_entries_leave_both_counts_but_not_the_dense_one() -> None:
    delta = lenet_delta()
    layers = dict(delta.factors)
    p = layers["linear1.weight"].p.clone()
    p[:, 10:] = 0
    pruned = delta.with_factors(layers | {"linear1.weight": dataclasses.replace(layers["linear1.weight"], p=p)})
    gone = 800 * 90
    assert pruned.paper_count() == NON_PRUNABLE + PRUNABLE - gone
    assert pruned.paper_count(dense=True) == NON_PRUNABLE + PRUNABLE
    assert pruned.parameters == delta.parameters - gone
    # A tenth of 800 × 100 entries is left, each with its index.
    assert pruned.bytes == delta.bytes - 4 * 800 * 100 + 8 * 800 * 10
    assert delta.paper_count() == NON_PRUNABLE + PRUNABLE


def test_a_tensor_is_stored_sparse_only_where_that_is_smaller() -> None:
    q = torch.ones(2, 3)
    half = torch.ones(10, 2)
    half.view(-1)[:10] = 0  # 10 entries of 4 + 4 bytes: as large as 20 dense ones
    assert small(half, q).bytes == 4 * (10 + 3 + 20 + 6)
    half.view(-1)[10] = 0
    assert small(half, q).bytes == 4 * (10 + 3 + 6) + 8 * 9


@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 8), (torch.float32, 4), (torch.bfloat16, 2)])
def test_bytes_follow_the_type_of_the_numbers(dtype: torch.dtype, size: int) -> None:
    delta = small(torch.ones(5, 2, dtype=dtype), torch.ones(2, 3, dtype=dtype), {"bias": torch.ones(5, dtype=dtype)})
    assert delta.parameters == 5 + 3 + 10 + 6 + 5
    assert delta.bytes == size * delta.parameters


def test_a_tiny_entry_is_stored_because_the_task_must_come_back_exactly_but_the_paper_ignores_it() -> None:
    delta = small(torch.tensor([[1e-9], [1.0]]), torch.ones(1, 3))
    assert delta.parameters == 2 + 3 + 2 + 3
    assert delta.bytes == 4 * 10
    assert delta.paper_count() == 2 + 3 + 1 + 3


def test_rank_zero_costs_its_scales() -> None:
    delta = small(torch.zeros(4, 0), torch.zeros(0, 3))
    assert delta.ranks == {"w": 0}
    assert delta.parameters == delta.paper_count() == 7
    assert delta.bytes == 28


def test_weights_owned_outright_count_in_full() -> None:
    delta = Delta("t", 2, "f", {}, {"w": torch.zeros(6, 5)}, {"w": "weight"}, {})
    assert delta.ranks == {}
    assert delta.parameters == delta.paper_count() == delta.paper_count(dense=True) == 30
    assert delta.bytes == 120


@pytest.mark.parametrize("mapping", ["factors", "owned", "roles", "bought"])
def test_mappings_are_read_only_and_apart_from_what_was_passed(mapping: str) -> None:
    passed: dict[str, Any] = {name: {} for name in ("factors", "owned", "roles", "bought")}
    delta = Delta("t", 2, "f", **passed)
    passed[mapping]["late"] = None
    assert dict(getattr(delta, mapping)) == {}
    with pytest.raises(TypeError):
        getattr(delta, mapping)["late"] = None


def test_a_delta_is_frozen_and_says_what_matters() -> None:
    delta = lenet_delta()
    with pytest.raises(dataclasses.FrozenInstanceError):
        delta.task = "other"  # type: ignore[misc]
    text = repr(delta)
    assert "'second'" in text
    assert "conv2.weight: 20" in text
    assert f"{delta.bytes:,}" in text


def test_other_factors_make_another_delta() -> None:
    delta = small(torch.ones(4, 2), torch.ones(2, 3), {"bias": torch.ones(4)})
    other = delta.with_factors({"w": factors(4, 3, 1)})
    assert other.ranks == {"w": 1}
    assert delta.ranks == {"w": 2}
    assert other.owned["bias"] is delta.owned["bias"]
