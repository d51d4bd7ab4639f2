"""Kumaraswamy and concrete distributions: against torch's own, closed forms, quadrature and Monte Carlo."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.distributions import Kumaraswamy
from torch.distributions.relaxed_bernoulli import LogitRelaxedBernoulli

from halrp import seeding
from halrp.lab.methods.kumaraswamy import LIMIT, divergence, log_density, log_odds, logistic, sample, stick

LONG = 20_000
"""Terms after which the series has converged for the shapes used here: its terms fall like m^(−1−d)."""


def item(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def kl(c: float, d: float, c0: float, d0: float, terms: int = LONG) -> float:
    return float(divergence(item(c), item(d), item(c0), item(d0), terms))


def density(v: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """The log-density of a Kumaraswamy variable."""
    return (c * d).log() + (c - 1) * v.log() + (d - 1) * torch.log1p(-(v**c))


def uniform(rows: int, *names: object) -> Tensor:
    return torch.rand(rows, generator=seeding.generator(*names), dtype=torch.float64).clamp(1e-12, 1 - 1e-12)


@pytest.mark.parametrize(("c", "d"), [(3.0, 2.0), (0.7, 1.0), (40.0, 1.5), (2.0, 5.0)])
def test_a_sample_inverts_the_distribution_function(c: float, d: float) -> None:
    u = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    v = sample(item(c), item(d), u)
    torch.testing.assert_close(1 - (1 - v**c) ** d, u, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("c", "d"), [(3.0, 2.0), (2.0, 3.0), (4.0, 1.2), (15.0, 1.0)])
def test_a_distribution_does_not_diverge_from_itself(c: float, d: float) -> None:
    assert kl(c, d, c, d) == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(
    ("shapes", "value"),
    [((2, 3, 5, 1), 2.266), ((2, 3, 1.5, 2), 0.0351), ((4, 1.2, 3, 0.8), 0.0424)],
)
def test_known_divergences(shapes: tuple[float, float, float, float], value: float) -> None:
    assert kl(*shapes) == pytest.approx(value, abs=0.5 * 10 ** -(3 if value > 1 else 4))


@pytest.mark.parametrize(("c", "d"), [(2.0, 3.0), (4.0, 1.2), (1.5, 2.0)])
def test_the_density_used_here_is_torchs(c: float, d: float) -> None:
    middle = torch.linspace(0.1, 0.9, 9, dtype=torch.float64)  # nearer to 0 torch's own loses all digits
    torch.testing.assert_close(density(middle, item(c), item(d)), Kumaraswamy(item(c), item(d)).log_prob(middle))


@pytest.mark.parametrize("shapes", [(2, 3, 5, 1), (2, 3, 1.5, 2), (4, 1.2, 3, 0.8), (30, 1.5, 20, 1.1)])
def test_the_divergence_is_the_mean_log_ratio_of_densities(shapes: tuple[float, float, float, float]) -> None:
    c, d, c0, d0 = (item(value) for value in shapes)
    v = sample(c, d, uniform(200_000, "kumaraswamy", shapes))
    ratio = density(v, c, d) - density(v, c0, d0)
    error = float(ratio.std()) / len(v) ** 0.5
    assert abs(float(ratio.mean()) - kl(*shapes)) < 4 * error


@pytest.mark.parametrize(("terms", "value"), [(10, -0.0076), (15, -0.0037)])
def test_a_short_series_falls_below_zero_as_the_authors_does(terms: int, value: float) -> None:
    assert kl(3, 2, 3, 2, terms) == pytest.approx(value, abs=5e-5)


def test_without_a_second_shape_the_series_vanishes() -> None:
    assert kl(2, 3, 5, 1, terms=1) == kl(2, 3, 5, 1)


def test_the_divergence_is_taken_entry_by_entry_and_has_gradients() -> None:
    c, d = torch.tensor([2.0, 4.0], requires_grad=True), torch.tensor([3.0, 1.2], requires_grad=True)
    result = divergence(c, d, torch.tensor([1.5, 3.0]), torch.tensor([2.0, 0.8]), 500)
    assert result.tolist() == pytest.approx([kl(2, 3, 1.5, 2, 500), kl(4, 1.2, 3, 0.8, 500)], abs=1e-5)
    result.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in (c, d))


@pytest.mark.parametrize("temperature", [10.0, 1.0, 2 / 3])
def test_the_logistic_density_is_torchs(temperature: float) -> None:
    odds, y = torch.linspace(-3, 3, 7, dtype=torch.float64), torch.linspace(-2, 4, 7, dtype=torch.float64)
    theirs = LogitRelaxedBernoulli(item(temperature), logits=odds).log_prob(y)
    torch.testing.assert_close(log_density(y, odds, item(temperature)), theirs)


def test_logistic_samples_have_the_logistic_density() -> None:
    temperature, odds = item(2 / 3), item(0.4)
    y = logistic(odds, uniform(200_000, "logistic"), temperature)
    edges = torch.linspace(-6, 6, 13, dtype=torch.float64)
    grid = torch.linspace(-6, 6, 12 * 200 + 1, dtype=torch.float64)
    height = log_density(grid, odds, temperature).exp()
    for low, high in pairwise(edges):
        inside = (grid >= low - 1e-9) & (grid <= high + 1e-9)
        expected = float(torch.trapezoid(height[inside], grid[inside]))
        result = float(((y >= low) & (y < high)).double().mean())
        assert abs(result - expected) < 5 * (expected * (1 - expected) / len(y)) ** 0.5 + 1e-5
    assert float((y > 0).double().mean()) == pytest.approx(float(odds.sigmoid()), abs=5e-3), "a relaxed Bernoulli"


def test_the_stick_is_the_product_of_its_breaks_and_gets_shorter() -> None:
    v = torch.tensor([0.9, 0.5, 0.8], dtype=torch.float64)
    torch.testing.assert_close(stick(v).exp(), torch.tensor([0.9, 0.45, 0.36], dtype=torch.float64), atol=1e-6, rtol=0)
    breaks = sample(item(15.0), item(1.0), uniform(60 * 500, "stick")).view(60, 500)
    mean = stick(breaks).exp().mean(1)
    assert bool((mean.diff() < 0).all())
    torch.testing.assert_close(mean[:10], (15 / 16) ** torch.arange(1, 11, dtype=torch.float64), rtol=0.05, atol=0)


def test_log_odds_are_bounded() -> None:
    result = log_odds(torch.tensor([0.0, -0.5, -50.0], dtype=torch.float64))
    p = torch.tensor(-0.5, dtype=torch.float64).exp()
    torch.testing.assert_close(result, torch.stack([item(LIMIT)[0], (p / (1 - p)).log(), item(-LIMIT)[0]]))
