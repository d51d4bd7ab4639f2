"""What components promise: sums and sketches of gradients against dense decompositions and formulas, in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from halrp import Flat
from halrp.method import weight_gradients
from halrp.method.budget import Budget
from halrp.method.weight_gradients import (
    Components,
    Sketched,
    Summed,
    as_matrix,
    factors_along,
    new_gradient,
    options_of,
    recovered_of,
)
from halrp.model.size import Size

Batches = Sequence[tuple[Tensor, int]]
"""Gradients, and the rows of the batches that they are of."""
F64 = torch.float64


def batches(shape: tuple[int, ...], count: int, seed: int, signal: Tensor | None = None, noise: float = 1.0) -> Batches:
    """Gradients of batches: a signal that all have, and noise."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.zeros(shape, dtype=F64) if signal is None else signal
    rows = [8 if number + 1 < count else 5 for number in range(count)]
    return [(mean + noise * torch.randn(shape, generator=generator, dtype=F64), n) for n in rows]


def low_rank(shape: tuple[int, int], rank: int, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    u, v = (torch.linalg.qr(torch.randn(n, rank, generator=generator, dtype=F64)).Q for n in shape)
    sigma = torch.tensor([2.0**-number for number in range(rank)], dtype=F64)
    matrix: Tensor = (u * sigma) @ v.T
    return matrix


def given(gradient: Summed | Sketched, first: Batches, second: Batches) -> Summed | Sketched:
    for half in (first, second):
        for each, rows in half:
            gradient.add(each, rows, torch.tensor(float(rows), dtype=F64))
        gradient.end_half()
    return gradient


def mean(half: Batches) -> Tensor:
    return torch.stack([g * n for g, n in half]).sum(0) / sum(n for _, n in half)


def summed(shape: tuple[int, ...], first: Batches, second: Batches, most: int = 4, view: str = "full") -> Components:
    return given(Summed(torch.zeros(shape, dtype=F64), {view: most}), first, second).components(view)


def sketched(shape: tuple[int, ...], first: Batches, second: Batches, most: int = 4, view: str = "full") -> Components:
    sketch = Sketched(torch.zeros(shape, dtype=F64), view, most, torch.Generator().manual_seed(7))
    return given(sketch, first, second).components(view)


# ---- sums -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["mean", "full"])
def test_scores_of_a_sum_are_those_of_directions_of_the_first_half_in_both(view: str) -> None:
    shape = (7, 5, 3, 3)
    signal = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=F64)
    first, second = batches(shape, 3, 0, signal), batches(shape, 4, 5, signal)
    result = summed(shape, first, second, view=view)
    before, after = (as_matrix(mean(half), view) for half in (first, second))
    v = torch.linalg.svd(before, full_matrices=False).Vh[:4].T
    h = torch.stack([n * (as_matrix(g, view) @ v).square().mean(0) for g, n in second]).mean(0)
    expected = (((before @ v) * (after @ v)).sum(0) / (4 * h)).clamp(min=0)
    torch.testing.assert_close(result.scores, expected, rtol=1e-9, atol=1e-15)
    assert result.rate == pytest.approx(1 / math.sqrt(7 * float(h.mean())), rel=1e-9)


@pytest.mark.parametrize("view", ["mean", "full"])
def test_directions_of_a_sum_are_those_of_the_dense_decomposition_of_the_whole_gradient(view: str) -> None:
    shape = (7, 5, 3, 3)
    signal = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=F64)
    first, second = batches(shape, 3, 0, signal, 0.1), batches(shape, 4, 5, signal, 0.1)
    result = summed(shape, first, second, view=view)
    vt = torch.linalg.svd(as_matrix(mean([*first, *second]), view), full_matrices=False).Vh[:4]
    torch.testing.assert_close((vt @ result.v).abs(), torch.eye(4, dtype=F64), rtol=0, atol=1e-9)


