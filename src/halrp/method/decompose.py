"""From a residual to its spectrum and low-rank factors.

What the scales cannot express, B = W^free − R W^base S, is kept as its k leading components

    B^(k) = Σ_{i≤k} σ_i u_i v_iᵀ = P Q,

which by Eckart and Young is the closest matrix of rank k. "Closest" needs a metric, and there are two here. `plain`
measures the error E = B − B^(k) by ‖E‖_F², as the paper does. `whitened` measures what the error costs the loss under
a Kronecker-factored curvature, tr(G E A Eᵀ), with A the second moment of the layer's inputs and G that of its output
gradients: with Cholesky factors A = L_A L_Aᵀ and G = L_G L_Gᵀ the cost is ‖L_Gᵀ E L_A‖_F², so an ordinary singular
value decomposition of L_Gᵀ B L_A, mapped back, is optimal.

A convolution's residual (J, I, *kernel) becomes a matrix in one of two views: its mean over the kernel's positions
(the paper's; one J × I delta shared by all positions) or the full kernel unfolded to J × (I·K).

Signs of a singular pair are arbitrary; here the entry of each left vector that is largest in magnitude is positive
(for `whitened`, in the whitened coordinates), so that equal inputs give equal factors.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from halrp.errors import DivergedError, SettingError

VIEWS = ("mean", "full")

# Measured on one thread in float32, seconds for exact / randomized with rank a quarter of the short side:
# 500 × 800: 0.09 / 0.04, 800 × 3200: 0.73 / 0.37, 2048 × 2048: 3.0 / 1.5, 2048 × 9216: 21.9 / 6.7; with rank 100 the
# last two take 0.29 and 1.2. At half the short side the randomized one is slower. Below a million
# entries the exact one takes about a tenth of a second, which is not worth an approximation.
RANDOMIZED_ENTRIES = 2**20
RANDOMIZED_SHARE = 4
OVERSAMPLING_SHARE, LEAST_OVERSAMPLING = 4, 10
POWER_ITERATIONS = 4


def matrix(residual: Tensor, view: str) -> Tensor:
    """View a residual (J, I, *kernel) as a matrix.

    "mean" averages over the kernel's positions and gives (J, I). "full" unfolds the kernel and gives (J, I·K), the
    column of input i and position κ being i·K + κ. Without a kernel both are the residual itself.
    """
    if view not in VIEWS:
        raise SettingError(f"view is {view!r}; choose one of {', '.join(map(repr, VIEWS))}")
    if residual.ndim == 2:
        return residual
    return residual.flatten(2).mean(2) if view == "mean" else residual.flatten(1)


def plain(matrix: Tensor, rank: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Decompose a matrix into its spectrum: matrix = u diag(sigma) vᵀ, thin and descending.

    Shapes: matrix (J, I), u (J, m), sigma (m,), v (I, m) with m = min(J, I), or m = min(J, I, rank) when only the
    leading `rank` components are wanted.

    A large matrix (`RANDOMIZED_ENTRIES`) of which few components are wanted (at most 1/`RANDOMIZED_SHARE` of all) is
    decomposed by randomized subspace iteration. Its truncation is within 2 % of the optimum,
    ‖B − B^(k)‖_F ≤ 1.02 · (Σ_{i>k} σ_i²)^½, measured on spectra from flat to geometric; the worst found, 1.5 %, is
    a step from 1 to 0.87 just at the rank. (With random draws no bound is certain.) Its singular values never exceed
    the true ones beyond rounding. The draw is fixed: equal inputs give equal results, and the global random
    state is not used.
    """
    if rank is not None and rank < 0:
        raise SettingError(f"rank is {rank}; give a rank of at least 0, or None for all components")
    if not bool(torch.isfinite(matrix).all()):
        raise DivergedError(
            f"a residual of shape {tuple(matrix.shape)} has entries that are not finite; "
            "lower the learning rate of the warm-up"
        )
    short = min(matrix.shape)
    count = short if rank is None else min(rank, short)
    if 0 < count * RANDOMIZED_SHARE <= short and matrix.numel() >= RANDOMIZED_ENTRIES:
        u, sigma, v = _randomized(matrix, count)
    else:
        u, sigma, vt = torch.linalg.svd(matrix, full_matrices=False)
        u, sigma, v = u[:, :count], sigma[:count], vt[:count].mT
    sign = _signs(u)
    return u * sign, sigma, v * sign


