"""Mixed batches of tasks that own different parts: where a task has none, its rows meet the base's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from halrp.model.base import Base
from halrp.model.delta import Delta
from halrp.model.plan import Plan
from halrp.model.plan import plan as plan_of
from tests.helpers import NETS, net, tiny_task
from tests.model.mixing import around, assert_mixes, base_task, inputs, random_delta
from tests.model.test_mixed_layers import CONVS, LINEARS, NORMS, Attention, Recurrent
from tests.parts import parts_task

LAYERS = {
    **{f"linear, {name}": case for name, case in LINEARS.items()},
    **{f"convolution, {name}": case for name, case in CONVS.items() if "even" not in name},  # torch warns of that
    # Tasks that change the counter of an instance norm are computed task by task.
    **{name: case for name, case in NORMS.items() if name != "instance norm with running statistics"},
    "attention": (Attention, (5, 8)),
    "GRU": (lambda: Recurrent(nn.GRU), (5, 8)),
}


def deltas_over(model: nn.Module, plan: Plan, count: int) -> list[Delta]:
    """Tasks with few parts, with about half, with all, the base's own, and one whose matrices have one precision."""
    base = Base(model, plan, channels_last=False)
    shares = (0.15, 0.5, 0.5, 0.9, 1.0)
    some = [
        parts_task(base, 60 + number, 2 + number % 3, ("mean", "full")[number % 2], share=shares[number % 5])
        for number in range(count)
    ]
    return [base_task(model, plan), random_delta(model, plan, seed=1), *some]


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_of_which_tasks_own_different_parts_is_computed_in_one_pass(kind: str) -> None:
    build, shape = LAYERS[kind]
    model, plan = around(build, *shape)
    deltas = deltas_over(model, plan, 5)
    owners = [any(key.partition("/")[2].startswith("layer.") for key in delta.stored) for delta in deltas[2:]]
    assert any(owners) or not any(name.startswith("layer.") for name, _ in model.named_parameters())
    assert_mixes(model, plan, deltas, inputs(16, *shape))


@pytest.mark.parametrize("kind", NETS)
def test_a_network_of_which_tasks_own_different_parts_is_computed_in_one_pass(kind: str) -> None:
    model = net(kind).eval()
    plan = plan_of(model)
    x: Tensor = tiny_task(kind, 3)[0][:16]
    assert_mixes(model, plan, deltas_over(model, plan, 4), x)


def test_tasks_that_own_nothing_but_their_heads_share_every_layer() -> None:
    model = net("conv").eval()
    plan = plan_of(model)
    base = Base(model, plan, channels_last=False)
    deltas = [parts_task(base, seed, 2 + seed, share=0.0) for seed in range(3)]
    assert all({key.partition("/")[2] for key in delta.stored} == {"fc.weight", "fc.bias"} for delta in deltas)
    assert_mixes(model, plan, deltas, tiny_task("conv", 3)[0][:12])


def test_a_norm_of_which_one_task_owns_the_scale_and_another_the_statistics() -> None:
    model, plan = around(lambda: nn.BatchNorm2d(6), 6, 3, 4)
    base = Base(model, plan, channels_last=False)
    head = parts_task(base, 0, share=0.0)
    owned = {key: (head.owned[key.partition("/")[2]], "float32") for key in head.stored}
    changed = {
        "plain/layer.weight": torch.linspace(0.5, 1.5, 6, dtype=torch.float64),
        "plain/layer.bias": torch.linspace(-1, 1, 6, dtype=torch.float64),
        "plain/layer.running_mean": torch.linspace(-1, 1, 6, dtype=torch.float64),
        "plain/layer.running_var": torch.linspace(0.5, 1.5, 6, dtype=torch.float64),
    }
    deltas = [
        Delta.of_parts(head, base.layout, base.tensors, {**owned, key: (value, "float32")})  # type: ignore[dict-item]
        for key, value in changed.items()
    ]
    assert_mixes(model, plan, deltas, inputs(12, 6, 3, 4))
