"""Engines on this machine: the same records however cells are run, killed, or interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from halrp.errors import SettingError
from halrp.lab.run import progress, runner, sweep
from halrp.lab.run.engine import Event
from halrp.lab.run.local_engine import LocalEngine
from halrp.lab.run.status import SweepStatus
from halrp.store import atomic
from halrp.training.progress import Progress
from tests.helpers import one_thread
from tests.lab.run.gates import gated
from tests.lab.run.tiny_cells import BUDGET, CELLS, FAILING, FINETUNE, STL, SWEEP, alone, cell, records
from tests.timing import PATIENCE

TASKS = {cell.name: 3 for cell in [*CELLS, FAILING]}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, runner.Record]:
    return alone(tmp_path_factory.mktemp("alone"))


def test_two_processes_one_of_them_killed_a_cell_that_fails_and_one_that_is_taken_lose_nothing(
    tmp_path: Path, expected: dict[str, runner.Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    stack = ExitStack()
    gate = stack.enter_context(gated(tmp_path, "gated_in_two"))
    halrp, out, before = cell("gated_in_two:GatedHalrp"), tmp_path / "out", dict(os.environ)
    killed: list[str] = []
    kinds: list[tuple[str, str]] = []
    pids: set[int] = set()
    summaries: list[str] = []
    another = ExitStack()  # a process that runs FINETUNE, and gives it up when it is asked for
    another.enter_context(atomic.locked(runner.RunState(out, FINETUNE).work))

    def observe(status: SweepStatus, event: Event | None) -> None:
        assert len(engine.pids) <= 2
        pids.update(engine.pids.values())
        if event is None:
            return
        kinds.append((event.cell, event.kind))
        if event.kind == "busy":
            summaries.append(status.summary())
            another.close()
        if event.kind == "started" and not killed and event.cell == halrp.name:
            worker = gate.reached()
            gate.open()
            assert worker == engine.pids[halrp.name]
            os.kill(worker, signal.SIGKILL)
            killed.append(event.cell)

    with stack, another, LocalEngine(out, 2) as engine:
        status = sweep.run_cells([halrp, FAILING, FINETUNE, STL], engine, out, TASKS, 2, observe)
        assert dict(os.environ) == before
    assert status.counts == {"done": 3, "failed": 1}
    assert 2 <= len(pids) <= 3, "processes are used again, and one was lost"
    assert (halrp.name, "retry") in kinds
    assert "SIGKILL" in status.retries[0]
    assert list(status.failed) == [FAILING.name]
    assert "the loss became" in status.failed[FAILING.name]
    assert (FAILING.name, "retry") not in kinds, "an error that the library names is not tried again"
    finetune = [kind for name, kind in kinds if name == FINETUNE.name and kind != "working"]
    assert finetune == ["busy", "started", "row", "row", "row", "done"], "it is reported once, and runs when it is free"
    assert "1 elsewhere" in summaries[0]
    others = {name: expected[name] for name in (FINETUNE.name, STL.name)}
    assert records(out) == others | alone(tmp_path / "alone", [halrp])
    assert all(runner.read(path)["environment"]["threads"] == 1 for path in out.glob("*.json"))
    assert sorted(path.suffix for path in out.iterdir()) == [".json"] * 3, "no state is left"


def test_a_cell_whose_processes_keep_dying_fails_after_its_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    ends: list[Event] = []
    with gated(tmp_path, "gated_to_die") as gate, LocalEngine(tmp_path / "out", 1, retries=1) as engine:
        engine.submit(cell("gated_to_die:Gated"))
        for attempt in (1, 2):
            engine.collect(0)  # which starts it
            os.kill(gate.reached(), signal.SIGKILL)
            while len(ends) < attempt:
                ends += [event for event in engine.collect() if event.kind in ("retry", "done", "failed")]
    assert [event.kind for event in ends] == ["retry", "failed"]
    assert ends[1].text == "its process ended by signal SIGKILL (tried 2 times)"


def test_a_cell_interrupted_ten_times_ends_with_the_record_of_an_uninterrupted_one(
    tmp_path: Path, expected: dict[str, runner.Record]
) -> None:
    class Killed(BaseException):
        pass

    times = 0
    with one_thread():
        for cell, moments in ((BUDGET, (1, 2, 1, 2, 1)), (FINETUNE, (1, 1, 1, 1, 1))):
            for moment in moments:
                heard = 0

                def progress(event: Progress, moment: int = moment) -> None:
                    nonlocal heard
                    heard += 1
                    if heard == moment:
                        raise Killed

                try:
                    runner.execute(cell, tmp_path, progress=progress)
                except Killed:
                    times += 1
                assert not list(tmp_path.glob(".*.part")), "no temporary file is left"
            runner.execute(cell, tmp_path)
    assert times == 10, "the moments lie within the runs"
    result = records(tmp_path)
    assert result == {name: expected[name] for name in result}
    assert len(result) == 2


IN_A_TERMINAL = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from halrp.cli import main
main()
"""
"""The command with the handler of Ctrl-C that it has in a terminal; background jobs of a shell ignore the signal."""


