"""The progress bar: one line for each stage, on terminals, and never a reason to fail."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from halrp import Learner, Progress
from halrp.errors import SettingError
from halrp.training.bar import Bar, notifier
from tests.helpers import FAST, net, tiny_task


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(**values: Any) -> Progress:
    given = {"task": "birds", "stage": "base", "epoch": 5, "epochs": 20, "step": 0, "steps": 4, "loss": 0.25}
    return Progress(**{**given, "seconds": 10.0, **values})


def screen(text: str) -> list[str]:
    """What a terminal shows of a text with carriage returns."""
    lines = []
    for line in text.split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


def test_a_line_has_task_stage_epochs_loss_score_and_the_time_left() -> None:
    stream = Terminal()
    Bar(stream)(report(validation_score=0.9125))
    assert screen(stream.getvalue()) == ["birds: base  [#####...............]  5/20  loss 0.25  val 0.9125  0:30 left"]


def test_a_line_is_written_over_and_ended_once() -> None:
    stream = Terminal()
    bar = Bar(stream)
    bar(report(task="a task with a long name"))
    bar(report(epoch=9, epochs=9, seconds=1.0))
    bar(report(epoch=9, step=2, epochs=10, loss=None))
    bar.finish()
    bar.finish()
    first, second, end = screen(stream.getvalue())
    assert first.startswith("a task with a long name: base")
    assert second == "birds: base  [###################.]  9/10  loss 0.25  0:01 left"
    assert end == ""


def test_hours_are_shown_and_a_first_report_has_no_time_left() -> None:
    stream = Terminal()
    bar = Bar(stream)
    bar(report(epoch=1, epochs=3, seconds=3600.0))
    bar(report(stage="other", epoch=0, step=0, loss=None))
    assert "2:00:00 left" in screen(stream.getvalue())[0]
    assert "left" not in screen(stream.getvalue())[1]


def test_a_long_line_is_cut_and_a_name_has_no_effect_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    stream = Terminal()
    Bar(stream)(report(task="\x1b[2Jbirds\n" * 9))
    assert len(screen(stream.getvalue())) == 1
    assert len(stream.getvalue()) == 30
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_that_fails_stops_nothing() -> None:
    class Broken(Terminal):
        def write(self, text: str) -> int:
            raise OSError("gone")

    bar = Bar(Broken())
    bar(report())
    bar.finish()


def test_the_default_is_a_bar_on_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (io.StringIO(), closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        assert notifier("auto") is None
        assert isinstance(notifier("bar"), Bar)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    learner = Learner(net("mlp"), recipe=FAST)
    learner.learn("birds", tiny_task("mlp"), val=tiny_task("mlp", 1))
    shown, end = screen(terminal.getvalue())
    assert shown.startswith("birds: base  [####################]  2/2  loss ")
    assert "  val " in shown
    assert end == ""
    Learner(net("mlp"), recipe=FAST, progress=None).learn("birds", tiny_task("mlp"))
    assert screen(terminal.getvalue()) == [shown, end]


def test_a_line_is_ended_when_learning_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()

    class Failing(Bar):
        def __call__(self, at: Progress) -> None:
            super().__call__(at)
            raise KeyError("callback")

    with pytest.raises(KeyError):
        Learner(net("mlp"), recipe=FAST, progress=Failing(terminal)).learn("birds", tiny_task("mlp"))
    assert terminal.getvalue().endswith("\n")


@pytest.mark.parametrize("show", ["bars", 3, True])
def test_another_way_to_show_progress_is_refused(show: Any) -> None:
    with pytest.raises(SettingError, match=r"Learner\(progress=.*\) is unknown; give 'bar', a callback"):
        Learner(net("mlp"), progress=show)


def test_the_bar_changes_nothing_in_what_is_learned() -> None:
    outputs = []
    x, _ = data = tiny_task("transformer")
    for show in (Bar(Terminal()), None):
        learner = Learner(net("transformer"), recipe=FAST, progress=show)
        learner.learn("a", data, val=tiny_task("transformer", 1))
        outputs.append(learner.predict(x, "a"))
    assert outputs[0].equal(outputs[1])
