"""Decompositions against dense float64 references: optimality, metric, balance and determinism."""

import pytest
import torch
from torch import Tensor

from halrp.errors import DivergedError, SettingError
from halrp.method import decompose


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def moment(size: int, samples: int, seed: int) -> Tensor:
    """Return a second moment with strongly unequal directions; singular when there are few samples."""
    x = randn(samples, size, seed=seed) * torch.logspace(0, -2, size, dtype=torch.float64)
    return torch.mm(x.mT, x) / samples


def cost(G: Tensor, difference: Tensor, A: Tensor) -> float:
    return float(torch.trace(G @ difference @ A @ difference.mT))


def with_spectrum(J: int, I: int, sigma: Tensor) -> Tensor:  # noqa: E741
    left: Tensor = torch.linalg.qr(randn(J, len(sigma), seed=1)).Q
    right: Tensor = torch.linalg.qr(randn(I, len(sigma), seed=2)).Q
    return (left * sigma) @ right.mT


def test_views_of_a_kernel_are_its_mean_and_its_unfolding() -> None:
    residual = randn(4, 3, 2, 5)
    mean, full = decompose.matrix(residual, "mean"), decompose.matrix(residual, "full")
    torch.testing.assert_close(mean, residual.mean((2, 3)))
    assert full.shape == (4, 30)
    assert torch.equal(full.view(4, 3, 2, 5), residual)


def test_the_mean_view_leaves_a_residual_without_mean_over_the_kernel() -> None:
    residual = randn(4, 3, 3, 3)
    u, sigma, v = decompose.plain(decompose.matrix(residual, "mean"))
    p, q = decompose.factors(u, sigma, v, 3)
    left = residual - (p @ q)[:, :, None, None]
    torch.testing.assert_close(left.mean((2, 3)), torch.zeros(4, 3, dtype=torch.float64))


@pytest.mark.parametrize("view", ["mean", "full"])
def test_a_residual_without_kernel_is_its_own_view(view: str) -> None:
    residual = randn(4, 3)
    assert decompose.matrix(residual, view) is residual


def test_an_unknown_view_is_named() -> None:
    with pytest.raises(SettingError, match="'median'"):
        decompose.matrix(randn(4, 3), "median")


@pytest.mark.parametrize("shape", [(7, 5), (5, 7), (1, 6), (6, 1)])
def test_plain_gives_the_matrix_back_and_descends(shape: tuple[int, int]) -> None:
    B = randn(*shape)
    u, sigma, v = decompose.plain(B)
    m = min(shape)
    assert (u.shape, sigma.shape, v.shape) == ((shape[0], m), (m,), (shape[1], m))
    torch.testing.assert_close((u * sigma) @ v.mT, B)
    torch.testing.assert_close(u.mT @ u, torch.eye(m, dtype=torch.float64))
    torch.testing.assert_close(v.mT @ v, torch.eye(m, dtype=torch.float64))
    assert torch.equal(sigma, sigma.sort(descending=True).values)


@pytest.mark.parametrize("rank", [0, 1, 3, 5])
def test_truncation_error_is_the_energy_of_the_dropped_spectrum(rank: int) -> None:
    B = randn(7, 5)
    u, sigma, v = decompose.plain(B)
    p, q = decompose.factors(u, sigma, v, rank)
    torch.testing.assert_close((B - p @ q).square().sum(), sigma[rank:].square().sum())


@pytest.mark.parametrize("rank", [0, 2, 5, 100])
def test_a_rank_returns_the_leading_triplets_only(rank: int) -> None:
    B = randn(7, 5)
    everything, leading = decompose.plain(B), decompose.plain(B, rank)
    count = min(rank, 5)
    assert leading[1].shape == (count,)
    torch.testing.assert_close(leading[0], everything[0][:, :count])
    torch.testing.assert_close(leading[1], everything[1][:count])
    torch.testing.assert_close(leading[2], everything[2][:, :count])


def test_signs_do_not_depend_on_the_sign_of_an_equivalent_decomposition() -> None:
    B = randn(7, 5)
    u, _, v = decompose.plain(B)
    assert bool((u.gather(0, u.abs().argmax(0, keepdim=True)) > 0).all())
    # The negative has the same left vectors; only its right vectors may turn round.
    flipped_u, _, flipped_v = decompose.plain(-B)
    torch.testing.assert_close(flipped_u, u)
    torch.testing.assert_close(flipped_v, -v)


def test_a_matrix_that_is_not_finite_is_refused() -> None:
    B = randn(3, 3)
    B[1, 1] = float("nan")
    with pytest.raises(DivergedError, match="not finite"):
        decompose.plain(B)


