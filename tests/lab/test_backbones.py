"""The backbones: published parameter counts, shapes, heads, and seeded construction without side effects."""

import pytest
import torch
from torch import nn

from halrp.errors import SettingError
from halrp.lab.backbones import BACKBONES, build

INPUTS = {"resnet18": (3, 32, 32), "lenet": (3, 32, 32), "mlp": (1, 28, 28), "digits-net": (1, 8, 8)}


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "settings", "count"),
    [
        ("lenet", 10, {}, 2_995_620),
        ("lenet", 5, {}, 2_993_115),
        ("mlp", 10, {}, 269_322),
        ("mlp", 5, {"inputs": 3072}, 853_765),
        ("digits-net", 5, {}, 38_181),
        ("resnet18", 10, {}, 2_807_690),
        ("resnet18", 10, {"pixels": 64}, 2_838_410),
        ("resnet18", 5, {"pixels": 64}, 2_817_925),
        ("resnet18", 10, {"width": 20}, 1_101_050),
    ],
)
def test_parameter_counts_are_the_published_ones(name: str, classes: int, settings: dict[str, int], count: int) -> None:
    assert parameters(build(name, classes=classes, **settings)) == count


def test_lenet_body_has_the_published_number_of_weights() -> None:
    weights = [
        module.weight.numel()
        for name, module in build("lenet").named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and name != "head"
    ]
    assert weights == [1500, 25_000, 2_560_000, 400_000]


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_gives_one_logit_per_class_through_a_linear_head(name: str) -> None:
    model = build(name, classes=7)
    assert isinstance(model.head, nn.Linear)
    assert model.head.out_features == 7
    assert model(torch.zeros(2, *INPUTS[name])).shape == (2, 7)


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_learns_in_all_its_parameters(name: str) -> None:
    model = build(name, classes=3)
    x = torch.randn(4, *INPUTS[name], generator=torch.Generator().manual_seed(0))
    nn.functional.cross_entropy(model(x), torch.tensor([0, 1, 2, 0])).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key


@pytest.mark.parametrize("name", BACKBONES)
def test_norm_layers_track_running_statistics(name: str) -> None:
    norms = [module for module in build(name).modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert all(norm.track_running_stats for norm in norms)


def test_initial_weights_depend_on_the_seed_alone() -> None:
    first = build("digits-net", seed=3).state_dict()
    torch.rand(1)
    again, other = build("digits-net", seed=3).state_dict(), build("digits-net", seed=4).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])


def test_building_leaves_the_global_generator_as_it_was() -> None:
    before = torch.get_rng_state()
    build("digits-net", seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(SettingError, match=r"'lennet'.*nearest name is 'lenet'"):
        build("lennet")


def test_an_unknown_setting_is_named_with_the_known_ones() -> None:
    with pytest.raises(SettingError, match=r"'mlp'.*'width'.*settings are inputs"):
        build("mlp", width=3)


def test_a_head_without_classes_is_refused() -> None:
    with pytest.raises(SettingError, match="classes=0"):
        build("mlp", classes=0)
