"""What is known about a model before anything is trained: kinds, reasons, costs, and the smallest budget."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from halrp import Explanation, Halrp, Learner, Recipe, explain
from halrp.errors import BudgetTooSmall, SettingError
from halrp.method.from_probe import FromProbe
from halrp.model.codec import Precision
from halrp.objectives import Classification, MultiLabel, Objective, Regression
from halrp.provenance import describe
from halrp.tools.explain import MODEL, Row
from halrp.tools.foreseen import EXAMPLES, NAME, BaseChoice, default_recipe
from tests.helpers import FAST, digest, drawn, net, tiny_task


class Block(nn.Module):
    """A residual block, named as torchvision and timm name theirs."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return cast(Tensor, (y + self.downsample(x)).relu())


class ResNet(nn.Module):
    """A stem, two stages and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Block(8, 8, 1))
        self.layer2 = nn.Sequential(Block(8, 16, 2))
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.bn1(self.conv1(x)).relu()))
        return cast(Tensor, self.fc(x.mean((2, 3))))


class Attention(nn.Module):
    """A transformer block with torch's own attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return cast(Tensor, x + self.fc2(self.fc1(self.norm2(x)).relu()))


class ViT(nn.Module):
    """A vision transformer over 2 × 2 patches of an 8 × 8 image."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, 17, width))
        self.patch_embed = nn.Conv2d(3, width, 2, 2)
        self.blocks = nn.Sequential(Attention(width), Attention(width))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return cast(Tensor, self.head(self.norm(self.blocks(x))[:, 0]))


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "resnet": (ResNet, "conv"),
    "vit": (ViT, "conv"),
    "conv": (lambda: net("conv"), "conv"),
    "grouped": (lambda: net("grouped"), "grouped"),
    "gru": (lambda: net("gru"), "gru"),
    "mlp": (lambda: net("mlp"), "mlp"),
}
"""A model, and the kind of the tiny tasks that it can learn."""


def by_name(explanation: Explanation) -> dict[str, Row]:
    return {row.name: row for row in explanation.rows}


@pytest.mark.parametrize("base", ["given", "first"])
def test_treatment_of_a_residual_network(base: BaseChoice) -> None:
    rows = by_name(explain(ResNet(), base=base))
    adapted = {name for name, row in rows.items() if row.kind == "adapted"}
    blocks = {f"layer{i}.0.conv{j}.weight" for i in (1, 2) for j in (1, 2)}
    assert adapted == {"conv1.weight", "layer2.0.downsample.0.weight"} | blocks
    statistics = [row for name, row in rows.items() if "running" in name or "num_batches" in name]
    assert len(statistics) == 3 * 6
    kind = "shared" if base == "given" else "owned"
    assert all(row.kind == kind and row.role == "buffer" for row in statistics)
    assert rows["layer2.0.downsample.1.weight"].role == "norm"
    assert rows["fc.weight"].role == "head"


def test_treatment_of_a_vision_transformer() -> None:
    rows = by_name(explain(ViT()))
    adapted = {name for name, row in rows.items() if row.kind == "adapted"}
    parts = ("attn.in_proj_weight", "attn.out_proj.weight", "fc1.weight", "fc2.weight")
    assert adapted == {"patch_embed.weight"} | {f"blocks.{i}.{part}" for i in (0, 1) for part in parts}
    assert all(rows[name].kind == "owned" for name in ("cls_token", "pos_embed", "blocks.0.norm1.weight"))
    assert "MultiheadAttention" in rows["blocks.0.attn.in_proj_weight"].why


@pytest.mark.parametrize("kind", MODELS)
def test_every_parameter_has_a_row_with_its_shape_and_a_reason(kind: str) -> None:
    model = MODELS[kind][0]()
    explanation = explain(model)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert [row.name for row in explanation.rows] == list(tensors)
    assert all(row.shape == tuple(tensors[row.name].shape) and row.why for row in explanation.rows)
    assert explanation.parameters == sum(p.numel() for p in model.parameters())
    assert explanation.refused == ()


def test_a_rank_costs_a_column_and_a_row_in_every_view_and_precision() -> None:
    rows = by_name(explain(ResNet()))
    # p (16,) and q (8,) or (8·9,), of 4, 2 and 1 bytes a number; in int8 each of the two has a scale of 4 bytes.
    assert rows["layer2.0.conv1.weight"].rank_bytes == {
        "mean": {"float32": 96, "bfloat16": 48, "int8": 32},
        "full": {"float32": 352, "bfloat16": 176, "int8": 96},
    }
    assert rows["layer2.0.conv1.weight"].scale_bytes == 16 + 4 + 8 + 4
    whole = by_name(explain(ResNet(), base="first"))
    assert whole["layer2.0.conv1.weight"] == rows["layer2.0.conv1.weight"]
    pointwise = rows["layer2.0.downsample.0.weight"].rank_bytes
    assert pointwise["mean"] == pointwise["full"]
    linear = by_name(explain(ViT()))["blocks.0.fc1.weight"].rank_bytes
    assert linear == {"full": {"float32": 4 * 48, "bfloat16": 2 * 48, "int8": 48 + 8}}


def test_costs_follow_the_models_own_floating_type() -> None:
    single, double = explain(ResNet(), base="first"), explain(ResNet().double(), base="first")
    assert double.rank_bytes("mean", "float32") == 2 * single.rank_bytes("mean", "float32")
    assert double.rank_bytes("full", "int8") == single.rank_bytes("full", "int8")
    assert double.fixed["scales"] == single.fixed["scales"], "in int8"
    assert double.class_bytes == single.class_bytes == 16 + 4 + 1


def smallest_of(model: nn.Module, data: Any, base: BaseChoice, precision: Precision | None, **task: Any) -> int:
    """The smallest budget that the error of a learner with the default recipe names."""
    learner = Learner(model, base=base, method=Halrp.budget(bytes_per_task=1, precision=precision), progress=None)
    if base == "first":
        learner.recipe = FAST
        learner.learn("first", data, **task)
        learner.recipe = Recipe.auto()
    with pytest.raises(BudgetTooSmall) as refused:
        learner.learn(NAME, data, data, **task)
    needed = re.search(r"raise it to at least ([\d,]+)", str(refused.value))
    assert needed is not None
    return int(needed[1].replace(",", ""))


@pytest.mark.parametrize("base", ["given", "first"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", None])
@pytest.mark.parametrize("kind", MODELS)
def test_the_fixed_part_is_the_smallest_budget_that_a_learner_names(
    kind: str, precision: Precision | None, base: BaseChoice
) -> None:
    build, data = MODELS[kind]
    model = drawn(build)
    explained = explain(model, base=base) if precision is None else explain(model, precision=precision, base=base)
    assert explained.fixed_bytes == smallest_of(model, tiny_task(data, examples=EXAMPLES), base, precision)


@pytest.mark.parametrize("kind", MODELS)
def test_a_task_of_the_smallest_budget_fits_and_has_a_head_of_the_price_of_its_rows(kind: str) -> None:
    build, data = MODELS[kind]
    model = drawn(build)
    explained = explain(model, classes=4)
    assert explained.fixed_bytes is not None
    assert explained.fixed.keys() == {"head", "header"}
    learner = Learner(model, base="given", method=Halrp.budget(explained.fixed_bytes), recipe=FAST, progress=None)
    delta = learner.learn("task", tiny_task(data, classes=4))
    assert delta.bytes <= explained.fixed_bytes
    head = {f"plain/{row.name}": row.fixed_bytes for row in explained.rows if row.fixed_bytes}
    assert {key: delta.stored[key].bytes for key in head} == head
    assert explained.fixed["head"] == sum(head.values())


@pytest.mark.parametrize("base", ["given", "first"])
def test_no_number_of_examples_has_a_longer_recipe_than_the_one_that_is_foreseen(base: BaseChoice) -> None:
    lengths = {count: len(json.dumps(describe(default_recipe(count, base)))) for count in range(1, 3000)}
    assert max(lengths.values()) == lengths[EXAMPLES]


OBJECTIVES: dict[str, Objective] = {
    "wider": Classification(7),
    "smoothing": Classification(2, smoothing=0.1),
    "several labels": MultiLabel(5),
    "units": Regression(2, mean=(0.25, 1.5), deviation=(2.0, 0.125)),
}


@pytest.mark.parametrize("base", ["given", "first"])
@pytest.mark.parametrize("kind", OBJECTIVES)
def test_the_smallest_budget_is_that_of_the_objective_and_its_width(kind: str, base: BaseChoice) -> None:
    objective, model = OBJECTIVES[kind], net("mlp")
    x, y = tiny_task("mlp", classes=2, examples=EXAMPLES)
    targets = {"several labels": torch.eye(5)[y], "units": torch.stack([y, 1 - y], 1).float()}.get(kind, y)
    explanation = explain(model, objective=objective, base=base)
    assert explanation.rows[-1].shape == (objective.outputs,)
    assert explanation.fixed_bytes == smallest_of(model, (x, targets), base, None, objective=objective)


def test_classes_are_those_of_a_classification() -> None:
    assert explain(net("mlp"), classes=7) == explain(net("mlp"), objective=Classification(7))
    wider = explain(net("mlp"), classes=8).fixed["head"]
    assert wider - explain(net("mlp"), classes=7).fixed["head"] == explain(net("mlp")).class_bytes == 12 + 4 + 1


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "classes and an objective": ({"classes": 5, "objective": MultiLabel(5)}, "classes=5, objective=MultiLabel.*give"),
    "no number": ({"classes": 2.5}, "classes=2.5 is no number of classes"),
    "no classes": ({"classes": 0}, "at least 1"),
    "another base": ({"base": "second"}, "base='second'.*'given' or 'first'"),
    "classes of a kept head": ({"classes": 5, "head": False}, "classes=5.*head=False.*3 outputs"),
}


@pytest.mark.parametrize("case", WRONG)
def test_settings_that_make_no_sense_are_refused(case: str) -> None:
    settings, message = WRONG[case]
    with pytest.raises(SettingError, match=message):
        explain(net("mlp"), **settings)


def test_outputs_that_are_picked_are_part_of_the_header() -> None:
    plain, picked = explain(net("mlp")).fixed["header"], explain(net("mlp"), output="a" * 64).fixed["header"]
    assert 64 <= picked - plain <= 64 + 24


def test_a_task_on_a_trained_base_owns_exactly_the_rows_that_are_owned() -> None:
    model = drawn(ResNet)
    learner = Learner(model, recipe=FAST, method=Halrp.budget(20_000, view="mean"), progress=None)
    learner.learn("first", tiny_task("conv"))
    delta = learner.learn("task", tiny_task("conv", 1))
    rows = by_name(explain(model, base="first"))
    owned = {name for name, row in rows.items() if row.kind == "owned"}
    assert delta.owned.keys() - set(delta.dense) == owned
    fixed = sum(row.fixed_bytes for row in rows.values())
    assert fixed == sum(delta.stored[f"plain/{name}"].bytes for name in owned)


@pytest.mark.parametrize("kind", MODELS)
def test_what_a_task_on_a_given_base_stores_has_the_prices_of_its_rows(kind: str) -> None:
    build, data = MODELS[kind]
    model = drawn(build)
    method = replace(Halrp.budget(100_000, view="mean"), start=FromProbe(held_out=0))
    delta = Learner(model, base="given", recipe=FAST, method=method, progress=None).learn("task", tiny_task(data))
    rows, stored = by_name(explain(model)), dict(delta.stored)
    assert any(key[:6] != "plain/" or rows[key[6:]].optional_bytes for key in stored), "nothing but a head"
    for name, row in rows.items():
        if f"plain/{name}" in stored:
            assert stored.pop(f"plain/{name}").bytes == row.fixed_bytes + row.optional_bytes
        scales = [stored.pop(f"{part}/{name}").bytes for part in "rs" if f"{part}/{name}" in stored]
        assert sum(scales) <= row.scale_bytes
        assert len(scales) < 2 or sum(scales) == row.scale_bytes
        if f"p/{name}" in stored:
            prices = row.rank_bytes.get("mean", row.rank_bytes["full"])
            both = stored.pop(f"p/{name}").bytes + stored.pop(f"q/{name}").bytes
            assert both <= delta.ranks[name] * prices["int8"]  # less if zeros are left out
    assert {key.partition("/")[0] for key in stored} <= {"dense"}


def test_frozen_parameters_and_constant_buffers_are_shared_and_cost_nothing() -> None:
    model = net("mlp")
    model.get_parameter("0.weight").requires_grad_(False)
    model.register_buffer("scale", torch.ones(3))
    rows = by_name(explain(model))
    for name in ("0.weight", "scale"):
        assert rows[name].kind == "shared"
        assert rows[name].fixed_bytes == rows[name].optional_bytes == rows[name].scale_bytes == 0


def test_instance_norms_that_track_statistics_do_not_count_batches() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, track_running_stats=True), nn.Flatten())
    model.append(nn.Linear(8, 3))
    rows = by_name(explain(model, base="first"))
    assert rows["1.running_mean"].kind == "owned"
    assert rows["1.num_batches_tracked"].kind == "shared"


def tied_head() -> nn.Module:
    model = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 12))
    cast(nn.Linear, model[2]).weight = cast(nn.Linear, model[0]).weight
    return model


def overlapping() -> nn.Module:
    model = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 3))
    cast(nn.Linear, model[1]).weight = nn.Parameter(cast(nn.Linear, model[0]).weight.detach())
    return model


class Scripted(torch.jit.ScriptModule):
    pass


REFUSED: dict[str, tuple[Callable[[], nn.Module], dict[str, str]]] = {
    "tied head": (tied_head, {"0.weight": "tied.*untie"}),
    "overlapping memory": (overlapping, {"0.weight": "same memory", "1.weight": "same memory"}),
    "lazy": (
        lambda: nn.Sequential(nn.LazyLinear(12), nn.LazyBatchNorm1d(), nn.Linear(12, 3)),
        {f"{layer}.{part}": "run one batch" for layer in (0, 1) for part in ("weight", "bias")},
    ),
    "lazy head": (
        lambda: nn.Sequential(nn.Linear(12, 12), nn.LazyLinear(3)),
        {"1.weight": "run one batch", "1.bias": "run one batch"},
    ),
    "no head": (
        lambda: nn.Sequential(nn.Linear(12, 12), nn.LayerNorm(12)),
        {MODEL: "no head found.*could serve: 0"},
    ),
    "nothing to adapt": (lambda: nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 3)), {MODEL: "no adaptable layer"}),
    "no parameters": (nn.ReLU, {MODEL: "no head found"}),
    "scripted": (Scripted, {MODEL: "scripted"}),
    "two faults": (
        lambda: nn.Sequential(
            nn.Embedding(20, 12, max_norm=1), nn.EmbeddingBag(20, 12, sparse=True, mode="sum"), nn.Linear(12, 3)
        ),
        {"0.weight": "max_norm", "1.weight": "sparse=False"},
    ),
}


@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_model_is_explained_with_every_reason(case: str) -> None:
    build, reasons = REFUSED[case]
    explanation = explain(build())
    assert {row.name for row in explanation.refused} == reasons.keys()
    assert all(re.search(reasons[row.name], row.why) for row in explanation.refused)
    assert explanation.fixed_bytes is None
    assert explanation.budgets == ()
    assert f"{len(reasons)} refused" in str(explanation)
    json.dumps(explanation.to_json())


def test_a_head_that_does_not_exist_is_a_row_and_not_an_exception() -> None:
    explanation = explain(net("conv"), head="nothing")
    assert [row.name for row in explanation.refused] == [MODEL]
    assert "no module named 'nothing'" in explanation.refused[0].why


def test_the_head_may_be_named() -> None:
    rows = by_name(explain(net("mlp"), head="2"))
    assert rows["2.weight"].role == "head"
    assert rows["4.weight"].role != "head"


@pytest.mark.parametrize("base", ["given", "first"])
def test_the_text_is_a_table_with_a_line_for_every_row_and_the_smallest_budget(base: BaseChoice) -> None:
    explanation = explain(ResNet(), base=base)
    lines = str(explanation).splitlines()
    assert all(any(line.startswith(f"{row.name} ") for line in lines) for row in explanation.rows)
    conv = next(line for line in lines if line.startswith("layer2.0.conv1.weight"))
    assert re.search(r"adapted +16×8×3×3 +1,152 +32 / 96 +32 +rule for Conv2d$", conv)
    assert f"Smallest budget of a task: {explanation.fixed_bytes:,} =" in str(explanation)
    assert ("What a budget pays for" in str(explanation)) is ("optional" in lines[0]) is (base == "given")


def test_json_holds_the_same_numbers() -> None:
    explanation = explain(ViT())
    read = json.loads(json.dumps(explanation.to_json()))
    assert read["fixed_bytes"] == explanation.fixed_bytes == sum(read["fixed"].values())
    row = next(row for row in read["rows"] if row["name"] == "patch_embed.weight")
    assert row["shape"] == [16, 3, 2, 2]
    assert row["rank_bytes"]["full"]["float32"] == 4 * (16 + 12)
    assert read["base"] == "given"
    assert [paid["bytes"] for paid in read["budgets"]] == [paid.bytes for paid in explanation.budgets]


def test_explaining_changes_nothing_and_needs_no_memory_for_weights() -> None:
    model = drawn(ResNet)
    before, state = digest(model), torch.get_rng_state()
    explanation = explain(model)
    assert digest(model) == before
    assert torch.equal(torch.get_rng_state(), state)
    with torch.device("meta"):
        empty = ResNet()
    assert explain(empty) == explanation


def test_the_default_precision_is_that_of_the_default_method() -> None:
    assert explain(net("mlp")).precision == Halrp.budget().precision == Halrp.budget(1_000).precision


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(SettingError, match=r"'int4'.*'int8'"):
        explain(net("mlp"), precision="int4")