SPECTRA = {
    "flat": torch.ones(240, dtype=torch.float64),
    "linear": torch.linspace(1, 0, 240, dtype=torch.float64),
    "slow": torch.arange(1, 241, dtype=torch.float64) ** -0.5,
    "step": torch.cat([torch.ones(60), 0.87 * torch.ones(180)]).double(),
    "harmonic": 1 / torch.arange(1, 241, dtype=torch.float64),
    "geometric": 0.9 ** torch.arange(240, dtype=torch.float64),
}


@pytest.mark.parametrize("rank", [1, 16, 60])
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("shape", [(240, 600), (600, 240)])
def test_randomized_truncation_is_within_two_percent_of_the_optimum(
    spectrum: str, rank: int, shape: tuple[int, int]
) -> None:
    sigma = SPECTRA[spectrum]
    B = with_spectrum(*shape, sigma)
    u, approximate, v = decompose._randomized(B, rank)
    optimum = sigma[rank:].square().sum().sqrt()
    assert float((B - (u * approximate) @ v.mT).norm()) <= 1.02 * float(optimum)
    torch.testing.assert_close(u.mT @ u, torch.eye(rank, dtype=torch.float64))
    torch.testing.assert_close(v.mT @ v, torch.eye(rank, dtype=torch.float64))
    assert bool((approximate <= sigma[:rank] * (1 + 1e-12)).all())


def test_a_large_matrix_of_noise_is_truncated_within_the_documented_bound() -> None:
    B = randn(1024, 1024, dtype=torch.float32)
    state = torch.get_rng_state()
    u, sigma, v = decompose.plain(B, 64)
    again = decompose.plain(B, 64)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(x, y) for x, y in zip((u, sigma, v), again, strict=True))
    exact = torch.linalg.svdvals(B)
    optimum = exact[64:].square().sum().sqrt()
    assert not torch.equal(sigma, exact[:64]), "the exact path was taken, so the bound was not tested"
    assert float((B - (u * sigma) @ v.mT).norm()) <= 1.02 * float(optimum)
    torch.testing.assert_close(u.mT @ u, torch.eye(64), atol=1e-5, rtol=0)


@pytest.mark.parametrize("true_rank", [0, 3])
def test_randomized_recovers_a_matrix_of_low_rank(true_rank: int) -> None:
    B = randn(60, true_rank) @ randn(true_rank, 80, seed=1)
    u, sigma, v = decompose._randomized(B, 8)
    torch.testing.assert_close((u * sigma) @ v.mT, B)
    assert float(sigma[true_rank:].abs().max()) < 1e-12


