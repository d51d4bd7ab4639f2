"""What the backward passes of adapted layers keep, and what they notice."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from halrp.model.factors import Factors
from halrp.model.kernels import euler
from halrp.model.layers.registry import adapt
from tests.helpers import address


def adapted(layer: nn.Module, rank: int = 2, full: bool = False) -> nn.Module:
    """A layer with factors that learn."""
    draw = torch.Generator().manual_seed(0)
    weight: Any = layer.weight
    rows, columns = weight.shape[:2]
    width = weight[0].numel() if full else columns
    shapes = ((rows,), (columns,), (rows, rank), (rank, width))
    factors = (nn.Parameter(1 + 0.1 * torch.randn(shape, generator=draw)) for shape in shapes)
    weight.requires_grad_(False)
    adapt(layer, Factors(*factors))
    return layer


def small(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "linear": (lambda: nn.Linear(24, 20), (64, 24), False),
    "kernel-mean": (lambda: nn.Conv2d(40, 44, 3, padding=1), (2, 40, 8, 8), False),
    "full-kernel": (lambda: nn.Conv2d(40, 44, 3, padding=1), (2, 40, 8, 8), True),
    "full-kernel, filled": (lambda: nn.Conv2d(40, 96, 3, padding=1), (2, 40, 8, 8), True),
}


@pytest.fixture(params=LAYERS)
def layer_and_input(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    make, shape, full = LAYERS[request.param]
    layer = adapted(small(make), full=full)
    return layer, torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_()


def test_no_merged_weight_and_no_copy_of_the_output_is_kept(layer_and_input: tuple[nn.Module, Tensor]) -> None:
    layer, x = layer_and_input
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        saved[address(tensor)] = tensor.numel()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        y = layer(x)
    known = {address(tensor) for tensor in (x, y, *layer.parameters(), *layer.buffers())}
    rank, positions = layer.p.shape[1], y[0, 0].numel()  # type: ignore[index]
    assert sum(count for at, count in saved.items() if at not in known) <= rank * positions * len(y)


def test_an_output_without_a_backward_pass_is_freed_at_once(layer_and_input: tuple[nn.Module, Tensor]) -> None:
    layer, x = layer_and_input
    gc.collect()
    gc.disable()
    try:
        output = layer(x)
        gone = weakref.ref(output)
        del output
        assert gone() is None
    finally:
        gc.enable()


def test_a_second_backward_pass_gives_the_same_gradients(layer_and_input: tuple[nn.Module, Tensor]) -> None:
    layer, x = layer_and_input
    y = layer(x).square().sum()
    first = torch.autograd.grad(y, list(layer.parameters()), retain_graph=True)
    second = torch.autograd.grad(y, list(layer.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("change", [lambda y: y.relu_(), lambda y: y.view(-1)[:3].zero_(), lambda y: y.mul_(2)])
def test_an_output_that_is_written_to_is_noticed_through_any_view(change: Callable[[Tensor], Tensor]) -> None:
    y = torch.ones(4, 3)
    is_overwritten = euler.watch(y)
    assert not is_overwritten()
    change(y)
    assert is_overwritten()


def test_norms_of_a_weight_that_was_written_to_are_computed_again() -> None:
    weight = torch.ones(2, 3)
    factors = Factors(torch.ones(2), torch.ones(3), torch.full((2, 1), 0.1), torch.full((1, 3), 0.1))
    assert all(len(indices) == 0 for indices in euler.weak(weight, factors))
    weight[1] = 1e-9
    rows, columns = euler.weak(weight, factors)
    assert rows.tolist() == [1]
    assert columns.tolist() == []
