"""Subspaces with most of the energy of a layer's inputs or outputs: the memories of `gpm` and `bmkp`.

A layer is a matrix W (O, D), where D is the number of inputs of an output, for a convolution channels × rows × columns
of its kernel. Its inputs are columns x of D numbers, one per example and position; its outputs are the columns W x of O
numbers. The energy of a set of columns R is ‖R‖²; a basis M with orthonormal columns captures ‖MᵀR‖² of it.

All computations are in float64. A basis keeps its dtype, and its columns never change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp.errors import ModelError

NOISE = 1e-13
"""Shares of the energy below this are rounding errors of the columns, not directions."""
IMAGES_AT_ONCE = 16
"""Number of examples whose patches are unfolded at once, which limits memory."""


def layers_of(net: nn.Module, head: str) -> dict[str, nn.Module]:
    """Every `nn.Conv2d` and `nn.Linear` of a network except the head, by name, in the network's order."""
    kinds = (nn.Conv2d, nn.Linear)
    by_layer: dict[str, nn.Module] = {n: m for n, m in net.named_modules() if isinstance(m, kinds) and n != head}
    for name, layer in by_layer.items():
        if getattr(layer, "groups", 1) != 1:
            raise ModelError(
                f"{name}: a convolution of {layer.groups} groups has an input subspace for each group, which is not "
                "supported; use groups=1"
            )
    return by_layer


def matrix(weight: Tensor) -> Tensor:
    """A weight (O, I, *kernel) as a matrix (O, D), D = I × kernel."""
    return weight.detach().flatten(1)


def inputs(layer: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The inputs x of a layer as columns (D, n): n = rows, or patches at all positions with the layer's padding."""
    if not isinstance(layer, nn.Conv2d):
        return x.flatten(0, -2).T
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
    kernel, dilation, stride = (cast(Any, size) for size in (layer.kernel_size, layer.dilation, layer.stride))
    return F.unfold(padded, kernel, dilation=dilation, stride=stride).movedim(1, 0).flatten(1)


def outputs(layer: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The outputs y of a layer without its bias, W x, as columns (O, n)."""
    columns = y.flatten(0, -2).T if isinstance(layer, nn.Linear) else y.movedim(1, 0).flatten(1)
    bias = cast(Tensor | None, layer.bias)
    return columns if bias is None else columns - bias.unsqueeze(1)


class Columns:
    """A growing set of columns R (D, n), held as their Gram matrix R Rᵀ (D, D) as soon as that is smaller."""

    def __init__(self, parts: Iterable[Tensor] = ()) -> None:
        """Start with the columns of `parts`."""
        self._parts: list[Tensor] = []
        self._gram: Tensor | None = None
        for part in parts:
            self.add(part)

    def add(self, columns: Tensor) -> None:
        """Add columns (D, n)."""
        columns = columns.to(torch.float64, copy=True)  # a copy, because the network may change it in place
        if self._gram is None and columns.shape[1] + sum(p.shape[1] for p in self._parts) > len(columns):
            self._gram = columns.new_zeros(len(columns), len(columns))
            added, self._parts = [*self._parts, columns], []
        elif self._gram is None:
            self._parts.append(columns)
            return
        else:
            added = [columns]
        for part in added:
            self._gram.addmm_(part, part.T)

    def energy(self) -> Tensor:
        """‖R‖², a scalar."""
        return self._all().square().sum() if self._gram is None else self._gram.trace()

    def without(self, basis: Tensor) -> Columns:
        """The residual of the columns outside an orthonormal basis (D, k): R − M Mᵀ R."""
        m, rest = basis.double(), Columns()
        if self._gram is None:
            rest._parts = [self._all() - m @ (m.T @ self._all())]
        else:
            projected = self._gram @ m
            rest._gram = self._gram - projected @ m.T - m @ projected.T + m @ (m.T @ projected) @ m.T
        return rest

    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Squared singular values of R (m,), in descending order, and its left singular vectors (D, m)."""
        if self._gram is None:
            u, s, _ = torch.linalg.svd(self._all(), full_matrices=False)
            return s.square(), u
        values, vectors = torch.linalg.eigh(self._gram)
        return values.flip(0).clamp(min=0), vectors.flip(1)

    def _all(self) -> Tensor:
        return torch.cat(self._parts, 1)


def first_rank(energies: Tensor, energy: float) -> int:
    """The number of leading directions of a first basis, given squared singular values (m,).

    The largest number whose Σ energies / total is below `energy`, so that one more would reach it, but at least one;
    all of them if `energy` is 1.
    """
    shares = energies / energies.sum()
    real = shares > NOISE
    if energy >= 1:
        return int(real.sum())
    return max(1, int(((shares.cumsum(0) < energy) & real).sum()))


def further_rank(energies: Tensor, total: float, energy: float) -> int:
    """The number of leading directions of a residual, with squared singular values (m,), to capture a share `energy`.

    The columns have the energy `total`; the energy outside the residual is captured already.
    """
    shares = energies / total
    captured = 1 - shares.sum() + shares.cumsum(0) - shares  # before each direction is added
    needed = captured < energy if energy < 1 else torch.ones_like(shares, dtype=torch.bool)
    return int((needed & (shares > NOISE)).sum())


def extended(basis: Tensor, columns: Columns, energy: float, first: bool = False) -> Tensor:
    """A basis (D, k) and further directions, so that it captures a share `energy` of some columns.

    `first` selects the rule of a first basis, `first_rank`. The columns of the basis stay bit-identical.
    """
    total = float(columns.energy())
    if total == 0:
        return basis
    energies, directions = columns.without(basis).spectrum()
    rank = first_rank(energies, energy) if first else further_rank(energies, total, energy)
    return appended(basis, directions[:, : min(rank, len(basis) - basis.shape[1])])


def appended(basis: Tensor, directions: Tensor) -> Tensor:
    """An orthonormal basis (D, k) and directions (D, r), made orthonormal to it and to each other."""
    if not directions.shape[1]:
        return basis
    m, new = basis.double(), directions.double()
    for _ in range(2):  # the second pass removes the rounding errors of the first
        new, _ = torch.linalg.qr(new - m @ (m.T @ new))
    return torch.cat([basis, new.to(basis.dtype)], 1)


def captured(basis: Tensor, columns: Columns) -> float:
    """The share of the energy of some columns that an orthonormal basis captures."""
    return 1 - float(columns.without(basis).energy() / columns.energy())


View = Callable[[nn.Module, Tensor, Tensor], Tensor]


@torch.no_grad()
def collected(
    net: nn.Module, layers: Mapping[str, nn.Module], parts: Iterable[Tensor], images: Mapping[str, int], view: View
) -> dict[str, Columns]:
    """The `inputs` or `outputs` (the `view`) of layers in forward passes over some examples.

    The network gets the batches `parts`; each layer takes its number of `images` from the first of them.
    """
    by_layer = {name: Columns() for name in layers}
    left = dict(images)

    def hook_of(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(layer: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            x, y = args[0][: left[name]], output[: left[name]]
            for rows in zip(x.split(IMAGES_AT_ONCE), y.split(IMAGES_AT_ONCE), strict=True):
                if len(rows[0]):
                    by_layer[name].add(view(layer, *rows))

        return hook

    handles = [layer.register_forward_hook(hook_of(name)) for name, layer in layers.items()]
    try:
        for x in parts:
            net(x)
            left = {name: max(0, count - len(x)) for name, count in left.items()}
    finally:
        for handle in handles:
            handle.remove()
    return by_layer