@pytest.mark.parametrize(("samples", "damping"), [(50, 0.0), (50, 1e-2), (3, 1e-2), (3, 1e-4)])
def test_whitened_gives_the_matrix_back_and_prices_every_truncation(samples: int, damping: float) -> None:
    B, A, G = randn(7, 5), moment(5, samples, seed=1), moment(7, samples, seed=2)
    u, sigma, v = decompose.whitened(B, A, G, damping)
    torch.testing.assert_close((u * sigma) @ v.mT, B)
    damped_A, damped_G = decompose.damped(A, damping), decompose.damped(G, damping)
    for rank in range(6):
        p, q = decompose.factors(u, sigma, v, rank)
        price = cost(damped_G, B - p @ q, damped_A)
        # Conditioning up to 1e6 amplifies float64 rounding to about 1e-10 of the whole.
        assert price == pytest.approx(float(sigma[rank:].square().sum()), rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_whitened_truncation_is_optimal_in_its_metric(rank: int) -> None:
    B, A, G = randn(7, 5), moment(5, 30, seed=1), moment(7, 30, seed=2)
    damped_A, damped_G = decompose.damped(A, 1e-2), decompose.damped(G, 1e-2)
    p, q = decompose.factors(*decompose.whitened(B, A, G, 1e-2), rank)
    best = cost(damped_G, B - p @ q, damped_A)
    plain_p, plain_q = decompose.factors(*decompose.plain(B), rank)
    assert best < cost(damped_G, B - plain_p @ plain_q, damped_A)
    for seed in range(50):
        step = 10.0 ** -(seed % 5)
        moved = (p + step * randn(7, rank, seed=seed)) @ (q + step * randn(rank, 5, seed=seed + 99))
        assert best <= cost(damped_G, B - moved, damped_A)


def test_whitened_with_isotropic_curvature_keeps_what_plain_keeps() -> None:
    B = randn(7, 5)
    eye = torch.eye
    w = decompose.whitened(B, 4 * eye(5).double(), 9 * eye(7).double(), 0.0)
    u, sigma, v = decompose.plain(B)
    torch.testing.assert_close(w[1], 6 * sigma)
    for got, expected in zip(decompose.factors(*w, 2), decompose.factors(u, sigma, v, 2), strict=True):
        torch.testing.assert_close(got, expected)


def test_moments_of_a_dead_layer_fall_back_to_the_plain_metric() -> None:
    B = randn(7, 5)
    u, sigma, v = decompose.whitened(B, torch.zeros(5, 5).double(), torch.zeros(7, 7).double(), 1e-2)
    for got, expected in zip((u, sigma, v), decompose.plain(B), strict=True):
        torch.testing.assert_close(got, expected)


def test_a_singular_moment_without_damping_names_the_remedy() -> None:
    A = torch.zeros(5, 5).double()
    A[0, 0] = 1
    with pytest.raises(SettingError, match=r"moment A .* raise the damping"):
        decompose.whitened(randn(7, 5), A, torch.eye(7).double(), 0.0)
    with pytest.raises(SettingError, match="damping is -1"):
        decompose.whitened(randn(7, 5), A, torch.eye(7).double(), -1)
    with pytest.raises(SettingError, match=r"\(5, 5\)"):
        decompose.whitened(randn(7, 5), torch.eye(6).double(), torch.eye(7).double(), 1e-2)


@pytest.mark.parametrize("rank", [0, 1, 4])
def test_factors_are_balanced_in_every_component(rank: int) -> None:
    B, A, G = randn(7, 5), moment(5, 30, seed=1), moment(7, 30, seed=2)
    for u, sigma, v in (decompose.plain(B), decompose.whitened(B, A, G, 1e-2)):
        p, q = decompose.factors(u, sigma, v, rank)
        assert (p.shape, q.shape) == ((7, rank), (rank, 5))
        torch.testing.assert_close(p.norm(dim=0), q.norm(dim=1))
        torch.testing.assert_close(p @ q, (u[:, :rank] * sigma[:rank]) @ v[:, :rank].mT)


def test_factors_of_orthonormal_vectors_are_the_papers() -> None:
    u, sigma, v = decompose.plain(randn(7, 5))
    p, q = decompose.factors(u, sigma, v, 3)
    torch.testing.assert_close(p, u[:, :3] * sigma[:3].sqrt())
    torch.testing.assert_close(q, sigma[:3].sqrt()[:, None] * v[:, :3].mT)


def test_factors_of_a_zero_matrix_are_zero_and_finite() -> None:
    p, q = decompose.factors(*decompose.plain(torch.zeros(4, 3)), 2)
    assert torch.equal(p, torch.zeros(4, 2))
    assert torch.equal(q, torch.zeros(2, 3))


@pytest.mark.parametrize("rank", [-1, 6])
def test_a_rank_outside_the_spectrum_is_refused(rank: int) -> None:
    with pytest.raises(SettingError, match=f"rank is {rank}"):
        decompose.factors(*decompose.plain(randn(7, 5)), rank)
    with pytest.raises(SettingError, match=f"rank is {rank}"):
        decompose.random_factors(randn(7, 5), rank, torch.Generator())


def test_random_factors_share_only_the_norm_with_the_matrix() -> None:
    B = randn(40, 90)
    state = torch.get_rng_state()
    p, q = decompose.random_factors(B, 10, torch.Generator().manual_seed(4))
    again = decompose.random_factors(B, 10, torch.Generator().manual_seed(4))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(p, again[0])
    assert torch.equal(q, again[1])
    torch.testing.assert_close((p @ q).norm(), B.norm())
    # Standard deviations are 1/√40 and 1/√90 before a common scale; 400 draws know a ratio to about 5 %.
    assert float(p.std() / q.std()) == pytest.approx((90 / 40) ** 0.5, rel=0.15)
    assert abs(float((p @ q).flatten() @ B.flatten() / B.norm() ** 2)) < 0.1


def test_random_factors_of_rank_zero_are_empty() -> None:
    p, q = decompose.random_factors(randn(4, 3), 0, torch.Generator())
    assert (p.shape, q.shape) == ((4, 0), (0, 3))


def test_value_objects_choose_their_function() -> None:
    B, A, G = randn(7, 5), moment(5, 30, seed=1), moment(7, 30, seed=2)
    cases = [
        (decompose.Plain()(B, rank=2), decompose.plain(B, 2)),
        (decompose.Plain()(B, (A, G)), decompose.plain(B)),
        (decompose.Whitened()(B), decompose.plain(B)),
        (decompose.Whitened(0.1)(B, (A, G), rank=3), decompose.whitened(B, A, G, 0.1, 3)),
    ]
    for got, expected in cases:
        assert all(torch.equal(x, y) for x, y in zip(got, expected, strict=True))
    with pytest.raises(SettingError, match="nan"):
        decompose.Whitened(float("nan"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_follows_the_matrix(dtype: torch.dtype) -> None:
    B, A, G = randn(7, 5, dtype=dtype), moment(5, 30, seed=1).to(dtype), moment(7, 30, seed=2).to(dtype)
    p, q = decompose.factors(*decompose.whitened(B, A, G, 1e-2), 2)
    random = decompose.random_factors(B, 2, torch.Generator())
    assert {x.dtype for x in (*decompose.plain(B), p, q, *random)} == {dtype}
