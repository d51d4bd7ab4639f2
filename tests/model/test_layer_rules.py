"""Layer rules that a user registers from outside the package: what they inherit, and what they say they lack."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp import Adapted, ConvFamily, Halrp, LayerRule, Learner, LinearFamily, explain, layer_rule
from halrp.errors import SettingError
from halrp.method.importance import Curvature, curvature
from halrp.model import kernels
from halrp.model.layers.registry import rule_for
from halrp.model.layers.stacks import LayerTasks
from halrp.model.rows import rows_of
from halrp.training.batches import InMemory
from tests.helpers import FAST, drawn
from tests.model.mixing import (
    around,
    assert_mixes,
    base_task,
    inputs,
    random_delta,
)

pytestmark = pytest.mark.usefixtures("rules_restored")


class GeluLinear(nn.Module):
    """A user's layer: gelu(W x + b)."""

    def __init__(self, columns: int = 12, rows: int = 12) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns) / columns**0.5)
        self.bias = nn.Parameter(torch.randn(rows))

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(F.linear(x, self.weight, self.bias))


class SwishConv(nn.Conv2d):
    """A user's layer: silu(W * x + b)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(super().forward(x))


def register_gelu(**attributes: Any) -> type[Adapted]:
    """Register the whole family for `GeluLinear`, perhaps with class attributes."""

    class AdaptedGeluLinear(LinearFamily, GeluLinear):  # type: ignore[misc]
        def finish(self, y: Tensor) -> Tensor:
            return F.gelu(y)

    for name, value in attributes.items():
        setattr(AdaptedGeluLinear, name, value)
    return layer_rule(GeluLinear)(AdaptedGeluLinear)


def register_forward_only() -> type[Adapted]:
    """Register an adapted form that derives from no family."""

    @layer_rule(GeluLinear)
    class AdaptedGeluLinear(Adapted, GeluLinear):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return F.gelu(kernels.linear(x, self.base_weight, self.bias, self.r, self.s, self.p, self.q))

    return AdaptedGeluLinear


def register_swish() -> None:
    @layer_rule(SwishConv)
    class AdaptedSwishConv(ConvFamily, SwishConv):  # type: ignore[override]
        def finish(self, y: Tensor) -> Tensor:
            return F.silu(y)


LAYERS: dict[str, tuple[Callable[[], object], Callable[[], nn.Module], Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (
        register_gelu,
        GeluLinear,
        lambda: nn.Sequential(nn.Linear(12, 12), nn.GELU()),
        (12,),
    ),
    "convolution": (
        register_swish,
        lambda: SwishConv(3, 16, 3, stride=2, padding="valid"),
        lambda: nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding="valid"), nn.SiLU()),
        (3, 7, 7),
    ),
}
"""How to register the layer, the layer, the same with a layer of torch, and the shape of an input."""


def curvature_of(model: nn.Module, x: Tensor) -> dict[str, Curvature]:
    weights = {name: p for name, p in model.named_parameters() if p.dim() >= 2}
    return curvature(model, weights, InMemory(x, torch.arange(len(x)) % 3), 4)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_rule_of_a_family_has_the_moments_of_torchs_layer_and_its_activation(kind: str) -> None:
    register, build, like, shape = LAYERS[kind]
    register()
    (mine, _), (theirs, _) = around(build, *shape), around(like, *shape)
    names = [name for name, _ in mine.named_parameters()]
    theirs.load_state_dict(dict(zip(theirs.state_dict(), mine.state_dict().values(), strict=True)))
    x = inputs(10, *shape)
    got, expected = curvature_of(mine, x), curvature_of(theirs, x)
    assert set(got) == {name for name in names if name.endswith(".weight")}
    for (name, factors), reference in zip(got.items(), expected.values(), strict=True):
        for mine_part, their_part in zip(factors, reference, strict=True):
            torch.testing.assert_close(mine_part, their_part, rtol=1e-12, atol=1e-14, msg=name)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_rule_of_a_family_has_a_mixed_form(kind: str) -> None:
    register, build, _, shape = LAYERS[kind]
    register()
    model, plan = around(build, *shape)
    assert plan.parameters["layer.weight"].by_rule
    dense = [(), ("layer.weight",), (), ()]
    deltas = [base_task(model, plan), *(random_delta(model, plan, seed, dense=dense[seed]) for seed in range(4))]
    assert_mixes(model, plan, deltas, inputs(17, *shape))


@pytest.mark.parametrize("kind", LAYERS)
def test_a_rule_of_a_family_has_the_costs_of_torchs_layer(kind: str) -> None:
    register, build, like, shape = LAYERS[kind]
    register()
    mine, theirs = (
        next(row for row in explain(around(layer, *shape)[0]).rows if row.rank_bytes) for layer in (build, like)
    )
    assert mine.why == f"rule for {type(build()).__name__}"
    assert (mine.rank_bytes, mine.scale_bytes) == (theirs.rank_bytes, theirs.scale_bytes)


def test_a_rule_that_only_computes_mixes_by_the_layers_own_code_and_says_what_it_lacks() -> None:
    register_forward_only()
    model, plan = around(GeluLinear, 12)
    rule = rule_for(model.get_submodule("layer"))
    assert rule is not None
    assert rule.lacks == ("mixed", "moments")
    x = inputs(11, 12)
    assert "layer.weight" not in curvature_of(model, x)
    assert "body.weight" in curvature_of(model, x)
    assert explain(model).rows[0].why == "rule for GeluLinear, which has no mixed form and no moments"
    deltas = [base_task(model, plan), random_delta(model, plan, 1), random_delta(model, plan, 2)]
    assert_mixes(model, plan, deltas, x)


def test_a_rule_may_do_without_a_part_of_its_family() -> None:
    register_gelu(lacks=("mixed",))
    model, plan = around(GeluLinear, 12)
    assert plan.parameters["layer.weight"].reason == "rule for GeluLinear, which has no mixed form"
    assert "layer.weight" in curvature_of(model, inputs(10, 12))
    assert_mixes(model, plan, [random_delta(model, plan, seed) for seed in range(2)], inputs(10, 12))


def test_a_layer_rule_may_write_every_part_itself() -> None:
    form = register_forward_only()

    class GeluRule(LayerRule):
        adapted = form

        def mixed(self, tasks: LayerTasks) -> Callable[[Tensor], Tensor]:
            def forward(x: Tensor) -> Tensor:
                parts = rows_of(x, tasks.path).groups
                return torch.cat([tasks.layer_of(task)(x[rows.start : rows.stop]) for task, rows in parts])

            return forward

        def input_rows(self, layer: nn.Module, x: Tensor) -> Tensor:
            return x.flatten(0, -2)

    layer_rule(GeluLinear)(GeluRule)
    model, plan = around(GeluLinear, 12)
    rule = rule_for(model.get_submodule("layer"))
    assert rule is not None
    assert rule.lacks == ()
    assert plan.parameters["layer.weight"].by_rule
    moments = curvature_of(model, inputs(10, 12))["layer.weight"]
    assert moments.A.shape == moments.G.shape == (12, 12)
    assert_mixes(model, plan, [base_task(model, plan), random_delta(model, plan, 1)], inputs(9, 12))


def test_tasks_are_learned_predicted_and_exported_through_a_users_rule() -> None:
    register_gelu()
    model = drawn(lambda: nn.Sequential(GeluLinear(8, 24), nn.Linear(24, 3)))
    learner = Learner(model, method=Halrp.budget(growth_per_task=0.9), recipe=FAST)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(24, 8, generator=generator), torch.arange(24) % 3
    for name in ("base", "second"):
        learner.learn(name, (x, y), val=(x, y))
    logits = learner.predict(x, "second")
    torch.testing.assert_close(learner.export("second")(x), logits, rtol=1e-5, atol=1e-6)
    both = ["base", "second"] * 12
    expected = torch.where((torch.arange(24) % 2 == 1)[:, None], logits, learner.predict(x, "base"))
    for _ in range(2):  # the first call compares with the tasks' own modules
        torch.testing.assert_close(learner.predict(x, both), expected, rtol=1e-5, atol=1e-6)
    assert cast(Any, learner)._committed.predictor._mixed.one_pass


def test_a_subclass_of_a_registered_layer_is_planned_alike_and_merged() -> None:
    register_gelu()

    class Special(GeluLinear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).square()

    model, plan = around(Special, 12)
    assert plan.parameters["layer.weight"].reason == "merged weight of Special"
    assert "layer.weight" not in curvature_of(model, inputs(10, 12))
    assert_mixes(model, plan, [random_delta(model, plan, seed) for seed in range(2)], inputs(10, 12))


def test_mistakes_in_a_registration_are_named() -> None:
    with pytest.raises(SettingError, match=r"GeluLinear lacks 'forward'.*'mixed', 'moments'"):
        register_gelu(lacks=("forward",))
    with pytest.raises(SettingError, match="derive it from SwishConv"):
        layer_rule(SwishConv)(register_forward_only())


def test_the_rule_in_the_contributors_guide_has_a_mixed_form() -> None:
    guide = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^( *)```python\n(.*?)^\1```", guide, re.DOTALL | re.MULTILINE)
    code = next(dedent(block) for _, block in blocks if "@layer_rule" in block)
    names: dict[str, Any] = {}
    exec(code, names)
    layer = names[cast(re.Match[str], re.search(r"@layer_rule\((\w+)\)", code))[1]]
    model, plan = around(lambda: layer(12, 12), 12)
    rule = rule_for(model.get_submodule("layer"))
    assert rule is not None
    assert rule.lacks == ()
    assert plan.parameters["layer.weight"].by_rule
    assert_mixes(model, plan, [base_task(model, plan), random_delta(model, plan, 1)], inputs(9, 12))
