"""Layers of transformers, which the library knows by name and never imports."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from halrp.method.importance import Curvature, curvature
from halrp.model.layers.registry import adapt
from halrp.training.batches import InMemory
from tests.helpers import drawn
from tests.model.mixing import around, assert_mixes, base_task, inputs, random_delta
from tests.model.test_layers import agree_in_values_and_gradients, factors_for, random, reference

pytest.importorskip("transformers")


def transposed_linear(inputs: int, outputs: int) -> nn.Module:
    from transformers.pytorch_utils import Conv1D

    layer: nn.Module = cast(Any, Conv1D)(outputs, inputs)
    nn.init.normal_(cast(nn.Parameter, layer.weight), std=0.5)
    nn.init.normal_(cast(nn.Parameter, layer.bias))
    return layer


@pytest.mark.parametrize("shape", [(6,), (4, 6), (2, 3, 6)])
def test_a_transposed_linear_layer_equals_its_merged_weight(shape: tuple[int, ...]) -> None:
    layer = drawn(lambda: transposed_linear(6, 5).double())
    base = cast(Tensor, layer.weight).detach().clone()
    factors = factors_for(base)
    plain = reference(layer, factors)
    adapt(layer, factors)
    agree_in_values_and_gradients(layer, plain, factors, random(*shape), base)
    assert type(layer).__name__ == "AdaptedConv1D"


def test_under_autocast_a_transposed_linear_layer_gives_the_type_of_the_plain_one() -> None:
    layer = drawn(lambda: transposed_linear(6, 5))
    factors = factors_for(cast(Tensor, layer.weight)).map(lambda t: t.detach().float())
    plain = reference(layer, factors)
    adapt(layer, factors)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.ones(3, 6)).dtype == plain(torch.ones(3, 6)).dtype == torch.bfloat16


def test_a_transposed_linear_layer_gives_each_row_its_own_task() -> None:
    model, plan = around(lambda: transposed_linear(10, 9), 4, 10)
    assert plan.parameters["layer.weight"].reason == "rule for Conv1D"
    dense = [(), (), ("layer.weight",), ()]
    deltas = [base_task(model, plan), *(random_delta(model, plan, seed, dense=dense[seed]) for seed in range(4))]
    assert_mixes(model, plan, deltas, inputs(23, 4, 10))


def test_the_moments_of_a_transposed_linear_layer_are_those_of_a_linear_one_exchanged() -> None:
    (mine, _), (theirs, _) = around(lambda: transposed_linear(10, 9), 4, 10), around(lambda: nn.Linear(10, 9), 4, 10)
    state = mine.state_dict()
    theirs.load_state_dict(state | {"layer.weight": state["layer.weight"].T})
    x, y = inputs(12, 4, 10), torch.arange(12) % 3

    def moments(model: nn.Module) -> Curvature:
        weight = model.get_parameter("layer.weight")
        return curvature(model, {"layer.weight": weight}, InMemory(x, y), 4)["layer.weight"]

    got, expected = moments(mine), moments(theirs)
    torch.testing.assert_close(got.A, expected.G, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(got.G, expected.A, rtol=1e-12, atol=1e-14)