def gated_sweep(folder: Path, module: str) -> list[str]:
    """Write a sweep of two cells that end and one that waits in its second task; return the command that runs it."""
    (folder / "sweep.toml").write_text(SWEEP.replace('"stl"', f'"{module}:Gated"'))
    return [sys.executable, "-c", IN_A_TERMINAL, "sweep", "sweep.toml", "--jobs", "1", "--results", "out"]


def assert_resumes(folder: Path, module: str, expected: dict[str, runner.Record]) -> None:
    """Two cells are finished, the third has a state, and resumes to the record of an uninterrupted run."""
    waiting, out = cell(f"{module}:Gated"), folder / "out"
    assert records(out) == {name: expected[name] for name in (BUDGET.name, FINETUNE.name)}
    assert [path.name for path in out.glob(f"*{runner.UNFINISHED}")] == [f"{waiting.name}{runner.UNFINISHED}"]
    assert alone(out, [waiting]) == alone(folder / "alone", [waiting])
    assert {path.suffix for path in out.iterdir()} == {".json"}, "nothing else is left"


def test_ctrl_c_stops_workers_and_the_next_start_goes_on(
    tmp_path: Path, expected: dict[str, runner.Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    command = gated_sweep(tmp_path, "gated_by_ctrl_c")
    with (
        gated(tmp_path, "gated_by_ctrl_c") as gate,
        subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process,
    ):
        gate.reached(process)
        os.killpg(process.pid, signal.SIGINT)  # what a terminal does: to everyone
        _, error = process.communicate(timeout=PATIENCE)
        gate.left()
    assert process.returncode == 130
    assert error.splitlines() == ["stopped; finished cells have their records, and the same command resumes the others"]
    assert_resumes(tmp_path, "gated_by_ctrl_c", expected)


def test_no_worker_outlives_a_sweep_that_is_killed_and_the_next_start_goes_on(
    tmp_path: Path, expected: dict[str, runner.Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    command = gated_sweep(tmp_path, "gated_by_kill")
    with (
        gated(tmp_path, "gated_by_kill") as gate,
        subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.DEVNULL, text=True, start_new_session=True
        ) as process,
    ):
        worker = gate.reached(process)
        assert worker != process.pid
        process.kill()
        gate.left()  # the worker waits, sends no event and reads no pipe; only its watchdog can end it
    assert process.wait() == -signal.SIGKILL
    assert_resumes(tmp_path, "gated_by_kill", expected)


def test_engines_refuse_no_jobs(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="jobs=0"):
        LocalEngine(tmp_path, 0)


# ---- the status --------------------------------------------------------------------------------------------------


def test_the_time_that_is_left_is_judged_by_cells_that_have_ended() -> None:
    now = 0.0
    status = SweepStatus.of(CELLS, TASKS, jobs=1)
    status.clock = lambda: now
    assert status.remaining() is None
    status.update(Event(STL.name, "started"))
    for position in range(3):
        now += 10
        status.update(Event(STL.name, "row", position, 1.0, "", 0.5, 10.0))
    status.update(Event(STL.name, "done"))
    assert status.remaining() == 60
    status.update(Event(BUDGET.name, "started"))
    status.update(Event(BUDGET.name, "row", 0, 1.0, "", 0.9, 10.0))
    assert status.remaining() == pytest.approx(50)
    assert status.summary() == "1 of 3 cells done, 1 running, 1 waiting; about 50 s left"
    status.jobs = 2
    assert status.remaining() == pytest.approx(30), "no cell is divided"
    assert not status.update(Event(STL.name, "row", 2)), "it comes too late"
    assert status.update(Event(FINETUNE.name, "busy", text="another process runs it"))
    assert not status.update(Event(FINETUNE.name, "busy", text="another process runs it")), "once is enough"
    assert status.summary() == "1 of 3 cells done, 1 running, 1 elsewhere; about 20 s left"
    status.update(Event(BUDGET.name, "started"))
    assert status.retries == [f"{BUDGET.name}: its worker was lost"]


def test_the_live_table_shows_what_runs_and_keeps_what_ended() -> None:
    from rich.console import Console

    console = Console(record=True, width=150, force_terminal=True, file=open(os.devnull, "w"))  # noqa: SIM115
    status = SweepStatus.of(CELLS, TASKS, jobs=2)
    with progress.LiveTable(console) as shown:
        for event in (
            Event(STL.name, "started"),
            Event(STL.name, "row", 0, 1.0, "first", 0.987, 3.0),
            Event(BUDGET.name, "started"),
            Event(BUDGET.name, "failed", text="DivergedError: [too] much"),
        ):
            status.update(event)
            shown.observe(status, event)
        console.print(shown.table(status))
    console.file.close()
    text = console.export_text()
    assert f"failed {BUDGET.name}: DivergedError: [too] much" in text
    assert "2 of 3" in text
    assert "98.7%" in text
    assert "0 of 3 cells done, 1 failed, 1 running, 1 waiting" in text
