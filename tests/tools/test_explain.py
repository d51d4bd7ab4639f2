"""What is known about a model before anything is trained: kinds, reasons, costs, and the smallest budget."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from halrp import Explanation, Halrp, Learner, Recipe, explain
from halrp.errors import BudgetTooSmall, SettingError
from halrp.objectives import Classification, MultiLabel, Objective, Regression
from halrp.tools.explain import MODEL, Row
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


def test_treatment_of_a_residual_network() -> None:
    rows = by_name(explain(ResNet()))
    adapted = {name for name, row in rows.items() if row.kind == "adapted"}
    blocks = {f"layer{i}.0.conv{j}.weight" for i in (1, 2) for j in (1, 2)}
    assert adapted == {"conv1.weight", "layer2.0.downsample.0.weight"} | blocks
    statistics = [row for name, row in rows.items() if "running" in name or "num_batches" in name]
    assert len(statistics) == 3 * 6
    assert all(row.kind == "owned" and row.role == "buffer" for row in statistics)
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
    assert rows["layer2.0.conv1.weight"].scale_bytes == 4 * (16 + 8)
    pointwise = rows["layer2.0.downsample.0.weight"].rank_bytes
    assert pointwise["mean"] == pointwise["full"]
    linear = by_name(explain(ViT()))["blocks.0.fc1.weight"].rank_bytes
    assert linear == {"full": {"float32": 4 * 48, "bfloat16": 2 * 48, "int8": 48 + 8}}


def test_costs_follow_the_models_own_floating_type() -> None:
    single, double = explain(ResNet()), explain(ResNet().double())
    assert double.rank_bytes("mean", "float32") == 2 * single.rank_bytes("mean", "float32")
    assert double.rank_bytes("full", "int8") == single.rank_bytes("full", "int8")
    assert double.fixed["scales"] == 2 * single.fixed["scales"]
    assert double.class_bytes == 2 * single.class_bytes == 2 * 4 * 17


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("kind", MODELS)
def test_the_fixed_part_is_the_smallest_budget_that_a_learner_accepts(kind: str, precision: str) -> None:
    build, data = MODELS[kind]
    model = drawn(build)
    explanation = explain(model, precision=precision)  # type: ignore[arg-type]
    assert explanation.fixed_bytes is not None

    def learn(budget: int) -> int:
        method = Halrp.budget(budget, precision=precision, view="mean")  # type: ignore[arg-type]
        return Learner(model, base="given", method=method, recipe=FAST).learn("task", tiny_task(data)).bytes

    assert learn(explanation.fixed_bytes) <= explanation.fixed_bytes
    with pytest.raises(BudgetTooSmall) as refused:
        learn(explanation.fixed_bytes - explanation.fixed["header"])
    needed = re.search(r"raise it to at least ([\d,]+)", str(refused.value))
    assert needed is not None
    # The header is measured for a longer name and other settings than these.
    assert 0 <= explanation.fixed_bytes - int(needed[1].replace(",", "")) < 150


OBJECTIVES: dict[str, Objective] = {
    "wider": Classification(7),
    "smoothing": Classification(2, smoothing=0.1),
    "several labels": MultiLabel(5),
    "units": Regression(2, mean=(0.25, 1.5), deviation=(2.0, 0.125)),
}


@pytest.mark.parametrize("kind", OBJECTIVES)
def test_the_smallest_budget_is_that_of_the_objective_and_its_width(kind: str) -> None:
    objective, model = OBJECTIVES[kind], net("mlp")
    x, y = tiny_task("mlp", classes=2)
    targets = {"several labels": torch.eye(5)[y], "units": torch.stack([y, 1 - y], 1).float()}.get(kind, y)
    explanation = explain(model, objective=objective)
    assert explanation.rows[-1].shape == (objective.outputs,)
    assert explanation.fixed_bytes is not None

    def learner(bytes_: int) -> Learner:
        method = Halrp.budget(bytes_per_task=bytes_, precision="float32")
        return Learner(model, base="given", method=method, recipe=Recipe(epochs=2), progress=None)

    # "20" epochs take one letter more than "2", and a header grows in words of 8 bytes.
    learner(explanation.fixed_bytes).learn("n" * 40, (x, targets), objective=objective)
    with pytest.raises(BudgetTooSmall):
        learner(explanation.fixed_bytes - 9).learn("n" * 40, (x, targets), objective=objective)


def test_outputs_that_are_picked_are_part_of_the_header() -> None:
    plain, picked = explain(net("mlp")).fixed["header"], explain(net("mlp"), output="a" * 64).fixed["header"]
    assert 64 <= picked - plain <= 64 + 24


def test_a_task_owns_exactly_the_rows_that_are_owned() -> None:
    model = drawn(ResNet)
    learner = Learner(model, base="given", recipe=FAST, method=Halrp.budget(20_000, view="mean"))
    delta = learner.learn("task", tiny_task("conv"))
    rows = by_name(explain(model))
    owned = {name for name, row in rows.items() if row.kind == "owned"}
    assert delta.owned.keys() - set(delta.dense) == owned
    fixed = sum(row.fixed_bytes for row in rows.values())
    assert fixed == sum(t.numel() * t.element_size() for n, t in delta.owned.items() if n in owned)


def test_frozen_parameters_and_constant_buffers_are_shared_and_cost_nothing() -> None:
    model = net("mlp")
    model.get_parameter("0.weight").requires_grad_(False)
    model.register_buffer("scale", torch.ones(3))
    rows = by_name(explain(model))
    for name in ("0.weight", "scale"):
        assert rows[name].kind == "shared"
        assert rows[name].fixed_bytes == rows[name].scale_bytes == 0


def test_instance_norms_that_track_statistics_do_not_count_batches() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, track_running_stats=True), nn.Flatten())
    model.append(nn.Linear(8, 3))
    rows = by_name(explain(model))
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


def test_the_text_is_a_table_with_a_line_for_every_row_and_the_smallest_budget() -> None:
    explanation = explain(ResNet(), precision="int8")
    lines = str(explanation).splitlines()
    assert all(any(line.startswith(f"{row.name} ") for line in lines) for row in explanation.rows)
    conv = next(line for line in lines if line.startswith("layer2.0.conv1.weight"))
    assert re.search(r"adapted +16×8×3×3 +1,152 +32 / 96 +96 +rule for Conv2d$", conv)
    assert f"Smallest budget of a task: {explanation.fixed_bytes:,} =" in str(explanation)


def test_json_holds_the_same_numbers() -> None:
    explanation = explain(ViT())
    read = json.loads(json.dumps(explanation.to_json()))
    assert read["fixed_bytes"] == explanation.fixed_bytes == sum(read["fixed"].values())
    row = next(row for row in read["rows"] if row["name"] == "patch_embed.weight")
    assert row["shape"] == [16, 3, 2, 2]
    assert row["rank_bytes"]["full"]["float32"] == 4 * (16 + 12)


def test_explaining_changes_nothing_and_needs_no_memory_for_weights() -> None:
    model = drawn(ResNet)
    before, state = digest(model), torch.get_rng_state()
    explanation = explain(model)
    assert digest(model) == before
    assert torch.equal(torch.get_rng_state(), state)
    with torch.device("meta"):
        empty = ResNet()
    assert explain(empty) == explanation


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(SettingError, match=r"'int4'.*'int8'"):
        explain(net("mlp"), precision="int4")
