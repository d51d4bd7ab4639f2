"""From free weights to a low-rank start: what is reproduced, what is left, what is recovered, in float64."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from halrp import Budget, Exact, Flat, GradientNorm, Halrp, Legacy, LossRate, Plain, Whitened
from halrp.method import allocate, decompose
from halrp.method.importance import Curvature, Sensitivity
from halrp.method.protocols import FixedCost, TaskCosts
from halrp.method.scales import scaled
from halrp.method.start import Start
from halrp.method.warm_up import low_rank_start
from halrp.model.codec import PRECISIONS, Precision, encode
from halrp.model.size import Size

SHAPES = {"linear": (9, 7), "conv": (6, 5, 3, 3), "point": (6, 4, 1, 1), "line": (5, 4, 3)}
ALL = Flat(10**6)
SMALL = Size(1000, 8000)
Weights = dict[str, Tensor]


def weights(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Weights, Weights]:
    """Free weights near base weights."""
    generator = torch.Generator().manual_seed(seed)
    base = {n: torch.randn(shape, generator=generator, dtype=dtype) for n, shape in SHAPES.items()}
    free = {n: w + 0.3 * torch.randn(w.shape, generator=generator, dtype=dtype) for n, w in base.items()}
    return free, base


def importance(scale: float = 1.0) -> Weights:
    return {n: torch.tensor(scale * h, dtype=torch.float64) for n, h in zip(SHAPES, (1.0, 0.2, 3.0, 0.5), strict=True)}


def moments(view: str) -> dict[str, Curvature]:
    """Kronecker factors of every weight, as `importance.curvature` gives them, for either view."""
    generator = torch.Generator().manual_seed(5)

    def moment(size: int) -> Tensor:
        rows = torch.randn(3 * size, size, generator=generator, dtype=torch.float64)
        return rows.T @ rows / len(rows)

    return {n: Curvature(moment(w.numel() // len(w)), moment(len(w))) for n, w in weights()[0].items()}


def start(
    method: Halrp,
    view: str = "mean",
    *,
    seed: int = 0,
    scale: float = 1.0,
    curvature: Mapping[str, Curvature] | None = None,
    fixed: tuple[FixedCost, ...] = (),
    base_size: Size = SMALL,
) -> Start:
    free, base = weights(seed)
    seeded = torch.Generator().manual_seed(7)
    return low_rank_start(
        free,
        base,
        Sensitivity(importance(scale), curvature or {}),
        method,
        dict.fromkeys(free, view),
        TaskCosts(fixed),
        base_size,
        seeded,
    )


def rebuilt(result: Start, name: str) -> Tensor:
    return result.dense[name] if name in result.dense else result.factors[name].merged(weights()[1][name])


@pytest.mark.parametrize("view", ["mean", "full"])
@pytest.mark.parametrize("decomposition", [Plain(), Whitened()])
@pytest.mark.parametrize("fit", [Exact(), Exact(None), Legacy()])
def test_all_components_give_the_free_weight_back_where_the_view_can_express_it(
    view: str, decomposition: Plain | Whitened, fit: Exact | Legacy
) -> None:
    method = Halrp(allocate=ALL, decompose=decomposition, scales=fit)
    result = start(method, view, curvature=moments(view) if decomposition == Whitened() else None)
    for name, free in weights()[0].items():
        if view == "full" or free[0, 0].numel() == 1:
            torch.testing.assert_close(rebuilt(result, name), free, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["conv", "line"])
def test_all_components_of_the_mean_view_leave_a_residual_with_zero_mean_over_the_kernel(name: str) -> None:
    result = start(Halrp(allocate=ALL), "mean")
    left = weights()[0][name] - rebuilt(result, name)
    assert float(left.flatten(2).mean(2).abs().max()) < 1e-13
    assert float(left.norm()) > 0.1


@pytest.mark.parametrize("view", ["mean", "full"])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_what_truncation_drops_is_the_tail_of_the_spectrum(view: str, rank: int) -> None:
    free, base = weights()
    result = start(Halrp(allocate=Flat(rank)), view)
    for name, factors in result.factors.items():
        assert factors.rank == rank
        matrix = decompose.matrix(free[name] - scaled(base[name], factors.r, factors.s), view)
        sigma = torch.linalg.svdvals(matrix)
        dropped = (matrix - factors.p @ factors.q).square().sum()
        torch.testing.assert_close(dropped, sigma[rank:].square().sum(), rtol=1e-10, atol=1e-20)


def test_scores_are_importance_times_the_squared_error_that_a_component_makes_in_the_weight() -> None:
    free, base = weights()
    result = start(Halrp(allocate=Flat(2)), "mean")
    for name, layer in result.recovered.items():
        factors = result.factors[name]
        residual = free[name] - scaled(base[name], factors.r, factors.s)
        error = free[name] - factors.merged(base[name])
        h = float(importance()[name])
        assert layer.importance == pytest.approx(h)
        assert layer.predicted == pytest.approx(h * float(residual.square().sum()), rel=1e-12)
        # The rest of the predicted loss is that of the error which is left.
        assert layer.share == pytest.approx(1 - float(error.square().sum() / residual.square().sum()), abs=1e-12)


def test_the_papers_scores_do_not_count_a_kernels_positions() -> None:
    free, base = weights()
    method = Halrp(allocate=ALL, importance=GradientNorm())
    result = start(method, "mean")
    factors = result.factors["conv"]
    residual = free["conv"] - scaled(base["conv"], factors.r, factors.s)
    matrix = decompose.matrix(residual, "mean")
    h = float(importance()["conv"])
    inside = h * float(matrix.square().sum())
    rest = h * float((residual - matrix[..., None, None]).square().sum())
    assert result.recovered["conv"].predicted == pytest.approx(inside + rest)
    assert result.recovered["conv"].share == pytest.approx(inside / (inside + rest))


@pytest.mark.parametrize("view", ["mean", "full"])
def test_whitened_scores_are_the_predicted_loss_of_what_is_dropped(view: str) -> None:
    free, base = weights()
    damping = 0.01
    result = start(Halrp(allocate=Flat(2), decompose=Whitened(damping)), view, curvature=moments(view))
    for name, factors in result.factors.items():
        residual = free[name] - scaled(base[name], factors.r, factors.s)
        matrix = decompose.matrix(residual, view)
        A, G = (decompose.damped(m, damping) for m in moments(view)[name].for_view(view, matrix.shape[1]))
        error = matrix - factors.p @ factors.q
        outside = residual.square().sum() - matrix.square().sum() * (residual.numel() // matrix.numel())
        unseen = importance()[name] * outside.clamp(min=0)
        total = torch.trace(G @ matrix @ A @ matrix.T) + unseen
        left = torch.trace(G @ error @ A @ error.T) + unseen
        assert result.recovered[name].predicted == pytest.approx(float(total), rel=1e-10)
        assert result.recovered[name].share == pytest.approx(1 - float(left / total), abs=1e-10)


def test_a_budget_that_cuts_the_spectrum_short_still_knows_the_whole_predicted_loss() -> None:
    """Ranks beyond the budget are never decomposed, and yet a dense weight would recover them."""
    for decomposition, curvature in ((Plain(), None), (Whitened(), moments("mean"))):
        method = Halrp(allocate=ALL, decompose=decomposition)
        whole = start(method, "mean", curvature=curvature)
        tight = start(dataclasses.replace(method, allocate=Budget(parameters=90)), "mean", curvature=curvature)
        for name, layer in tight.recovered.items():
            assert layer.predicted == pytest.approx(whole.recovered[name].predicted, rel=1e-10)


def test_ranks_rise_with_the_rate_and_so_does_what_they_explain() -> None:
    rates = (0.05, 0.3, 0.6, 0.9, 0.99, 1.0)
    result = [start(Halrp(allocate=LossRate(rate)), "full") for rate in rates]
    for less, more in itertools.pairwise(result):
        for name in SHAPES:
            assert less.factors[name].rank <= more.factors[name].rank
            assert less.recovered[name].share <= more.recovered[name].share
    assert sum(f.rank for f in result[0].factors.values()) < sum(f.rank for f in result[-1].factors.values())
    for rate, each in zip(rates, result, strict=True):
        total = sum(b.predicted for b in each.recovered.values())
        # Nothing lies outside the full view, so the shares of the layers add up to at least the rate.
        assert sum(b.predicted * b.share for b in each.recovered.values()) >= rate * total * (1 - 1e-12)


@pytest.mark.parametrize("view", ["mean", "full"])
@pytest.mark.parametrize("decomposition", [Plain(), Whitened()])
@pytest.mark.parametrize(
    "rule", [LossRate(0.7), Flat(2), Budget(parameters=150), Budget(parameters=400), Budget(bytes=10**6)]
)
def test_explained_shares_lie_between_zero_and_one(
    view: str, decomposition: Plain | Whitened, rule: LossRate | Flat | Budget
) -> None:
    result = start(Halrp(allocate=rule, decompose=decomposition), view, curvature=moments(view))
    assert set(result.recovered) == set(SHAPES) == set(result.factors) | set(result.dense)
    for name, layer in result.recovered.items():
        assert 0 <= layer.share <= 1
        if name in result.dense:
            assert layer.share == 1
        elif result.factors[name].rank == 0:
            assert layer.share == 0


@pytest.mark.parametrize("rule", [LossRate(0.7), Budget(parameters=250)])
def test_ranks_do_not_depend_on_the_scale_of_the_gradients(rule: LossRate | Budget) -> None:
    result = [start(Halrp(allocate=rule), "full", scale=scale) for scale in (1e-8, 1.0, 1e8)]
    ranks = [{n: f.rank for n, f in each.factors.items()} for each in result]
    assert ranks[0] == ranks[1] == ranks[2]


def test_a_weight_is_owned_outright_only_where_its_view_can_express_it() -> None:
    plenty = Halrp(allocate=Budget(parameters=10**6))
    assert set(start(plenty, "full").dense) == set(SHAPES)
    result = start(plenty, "mean")
    # A kernel of one position is its own mean; the others keep to the form of the view, at full rank.
    assert set(result.dense) == {"linear", "point"}
    assert {n: f.rank for n, f in result.factors.items()} == {"conv": 5, "line": 4}
    for name, weight in result.dense.items():
        assert torch.equal(weight, weights()[0][name])
        assert weight.data_ptr() != weights()[0][name].data_ptr()


@pytest.mark.parametrize("view", ["mean", "full"])
def test_a_start_stays_within_every_budget(view: str) -> None:
    fixed = (FixedCost("head", 20, 160),)
    least = 20 + sum(sum(shape[:2]) for shape in SHAPES.values())
    sizes = []
    for limit in range(least, least + 500, 13):
        result = start(Halrp(allocate=Budget(parameters=limit)), view, fixed=fixed)
        inside_bytes = start(Halrp(allocate=Budget(bytes=8 * limit)), view, fixed=fixed)
        stored = 20 + sum(t.numel() for f in result.factors.values() for t in f.tensors())
        stored += sum(t.numel() for t in result.dense.values())
        assert stored <= limit
        sizes.append(stored)
        # In float64 a number is eight bytes, so both bounds are one.
        assert {n: f.rank for n, f in result.factors.items()} == {n: f.rank for n, f in inside_bytes.factors.items()}
    assert sizes[0] == least
    assert sizes == sorted(sizes)


def test_bytes_may_be_given_as_a_float() -> None:
    whole, written = start(Halrp(allocate=Budget(bytes=1600))), start(Halrp(allocate=Budget(bytes=1.6e3)))  # type: ignore[arg-type]
    assert {n: f.rank for n, f in whole.factors.items()} == {n: f.rank for n, f in written.factors.items()}


def test_growth_is_a_share_of_the_base() -> None:
    by_growth = start(Halrp(allocate=Budget(growth=0.3)), base_size=Size(1000, 1))
    by_number = start(Halrp(allocate=Budget(parameters=300)), base_size=Size(5, 1))
    assert {n: f.rank for n, f in by_growth.factors.items()} == {n: f.rank for n, f in by_number.factors.items()}
    assert any(f.rank for f in by_growth.factors.values())


def test_without_a_bound_a_file_has_two_hundredths_of_the_bases_bytes() -> None:
    by_default = start(Halrp(allocate=Budget()), base_size=Size(1, 120_000))
    by_bytes = start(Halrp(allocate=Budget(bytes=2400)), base_size=Size(1, 1))
    assert {n: f.rank for n, f in by_default.factors.items()} == {n: f.rank for n, f in by_bytes.factors.items()}
    assert any(f.rank for f in by_default.factors.values())


@pytest.mark.parametrize("view", ["mean", "full"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_components_are_paid_in_the_precision_in_which_they_are_kept(view: str, precision: Precision) -> None:
    scales = 8 * sum(sum(shape[:2]) for shape in SHAPES.values())
    for limit in range(scales, scales + 3000, 101):
        method = Halrp(allocate=Budget(bytes=limit), precision=precision)
        result = start(method, view)
        stored = sum(f.r.element_size() * (f.r.numel() + f.s.numel()) for f in result.factors.values())
        for f in result.factors.values():
            stored += sum(encode(rows.contiguous(), precision).bytes for rows in (f.p.mT, f.q))
        stored += sum(encode(w.flatten(1), precision).bytes for w in result.dense.values())
        assert stored <= limit


def test_random_factors_have_the_residuals_size_and_no_scales() -> None:
    free, base = weights()
    result = start(Halrp(allocate=Flat(3), initial="random"), "mean")
    plain = start(Halrp(allocate=Flat(3)), "mean")
    for name, factors in result.factors.items():
        assert torch.equal(factors.r, torch.ones_like(factors.r))
        assert torch.equal(factors.s, torch.ones_like(factors.s))
        fitted = plain.factors[name]
        matrix = decompose.matrix(free[name] - scaled(base[name], fitted.r, fitted.s), "mean")
        torch.testing.assert_close((factors.p @ factors.q).norm(), matrix.norm(), rtol=1e-12, atol=0)
        assert factors.rank == 3
        assert not torch.allclose(factors.p @ factors.q, fitted.p @ fitted.q, rtol=1e-2)


def test_random_components_are_some_of_the_true_ones_with_the_fitted_scales() -> None:
    free, base = weights()
    result = start(Halrp(allocate=Flat(2), initial="random components"), "full")
    leading = start(Halrp(allocate=Flat(2)), "full")
    generator = torch.Generator().manual_seed(7)
    for name, factors in result.factors.items():
        matrix = decompose.matrix(free[name] - scaled(base[name], factors.r, factors.s), "full")
        u, sigma, vt = torch.linalg.svd(matrix, full_matrices=False)
        chosen = allocate.random_components(len(sigma), 2, generator)
        torch.testing.assert_close(
            factors.p @ factors.q, (u[:, chosen] * sigma[chosen]) @ vt[chosen], rtol=1e-8, atol=1e-10
        )
        assert torch.equal(factors.r, leading.factors[name].r)
    assert any(not torch.allclose(result.factors[n].p, leading.factors[n].p) for n in SHAPES)


def test_equal_draws_give_equal_random_starts() -> None:
    method = Halrp(allocate=Flat(2), initial="random")
    first, other = start(method), start(method)
    assert all(torch.equal(first.factors[n].p, other.factors[n].p) for n in SHAPES)


def test_weights_that_did_not_move_need_no_component() -> None:
    _, base = weights()
    seeded = torch.Generator()
    result = low_rank_start(
        base,
        base,
        Sensitivity(importance(), {}),
        Halrp(allocate=LossRate(0.9)),
        dict.fromkeys(base, "mean"),
        TaskCosts(()),
        Size(1, 1),
        seeded,
    )
    for name, factors in result.factors.items():
        # The fitted scales are 1 up to rounding, so the residual is rounding too.
        torch.testing.assert_close(factors.merged(base[name]), base[name], rtol=1e-12, atol=1e-12)
        assert result.recovered[name].predicted < 1e-25


def test_layers_without_importance_get_no_rank() -> None:
    free, base = weights()
    costs = TaskCosts(())
    nothing = {n: torch.zeros((), dtype=torch.float64) for n in SHAPES}
    for rule in (LossRate(0.9), Budget(parameters=500)):
        method: Any = Halrp(allocate=rule)
        result = low_rank_start(
            free,
            base,
            Sensitivity(nothing, {}),
            method,
            dict.fromkeys(free, "full"),
            costs,
            Size(1, 1),
            torch.Generator(),
        )
        assert {f.rank for f in result.factors.values()} == {0}
        assert not result.dense


def test_no_gradient_and_no_input_is_touched() -> None:
    free, base = weights()
    tracked = {n: w.clone().requires_grad_() for n, w in free.items()}
    result = low_rank_start(
        tracked,
        base,
        Sensitivity(importance(), {}),
        Halrp(allocate=Flat(1)),
        dict.fromkeys(base, "mean"),
        TaskCosts(()),
        Size(1, 1),
        torch.Generator(),
    )
    assert not any(t.requires_grad for f in result.factors.values() for t in f.tensors())
    assert all(torch.equal(tracked[n], free[n]) for n in SHAPES)
    assert all(torch.equal(base[n], weights()[1][n]) for n in SHAPES)
