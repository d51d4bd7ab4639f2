"""Scales against least squares solved densely in float64, and their guards."""

import itertools

import pytest
import torch
from torch import Tensor

from halrp.errors import ModelError, SettingError
from halrp.method import scales

SHAPES = [(7, 5), (6, 4, 3), (6, 4, 3, 3), (5, 1, 5, 5), (4, 3, 2, 2, 2)]


def pair(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return a base and a warm-up weight close to a rescaled base."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(shape, generator=generator, dtype=dtype)
    free = base + 0.3 * torch.randn(shape, generator=generator, dtype=dtype)
    return free, base


def error(free: Tensor, base: Tensor, r: Tensor, s: Tensor) -> float:
    return float((free - scales.scaled(base, r, s)).square().sum())


@pytest.mark.parametrize("shape", SHAPES)
def test_one_sweep_is_a_dense_least_squares_solve_for_r_and_then_for_s(shape: tuple[int, ...]) -> None:
    free, base = pair(shape)
    r, s = scales.fit(free, base)
    for j in range(shape[0]):
        solution = torch.linalg.lstsq(base[j].reshape(-1, 1), free[j].reshape(-1, 1)).solution
        torch.testing.assert_close(r[j], solution.squeeze())
    for i in range(shape[1]):
        column = torch.stack([r[j] * base[j, i] for j in range(shape[0])])
        solution = torch.linalg.lstsq(column.reshape(-1, 1), free[:, i].reshape(-1, 1)).solution
        torch.testing.assert_close(s[i], solution.squeeze())


@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_of_the_objective_vanishes_at_the_solution(shape: tuple[int, ...]) -> None:
    free, base = pair(shape)
    r, s = scales.fit(free, base)
    row = r.clone().requires_grad_()
    (free - scales.scaled(base, row, torch.ones_like(s))).square().sum().backward()
    column = s.clone().requires_grad_()
    (free - scales.scaled(base, r, column)).square().sum().backward()
    assert row.grad is not None
    assert column.grad is not None
    # Sums of at most 100 products of order one, in float64.
    assert float(row.grad.abs().max()) < 1e-11
    assert float(column.grad.abs().max()) < 1e-11


def test_scaled_broadcasts_over_the_kernel() -> None:
    _, base = pair((6, 4, 3, 3))
    r, s = torch.arange(6.0, dtype=torch.float64), torch.arange(4.0, dtype=torch.float64)
    torch.testing.assert_close(scales.scaled(base, r, s), torch.einsum("j,jiab,i->jiab", r, base, s))


@pytest.mark.parametrize("fit", [scales.Exact(), scales.Exact(None), scales.Legacy()])
def test_a_multiple_of_the_base_gives_the_multiple_and_one(fit: scales.Exact | scales.Legacy) -> None:
    _, base = pair((6, 4, 3, 3))
    r, s = fit(-2.5 * base, base)
    torch.testing.assert_close(r, torch.full_like(r, -2.5))
    torch.testing.assert_close(s, torch.ones_like(s))


def test_more_sweeps_never_fit_worse_and_convergence_fits_best() -> None:
    free, base = pair((8, 6, 3, 3), seed=3)
    errors = [error(free, base, *scales.fit(free, base, sweeps)) for sweeps in (1, 2, 3, 5, 10)]
    converged = error(free, base, *scales.fit(free, base, None))
    assert all(later <= earlier for earlier, later in itertools.pairwise(errors))
    assert errors[-1] < errors[0]
    assert converged <= errors[-1] * (1 + 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_convergence_recovers_scales_that_generated_the_weight(dtype: torch.dtype) -> None:
    _, base = pair((8, 6), dtype=dtype)
    r, s = torch.linspace(0.5, 2, 8, dtype=dtype), torch.linspace(-1, 3, 6, dtype=dtype)
    free = scales.scaled(base, r, s)
    got_r, got_s = scales.fit(free, base, None)
    assert got_r.dtype == got_s.dtype == dtype
    # The objective stops at epsilon of the energy, so the weight is right to about its square root.
    bound = 10 * torch.finfo(dtype).eps ** 0.5
    assert float((scales.scaled(base, got_r, got_s) - free).norm() / free.norm()) < bound


@pytest.mark.parametrize("sweeps", [1, 4, None])
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-6])
def test_rows_and_columns_without_energy_keep_scale_one(size: float, sweeps: int | None) -> None:
    free, base = pair((6, 5, 3, 3), dtype=torch.float32)
    base[2] *= size
    base[:, 3] *= size
    for r, s in (scales.fit(free, base, sweeps), scales.fit_legacy(free, base)):
        assert float(r[2]) == 1
        assert float(s[3]) == 1
        assert bool(torch.isfinite(r).all() & torch.isfinite(s).all())
        assert float(torch.cat([r, s]).abs().max()) < 3


