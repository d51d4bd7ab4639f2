"""Whatever a user does with what a learner hands out, what is committed does not change, and the base is not copied."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from halrp import Delta, FromProbe, Halrp, Learner, Recipe, WarmUp
from halrp.lab import backbones
from halrp.model import copy_on_write
from tests.helpers import FAST, address, digest, net, tiny_task

ROOMY = Halrp.budget(growth_per_task=0.9)
X, Y = tiny_task("conv", seed=9)
TASKS = ("a", "b", None)


@pytest.fixture(scope="module")
def learner() -> Learner:
    """Two tasks in int8, the second of them a delta; tests try to change them."""
    learner = Learner(net("conv"), method=ROOMY, recipe=FAST)
    for number, name in enumerate("ab"):
        learner.learn(name, tiny_task("conv", number))
    return learner


def state(learner: Learner, folder: Path) -> list[Any]:
    """Logits, the base's numbers, and the bytes of what would be saved."""
    learner.save(folder)
    logits = [learner.predict(X, task) for task in TASKS] + [learner.predict(X, ["a", "b"] * (len(X) // 2))]
    files = sorted(path for path in folder.rglob("*.safetensors"))
    return [
        [t.tolist() for t in logits],
        digest(learner._committed.ready.module),
        [path.read_bytes() for path in files],
    ]


def train(module: nn.Module) -> None:
    module.train()(X)


def step(module: nn.Module) -> None:
    module.requires_grad_(True).train()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
    nn.functional.cross_entropy(module(X), Y).backward()
    optimiser.step()


@torch.no_grad()
def add(module: nn.Module) -> None:
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.add_(1)


def add_to_data(module: nn.Module) -> None:
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data.add_(1)


def through_numpy(module: nn.Module) -> None:
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.detach().numpy()[...] = 1


def load(module: nn.Module) -> None:
    module.load_state_dict({name: torch.ones_like(tensor) for name, tensor in module.state_dict().items()})


def storage(module: nn.Module) -> None:
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.untyped_storage()[0] = 255


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("write", [train, step, add, add_to_data, through_numpy, load, storage])
def test_a_module_that_is_written_to_changes_nothing_that_is_committed(
    learner: Learner, task: str | None, write: Callable[[nn.Module], None], tmp_path: Path
) -> None:
    before, untouched = state(learner, tmp_path / "before"), learner.module(task)
    module = learner.module(task)
    write(module)
    assert state(learner, tmp_path / "after") == before
    x = X.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        assert torch.equal(untouched(x), learner.predict(X, task))
        assert not torch.equal(module.eval()(x), learner.predict(X, task))  # it was changed, and only it


def change_mapping(values: Any) -> None:
    for value in values.values():
        if isinstance(value, Tensor):
            value.zero_()
        elif isinstance(value, tuple):
            for part in value:
                part.zero_()
        elif hasattr(value, "parts"):
            for part in value.parts.values():
                part.zero_()
        elif hasattr(value, "tensors"):
            for part in value.tensors():
                part.add_(1)
        elif isinstance(value, dict):
            value.clear()


@pytest.mark.parametrize("precision", ["int8", "float32"])
@pytest.mark.parametrize("part", ["scales", "coded", "plain", "factors", "owned", "provenance", "objective"])
def test_a_delta_gives_copies_of_its_tensors_and_settings(part: str, precision: Any, tmp_path: Path) -> None:
    # A task at the probe has all its parts in `coded`.
    start = WarmUp() if part in ("scales", "plain") else FromProbe()
    method = replace(Halrp.budget(growth_per_task=0.9, precision=precision), start=start)
    learner = Learner(net("conv"), method=method, recipe=FAST, base="given")
    delta = learner.learn("a", tiny_task("conv", 0))
    learner.learn("b", tiny_task("conv", 1))
    before = state(learner, tmp_path / "before")
    assert getattr(delta, part)
    for each in (delta, learner.tasks["a"]):
        change_mapping(getattr(each, part))
    assert state(learner, tmp_path / "after") == before
    loaded = Learner.load(tmp_path / "after", net("conv"))
    assert torch.equal(loaded.predict(X, "a"), learner.predict(X, "a"))


def test_probe_and_statistics_of_a_delta_are_copies_too(learner: Learner) -> None:
    given = torch.ones(2)
    delta = Delta(task="t", classes=2, layout=learner.tasks["a"].layout, probe={"outputs": given})
    delta.probe["outputs"].zero_()
    assert torch.equal(delta.probe["outputs"], torch.ones(2))


def test_gradients_reach_the_inputs_of_a_module(learner: Learner) -> None:
    for task in TASKS:
        x = X.clone().requires_grad_(True)
        learner.module(task)(x).sum().backward()
        assert x.grad is not None
        assert bool(x.grad.abs().sum() > 0)


def given(kind: str) -> tuple[Learner, Tensor]:
    model = backbones.build(kind)
    recipe = Recipe(epochs=2, batch=8)
    learner = Learner(model, method=Halrp.budget(growth_per_task=0.05), recipe=recipe, base="given")
    x = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    learner.learn("a", (x, torch.arange(8) % 2))
    return learner, x


@pytest.mark.parametrize("kind", ["lenet", "resnet18"])
def test_a_module_costs_no_memory_beyond_its_delta_also_when_it_is_used(kind: str) -> None:
    learner, x = given(kind)
    base = learner._committed.ready
    shared = {address(tensor) for tensor in base.tensors.values()}
    module, delta = learner.module("a"), learner.tasks["a"]
    x = x.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        torch.testing.assert_close(module(x), learner.predict(x, "a"), rtol=1e-4, atol=1e-5)
    x.requires_grad_(True)
    module(x).sum().backward()
    tensors = [*module.parameters(), *module.buffers()]
    private = sum(t.numel() * t.element_size() for t in tensors if address(t) not in shared)
    owned = sum(t.numel() * t.element_size() for t in delta.owned.values())
    factors = sum(t.numel() * t.element_size() for f in delta.factors.values() for t in f.tensors())
    assert private == owned + factors
    assert private < base.size.bytes / 2


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(8, 8), (3, 8)),
    "conv1d": (lambda: nn.Conv1d(8, 8, 3), (3, 8, 9)),
    "conv2d": (lambda: nn.Conv2d(8, 8, 3), (3, 8, 9, 9)),
    "depthwise": (lambda: nn.Conv2d(8, 8, 3, groups=8), (3, 8, 9, 9)),
    "conv3d": (lambda: nn.Conv3d(8, 8, 3), (3, 8, 5, 5, 5)),
    "transposed": (lambda: nn.ConvTranspose2d(8, 8, 3), (3, 8, 9, 9)),
    "batch norm": (lambda: nn.BatchNorm2d(8), (3, 8, 9, 9)),
    "group norm": (lambda: nn.GroupNorm(2, 8), (3, 8, 9)),
    "layer norm": (lambda: nn.LayerNorm(8), (3, 8)),
    "rms norm": (lambda: nn.RMSNorm(8), (3, 8)),
    "gru": (lambda: nn.GRU(8, 8, batch_first=True), (3, 5, 8)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (3, 5, 8)),
    "prelu": (lambda: nn.PReLU(8), (3, 8)),
}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_torch_reads_shared_memory_without_copying_it(kind: str, autocast: bool) -> None:
    build, shape = LAYERS[kind]
    layer = build().eval()
    originals = copy_on_write.split(layer)
    for module in layer.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in [(n, t) for n, t in tensors.items() if t is not None]:
                copy = copy_on_write.private_copy(originals[id(tensor)])
                cast(Any, tensors)[name] = nn.Parameter(copy, False) if isinstance(tensor, nn.Parameter) else copy
    before = [address(tensor) for tensor in layer.state_dict().values()]
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        layer(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    assert [address(tensor) for tensor in layer.state_dict().values()] == before


def test_layers_that_torch_copies_anyway_get_plain_copies_so_threads_may_share_a_module() -> None:
    class Lstm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.fc = nn.LSTM(8, 8, 2, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.fc(self.lstm(x)[0][:, -1]))

    learner = Learner(Lstm(), method=ROOMY, recipe=FAST, base="given")
    module = learner.module(None)
    lstm = cast(nn.LSTM, module.get_submodule("lstm"))
    assert not any(cast(Any, torch._C)._is_cow_tensor(tensor) for tensor in lstm.parameters())
    x = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))
    expected = learner.predict(x, None)
    got: list[Tensor] = []

    def predict() -> None:
        with torch.no_grad():
            got.extend(module(x) for _ in range(5))

    threads = [threading.Thread(target=predict) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 20
    assert all(torch.equal(each, expected) for each in got)


def test_without_torchs_lazy_clones_copies_are_plain_and_just_as_private(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(copy_on_write, "_lazy_clone", None)
    learner = Learner(net("conv"), method=ROOMY, recipe=FAST)
    for number, name in enumerate("ab"):
        learner.learn(name, tiny_task("conv", number))
    before = state(learner, tmp_path / "before")
    for task in TASKS:
        add(learner.module(task))
    assert state(learner, tmp_path / "after") == before


def test_memory_that_torch_has_not_allocated_is_copied() -> None:
    numbers = torch.ones(3).numpy().copy()
    original = torch.from_numpy(numbers)
    copy = copy_on_write.private_copy(original)
    copy.add_(1)
    assert numbers.tolist() == [1.0, 1.0, 1.0]


def test_a_module_outlives_its_learner() -> None:
    learner = Learner(net("conv"), method=ROOMY, recipe=FAST, base="given")
    module, other, expected = learner.module(None), learner.module(None), learner.predict(X, None)
    del learner
    add(other)
    with torch.no_grad():
        assert torch.equal(module(X.contiguous(memory_format=torch.channels_last)), expected)
