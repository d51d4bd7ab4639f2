"""Subspaces of a layer's inputs and outputs, against dense references in float64."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from halrp.errors import ModelError
from halrp.lab.methods import subspaces
from halrp.lab.methods.subspaces import Columns, appended, captured, collected, extended, first_rank, further_rank


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def basis_of(rows: int, rank: int, seed: int = 9) -> Tensor:
    basis, _ = torch.linalg.qr(random(rows, rank, seed=seed))
    return cast(Tensor, basis)


def orthonormal(basis: Tensor) -> float:
    basis = basis.double()
    return float((basis.T @ basis - torch.eye(basis.shape[1])).abs().max()) if basis.shape[1] else 0.0


@pytest.mark.parametrize(
    "mode",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": (3, 2), "stride": (2, 1), "padding": (0, 2)},
        {"kernel_size": 1, "stride": 2},
        {"kernel_size": 3, "padding": "same", "dilation": 2},
        {"kernel_size": 2, "padding": "same", "padding_mode": "reflect"},
        {"kernel_size": 3, "padding": 2, "padding_mode": "circular"},
    ],
)
def test_a_weight_times_the_patches_is_the_convolution(mode: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 5, bias=True, dtype=torch.float64, **mode)
    x = random(4, 3, 8, 8)
    y = layer(x).detach()
    result = subspaces.matrix(layer.weight) @ subspaces.inputs(layer, x, y)
    torch.testing.assert_close(result, subspaces.outputs(layer, x, y).detach())
    assert layer.bias is not None
    plain = (y - layer.bias.view(1, -1, 1, 1)).detach()
    torch.testing.assert_close(result.view(5, 4, -1), plain.movedim(1, 0).flatten(2))


@pytest.mark.parametrize("shape", [(6, 7), (2, 3, 7)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_weight_times_the_inputs_is_the_linear_layer(shape: tuple[int, ...], bias: bool) -> None:
    layer = nn.Linear(7, 4, bias=bias, dtype=torch.float64)
    x = random(*shape)
    y = layer(x).detach()
    columns = subspaces.inputs(layer, x, y)
    assert columns.shape == (7, 6)
    torch.testing.assert_close(layer.weight.detach() @ columns, subspaces.outputs(layer, x, y).detach())


@pytest.mark.parametrize("parts", [(3,), (2, 4), (9, 40), (40,), (2, 2, 2, 2, 2, 2)])
def test_columns_know_their_energy_residual_and_spectrum(parts: tuple[int, ...]) -> None:
    """Whether they are kept as they are (fewer than 10 of them here) or as their Gram matrix."""
    all_ = [random(10, n, seed=i) for i, n in enumerate(parts)]
    dense, retained, m = torch.cat(all_, 1), Columns(all_), basis_of(10, 4)
    assert (retained._gram is not None) == (dense.shape[1] > 10)
    rest = dense - m @ m.T @ dense
    for columns, expected in ((retained, dense), (retained.without(m), rest)):
        torch.testing.assert_close(columns.energy(), expected.square().sum())
        u, s, _ = torch.linalg.svd(expected, full_matrices=False)
        energies, directions = columns.spectrum()
        torch.testing.assert_close(energies[: len(s)], s.square(), rtol=1e-9, atol=1e-10)
        real = s > 1e-6
        agreement = (directions[:, : len(s)].T @ u)[real][:, real].abs()
        torch.testing.assert_close(agreement, torch.eye(len(agreement), dtype=torch.float64), rtol=0, atol=1e-6)
    assert captured(m, retained) == pytest.approx(1 - float(rest.square().sum() / dense.square().sum()), abs=1e-12)


def test_the_first_basis_has_the_directions_before_the_threshold_is_reached() -> None:
    energies = torch.tensor([60.0, 25.0, 10.0, 5.0, 0.0], dtype=torch.float64)
    assert first_rank(energies, 0.90) == 2, "60 and 85 are below 90, 95 is not"
    assert first_rank(energies, 0.96) == 3
    assert first_rank(energies, 0.50) == 1, "one direction at least"
    assert first_rank(energies, 1.0) == 4, "all that have any energy"


def test_further_directions_are_added_until_the_threshold_is_reached() -> None:
    energies = torch.tensor([20.0, 10.0, 5.0, 0.0], dtype=torch.float64)
    assert further_rank(energies, 100.0, 0.60) == 0, "65 of 100 are captured already"
    assert further_rank(energies, 100.0, 0.70) == 1
    assert further_rank(energies, 100.0, 0.86) == 2
    assert further_rank(energies, 100.0, 1.0) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [12, 60])
def test_an_extended_basis_captures_what_it_should_and_keeps_its_columns(dtype: torch.dtype, count: int) -> None:
    basis = extended(torch.zeros(20, 0, dtype=dtype), Columns([random(20, count)]), 0.7, first=True)
    assert captured(basis, Columns([random(20, count)])) < 0.7
    for seed, energy in ((1, 0.5), (2, 0.9), (3, 0.9999), (4, 0.9999)):
        columns = Columns([random(20, count, seed=seed)])
        before, basis = basis, extended(basis, columns, energy)
        assert basis.dtype == dtype
        assert torch.equal(basis[:, : before.shape[1]], before)
        assert captured(basis, columns) >= energy - 1e-12
        assert orthonormal(basis) < (1e-6 if dtype == torch.float32 else 1e-13)
        new = basis.shape[1] - before.shape[1]
        if new:
            assert captured(basis[:, :-1], columns) < energy, "no direction too many"
    assert basis.shape[1] == 20, "and no more than there are dimensions"


def test_nothing_is_appended_where_nothing_is_needed() -> None:
    basis = basis_of(8, 3)
    assert extended(basis, Columns([basis @ random(3, 5)]), 0.99) is basis
    assert extended(basis, Columns([torch.zeros(8, 5)]), 0.99) is basis
    assert extended(torch.zeros(8, 0), Columns([torch.zeros(8, 20)]), 0.99, first=True).shape == (8, 0)


@pytest.mark.parametrize("count", [6, 50])
def test_all_the_energy_means_the_rank_of_the_columns(count: int) -> None:
    plane = basis_of(12, 3) * torch.tensor([1.0, 1e-2, 1e-4])
    columns = Columns([(plane @ random(3, count)).float()])
    basis = extended(torch.zeros(12, 0), columns, 1.0, first=True)
    assert basis.shape[1] == 3
    assert captured(basis, columns) == pytest.approx(1, abs=1e-12)


def test_directions_that_nearly_lie_in_the_basis_are_made_orthonormal_all_the_same() -> None:
    basis = basis_of(30, 5)
    close = basis @ random(5, 4) + 1e-9 * random(30, 4, seed=3)
    assert orthonormal(appended(basis, close)) < 1e-13


def test_layers_take_the_first_images_across_parts_and_no_hook_stays() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(48, 4)).double()
    layers = subspaces.layers_of(net, "none")
    x = random(45, 2, 4, 4)
    result = collected(net, layers, x.split(25), {"0": 30, "3": 45}, subspaces.inputs)
    inside = net[:3](x).detach()
    conv = Columns([subspaces.inputs(net[0], x[:30], x)])
    assert conv._gram is not None
    torch.testing.assert_close(result["0"]._gram, conv._gram)
    torch.testing.assert_close(result["3"]._all(), inside.T)
    made = collected(net, layers, [x], {"0": 45, "3": 2}, subspaces.outputs)
    torch.testing.assert_close(made["3"]._all(), (net[3].weight @ inside[:2].T).detach())
    torch.testing.assert_close(made["0"].energy(), energy_of(net[0], x))
    assert not any(module._forward_hooks for module in net.modules())


def energy_of(layer: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(layer, nn.Conv2d)
    return nn.functional.conv2d(x, layer.weight.detach(), padding=1).square().sum()


def test_hooks_go_when_the_network_fails() -> None:
    net = nn.Sequential(nn.Linear(3, 2))
    with pytest.raises(RuntimeError):
        collected(net, subspaces.layers_of(net, ""), [torch.zeros(2, 5)], {"0": 2}, subspaces.inputs)
    assert not net[0]._forward_hooks


def test_grouped_convolutions_are_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"1: a convolution of 2 groups"):
        subspaces.layers_of(nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2)), "head")
