"""Checkpoints of trainings: resuming after any epoch is the same as never having stopped."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from halrp.errors import CheckpointWarning, WriteError
from halrp.model.base import set_memory_format
from halrp.store import atomic
from halrp.training.batches import InMemory
from halrp.training.checkpoint import Checkpoints
from halrp.training.loop import Group, Stage, Training
from halrp.training.prepare import prepare
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
    data = prepare((x, y), name="task", device=torch.device("cpu"), batch=RECIPE.batch)
    *first, last = module.parameters()
    groups = [Group(first, l2=1e-3), Group([last], l1=1e-3)]
    return Training(module, groups, data, recipe, Stage(EPOCHS, ("a",), name=stage), None, notify, checkpoints)


def state(run: Training) -> dict[str, Tensor]:
    """Copies of all that a training has reached: parameters, buffers, moments."""
    tensors: dict[str, Tensor] = {**dict(run.module.named_parameters()), **dict(run.module.named_buffers())}
    for number, moments in run._updates.optimiser.state_dict()["state"].items():
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
        assert resumed._updates.step == whole._updates.step


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
    "another stage": lambda content: foreign({"key": "key", "stage": "other", "epoch": 1, "step": 1, "seconds": 1.0}),
    "other tensors": lambda content: foreign({"key": "key", "stage": "stage", "epoch": 1, "step": 1, "seconds": 1.0}),
}


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, Tensor]:
    return state(training().run())


def starts_again(checkpoints: Checkpoints, path: Path, reason: str = "") -> Training:
    """A training that finds a checkpoint that does not fit: it is set aside with a warning, and read no more."""
    with pytest.warns(CheckpointWarning, match=rf"{path.name} of 'stage' does not fit \(.*{reason}"):
        run = training(checkpoints=checkpoints)
    assert run.epoch == 0
    assert same(state(run), state(training()))
    assert [left.name for left in path.parent.iterdir()] == [f"{path.name}.rejected"]
    assert training(checkpoints=checkpoints).epoch == 0
    return run


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_checkpoint_is_set_aside(
    damage: str, tmp_path: Path, uninterrupted: dict[str, Tensor]
) -> None:
    checkpoints = Checkpoints(tmp_path, "key")
    training(checkpoints=checkpoints).run(2)
    (path,) = tmp_path.iterdir()
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert same(state(starts_again(checkpoints, path).run()), uninterrupted)
    assert training(checkpoints=checkpoints).epoch == EPOCHS


def test_a_checkpoint_that_is_a_folder_is_set_aside(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "key")
    training(checkpoints=checkpoints).run(1)
    (path,) = tmp_path.iterdir()
    path.unlink()
    path.mkdir()
    starts_again(checkpoints, path, "not a file")


Changed = Callable[[dict[str, Tensor], dict[str, Any]], Any]


def without(name: str) -> Changed:
    return lambda tensors, facts: tensors.pop(name)


def entry(name: str, value: Any) -> Changed:
    """Put a number into the first entry of a saved tensor."""
    return lambda tensors, facts: tensors[name].view(-1)[:1].fill_(value)


def tensor(name: str, change: Callable[[Tensor], Tensor]) -> Changed:
    return lambda tensors, facts: tensors.update({name: change(tensors[name])})


def fact(name: str, value: Any) -> Changed:
    return lambda tensors, facts: facts.update({name: value})


UNFIT: dict[str, tuple[Changed, str]] = {
    "an epoch beyond the stage": (fact("epoch", 99), "epoch is 99"),
    "an epoch below zero": (fact("epoch", -1), "epoch is -1"),
    "an epoch that is no number": (fact("epoch", "2"), "epoch is '2'"),
    "no epoch": (lambda tensors, facts: facts.pop("epoch"), "epoch is None"),
    "another step": (fact("step", 7), "step is 7 after 2 epochs of 3"),
    "a step that is no number": (fact("step", None), "step is None"),
    "negative seconds": (fact("seconds", -1.0), "time is -1.0"),
    "endless seconds": (fact("seconds", float("inf")), "time is inf"),
    "a shape": (tensor("parameter/0", lambda t: t[:1].clone()), "parameter/0 is .*shape"),
    "a type": (tensor("parameter/0", Tensor.double), "parameter/0 is torch.float64"),
    "a type of a buffer": (tensor("buffer/norm.num_batches_tracked", Tensor.float), "num_batches_tracked is"),
    "a parameter less": (without("parameter/1"), "lacks parameter/1"),
    "a buffer less": (without("buffer/seen"), "lacks buffer/seen"),
    "a tensor more": (lambda tensors, facts: tensors.update(extra=torch.zeros(2)), "has extra"),
    "a parameter that is not finite": (entry("parameter/0", torch.nan), "parameter/0 is not finite"),
    "statistics that are not finite": (entry("buffer/norm.running_var", torch.inf), "running_var is not finite"),
    "a moment less": (without("moment/0/exp_avg"), "lacks moment/0/exp_avg"),
    "a moment more": (lambda tensors, facts: tensors.update({"moment/0/extra": torch.zeros(2)}), "moment/0/extra"),
    "a moment of no parameter": (
        lambda tensors, facts: tensors.update({"moment/99/exp_avg": torch.zeros(2)}),
        "has moment/99/exp_avg",
    ),
    "a moment of another shape": (tensor("moment/0/exp_avg", lambda t: t[:1].clone()), "moment/0/exp_avg is"),
    "a moment that is not finite": (entry("moment/0/exp_avg_sq", torch.nan), "exp_avg_sq is not finite"),
    "a squared gradient below zero": (entry("moment/0/exp_avg_sq", -1), "below zero"),
    "more steps of a moment": (entry("moment/0/step", 1e9), "number of steps"),
    "half a step": (entry("moment/0/step", 1.5), "number of steps"),
    "no moments": (
        lambda tensors, facts: [tensors.pop(name) for name in list(tensors) if name.startswith("moment/")],
        "lacks all moments",
    ),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_checkpoint_with_a_right_checksum_that_does_not_fit_is_set_aside(
    kind: str, tmp_path: Path, uninterrupted: dict[str, Tensor]
) -> None:
    checkpoints = Checkpoints(tmp_path, "key")
    training(checkpoints=checkpoints).run(2)
    (path,) = tmp_path.iterdir()
    loaded = checkpoints.load("stage", 10**9)
    assert loaded is not None
    change, reason = UNFIT[kind]
    change(*loaded)
    checkpoints.save("stage", *loaded)
    assert same(state(starts_again(checkpoints, path, reason).run()), uninterrupted)


def test_a_placeholder_buffer_that_is_not_finite_is_no_fault(tmp_path: Path) -> None:
    def build(checkpoints: Checkpoints) -> Training:
        module = drawn(lambda: net("mlp"))
        module.register_buffer("placeholder", torch.tensor(float("nan")))
        return Training(
            module, [Group(list(module.parameters()))], InMemory(*tiny_task("mlp")), RECIPE, Stage(2, ("a",)),
            checkpoints=checkpoints,
        )  # fmt: skip

    build(Checkpoints(tmp_path, "key")).run(1)
    assert build(Checkpoints(tmp_path, "key")).epoch == 1


def test_a_checkpoint_that_is_far_too_large_is_not_read(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "key")
    training(checkpoints=checkpoints).run(1)
    (path,) = tmp_path.iterdir()
    with path.open("r+b") as file:
        file.truncate(8 << 30)  # a sparse file
    starts_again(checkpoints, path, "8,589,934,592 bytes")


@pytest.mark.parametrize("nested", range(1, 12))
def test_a_checkpoint_is_saved_while_another_process_clears_the_folder(
    nested: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder vanishes just before the operation of a number, once."""
    folder = tmp_path / "work" / "task"
    checkpoints = Checkpoints(folder, "key")
    count = 0

    def clearing(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == nested:
                shutil.rmtree(folder, ignore_errors=True)
            return operation(*arguments, **options)

        return run

    with monkeypatch.context() as patch:
        for owner, name in ((os, "replace"), (os, "open"), (os, "fsync"), (Path, "open"), (Path, "mkdir")):
            patch.setattr(owner, name, clearing(getattr(owner, name)))
        checkpoints.save("stage", {"x": torch.ones(2)}, {})
        checkpoints.save("stage", {"x": torch.ones(2)}, {})
        assert count > 3
    loaded = checkpoints.load("stage")
    assert loaded is not None
    assert torch.equal(loaded[0]["x"], torch.ones(2))


def test_a_folder_that_is_cleared_at_every_write_costs_the_checkpoint_and_not_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cleared(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(os, "replace", cleared)
    run = training(checkpoints=Checkpoints(tmp_path / "work", "key")).run()
    assert run.epoch == EPOCHS


def test_a_disk_that_is_full_is_still_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(WriteError, match="disk is full"):
        training(checkpoints=Checkpoints(tmp_path / "work", "key")).run()


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self, patch: pytest.MonkeyPatch, cost: float) -> None:
        self.now = 0.0
        patch.setattr("halrp.training.checkpoint.time.monotonic", lambda: self.now)
        original = atomic.write

        def write(*arguments: Any, **options: Any) -> None:
            self.now += cost
            original(*arguments, **options)

        patch.setattr("halrp.training.checkpoint.atomic.write", write)


def test_checkpoints_are_written_by_time_and_cost_two_hundredths_of_it_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cost, seconds in ((0.0, 30.0), (0.1, 30.0), (2.0, 100.0)):
        with monkeypatch.context() as patch:
            clock = Clock(patch, cost)
            checkpoints = Checkpoints(tmp_path / str(cost), "key", 30.0)
            checkpoints._saved = -1000.0
            assert checkpoints.due()
            checkpoints.save("stage", {"x": torch.ones(2)}, {})
            clock.now += seconds - 0.5
            assert not checkpoints.due()
            checkpoints.save("choice", {}, {"best": 1})  # a note is no reason to wait longer
            clock.now += 0.5
            assert checkpoints.due()


def test_with_zero_seconds_every_epoch_is_saved_whatever_it_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch, 1000.0)
    checkpoints = Checkpoints(tmp_path, "key", 0.0)
    assert checkpoints.due()
    checkpoints.save("stage", {"x": torch.ones(2)}, {})
    assert checkpoints.due()


def test_a_checkpoint_of_another_key_is_ignored_and_replaced(tmp_path: Path) -> None:
    training(checkpoints=Checkpoints(tmp_path, "old")).run(3)
    assert training(checkpoints=Checkpoints(tmp_path, "new")).epoch == 0
    training(checkpoints=Checkpoints(tmp_path, "new")).run(1)
    assert training(checkpoints=Checkpoints(tmp_path, "new")).epoch == 1
    assert training(checkpoints=Checkpoints(tmp_path, "old")).epoch == 0


def test_a_checkpoint_of_a_net_of_other_shapes_is_set_aside(tmp_path: Path) -> None:
    training("half trained", Checkpoints(tmp_path, "key")).run(1)
    (path,) = tmp_path.iterdir()
    starts_again(Checkpoints(tmp_path, "key"), path)
