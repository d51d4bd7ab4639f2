"""Under autocast a task's layer gives what the model's own gives: the same types, adapted, owned or mixed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from halrp.model.base import Base
from halrp.model.mixed import MixedModule
from halrp.model.plan import trained_buffers
from tests.model import test_mixed_layers as layers
from tests.model.mixing import around, inputs, random_delta, task_views
from tests.model.test_per_task import MODULES

KINDS = {
    **layers.LINEARS,
    **layers.CONVS,
    **layers.NORMS,
    **layers.ROW_WISE,
    **{f"{kind}, rows second": case for kind, case in layers.SECOND.items()},
    "tokens": (lambda: layers.Tokens(single=False, padding=0), (5,)),
    **{f"module: {kind}": (build, (8,)) for kind, build in MODULES.items()},
}


def types_of(result: Any) -> list[torch.dtype]:
    return [leaf.dtype for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def seen_types(net: nn.Module, call: Any) -> list[torch.dtype]:
    """The types that the module `layer` of a network gives in a call."""
    types: list[torch.dtype] = []
    handle = net.get_submodule("layer").register_forward_hook(lambda _, __, y: types.extend(types_of(y)))
    try:
        call()
    finally:
        handle.remove()
    return types


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch says what its own layer does
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # so does its norm in mixed types
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_a_layer_gives_the_types_of_the_models_own(kind: str, given: torch.dtype) -> None:
    build, shape = KINDS[kind]
    model, plan = around(build, *shape, dtype=torch.float32)
    other = {name for name, _ in model.named_buffers()} - trained_buffers(model)
    deltas = [random_delta(model, plan, seed, rank=2) for seed in range(2)]
    deltas = [
        replace(d, autocast="bfloat16", plain={n: t for n, t in d.plain.items() if n not in other}) for d in deltas
    ]
    x = inputs(4, *shape, dtype=torch.float32).to(given)
    mixed = MixedModule(Base(model, plan, channels_last=False), deltas)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = seen_types(model, lambda: model(x))
        (view, _) = task_views(model, plan, deltas)
        assert seen_types(view, lambda: view(x)) == expected
    assert mixed._net is not None
    assert seen_types(mixed._net, lambda: mixed(x, torch.tensor([0, 1, 1, 0]))) == expected
    assert mixed.one_pass, mixed.reason
