"""Checkpoints of trainings: resuming after any epoch is the same as never having stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from halrp.model.base import set_memory_format
from halrp.store import atomic
from halrp.training.batches import InMemory, prepare
from halrp.training.checkpoint import Checkpoints
from halrp.training.loop import Group, Stage, Training
from halrp.training.progress import Notify, Progress
from halrp.training.recipe import Recipe
from tests.helpers import CLASSES, drawn, net, tiny_task

EPOCHS = 4
RECIPE = Recipe(epochs=EPOCHS, batch=8, lr=5e-3)


class Interrupt(BaseException):
    """What stops a process."""


class DropoutNet(nn.Module):
    """Convolutions with batch norm, dropout, and a buffer that every step changes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.deep = nn.Conv2d(8, 6, 3, bias=False)
        self.dropout, self.fc = nn.Dropout(0.5), nn.Linear(6, CLASSES)
        self.seen = nn.Buffer(torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.deep(self.norm(self.conv(x)).relu()).mean((2, 3))
        if self.training:
            self.seen.lerp_(y.detach().mean(0), 0.1)
        return cast(Tensor, self.fc(self.dropout(y - self.seen)))


class HalfTrained(nn.Module):
    """A net with a layer that no step uses, whose parameters get no gradient and no moments."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle, self.fc = nn.Linear(10, 12), nn.Linear(10, 12), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.used(x).relu()))


NETS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "dropout": ("conv", DropoutNet),
    "dropout, channels last": ("conv", lambda: set_memory_format(DropoutNet(), channels_last=True)),
    "double": ("conv", lambda: DropoutNet().double()),
    "transformer": ("transformer", lambda: net("transformer")),
    "gru": ("gru", lambda: net("gru")),
    "half trained": ("mlp", HalfTrained),
}


def training(
    kind: str = "dropout",
    checkpoints: Checkpoints | None = None,
    *,
    stage: str = "stage",
    recipe: Recipe = RECIPE,
    notify: Notify | None = None,
) -> Training:
    """A training of a net, its last parameters with penalties."""
    task, build = NETS[kind]
    module = drawn(build)
    x, y = tiny_task(task)
    x = x.double() if kind == "double" else x
    data, _ = prepare((x, y), name="task", device=torch.device("cpu"), batch=RECIPE.batch)
    *first, last = module.parameters()
    groups = [Group(first, l2=1e-3), Group([last], l1=1e-3)]
    return Training(module, groups, data, recipe, Stage(EPOCHS, ("a",), name=stage), None, notify, checkpoints)


def state(run: Training) -> dict[str, Tensor]:
    """Copies of all that a training has reached: parameters, buffers, moments."""
    tensors: dict[str, Tensor] = {**dict(run.module.named_parameters()), **dict(run.module.named_buffers())}
    for number, moments in run._optimiser.state_dict()["state"].items():
        tensors |= {f"{number}/{name}": moment for name, moment in moments.items()}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def same(first: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return first.keys() == other.keys() and all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("kind", NETS)
def test_going_on_after_any_epoch_is_bit_identical_to_never_having_stopped(kind: str, tmp_path: Path) -> None:
    whole = training(kind).run()
    for epoch in range(1, EPOCHS + 1):
        checkpoints = Checkpoints(tmp_path / str(epoch), "key")

        def stop(at: Progress, last: int = epoch) -> None:
            if at.epoch == last:
                raise Interrupt

        with pytest.raises(Interrupt):
            training(kind, checkpoints, notify=stop).run()
        reports: list[Progress] = []
        resumed = training(kind, checkpoints, notify=reports.append)
        assert resumed.epoch == epoch
        resumed.run()
        assert [report.epoch for report in reports] == list(range(epoch + 1, EPOCHS + 1))
        assert same(state(resumed), state(whole))
        assert resumed._step == whole._step


def test_stopping_at_every_epoch_in_turn_is_bit_identical_too(tmp_path: Path) -> None:
    whole = training().run()
    for epoch in range(1, EPOCHS + 1):
        run = training(checkpoints=Checkpoints(tmp_path, "key"))
        assert run.epoch == epoch - 1
        run.run(epoch)
    assert same(state(run), state(whole))


def test_an_epoch_that_was_not_finished_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = training().run()
    checkpoints = Checkpoints(tmp_path, "key")

    def stop(at: Progress) -> None:
        if (at.epoch, at.step) == (2, 2):
            raise Interrupt

    with monkeypatch.context() as patch:
        patch.setattr(Training, "REPORT_EVERY", -1.0)
        with pytest.raises(Interrupt):
            training(checkpoints=checkpoints, notify=stop).run()
    resumed = training(checkpoints=checkpoints)
    assert resumed.epoch == 2
    assert same(state(resumed.run()), state(whole))


@pytest.mark.parametrize("schedule", ["exponential", "cosine", "constant"])
def test_the_learning_rate_goes_on_where_it_was(schedule: Any, tmp_path: Path) -> None:
    recipe = Recipe(epochs=EPOCHS, batch=8, lr=5e-3, schedule=schedule)
    whole = training(recipe=recipe).run()
    training(checkpoints=Checkpoints(tmp_path, "key"), recipe=recipe).run(2)
    assert same(state(training(checkpoints=Checkpoints(tmp_path, "key"), recipe=recipe).run()), state(whole))


def test_the_seconds_of_a_stage_are_those_of_all_its_processes(tmp_path: Path) -> None:
    seconds: list[float] = []
    for until in (2, EPOCHS):
        run = training(checkpoints=Checkpoints(tmp_path, "key"), notify=lambda at: seconds.append(at.seconds))
        run.run(until)
    assert seconds == sorted(seconds)
    assert len(seconds) == EPOCHS


def test_checkpoints_change_nothing(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    assert same(state(training(checkpoints=Checkpoints(tmp_path, "key")).run()), state(training().run()))
    assert torch.equal(torch.get_rng_state(), before)


def test_stages_are_kept_apart(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "key")
    training(checkpoints=checkpoints, stage="one").run(3)
    assert training(checkpoints=checkpoints, stage="other").epoch == 0
    training(checkpoints=checkpoints, stage="other").run(1)
    assert training(checkpoints=checkpoints, stage="one").epoch == 3


def test_only_the_last_epoch_is_kept_and_nothing_unfinished(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "key")
    for until in (1, 3):
        training(checkpoints=checkpoints).run(until)
        assert [path.suffix for path in tmp_path.iterdir()] == [".safetensors"]


def test_frozen_weights_are_not_kept_again(tmp_path: Path) -> None:
    module = drawn(lambda: net("mlp"))
    module[0].register_buffer("base_weight", torch.zeros(1000, 1000))  # type: ignore[index]
    x, y = tiny_task("mlp")
    run = Training(
        module,
        [Group(list(module.parameters()))],
        InMemory(x, y),
        RECIPE,
        Stage(1, ("a",)),
        checkpoints=Checkpoints(tmp_path, "key"),
    )
    run.run()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 20_000


def test_clearing_forgets_all_stages(tmp_path: Path) -> None:
    folder = tmp_path / "work" / "task"
    checkpoints = Checkpoints(folder, "key")
    checkpoints.clear()
    training(checkpoints=checkpoints, stage="one").run(1)
    training(checkpoints=checkpoints, stage="other").run(1)
    checkpoints.clear()
    assert not folder.exists()
    assert training(checkpoints=checkpoints, stage="one").epoch == 0


def sealed(content: bytes) -> bytes:
    """A checkpoint whose checksum is right."""
    return atomic.checksum(content).encode() + content


def foreign(facts: Any) -> bytes:
    """A checkpoint by other hands: well-formed, with these facts."""
    return sealed(safetensors.torch.save({"parameter/0": torch.zeros(2)}, {"facts": json.dumps(facts)}))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "only a checksum": lambda content: content[:64],
    "checksum of nothing": lambda content: sealed(b""),
    "cut in half": lambda content: content[: len(content) // 2],
    "cut by a byte": lambda content: content[:-1],
    "a byte more": lambda content: content + b"\0",
    "a bit of a tensor": lambda content: content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
    "a bit of the header": lambda content: content[:80] + bytes([content[80] ^ 1]) + content[81:],
    "a bit of the checksum": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "noise": lambda content: sealed(bytes(range(256)) * 10),
    "text": lambda content: sealed(b"\x05\0\0\0\0\0\0\0hello"),
    "no facts": lambda content: sealed(safetensors.torch.save({"parameter/0": torch.zeros(2)})),
    "facts of another kind": lambda content: foreign([1, 2]),
    "facts without a key": lambda content: foreign({"stage": "stage"}),
    "another key": lambda content: foreign({"key": "other", "stage": "stage", "epoch": 1, "step": 1, "seconds": 1.0}),
    "another stage": lambda content: foreign({"key": "key", "stage": "other", "epoch": 1, "step": 1, "seconds": 1.0}),
    "other tensors": lambda content: foreign({"key": "key", "stage": "stage", "epoch": 1, "step": 1, "seconds": 1.0}),
}


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, Tensor]:
    return state(training().run())


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_checkpoint_is_ignored(
    damage: str, tmp_path: Path, uninterrupted: dict[str, Tensor]
) -> None:
    checkpoints = Checkpoints(tmp_path, "key")
    training(checkpoints=checkpoints).run(2)
    (path,) = tmp_path.iterdir()
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    run = training(checkpoints=checkpoints)
    assert run.epoch == 0
    assert same(state(run), state(training()))
    assert same(state(run.run()), uninterrupted)


def test_a_checkpoint_that_is_a_folder_is_ignored(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "key")
    training(checkpoints=checkpoints).run(1)
    (path,) = tmp_path.iterdir()
    path.unlink()
    path.mkdir()
    assert training(checkpoints=checkpoints).epoch == 0


def test_a_checkpoint_of_another_key_is_ignored_and_replaced(tmp_path: Path) -> None:
    training(checkpoints=Checkpoints(tmp_path, "old")).run(3)
    assert training(checkpoints=Checkpoints(tmp_path, "new")).epoch == 0
    training(checkpoints=Checkpoints(tmp_path, "new")).run(1)
    assert training(checkpoints=Checkpoints(tmp_path, "new")).epoch == 1
    assert training(checkpoints=Checkpoints(tmp_path, "old")).epoch == 0


def test_a_checkpoint_of_a_net_of_other_shapes_is_ignored(tmp_path: Path) -> None:
    training("half trained", Checkpoints(tmp_path, "key")).run(1)
    run = training("dropout", Checkpoints(tmp_path, "key"))
    assert run.epoch == 0
    assert same(state(run), state(training("dropout")))
