"""A learner with a store, interrupted anywhere: a new one finishes with the very files of one that never stopped."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from halrp import Halrp, Learner, Progress, Recipe, Store
from halrp.errors import BudgetTooSmall, CheckpointWarning, DivergedError, WriteError
from halrp.store import atomic, task_file
from halrp.training.checkpoint import Checkpoints
from halrp.training.loop import Training
from tests.helpers import CLASSES, drawn, net, tiny_task

RECIPE = Recipe(epochs=6, batch=8, lr=5e-3)
METHOD = dataclasses.replace(Halrp.budget(growth_per_task=0.9), warm_up=2, trial=0.5)
BASE, WARM_UP, TRIAL, REST = 6, 2, 2, 2
"""Epochs of the stages: the base's; then warm-up, both views on trial, and the rest of the better one."""
EVENTS = BASE + WARM_UP + 2 * TRIAL + REST
TASKS = ("a", "b")


class Interrupt(BaseException):
    """What stops a process."""


class DropoutNet(nn.Module):
    """Convolutions with batch norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.deep, self.dropout, self.fc = nn.Conv2d(8, 8, 3), nn.Dropout(0.5), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.dropout(self.deep(self.norm(self.conv(x)).relu()).mean((2, 3))))


class Log:
    """A progress callback that notes finished epochs and stops after a number of them."""

    def __init__(self, stop: int | None = None) -> None:
        self.stop = stop
        self.epochs: list[tuple[str, str, int]] = []

    def __call__(self, at: Progress) -> None:
        if at.step == 0:
            self.epochs.append((at.task, at.stage, at.epoch))
            if len(self.epochs) == self.stop:
                raise Interrupt


def learner(store: Path | None, log: Log | None = None, **settings: Any) -> Learner:
    folder = None if store is None else Store(store, checkpoint_every=0)  # one after every epoch
    return Learner(drawn(DropoutNet), store=folder, progress=log, **{"recipe": RECIPE, "method": METHOD, **settings})


def task(name: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    return tiny_task("conv", 10 * seed + TASKS.index(name))


def learn(store: Path | None, log: Log | None = None, **settings: Any) -> Learner:
    """Learn what the store does not have yet, as a script that is run again does."""
    result = learner(store, log, **settings)
    for name in TASKS:
        if name not in result.tasks:
            result.learn(name, task(name), val=tiny_task("conv", 5))
    return result


def interrupted(store: Path, after: int, **settings: Any) -> None:
    with pytest.raises(Interrupt):
        learn(store, Log(after), **settings)


def contents(store: Path) -> dict[str, bytes]:
    """Every file of a store, by name."""
    return {str(p.relative_to(store)): p.read_bytes() for p in sorted(store.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mapping[str, bytes], list[tuple[str, str, int]], Learner]:
    """Files, finished epochs and learner of a run that was never interrupted."""
    store, log = tmp_path_factory.mktemp("whole"), Log()
    result = learn(store, log)
    return contents(store), log.epochs, result


def test_an_uninterrupted_run_has_the_epochs_that_are_interrupted_here(whole: Any) -> None:
    _, epochs, result = whole
    best = result.tasks["b"].view
    stages = [("base", BASE), ("warm-up", WARM_UP), ("fine-tune: mean", TRIAL), ("fine-tune: full", TRIAL)]
    expected = [(name, epoch) for name, count in stages for epoch in range(1, count + 1)]
    expected += [(f"fine-tune: {best}", TRIAL + epoch) for epoch in range(1, REST + 1)]
    assert [(stage, epoch) for _, stage, epoch in epochs] == expected
    assert len(epochs) == EVENTS


@pytest.mark.parametrize("after", range(1, EVENTS + 1))
def test_interrupted_after_any_epoch_a_new_learner_finishes_with_the_same_files(
    after: int, whole: Any, tmp_path: Path
) -> None:
    files_, epochs, finished = whole
    interrupted(tmp_path, after)
    log = Log()
    resumed = learner(tmp_path, log)
    # The base is committed when its last epoch has been reported.
    assert list(resumed.tasks) == (["a"] if after > BASE else [])
    resumed = learn(tmp_path, log)
    assert log.epochs == epochs[after:]
    assert contents(tmp_path) == files_
    x = task("b")[0]
    for name in (None, *TASKS):
        assert torch.equal(resumed.predict(x, name), finished.predict(x, name))


def test_interrupted_again_and_again_it_still_finishes_with_the_same_files(whole: Any, tmp_path: Path) -> None:
    files_, epochs, _ = whole
    reported = []
    for _ in range(EVENTS):
        log = Log(1)
        with pytest.raises(Interrupt):
            learn(tmp_path, log)
        reported += log.epochs
    log = Log()
    learn(tmp_path, log)
    assert reported == epochs
    assert log.epochs == []
    assert contents(tmp_path) == files_


@pytest.mark.parametrize("after", [2, BASE + 1, BASE + WARM_UP + TRIAL + 1, EVENTS - 1])
def test_the_interrupted_learner_itself_goes_on_too(after: int, whole: Any, tmp_path: Path) -> None:
    files_, epochs, _ = whole
    log = Log(after)
    result = learner(tmp_path, log)
    for name in TASKS:
        for _ in range(2):
            if name not in result.tasks:
                try:
                    result.learn(name, task(name), val=tiny_task("conv", 5))
                except Interrupt:
                    assert name not in result.tasks
    assert log.epochs == epochs
    assert contents(tmp_path) == files_


def test_inside_an_epoch_too(whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files_, epochs, _ = whole
    monkeypatch.setattr(Training, "REPORT_EVERY", -1.0)
    steps = 0

    class Inside(Log):
        def __call__(self, at: Progress) -> None:
            nonlocal steps
            steps += at.step > 0
            if at.step == 2 and steps >= self.limit:
                raise Interrupt
            super().__call__(at)

        limit = 0

    reported: list[tuple[str, str, int]] = []
    for limit in (5, 15, 25, 35):
        log = Inside()
        log.limit, steps = limit - 3 * len(reported), 0
        with pytest.raises(Interrupt):
            learn(tmp_path, log)
        reported += log.epochs
    log = Inside()
    log.limit = 10**6
    learn(tmp_path, log)
    assert reported + log.epochs == epochs
    assert contents(tmp_path) == files_


@pytest.mark.parametrize("failing", range(1, 7))
def test_a_commit_that_fails_at_any_write_changes_nothing_and_can_be_done_again(
    failing: int, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files_, epochs, _ = whole
    committed = 0
    original = atomic.write

    def write(path: Path, content: bytes, durable: bool = True) -> None:
        nonlocal committed
        committed += durable
        if durable and committed == failing:
            raise WriteError("the disk is full")
        original(path, content, durable)

    before = Log()
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "write", write)
        with pytest.raises(WriteError):
            learn(tmp_path, before)
    after = Log()
    # The base's commit writes the base, its layout, its task and the manifest; the other a task and the manifest.
    assert list(learner(tmp_path).tasks) == (["a"] if failing > 4 else [])
    learn(tmp_path, after)
    assert before.epochs + after.epochs == epochs
    assert contents(tmp_path) == files_


KILLED = """
import os, sys
from pathlib import Path
from tests import test_resume