def test_what_components_leave_out_is_the_rest_of_the_whole_gradients_promise() -> None:
    shape = (7, 5)
    signal = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=F64)
    first, second = batches(shape, 3, 0, signal, 0.3), batches(shape, 4, 5, signal, 0.3)
    gradient = given(Summed(torch.zeros(shape, dtype=F64), {"full": 2}), first, second)
    result = gradient.components("full")
    h = torch.stack([n * g.square().mean() for g, n in (*first, *second)]).mean()
    torch.testing.assert_close(gradient.importance, h, rtol=1e-12, atol=0)
    whole = (mean(first) * mean(second)).sum() / (4 * h)
    torch.testing.assert_close(result.rest, (whole - result.scores.sum()).clamp(min=0), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("kind", [summed, sketched])
def test_scores_are_not_negative_and_finite_even_of_noise_and_of_nothing(kind: type) -> None:
    shape = (12, 9)
    nothing = [(torch.zeros(shape, dtype=F64), 8)] * 2
    for first, second in ((batches(shape, 3, 0), batches(shape, 3, 1)), (nothing, nothing)):
        result = kind(shape, first, second)
        assert bool((result.scores >= 0).all())
        assert bool(result.scores.isfinite().all() & result.v.isfinite().all() & result.rest.isfinite())
        assert math.isfinite(result.rate)
    assert float(kind(shape, nothing, nothing).scores.sum()) == 0


def test_halves_that_contradict_each_other_promise_nothing() -> None:
    signal = low_rank((12, 9), 2)
    result = summed((12, 9), batches((12, 9), 2, 0, signal, 0), batches((12, 9), 2, 0, -signal, 0))
    assert float(result.scores.sum()) == 0


@pytest.mark.parametrize("kind", [summed, sketched])
def test_noise_promises_far_less_than_a_signal_of_a_few_times_its_size(kind: type) -> None:
    """A direction is not praised for the noise that it was chosen by."""
    shape, signal = (120, 100), 20 * low_rank((120, 100), 2)  # of the mean of eight batches, noise has the norm 7.4
    noise = torch.stack([kind(shape, batches(shape, 8, s), batches(shape, 8, s + 50)).scores.sum() for s in range(9)])
    with_signal = kind(shape, batches(shape, 8, 0, signal), batches(shape, 8, 50, signal)).scores
    assert float(noise.mean()) < 0.25 * float(with_signal.sum())
    assert float(with_signal[2:].sum()) < 0.25 * float(with_signal[:2].sum())


# ---- sketches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(60, 40), (40, 60)])
def test_a_gradient_of_low_rank_is_sketched_exactly(shape: tuple[int, int]) -> None:
    signal = low_rank(shape, 3)
    first, second = batches(shape, 3, 0, signal, 0), batches(shape, 4, 1, signal, 0)
    exact, sketch = summed(shape, first, second, 3), sketched(shape, first, second, 3)
    torch.testing.assert_close(sketch.scores, exact.scores, rtol=1e-8, atol=1e-15)
    torch.testing.assert_close((sketch.v.T @ exact.v).abs(), torch.eye(3, dtype=F64), rtol=0, atol=1e-7)
    torch.testing.assert_close(sketch.rest, exact.rest, rtol=1e-6, atol=1e-12)
    assert sketch.rate == pytest.approx(exact.rate, rel=1e-6)


def test_directions_of_a_sketch_are_those_of_the_second_half_inside_the_range_of_the_first() -> None:
    shape, signal = (60, 50), 6 * low_rank((60, 50), 4)
    first, second = batches(shape, 3, 0, signal, 0.02), batches(shape, 3, 1, signal, 0.02)
    result = sketched(shape, first, second)
    vt = torch.linalg.svd(mean(second), full_matrices=False).Vh[:4]
    aligned = torch.linalg.svdvals(vt @ result.v)
    assert float(aligned.min()) > 0.999
    torch.testing.assert_close(result.v.T @ result.v, torch.eye(4, dtype=F64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(120, 100), (200, 60), (60, 200)])
def test_a_sketch_in_noise_promises_about_what_the_sum_does(shape: tuple[int, int]) -> None:
    signal = 20 * low_rank(shape, 2)
    first, second = batches(shape, 8, 0, signal), batches(shape, 8, 99, signal)
    exact, sketch = summed(shape, first, second, 8), sketched(shape, first, second, 8)
    # What the first half has of a direction is known from a sketch of 24 columns.
    torch.testing.assert_close(sketch.scores[:2], exact.scores[:2], rtol=0.5, atol=0)
    assert sketch.rate == pytest.approx(exact.rate, rel=0.2)


def test_the_same_key_sketches_alike() -> None:
    shape = (60, 50)
    once, again = (sketched(shape, batches(shape, 3, 0), batches(shape, 3, 1)) for _ in range(2))
    assert torch.equal(once.v, again.v)
    assert torch.equal(once.scores, again.scores)


# ---- units ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [summed, sketched])
@pytest.mark.parametrize("factor", [1e-3, 0.5, 200.0])
def test_scores_do_not_depend_on_the_unit_of_a_layer(kind: type, factor: float) -> None:
    """A weight that is a times larger has a gradient that is a times smaller, and the same promise."""
    shape, signal = (60, 40), low_rank((60, 40), 3)
    first, second = batches(shape, 3, 0, signal, 0.1), batches(shape, 4, 1, signal, 0.1)
    plain = kind(shape, first, second)
    scaled = kind(shape, [(g / factor, n) for g, n in first], [(g / factor, n) for g, n in second])
    torch.testing.assert_close(scaled.scores, plain.scores, rtol=1e-7, atol=1e-14)
    torch.testing.assert_close(scaled.rest, plain.rest, rtol=1e-6, atol=1e-12)
    assert scaled.rate == pytest.approx(factor * plain.rate, rel=1e-6)


def test_the_score_is_the_decrease_of_a_quadratic_loss_by_its_best_step() -> None:
    signal = low_rank((6, 5), 1)
    result = summed((6, 5), [(signal, 4)], [(signal, 4)], 1)
    v = result.v[:, 0]
    slope, h = signal @ v, 4 * float((signal @ v).square().mean())
    steps = torch.linspace(0, 1, 2001, dtype=F64)[:, None] * slope / h
    decrease = (steps @ slope - h * steps.square().sum(1)).max()
    assert float(result.scores[0]) == pytest.approx(float(decrease), rel=1e-6)


@pytest.mark.parametrize("view", ["mean", "full"])
def test_a_views_matrix_is_the_slope_along_weights_of_unit_norm_of_its_form(view: str) -> None:
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(4, 3, 3, 3, generator=generator, dtype=F64)
    form = torch.randn(as_matrix(gradient, view).shape, generator=generator, dtype=F64)
    weight = form.reshape(4, 3, 3, 3) if view == "full" else form[..., None, None].expand(4, 3, 3, 3) / 3
    assert float(weight.norm()) == pytest.approx(float(form.norm()))
    torch.testing.assert_close((as_matrix(gradient, view) * form).sum(), (gradient * weight).sum())


# ---- choices --------------------------------------------------------------------------------------------------------


def test_large_weights_are_sketched_and_small_ones_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_gradients, "SUMMED", 500)
    budget, size = Budget(10_000), Size(1000, 4000)
    kinds = [
        type(new_gradient("w", torch.zeros(20, columns), ("full",), 4, budget, "int8", size, (0, "b", "t")))
        for columns in (25, 26)
    ]
    assert kinds == [Summed, Sketched]