@pytest.mark.parametrize("fit", [scales.Exact(), scales.Exact(3), scales.Exact(None), scales.Legacy()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_base_of_zeros_gives_ones(fit: scales.Exact | scales.Legacy, dtype: torch.dtype) -> None:
    free, base = pair((4, 3), dtype=dtype)
    r, s = fit(free, torch.zeros_like(base))
    assert torch.equal(r, torch.ones(4, dtype=dtype))
    assert torch.equal(s, torch.ones(3, dtype=dtype))


@pytest.mark.parametrize("fit", [scales.Exact(), scales.Exact(3), scales.Exact(None), scales.Legacy()])
def test_a_warm_up_weight_orthogonal_to_the_base_gives_r_zero_and_s_one(fit: scales.Exact | scales.Legacy) -> None:
    base = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    free = torch.tensor([[1.0, -1.0], [1.0, 1.0]])
    r, s = fit(free, base)
    assert torch.equal(r, torch.zeros(2))
    assert torch.equal(s, torch.ones(2))


def test_a_column_that_only_meets_rows_of_scale_zero_keeps_scale_one() -> None:
    base = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    free = torch.tensor([[1.0, -1.0, 0.0], [0.0, 0.0, 2.0]])
    r, s = scales.fit(free, base)
    assert r.tolist() == [0, 2]
    assert s.tolist() == [1, 1, 1]


def test_legacy_follows_its_formula_and_differs_from_least_squares() -> None:
    free, base = pair((6, 4, 3, 3), seed=1)
    r, s = scales.fit_legacy(free, base)
    exact_r, exact_s = scales.fit(free, base)
    expected = (r.sum() / (r**2).sum()) * (free * base).sum((0, 2, 3)) / (base**2).sum((0, 2, 3))
    torch.testing.assert_close(s, expected)
    torch.testing.assert_close(r, exact_r)
    assert not torch.allclose(s, exact_s, rtol=1e-4)
    assert error(free, base, exact_r, exact_s) < error(free, base, r, s)


def test_legacy_is_exact_when_r_is_constant() -> None:
    _, base = pair((6, 4), seed=2)
    # Noise orthogonal to every row of the base leaves r at 1.5 while s must still be solved for.
    noise = torch.randn(6, 4, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    noise -= base * ((noise * base).sum(1) / (base * base).sum(1))[:, None]
    free = 1.5 * base + noise
    exact, legacy = scales.fit(free, base), scales.fit_legacy(free, base)
    torch.testing.assert_close(exact[0], torch.full((6,), 1.5, dtype=torch.float64))
    torch.testing.assert_close(legacy[1], exact[1])
    assert float((exact[1] - 1).abs().max()) > 0.01


def test_inputs_and_the_global_random_state_are_left_alone() -> None:
    free, base = pair((6, 4, 3, 3))
    copies, state = (free.clone(), base.clone()), torch.get_rng_state()
    scales.fit(free, base, None)
    scales.fit_legacy(free, base)
    assert torch.equal(free, copies[0])
    assert torch.equal(base, copies[1])
    assert torch.equal(torch.get_rng_state(), state)


def test_bad_input_is_named() -> None:
    with pytest.raises(ModelError, match=r"\(2, 3\) and \(3, 2\)"):
        scales.fit(torch.ones(2, 3), torch.ones(3, 2))
    with pytest.raises(ModelError, match=r"\(3,\)"):
        scales.fit_legacy(torch.ones(3), torch.ones(3))
    with pytest.raises(SettingError, match="sweeps is 0"):
        scales.fit(torch.ones(2, 3), torch.ones(2, 3), 0)
    with pytest.raises(SettingError, match="sweeps is -1"):
        scales.Exact(-1)