class Kill(test_resume.Log):
    def __call__(self, at):
        super().__call__(at)
        if len(self.epochs) == int(sys.argv[2]):
            os._exit(9)

test_resume.learn(Path(sys.argv[1]), Kill())
"""


def test_a_process_that_is_killed_leaves_a_store_that_another_finishes(whole: Any, tmp_path: Path) -> None:
    files_, epochs, _ = whole
    after = BASE + WARM_UP + TRIAL + 1
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(after)], check=False)
    assert ended.returncode == 9
    (tmp_path / "tasks" / f".b-1-2{atomic.TEMPORARY}").write_bytes(b"half a file that the killed process left")
    log = Log()
    learn(tmp_path, log)
    assert log.epochs == epochs[after:]
    assert contents(tmp_path) == files_


@pytest.mark.parametrize("preferred", ["mean", "full"])
@pytest.mark.parametrize("after", [0, 1, 2])
def test_the_chosen_view_is_remembered(
    preferred: str, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {"mean": [1.0, 2.0], "full": [2.0, 1.0]}

    def prefers(view: str) -> None:
        order = iter(losses[view])
        monkeypatch.setattr("halrp.method.fine_tune.evaluate", lambda *_: (next(order), 0.5))

    prefers(preferred)
    if after:
        interrupted(tmp_path, BASE + WARM_UP + 2 * TRIAL + after)
    else:
        # The choice is kept before anything is trained on its behalf.
        with monkeypatch.context() as patch:
            patch.setattr("halrp.method.fine_tune._result", None)
            with pytest.raises(TypeError):
                learn(tmp_path)
    prefers("full" if preferred == "mean" else "mean")
    assert learn(tmp_path).tasks["b"].view == preferred


@pytest.mark.parametrize("choice", [2, -1, "mean", 0.5, True, None])
def test_a_choice_of_no_view_is_set_aside_and_made_again(choice: Any, whole: Any, tmp_path: Path) -> None:
    files_, epochs, _ = whole
    after = BASE + WARM_UP + 2 * TRIAL + 1
    interrupted(tmp_path, after)
    store = Store(tmp_path)
    (path,) = (p for p in store.work_folder("b").iterdir() if p.stat().st_size < 500)
    content = path.read_bytes()[64:]
    length = int.from_bytes(content[:8], "little")
    facts = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["facts"])
    Checkpoints(store.work_folder("b"), facts["key"]).save("choice", {}, {"best": choice})
    log = Log()
    with pytest.warns(CheckpointWarning, match=r"of 'choice' does not fit \(its choice is .* of 2 views"):
        learn(tmp_path, log)
    assert log.epochs == epochs[after:]
    assert contents(tmp_path) == files_


def test_finished_tasks_are_there_with_their_predictions(whole: Any, tmp_path: Path) -> None:
    _, _, finished = whole
    learn(tmp_path)
    log = Log()
    result = learner(tmp_path, log)
    assert list(result.tasks) == ["a", "b"]
    x = task("a")[0]
    for name in (None, *TASKS):
        assert torch.equal(result.predict(x, name), finished.predict(x, name))
    assert [task_file.write(d) for d in result.tasks.values()] == [task_file.write(d) for d in finished.tasks.values()]
    assert log.epochs == []


def test_checkpoints_are_there_while_a_task_is_learned_and_gone_after_its_commit(tmp_path: Path) -> None:
    for after, name in ((3, "a-"), (BASE + WARM_UP + 1, "b-")):
        interrupted(tmp_path, after if name == "a-" else after - 3)
        (folder,) = (tmp_path / "work").iterdir()
        assert folder.name.startswith(name)
        assert any(folder.iterdir())
    learn(tmp_path)
    assert not any((tmp_path / "work").rglob("*"))


OTHER: dict[str, dict[str, Any]] = {
    "recipe": {"recipe": dataclasses.replace(RECIPE, lr=1e-3)},
    "method": {"method": dataclasses.replace(METHOD, base_l2=1e-2, l2=1e-2)},
    "seed": {"seed": 1},
}


@pytest.mark.parametrize("after", [3, EVENTS - 1])
@pytest.mark.parametrize("other", OTHER)
def test_with_other_settings_the_task_starts_anew(other: str, after: int, tmp_path: Path) -> None:
    interrupted(tmp_path / "resumed", after)
    if after > BASE:
        interrupted(tmp_path / "fresh", BASE + 1)  # its base has the first settings too
        for folder in (tmp_path / "fresh" / "work").iterdir():
            for path in folder.iterdir():
                path.unlink()
    logs = Log(), Log()
    learn(tmp_path / "resumed", logs[0], **OTHER[other])
    learn(tmp_path / "fresh", logs[1], **OTHER[other])
    assert logs[0].epochs == logs[1].epochs
    assert contents(tmp_path / "resumed") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("part", ["train", "val", "labels", "no val"])
@pytest.mark.parametrize("after", [1, 5])
def test_with_other_data_of_the_same_size_the_task_starts_anew(part: str, after: int, tmp_path: Path) -> None:
    def run(store: Path, log: Log, data: dict[str, Any]) -> Learner:
        result = learner(store, log, base="given")
        result.learn("b", **data)
        return result

    x, y = task("b")
    first: dict[str, Any] = {"train": (x, y), "val": task("b", 1)}
    changes: dict[str, dict[str, Any]] = {
        "train": {"train": task("b", 2)},
        "val": {"val": task("b", 2)},
        "labels": {"train": (x, y.flip(0))},
        "no val": {"val": None},
    }
    other = first | changes[part]
    with pytest.raises(Interrupt):
        run(tmp_path / "resumed", Log(after), first)
    logs = Log(), Log()
    run(tmp_path / "resumed", logs[0], other)
    run(tmp_path / "fresh", logs[1], other)
    assert logs[0].epochs == logs[1].epochs
    assert contents(tmp_path / "resumed") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("kind", ["mlp", "transformer", "gru", "grouped"])
def test_other_models_go_on_too(kind: str, tmp_path: Path) -> None:
    method = dataclasses.replace(METHOD, precision="int8")

    def run(store: Path, log: Log) -> None:
        result = Learner(net(kind), recipe=RECIPE, method=method, base="given", store=Store(store, 0), progress=log)
        result.learn("a", tiny_task(kind, 0), val=tiny_task(kind, 1))

    log = Log()
    run(tmp_path / "whole", log)
    for after in (1, WARM_UP + 1, len(log.epochs) - 1):
        with pytest.raises(Interrupt):
            run(tmp_path / f"{after}", Log(after))
        rest = Log()
        run(tmp_path / f"{after}", rest)
        assert rest.epochs == log.epochs[after:]
        assert contents(tmp_path / f"{after}") == contents(tmp_path / "whole")


def test_a_task_that_fails_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    learner(tmp_path).learn("a", task("a"))
    before = contents(tmp_path)
    with pytest.raises(BudgetTooSmall):
        learner(tmp_path, method=Halrp.budget(10)).learn("b", task("b"))
    with pytest.raises(DivergedError):
        learner(tmp_path, recipe=dataclasses.replace(RECIPE, lr=1e30)).learn("b", task("b"))
    assert {n: c for n, c in contents(tmp_path).items() if not n.startswith("work")} == before
    # A remedy is another setting, for which nothing is left over.
    learner(tmp_path).learn("b", task("b"))
    assert list(learner(tmp_path).tasks) == ["a", "b"]


def test_without_a_store_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object, **__: object) -> None:
        raise AssertionError("a learner without a store writes a file")

    monkeypatch.setattr(atomic, "write", write)
    monkeypatch.chdir(tmp_path)
    result = learn(None)
    assert list(result.tasks) == ["a", "b"]
    assert not any(tmp_path.iterdir())


def test_a_store_changes_nothing_in_what_is_learned(whole: Any) -> None:
    _, _, finished = whole
    assert [task_file.write(d) for d in learn(None).tasks.values()] == [
        task_file.write(d) for d in finished.tasks.values()
    ]


@pytest.mark.usefixtures("quick_heads")
@pytest.mark.parametrize("validated", [True, False])
def test_a_task_that_starts_at_the_probe_resumes_after_any_epoch_with_the_same_files(
    validated: bool, tmp_path: Path
) -> None:
    # Steps that are right for no rehearsal would leave nothing to resume.
    recipe = dataclasses.replace(RECIPE, epochs=3)

    def run(store: Path, log: Log) -> None:
        learner(store, log, base="given", recipe=recipe).learn("b", task("b"), val=task("b", 1) if validated else None)

    log = Log()
    run(tmp_path / "whole", log)
    stages = ["fine-tune"] if validated else ["rehearsal of fine-tune", "fine-tune"]
    assert [(stage.partition(":")[0], epoch) for _, stage, epoch in log.epochs] == [
        (stage, epoch) for stage in stages for epoch in (1, 2, 3)
    ]
    for after in range(1, len(log.epochs) + 1):
        with pytest.raises(Interrupt):
            run(tmp_path / f"{after}", Log(after))
        rest = Log()
        run(tmp_path / f"{after}", rest)
        assert rest.epochs == log.epochs[after:]
        assert contents(tmp_path / f"{after}") == contents(tmp_path / "whole")


@pytest.mark.parametrize("rest", ["float32", "int8"])
def test_averages_exact_statistics_and_dropout_resume_in_every_stage(rest: Any, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "recipe": dataclasses.replace(RECIPE, average=0.5, exact_statistics=True, dropout=0.4),
        "method": dataclasses.replace(METHOD, rest=rest),
    }
    learn(tmp_path / "whole", **settings)
    for after in (BASE - 1, BASE + 1, BASE + WARM_UP + 1, EVENTS - 1):
        interrupted(tmp_path / f"{after}", after, **settings)
        learn(tmp_path / f"{after}", **settings)
        assert contents(tmp_path / f"{after}") == contents(tmp_path / "whole")
