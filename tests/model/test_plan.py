"""What happens to each parameter of a model, and which models are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from halrp import Halrp, Learner
from halrp.errors import HeadError, ModelError
from halrp.model.layers.head import find_head
from halrp.model.plan import plan
from tests.helpers import FAST, address, net, tiny_task

ROOMY = Halrp.budget(growth_per_task=0.9)


def kinds(kind: str) -> dict[str, tuple[str, str]]:
    return {name: (t.kind, t.role) for name, t in plan(net(kind)).parameters.items()}


def test_plan_of_a_convolutional_net() -> None:
    assert kinds("conv") == {
        "features.0.weight": ("adapted", "weight"),
        "features.0.bias": ("owned", "bias"),
        "features.1.weight": ("owned", "norm"),
        "features.1.bias": ("owned", "norm"),
        "conv.weight": ("adapted", "weight"),
        "norm.weight": ("owned", "norm"),
        "norm.bias": ("owned", "norm"),
        "hidden.weight": ("adapted", "weight"),
        "hidden.bias": ("owned", "bias"),
        "fc.weight": ("owned", "head"),
        "fc.bias": ("owned", "head"),
    }


def test_plan_of_grouped_and_depthwise_convolutions() -> None:
    planned = plan(net("grouped"))
    assert {n for n, t in planned.named("adapted").items() if t.by_rule} == {
        "stem.weight",
        "grouped.weight",
        "depthwise.weight",
    }
    assert planned.parameters["norm.weight"].role == "norm"


def test_plan_of_a_transformer() -> None:
    parameters = plan(net("transformer")).parameters
    layer = "encoder.layers.0."
    assert parameters[layer + "linear1.weight"].by_rule
    for merged in ("self_attn.in_proj_weight", "self_attn.out_proj.weight"):
        assert parameters[layer + merged].kind == "adapted"
        assert not parameters[layer + merged].by_rule
    assert parameters[layer + "self_attn.in_proj_bias"].role == "bias"
    assert parameters[layer + "norm1.weight"].role == "norm"


def test_plan_of_a_recurrent_net() -> None:
    assert kinds("gru") == {
        "embedding.weight": ("adapted", "weight"),
        "gru.weight_ih_l0": ("adapted", "weight"),
        "gru.weight_hh_l0": ("adapted", "weight"),
        "gru.bias_ih_l0": ("owned", "bias"),
        "gru.bias_hh_l0": ("owned", "bias"),
        "fc.weight": ("owned", "head"),
        "fc.bias": ("owned", "head"),
    }


@pytest.mark.parametrize("kind", ["conv", "grouped", "transformer", "gru", "mlp"])
def test_every_parameter_is_planned_once_with_its_shape_and_a_reason(kind: str) -> None:
    model = net(kind)
    parameters = plan(model).parameters
    assert list(parameters) == [name for name, _ in model.named_parameters()]
    assert all(parameters[name].shape == tuple(p.shape) for name, p in model.named_parameters())
    assert all(t.reason for t in parameters.values())


def test_frozen_parameters_are_shared_and_stay_the_bases_own_tensor() -> None:
    model = net("mlp")
    cast(Tensor, model.get_parameter("0.weight")).requires_grad_(False)
    assert plan(model).parameters["0.weight"].kind == "shared"
    learner = Learner(model, recipe=FAST, method=ROOMY)
    learner.learn("a", tiny_task("mlp", 0))
    delta = learner.learn("b", tiny_task("mlp", 1))
    assert "0.weight" not in delta.owned
    assert "0.weight" not in delta.factors
    view = learner.module("b").get_parameter("0.weight")
    assert address(view) == address(learner.module(None).get_parameter("0.weight"))
    assert torch.equal(view, model.get_parameter("0.weight"))


def test_a_weight_smaller_than_its_delta_is_owned() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 40), nn.Linear(40, 3))
    assert plan(model).parameters["0.weight"].kind == "owned"
    assert "small" in plan(model).parameters["0.weight"].reason


def test_a_body_weight_tied_with_the_head_is_refused_by_name() -> None:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(20, 8)
            self.body = nn.Linear(8, 8)
            self.fc = nn.Linear(8, 20)
            self.fc.weight = self.embedding.weight

    with pytest.raises(HeadError, match=r"embedding\.weight and fc\.weight are one tied parameter.*untie"):
        plan(Language())


def overlapping() -> nn.Module:
    first = nn.Linear(12, 12)
    second = nn.Linear(12, 12)
    second.weight = nn.Parameter(first.weight.detach())
    return nn.Sequential(first, second, nn.Linear(12, 3))


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "overlapping memory": (overlapping, r"0\.weight and 1\.weight.*same memory.*copy one"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(12), nn.Linear(12, 3)), r"0\.weight.*not initialised.*run one batch"),
    "lazy head": (lambda: nn.Sequential(nn.Linear(12, 12), nn.LazyLinear(3)), r"1\.weight.*not initialised"),
    "max_norm": (lambda: nn.Sequential(nn.Embedding(20, 12, max_norm=1), nn.Linear(12, 3)), r"0\.weight.*max_norm"),
    "sparse": (lambda: nn.Sequential(nn.Embedding(20, 12, sparse=True), nn.Linear(12, 3)), r"0\.weight.*sparse=False"),
    "complex": (
        lambda: nn.Sequential(nn.Linear(12, 12, dtype=torch.complex64), nn.Linear(12, 3)),
        r"0\.weight.*complex64.*convert",
    ),
    "nothing to adapt": (lambda: nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 3)), r"no adaptable layer.*Head: '1'"),
    "only a head": (lambda: nn.Sequential(nn.Linear(12, 3)), r"no adaptable layer"),
}


@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
@pytest.mark.filterwarnings("ignore:Complex modules:UserWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_treated_correctly_is_refused_by_name(case: str) -> None:
    build, message = REFUSED[case]
    with pytest.raises(ModelError, match=message):
        plan(build())


def test_scripted_models_are_refused() -> None:
    class Scripted(torch.jit.ScriptModule):
        pass

    with pytest.raises(ModelError, match="scripted"):
        plan(Scripted())


def test_the_head_is_the_last_layer_or_the_one_named() -> None:
    assert find_head(net("conv")) == "fc"
    assert find_head(net("mlp")) == "4"
    assert find_head(net("mlp"), "2") == "2"
    assert find_head(nn.Sequential(nn.Linear(3, 3), nn.Conv2d(3, 3, 1)), "1") == "1"


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("nothing", r"no module named 'nothing'.*could serve.*hidden.*fc"),
        ("features.2", r"'features\.2' is a ReLU; it must be an nn\.Linear"),
        ("norm", r"'norm' is a BatchNorm2d"),
    ],
)
def test_a_head_that_cannot_serve_is_refused_with_those_that_can(head: str, message: str) -> None:
    with pytest.raises(HeadError, match=message):
        plan(net("conv"), head)


def test_a_model_whose_last_layer_is_no_head_asks_for_one() -> None:
    with pytest.raises(HeadError, match=r"no head found.*'2'.*head=\.\.\.\).*could serve: 0, 1"):
        plan(nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12), nn.LayerNorm(12)))


def test_class_tokens_and_positions_are_owned_and_only_convolutions_have_a_kernel_to_average() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.zeros(1, 1, 16))
            self.positions = nn.Parameter(torch.zeros(1, 9, 16))
            self.mix = nn.Bilinear(8, 8, 12)
            self.conv = nn.Conv2d(8, 16, 3)
            self.head = nn.Linear(16, 3)

    parameters = plan(Tokens()).parameters
    assert parameters["token"].kind == parameters["positions"].kind == "owned"
    assert (parameters["mix.weight"].kind, parameters["mix.weight"].kernel) == ("adapted", False)
    assert (parameters["conv.weight"].kind, parameters["conv.weight"].kernel) == ("adapted", True)


def test_buffers_that_no_file_can_hold_are_refused_before_anything_is_trained() -> None:
    model = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 3))
    model.register_buffer("phase", torch.zeros(2, dtype=torch.complex128))
    with pytest.raises(ModelError, match=r"phase: buffers of type torch\.complex128"):
        plan(model)
