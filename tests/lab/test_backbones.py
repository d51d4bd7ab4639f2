"""The backbones: published parameter counts, shapes, heads, and seeded construction without side effects."""

from typing import Any

import pytest
import torch
from torch import nn

from halrp import Recipe
from halrp.errors import SettingError
from halrp.lab.backbones import BACKBONES, build
from halrp.training.batches import InMemory
from halrp.training.loop import Group, Stage, Training
from tests.helpers import digest

INPUTS = {
    "lenet": (3, 32, 32),
    "lenet-large": (1, 32, 32),
    "alexnet": (3, 32, 32),
    "resnet18": (3, 32, 32),
    "mlp": (1, 28, 28),
    "digits-net": (1, 8, 8),
    "series-net": (12, 128),
}
PIXELS = {"lenet": 8, "lenet-large": 8, "alexnet": 19, "resnet18": 16, "digits-net": 8}
SMALL = {name: (2, pixels, pixels) for name, pixels in PIXELS.items()} | {"series-net": (2, 16)}
"""Shapes for tests that train."""
OWN = [name for name, entry in BACKBONES.items() if not entry.pretrained]
NORMED = [name for name in OWN if name != "mlp"]


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def meta(name: str, classes: int = 10, **settings: Any) -> nn.Module:
    """A backbone without memory: the constructor alone, on no device."""
    with torch.device("meta"):
        module: nn.Module = BACKBONES[name].load()(classes=classes, **settings)
        return module


def norms(model: nn.Module) -> list[nn.BatchNorm1d | nn.BatchNorm2d]:
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]


@pytest.mark.parametrize(
    ("name", "classes", "settings", "count"),
    [
        ("lenet", 10, {}, 2_995_620),
        ("lenet", 5, {}, 2_993_115),
        ("lenet-large", 12, {}, 24_466_988),
        ("lenet-large", 12, {"pixels": 28}, 19_666_988),
        ("alexnet", 10, {}, 6_533_450),
        ("alexnet", 10, {"pixels": 64}, 23_310_666),
        ("alexnet", 5, {"pixels": 64}, 23_300_421),
        ("mlp", 10, {}, 269_322),
        ("mlp", 5, {"inputs": 3072}, 853_765),
        ("digits-net", 5, {}, 38_181),
        # conv (7·12 + 1)·32, (5·32 + 1)·64, (3·64 + 1)·64; norms 2·(32 + 64 + 64); head 65·10
        ("series-net", 10, {}, 2720 + 10_304 + 12_352 + 320 + 650),
        ("resnet18", 10, {}, 2_807_690),
        ("resnet18", 10, {"pixels": 64}, 2_838_410),
        ("resnet18", 5, {"pixels": 64}, 2_817_925),
        ("resnet18", 10, {"width": 20}, 1_101_050),
        ("resnet18", 10, {"width": 20, "pixels": 64}, 1_120_250),
        ("resnet18", 5, {"width": 20, "pixels": 64}, 1_107_445),
    ],
)
def test_parameter_counts_are_the_published_ones(name: str, classes: int, settings: dict[str, Any], count: int) -> None:
    assert parameters(meta(name, classes, **settings)) == count


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("name", "settings", "weights"),
    [
        ("lenet", {}, [1500, 25_000, 2_560_000, 400_000]),
        ("lenet-large", {}, [1600, 204_800, 20_480_000, 3_750_000]),
        ("alexnet", {}, [3072, 73_728, 131_072, 2_097_152, 4_194_304]),
        ("alexnet", {"pixels": 64}, [3072, 73_728, 131_072, 18_874_368, 4_194_304]),
    ],
)
def test_layers_have_the_published_numbers_of_weights(
    name: str, settings: dict[str, Any], weights: list[int], bias: bool
) -> None:
    model = meta(name, **settings, bias=bias)
    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert [layer.weight.numel() for n, layer in layers if n != "head"] == weights
    assert all((layer.bias is not None) == bias for _, layer in layers)


@pytest.mark.parametrize(("width", "count"), [(32, 2_790_240), (20, 1_090_140)])
def test_resnet_convolutions_have_the_published_number_of_weights(width: int, count: int) -> None:
    model = meta("resnet18", width=width, bias=False)
    assert sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Conv2d)) == count


@pytest.mark.parametrize("name", NORMED)
def test_norms_have_the_published_number_of_parameters(name: str) -> None:
    layers, published = {
        "lenet": (4, 2740),
        "lenet-large": (4, 8384),
        "alexnet": (5, 9088),
        "digits-net": (3, 224),
        "resnet18": (20, 4800),
        "series-net": (3, 2 * (32 + 64 + 64)),  # a weight and a bias for each channel
    }[name]
    assert len(norms(meta(name))) == layers
    assert sum(parameters(norm) for norm in norms(meta(name))) == published


