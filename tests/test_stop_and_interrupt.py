"""Ctrl-C leaves a task that can be resumed; a callback that stops the training commits what is there."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

from halrp import Halrp, Learner, Progress, Recipe, StopTraining, Store, WarmUp
from halrp.training.loop import Training
from tests.helpers import net, tiny_task

RECIPE = Recipe(epochs=6, batch=8, lr=5e-3)
METHOD = dataclasses.replace(Halrp.budget(growth_per_task=0.9), warm_up=2, trial=0.5, start=WarmUp())


class At:
    """A callback that raises at an epoch of a stage, or at a step of it."""

    def __init__(self, error: type[BaseException], stage: str, epoch: int, step: int = 0) -> None:
        self.error, self.stage, self.epoch, self.step = error, stage, epoch, step
        self.reports: list[tuple[str, int, int]] = []

    def __call__(self, at: Progress) -> None:
        self.reports.append((at.stage.partition(":")[0], at.epoch, at.step))
        if self.reports[-1] == (self.stage, self.epoch, self.step):
            raise self.error


def learner(store: Path | None, progress: Any = None, **settings: Any) -> Learner:
    # Checkpoints are far apart: only the interrupt itself writes.
    folder = None if store is None else Store(store, checkpoint_every=10_000)
    return Learner(net("conv"), method=METHOD, recipe=RECIPE, base="given", store=folder, progress=progress, **settings)


def learn(store: Path | None, progress: Any = None) -> Learner:
    result = learner(store, progress)
    result.learn("birds", tiny_task("conv"), val=tiny_task("conv", 1))
    return result


@pytest.mark.parametrize(("stage", "epoch", "step"), [("warm-up", 1, 0), ("warm-up", 1, 2), ("fine-tune", 3, 1)])
def test_ctrl_c_leaves_a_task_that_resumes_at_its_last_finished_epoch(
    stage: str, epoch: int, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Training, "REPORT_EVERY", -1.0)
    whole = learn(None)
    with pytest.raises(KeyboardInterrupt) as interrupt:
        learn(tmp_path, At(KeyboardInterrupt, stage, epoch, step))
    assert "".join(traceback.format_exception(interrupt.value)).rstrip().endswith(f"settings and store: {tmp_path}")
    rest = At(KeyboardInterrupt, "", 0)
    resumed = learn(tmp_path, rest)
    again = next(report for report in rest.reports if report[0] == stage)
    assert again[1] == epoch
    x, _ = tiny_task("conv")
    assert torch.equal(resumed.predict(x, "birds"), whole.predict(x, "birds"))


def test_ctrl_c_without_a_store_says_what_would_help() -> None:
    with pytest.raises(KeyboardInterrupt) as interrupt:
        learn(None, At(KeyboardInterrupt, "warm-up", 1))
    assert interrupt.value.__notes__ == ["'birds' is not learned; with Learner(..., store=...) it could be resumed"]


def test_an_ordinary_error_writes_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        learn(tmp_path, At(ZeroDivisionError, "warm-up", 1))
    assert not [path for path in tmp_path.rglob("*.safetensors") if "work" in path.parts]


SIGNALLED = """
import os, signal, sys
from pathlib import Path
from tests.test_stop_and_interrupt import learn

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background

def interrupt(at):
    if at.stage == "warm-up" and at.epoch == 1:
        os.kill(os.getpid(), signal.SIGINT)

learn(Path(sys.argv[1]), interrupt)
"""


def test_the_signal_of_ctrl_c_ends_a_process_with_the_message(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(tmp_path)], check=False, capture_output=True, text=True
    )
    assert ended.returncode != 0
    assert "'birds' resumes at its last finished epoch when learn is called again" in ended.stderr
    rest = At(KeyboardInterrupt, "", 0)
    learn(tmp_path, rest)
    assert rest.reports[0] == ("warm-up", 2, 0)


@pytest.mark.parametrize(("stage", "epoch", "step"), [("warm-up", 1, 0), ("warm-up", 0, 2), ("fine-tune", 3, 0)])
def test_a_callback_that_stops_ends_all_training_and_the_task_is_committed(
    stage: str, epoch: int, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Training, "REPORT_EVERY", -1.0)
    stop = At(StopTraining, stage, epoch, step)
    stopped = learn(tmp_path, stop)
    assert stop.reports[-1] == (stage, epoch, step)
    x, _ = tiny_task("conv")
    assert torch.equal(Learner.load(tmp_path, net("conv")).predict(x, "birds"), stopped.predict(x, "birds"))
    assert not any((tmp_path / "work").rglob("*.safetensors"))
    # The next task trains as usual.
    stopped.progress = rest = At(StopTraining, "", 0)
    stopped.learn("cars", tiny_task("conv", 2))
    assert ("fine-tune", 4, 0) in rest.reports


def test_a_base_that_is_stopped_is_that_of_fewer_epochs() -> None:
    def base(epochs: int, progress: Any) -> torch.Tensor:
        recipe = dataclasses.replace(RECIPE, epochs=epochs, schedule="constant")
        result = Learner(net("mlp"), method=METHOD, recipe=recipe, progress=progress)
        result.learn("birds", tiny_task("mlp"))
        return result.predict(tiny_task("mlp")[0], "birds")

    assert torch.equal(base(6, At(StopTraining, "base", 4)), base(4, None))
