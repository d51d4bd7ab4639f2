"""Callbacks for TensorBoard, MLflow and Weights & Biases: small, optional, and named when their package is missing."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from halrp import Learner, Progress
from halrp.callbacks import MLflow, Several, TensorBoard, WandB
from halrp.errors import SettingError
from tests.helpers import FAST, net, tiny_task


def learn(show: Any) -> list[Progress]:
    """Learn a task with a callback; what was reported."""
    reports: list[Progress] = []
    learner = Learner(net("mlp"), recipe=FAST, progress=Several(show, reports.append))
    learner.learn("birds", tiny_task("mlp"), val=tiny_task("mlp", 1))
    return reports


def expected(reports: list[Progress]) -> list[dict[str, float | None]]:
    return [
        {
            "birds/base/loss": report.loss,
            "birds/base/validation_loss": report.validation_loss,
            "birds/base/validation_score": report.validation_score,
        }
        for report in reports
    ]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_every_epoch(tmp_path: Path) -> None:
    reports = learn(TensorBoard(tmp_path))
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    for name in ("loss", "validation_loss", "validation_score"):
        scalars = events.Scalars(f"birds/base/{name}")
        assert [event.step for event in scalars] == [1, 2]
        assert [event.value for event in scalars] == pytest.approx([getattr(report, name) for report in reports])


def test_mlflow_gets_every_epoch_under_names_that_it_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[dict[str, float], int]] = []
    stub: Any = ModuleType("mlflow")
    stub.log_metrics = lambda metrics, step: logged.append((metrics, step))
    monkeypatch.setitem(sys.modules, "mlflow", stub)
    callback = MLflow()
    reports = learn(callback)
    assert logged == [(numbers, number) for number, numbers in enumerate(expected(reports), 1)]
    callback(Progress("Vögel", "fine-tune: mean", 1, 2, 0, 3, 0.5, 1.0))
    callback(Progress("Vögel", "fine-tune: mean", 1, 2, 1, 3, None, 1.0))
    assert logged[2:] == [({"V_gel/fine-tune_ mean/loss": 0.5}, 1)]


def test_weights_and_biases_gets_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[dict[str, float]] = []
    stub: Any = ModuleType("wandb")
    stub.log = logged.append
    monkeypatch.setitem(sys.modules, "wandb", stub)
    reports = learn(WandB())
    assert logged == [n | {"birds/base/epoch": number} for number, n in enumerate(expected(reports), 1)]


@pytest.mark.parametrize(
    ("make", "module", "message"),
    [
        (
            lambda: TensorBoard("runs"),
            "torch.utils.tensorboard",
            r"tensorboard; run: pip install 'halrp\[tensorboard\]'",
        ),
        (MLflow, "mlflow", r"mlflow; run: pip install 'halrp\[mlflow\]'"),
        (WandB, "wandb", "wandb; run: pip install 'wandb'"),
    ],
)
def test_a_missing_package_is_named(
    make: Any, module: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingError, match=message):
        make()


def test_several_callbacks_all_finish() -> None:
    class Ends:
        ended = 0

        def __call__(self, at: Progress) -> None: ...

        def finish(self) -> None:
            self.ended += 1

    first, second = Ends(), Ends()
    reports = learn(Several(first, None, second))
    assert (first.ended, second.ended) == (1, 1)
    assert [report.validation_score for report in reports] == [None, None]
    assert not Several(first, second).validates