def test_alexnet_drops_at_the_published_rates_in_order() -> None:
    model = meta("alexnet")
    rates: list[float] = []
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda layer, *_: rates.append(layer.p))
    model(torch.zeros(2, 3, 32, 32, device="meta"))
    assert rates == [0.2, 0.2, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("name", OWN)
def test_every_backbone_gives_one_logit_per_class_through_a_linear_head(name: str) -> None:
    model = meta(name, classes=7)
    assert isinstance(model.head, nn.Linear)
    assert list(model.named_children())[-1][0] == "head"
    assert model(torch.zeros(2, *INPUTS[name], device="meta")).shape == (2, 7)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("bias", [True, False])
def test_every_backbone_learns_in_all_its_parameters(name: str, bias: bool) -> None:
    shape = INPUTS[name] if name == "mlp" else SMALL[name]
    model = build(name, classes=3, shape=shape, bias=bias)
    x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    nn.functional.cross_entropy(model(x), torch.tensor([0, 1, 2, 0])).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key


@pytest.mark.parametrize("name", NORMED)
def test_norms_use_the_statistics_of_the_released_models_unless_told(name: str) -> None:
    released = "batch" if name == "alexnet" else "running"
    for model, statistics in (
        (meta(name), released),
        (meta(name, statistics="running"), "running"),
        (meta(name, statistics="batch"), "batch"),
    ):
        result = norms(model)
        assert {norm.track_running_stats for norm in result} == {statistics == "running"}
        assert {norm.running_mean is None for norm in result} == {statistics == "batch"}


@pytest.mark.parametrize("name", NORMED)
def test_with_batch_statistics_the_same_batch_twice_gives_the_same_logits(name: str) -> None:
    shape = SMALL[name]
    model = build(name, 3, shape=shape, statistics="batch").eval()
    x = torch.randn(6, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model(x), model(x))
        assert not torch.allclose(model(x[:3]), model(x)[:3], atol=1e-3)


def test_alexnet_trains_to_the_same_bits_from_the_same_names() -> None:
    x = torch.randn(8, 1, 19, 19, generator=torch.Generator().manual_seed(0))
    data = InMemory(x, torch.arange(8) % 3)

    def trained(*names: object) -> str:
        torch.rand(1)
        model = build("alexnet", 3, shape=(1, 19, 19))
        recipe = Recipe(epochs=1, batch=4, shuffle=False)
        Training(model, [Group(list(model.parameters()))], data, recipe, Stage(1, names)).run()
        return digest(model)

    with torch.random.fork_rng(devices=[]):
        first, again, other = trained(0, "a"), trained(0, "a"), trained(0, "b")
    assert first == again
    assert first != other  # nothing but dropout differs


@pytest.mark.parametrize(
    ("name", "shape", "settings"),
    [
        ("alexnet", (3, 64, 64), {"channels": 3, "pixels": 64}),
        ("alexnet", (1, 32, 32), {"channels": 1, "pixels": 32}),
        ("lenet", (3, 32, 32), {}),
        ("lenet", (1, 28, 28), {"channels": 1, "pixels": 28}),
        ("lenet-large", (1, 28, 28), {"pixels": 28}),
        ("resnet18", (3, 64, 64), {"pixels": 64}),
        ("digits-net", (1, 8, 8), {}),
        ("digits-net", (3, 7, 7), {"channels": 3, "pixels": 7}),
        ("mlp", (1, 28, 28), {}),
        ("mlp", (3, 32, 32), {"inputs": 3072}),
        ("mlp", (5,), {"inputs": 5}),
    ],
)
def test_the_shape_of_an_image_is_put_into_the_backbones_own_settings(
    name: str, shape: tuple[int, ...], settings: dict[str, Any]
) -> None:
    fitted = build(name, shape=list(shape))
    expected = meta(name, **settings).state_dict()
    assert {k: v.shape for k, v in fitted.state_dict().items()} == {k: v.shape for k, v in expected.items()}
    assert fitted(torch.zeros(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "shape", "settings", "why"),
    [
        ("alexnet", (3, 18, 18), {}, "less than 19 pixels"),
        ("resnet18", (3, 28, 28), {}, "multiple of 16"),
        ("lenet", (3, 3, 3), {}, "halves images twice"),
        ("lenet", (3, 32, 28), {}, "square"),
        ("lenet", (32, 32), {}, "square"),
        ("digits-net", (1, 1, 1), {}, "halves images once"),
        ("lenet", (3, 0, 0), {}, "at least 1"),
        ("mlp", (), {}, "at least 1"),
        ("mlp", (2.5,), {}, "whole number"),
        ("lenet", (3, 32, 32), {"pixels": 28}, "pixels=28 contradicts it"),
        ("mlp", (1, 28, 28), {"inputs": 3072}, "inputs=3072 contradicts it"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_with_the_backbones_name(
    name: str, shape: Any, settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(SettingError) as refusal:
        build(name, shape=shape, **settings)
    for part in (repr(name), str(shape), why):
        assert part in str(refusal.value)


def test_a_shape_may_repeat_what_the_settings_say() -> None:
    assert build("lenet", shape=(3, 8, 8), pixels=8)(torch.zeros(2, 3, 8, 8)).shape == (2, 10)


def test_unknown_statistics_are_refused() -> None:
    with pytest.raises(SettingError, match=r"'lenet'.*statistics='none'.*'running' or 'batch'"):
        build("lenet", statistics="none")


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
    with pytest.raises(SettingError, match=r"'mlp'.*'width'.*settings are inputs, bias"):
        build("mlp", width=3)


def test_a_head_without_classes_is_refused() -> None:
    with pytest.raises(SettingError, match="classes=0"):
        build("mlp", classes=0)