@pytest.mark.parametrize(("limit", "most"), [(10_000, 6), (200, 2), (1, 1)])
def test_no_more_components_are_looked_for_than_the_budget_pays_for(limit: int, most: int) -> None:
    # In int8 a component of (20, 30) takes 20 + 30 bytes and two scales of 4 bytes, or a little less.
    weight = torch.zeros(20, 30, dtype=F64)
    gradient = new_gradient("w", weight, ("full",), 6, Budget(limit), "int8", Size(1, 1), (0, "b", "t"))
    assert isinstance(gradient, Summed)
    components = given(gradient, batches((20, 30), 2, 0), batches((20, 30), 2, 1)).components("full")
    assert abs(len(components.scores) - most) <= (1 if limit == 200 else 0)


def test_components_start_at_p_zero_with_rows_of_norm_c_to_the_quarter() -> None:
    v = torch.linalg.qr(torch.randn(16, 3, generator=torch.Generator().manual_seed(0), dtype=F64)).Q
    weight = torch.randn(5, 16, generator=torch.Generator().manual_seed(1), dtype=F64)
    factors = factors_along(v, weight)
    assert not factors.p.any()
    assert factors.p.shape == (5, 3)
    torch.testing.assert_close(factors.q, 2 * v.T)
    assert torch.equal(factors.merged(weight), weight)


def test_a_weight_may_be_dense_only_where_its_view_can_express_it() -> None:
    weight = torch.zeros(4, 3, 3, 3, dtype=F64)
    first, second = batches((4, 3, 3, 3), 2, 0), batches((4, 3, 3, 3), 2, 1)
    full, mean_view = (
        options_of(summed((4, 3, 3, 3), first, second, view=view), weight, Flat(2), "int8") for view in ("full", "mean")
    )
    assert full.may_be_dense
    assert not mean_view.may_be_dense
    assert full.scales == mean_view.scales == 0


def test_the_recovered_share_is_that_of_the_chosen_components() -> None:
    weight = torch.zeros(12, 9, dtype=F64)
    signal = low_rank((12, 9), 3)
    gradient = given(Summed(weight, {"full": 3}), batches((12, 9), 2, 0, signal, 0), batches((12, 9), 2, 1, signal, 0))
    options = options_of(gradient.components("full"), weight, Flat(2), "int8")
    total = float(options.scores.sum() + options.rest)
    for rank in range(4):
        layer = recovered_of(options, gradient.importance, rank)
        assert layer.predicted == pytest.approx(total)
        assert layer.share == pytest.approx(float(options.scores[:rank].sum()) / total)
    assert recovered_of(options, gradient.importance, None).share == 1
