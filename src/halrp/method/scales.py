"""The scales r and s of a delta, in closed form.

A later task first writes its warm-up weight W^free as a rescaled base, R W^base S with diagonal R and S, so that
the low-rank residual only has to carry what no rescaling can express. For a weight of shape (J, I, *kernel) the
scales minimise

    f(r, s) = Σ_{j,i,κ} ( W^free[j,i,κ] − r_j · W^base[j,i,κ] · s_i )².

With one of the two fixed this is a separate one-dimensional least-squares problem for each entry of the other:

    r_j = Σ_{i,κ} W^free · (W^base s) / Σ_{i,κ} (W^base s)²,
    s_i = Σ_{j,κ} W^free · (r W^base) / Σ_{j,κ} (r W^base)².

The paper solves once for r with s = 1, then once for s. More sweeps never fit worse.

A row or column of the base that is (almost) zero says nothing about its scale: the quotient is noise over noise.
Such a scale is exactly 1. No accuracy is lost, because the residual takes up whatever the scales leave.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from halrp.errors import ModelError, SettingError

NEGLIGIBLE = 1e-8
"""Energy, relative to the mean over rows (columns), below which a row (column) carries no information.

It is a norm of 1e-4 of the typical one. Warm-up moves weights by about 1e-2 of the typical norm, so a least-squares
scale for such a row would be of size 100 and describe the warm-up's direction, not the base's; its regulariser r²
would dominate the loss and its gradient would be 1e-4 of every other scale's.
"""

MOST_SWEEPS = 100
"""Where alternation ends at the latest when it is asked to run until convergence."""


def scaled(base: Tensor, r: Tensor, s: Tensor) -> Tensor:
    """Rescale a weight by rows and columns: r ∘ W ∘ s, broadcast over the kernel.

    Shapes: base (J, I, *kernel), r (J,), s (I,); the result has the shape of the base.
    """
    kernel = [1] * (base.ndim - 2)
    return base * r.view(-1, 1, *kernel) * s.view(1, -1, *kernel)


def fit(free: Tensor, base: Tensor, sweeps: int | None = 1) -> tuple[Tensor, Tensor]:
    """Fit the scales (r, s) that bring the base closest to the warm-up weight, by exact least squares.

    One sweep is the paper's closed form. `sweeps=n` alternates n times. `sweeps=None` alternates until the objective
    stops falling, that is until a sweep lowers it by at most the dtype's epsilon times ‖free‖² (not times the
    objective, which may be zero), and for at most `MOST_SWEEPS` sweeps.
    """
    _check(free, base)
    if sweeps is not None and sweeps < 1:
        raise SettingError(f"sweeps is {sweeps}; give a number of sweeps of at least 1, or None to converge")
    r, s = _sweep(free, base, base.new_ones(base.shape[1]))
    if sweeps is not None:
        for _ in range(sweeps - 1):
            r, s = _sweep(free, base, s)
        return r, s
    tolerance = torch.finfo(free.dtype).eps * free.square().sum()
    error = (free - scaled(base, r, s)).square().sum()
    for _ in range(MOST_SWEEPS - 1):
        next_r, next_s = _sweep(free, base, s)
        next_error = (free - scaled(base, next_r, next_s)).square().sum()
        if not bool(next_error < error):
            break
        fall = error - next_error
        r, s, error = next_r, next_s, next_error
        if bool(fall <= tolerance):
            break
    return r, s


def fit_legacy(free: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
    """Fit the scales as the authors' released code does, so that its tables can be compared.

    r is the least-squares solution; s pulls r out of both of its sums, which is right only if r is constant:

        s_i = (Σ_j r_j / Σ_j r_j²) · (Σ_{j,κ} W^base W^free / Σ_{j,κ} (W^base)²).

    It may fit worse than s = 1. If every r_j is zero, s is 1.
    """
    _check(free, base)
    r = _least_squares(free, base, axis=0)
    energy = r.square().sum()
    factor = torch.where(energy > 0, r.sum() / torch.where(energy > 0, energy, 1), 0)
    informative = _informative(base, axis=1) & (energy > 0)
    return r, torch.where(informative, factor * _least_squares(free, base, axis=1), 1)


@dataclass(frozen=True)
class Exact:
    """Choose exact least-squares scales, `fit`."""

    sweeps: int | None = 1
    """How often r and s are solved in turn; None for until convergence."""

    def __post_init__(self) -> None:
        if self.sweeps is not None and self.sweeps < 1:
            raise SettingError(f"Exact.sweeps is {self.sweeps}; give at least 1, or None to converge")

    def __call__(self, free: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
        """Return (r, s) for a warm-up weight and its base."""
        return fit(free, base, self.sweeps)


@dataclass(frozen=True)
class Legacy:
    """Choose the scales of the authors' released code, `fit_legacy`."""

    def __call__(self, free: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
        """Return (r, s) for a warm-up weight and its base."""
        return fit_legacy(free, base)


def _sweep(free: Tensor, base: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Solve for r given s, then for s given that r."""
    columns_scaled = scaled(base, base.new_ones(base.shape[0]), s)
    r = torch.where(_informative(base, axis=0), _least_squares(free, columns_scaled, axis=0), 1)
    rows_scaled = scaled(base, r, torch.ones_like(s))
    s = torch.where(_informative(base, axis=1), _least_squares(free, rows_scaled, axis=1), 1)
    return r, s


def _least_squares(free: Tensor, design: Tensor, axis: int) -> Tensor:
    """Solve min Σ (free − x · design)² for one x per index of `axis`; 1 where the design is negligible."""
    energy, informative = _energy(design, axis), _informative(design, axis)
    product = _sum_except(free * design, axis)
    return torch.where(informative, product / torch.where(informative, energy, 1), 1)


def _informative(design: Tensor, axis: int) -> Tensor:
    """Tell for each index of `axis` whether its energy is more than negligible."""
    energy = _energy(design, axis)
    return energy > NEGLIGIBLE * energy.mean()


def _energy(design: Tensor, axis: int) -> Tensor:
    return _sum_except(design.square(), axis)


def _sum_except(tensor: Tensor, axis: int) -> Tensor:
    return tensor.sum(dim=[dim for dim in range(tensor.ndim) if dim != axis])


def _check(free: Tensor, base: Tensor) -> None:
    if free.shape != base.shape or base.ndim < 2:
        raise ModelError(
            f"scales need a warm-up weight and a base of one shape (J, I, *kernel), "
            f"got {tuple(free.shape)} and {tuple(base.shape)}; pass the weights of the same layer"
        )