def whitened(
    matrix: Tensor, A: Tensor, G: Tensor, damping: float, rank: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Decompose a matrix so that truncation costs the loss least: optimal in the metric tr(G E A Eᵀ).

    Shapes: matrix (J, I), A (I, I) second moment of inputs, G (J, J) second moment of output gradients; u (J, m),
    sigma (m,), v (I, m). Both moments are damped first (`damped`). All components give the matrix back,
    matrix = u diag(sigma) vᵀ, and dropping any set of them costs tr(G E A Eᵀ) = Σ_dropped σ_i². The columns of u and
    v are orthonormal in the damped metrics (uᵀ G u = I, vᵀ A v = I), not in the plain one.
    """
    J, I = matrix.shape  # noqa: E741  (the paper's name of the input dimension)
    if A.shape != (I, I) or G.shape != (J, J):
        raise SettingError(
            f"curvature of a {J} × {I} matrix needs A of shape {(I, I)} and G of shape {(J, J)}, "
            f"got {tuple(A.shape)} and {tuple(G.shape)}; take the moments in the view of the matrix"
        )
    root_A, root_G = _cholesky(A, damping, "A"), _cholesky(G, damping, "G")
    u, sigma, v = plain(root_G.mT @ matrix @ root_A, rank)
    u = torch.linalg.solve_triangular(root_G.mT, u, upper=True)
    v = torch.linalg.solve_triangular(root_A.mT, v, upper=True)
    return u, sigma, v


def damped(moment: Tensor, damping: float) -> Tensor:
    """Make a second moment safely positive: M + damping · mean(diag M) · 1.

    A moment that is zero everywhere (a dead layer) knows no direction; it becomes the identity.
    """
    if not (math.isfinite(damping) and damping >= 0):
        raise SettingError(f"damping is {damping}; give a finite number of at least 0, such as 1e-2")
    level = moment.diagonal().mean()
    alive = level > 0
    lift = torch.where(alive, damping * level, 1)
    return torch.where(alive, moment, 0) + lift * torch.eye(len(moment), dtype=moment.dtype, device=moment.device)


def factors(u: Tensor, sigma: Tensor, v: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Turn the leading components into the factors that a delta stores: p q = Σ_{i≤rank} σ_i u_i v_iᵀ.

    Shapes: p (J, rank), q (rank, I). σ is shared so that ‖p_i‖ = ‖q_i‖ for every component, which for orthonormal u
    and v is the paper's form p = u √σ, q = √σ vᵀ. Balanced factors keep gradients and pruning thresholds comparable.
    """
    if not 0 <= rank <= len(sigma):
        raise SettingError(f"rank is {rank}; this spectrum has {len(sigma)} components, give 0 to {len(sigma)}")
    u, sigma, v = u[:, :rank], sigma[:rank], v[:, :rank]
    size_u, size_v = u.norm(dim=0), v.norm(dim=0)
    usable = (size_u > 0) & (size_v > 0)
    tilt = torch.where(usable, size_v / torch.where(usable, size_u, 1), 1).sqrt()
    root = sigma.sqrt()
    return u * (root * tilt), (v * (root / tilt)).mT.contiguous()


def random_factors(matrix: Tensor, rank: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw factors that share only their size with the matrix: the paper's "Random LRP" ablation.

    p (J, rank) and q (rank, I) are gaussian with standard deviation 1/√J and 1/√I, then scaled alike so that
    ‖p q‖_F = ‖matrix‖_F. The draw happens on the generator's device, so it is the same wherever the matrix lives.
    """
    J, I = matrix.shape  # noqa: E741  (the paper's name of the input dimension)
    if not 0 <= rank <= min(J, I):
        raise SettingError(f"rank is {rank}; a {J} × {I} matrix allows 0 to {min(J, I)}")

    def draw(rows: int, columns: int) -> Tensor:
        noise = torch.randn(rows, columns, generator=generator, device=generator.device, dtype=matrix.dtype)
        return noise.to(matrix.device)

    p, q = draw(J, rank) / math.sqrt(J), draw(rank, I) / math.sqrt(I)
    size = (p @ q).norm()
    scale = (matrix.norm() / torch.where(size > 0, size, 1)).sqrt()
    return p * scale, q * scale


@dataclass(frozen=True)
class Plain:
    """Choose the paper's decomposition, `plain`."""

    needs_curvature: ClassVar[bool] = False

    def __call__(
        self, matrix: Tensor, curvature: tuple[Tensor, Tensor] | None = None, rank: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (u, sigma, v); the curvature is not used."""
        return plain(matrix, rank)

    def dropped_loss(self, matrix: Tensor, curvature: tuple[Tensor, Tensor]) -> Tensor:
        """‖matrix‖_F², the sum of its squared singular values."""
        return matrix.square().sum()


@dataclass(frozen=True)
class Whitened:
    """Choose truncation in the metric of the layer's curvature, `whitened`."""

    damping: float = 1e-2
    """Multiple of the mean diagonal that is added to each moment's diagonal."""
    needs_curvature: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.damping) and self.damping >= 0):
            raise SettingError(f"Whitened.damping is {self.damping}; give a finite number of at least 0")

    def __call__(
        self, matrix: Tensor, curvature: tuple[Tensor, Tensor] | None = None, rank: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (u, sigma, v) for curvature (A, G), or the plain decomposition where there is none."""
        if curvature is None:
            return plain(matrix, rank)
        return whitened(matrix, *curvature, self.damping, rank)

    def dropped_loss(self, matrix: Tensor, curvature: tuple[Tensor, Tensor]) -> Tensor:
        """tr(G B A Bᵀ), with the moments damped as for the spectrum."""
        A, G = (damped(moment, self.damping) for moment in curvature)
        return ((G @ matrix @ A) * matrix).sum()


def _randomized(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Find the leading triplets in the span of (B Bᵀ)^n B Ω, orthonormalised after every product (Halko et al. 2011).

    The span is `rank` plus an oversampling wide. Orthonormalising keeps the small directions from drowning in
    rounding; `POWER_ITERATIONS` = 4 is what brings the worst spectrum found within 2 % of the optimum.
    """
    width = min(rank + max(LEAST_OVERSAMPLING, rank // OVERSAMPLING_SHARE), *matrix.shape)
    generator = torch.Generator(device=matrix.device).manual_seed(0)
    columns = matrix.shape[1]
    start = torch.randn(columns, width, generator=generator, dtype=matrix.dtype, device=matrix.device)
    left = torch.linalg.qr(matrix @ start).Q
    for _ in range(POWER_ITERATIONS):
        right = torch.linalg.qr(matrix.mT @ left).Q
        left = torch.linalg.qr(matrix @ right).Q
    u, sigma, vt = torch.linalg.svd(left.mT @ matrix, full_matrices=False)
    return left @ u[:, :rank], sigma[:rank], vt[:rank].mT


def _signs(u: Tensor) -> Tensor:
    """Return ±1 per column so that the entry of largest magnitude becomes positive."""
    if u.numel() == 0:
        return u.new_ones(u.shape[1])
    largest = u.gather(0, u.abs().argmax(0, keepdim=True)).squeeze(0)
    return torch.where(largest < 0, -1.0, 1.0).to(u.dtype)


def _cholesky(moment: Tensor, damping: float, name: str) -> Tensor:
    root: Tensor
    root, failed = torch.linalg.cholesky_ex(damped(moment, damping))
    if bool(failed) or not bool(torch.isfinite(root).all()):
        raise SettingError(
            f"the moment {name} is not positive definite with damping {damping}; "
            "raise the damping, such as to 1e-2, and check that the moment is finite"
        )
    return root
