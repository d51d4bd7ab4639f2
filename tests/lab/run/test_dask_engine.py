"""The engine on a Dask cluster: a scheduler and two workers on this machine, one of which is killed in a cell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from halrp.errors import DamagedError, SettingError
from halrp.lab.run import dask_engine, runner, sweep
from halrp.lab.run.engine import Event
from halrp.lab.run.status import SweepStatus
from halrp.store import atomic
from tests.lab.plugin_module import MODULE
from tests.lab.run.gates import gated
from tests.lab.run.tiny_cells import BUDGET, FAILING, STL, alone, cell, records
from tests.timing import PATIENCE

ADDRESS = "tcp://127.0.0.1"
LONG = cell("stl", recipe={"epochs": 100_000})
ROOT = Path(__file__).parents[3]


@contextmanager
def process(folder: Path, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Dask's command that ends with the block."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "60s",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    with (folder / f"{name}.log").open("wb") as log:
        started = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdout=log, stderr=log, env=environment, cwd=folder
        )
        try:
            yield started
        finally:
            started.kill()
            started.wait()


@contextmanager
def workers(folder: Path, *names: str) -> Iterator[tuple[str, dict[str, subprocess.Popen[bytes]]]]:
    """A scheduler's address and worker processes by name."""
    scheduler_file = folder / "scheduler.json"
    common = ("--scheduler-file", str(scheduler_file), "--no-dashboard")
    with ExitStack() as stack:
        started = {
            name: stack.enter_context(
                process(
                    folder, name, "distributed.cli.dask_worker", "--nthreads=1", "--no-nanny", f"--name={name}", *common
                )
            )
            for name in names
        }
        listen = ("--host=127.0.0.1", "--port=0", "--dashboard-address=:0")
        stack.enter_context(process(folder, "scheduler", "distributed.cli.dask_scheduler", *listen, *common))
        yield address_in(scheduler_file, folder / "scheduler.log"), started


def address_in(scheduler_file: Path, log: Path) -> str:
    """Wait until a scheduler has written its file; it may be there before its content is."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with suppress(OSError, ValueError):
            address: str = json.loads(scheduler_file.read_text())["address"]
            return address
        time.sleep(0.05)
    raise AssertionError(log.read_text())


CLIENT = """
import sys
from halrp.lab.run.dask_engine import DaskEngine
from tests.lab.run.test_dask_engine import LONG

with DaskEngine(sys.argv[1], sys.argv[2], wait=60) as engine:
    engine.submit(LONG)
    while not any(event.kind == "working" for event in engine.collect()):
        pass
    print("working", flush=True)
    sys.stdin.read()
"""


@contextmanager
def client(address: str, out: Path) -> Iterator[subprocess.Popen[str]]:
    """A process whose long cell is being run by a worker."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", CLIENT, address, str(out)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "working\n"
            yield started
        finally:
            started.kill()


def test_a_killed_worker_loses_nothing_and_records_are_those_of_a_local_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, dask_folder = tmp_path / "out", tmp_path / "dask"
    dask_folder.mkdir()
    monkeypatch.syspath_prepend(dask_folder)
    killed: list[str] = []
    taken: list[str] = []
    stack = ExitStack()
    gate = stack.enter_context(gated(dask_folder, "gated_by_dask"))
    halrp = cell("gated_by_dask:GatedHalrp")
    another = ExitStack()  # a process that runs STL, and gives it up when it is asked for
    another.enter_context(atomic.locked(runner.RunState(out, STL).work))
    with (
        stack,
        another,
        workers(dask_folder, "one", "two") as (address, processes),
        dask_engine.DaskEngine(address, out, wait=60) as engine,
    ):

        def observe(status: SweepStatus, event: Event | None) -> None:
            if event is not None and event.kind == "busy":
                taken.append(event.cell)
                another.close()
            if event is not None and event.kind == "row" and event.cell == halrp.name and not killed:
                worker = gate.reached()
                gate.open()
                [name] = [name for name, process in processes.items() if process.pid == worker]
                processes[name].kill()
                killed.append(name)

        status = sweep.run_cells([halrp, STL, FAILING], engine, out, {}, 2, observe)
        assert len(killed) == 1, "a worker was killed in the middle of a cell"
        assert engine.workers == 1
        assert taken == [STL.name]
        assert status.counts == {"done": 2, "failed": 1}, status.failed
        assert "the loss became" in status.failed[FAILING.name]
        assert status.retries == [f"{halrp.name}: its worker was lost"]
        assert sorted(path.suffix for path in out.iterdir() if not path.name.startswith(".")) == [".json", ".json"]
    assert records(out) == alone(tmp_path / "alone", [halrp, STL])


def test_a_client_that_leaves_or_is_killed_takes_its_cells_along(tmp_path: Path) -> None:
    dask_folder, far = tmp_path / "dask", tmp_path / "far"
    dask_folder.mkdir()
    with workers(dask_folder, "one") as (address, _):
        with client(address, tmp_path / "left") as leaving:
            leaving.communicate(timeout=PATIENCE)
        with client(address, tmp_path / "killed") as killed:
            killed.kill()
        # The one worker is free for the next client. It does not see that one's folder, and sends its record back.
        with dask_engine.DaskEngine(address, far, jobs=1, wait=60) as engine:
            engine._marker.unlink()
            deadline = time.monotonic() + PATIENCE

            def observe(status: SweepStatus, event: Event | None) -> None:
                assert time.monotonic() < deadline, "the worker still runs a cell that nobody wants"

            assert sweep.run_cells([STL], engine, far, {}, 1, observe).counts == {"done": 1}
    assert [path.name for path in far.iterdir()] == [f"{STL.name}.json"]
    assert not list((dask_folder / "cache").rglob("*.json")), "no record stays in a worker's cache"
    assert records(far) == alone(tmp_path / "alone", [STL])


def test_a_record_that_a_worker_sent_for_another_cell_is_not_written(tmp_path: Path) -> None:
    record = runner.execute(STL, tmp_path)
    assert runner.check_sent(STL, record) == record
    for sent in (record | {"rows": record["rows"][:2]}, {}, None, [record], record | {"checksum": "0"}):
        with pytest.raises(DamagedError, match=f"what a worker sent for {STL.name} is not"):
            runner.check_sent(STL, sent)
    with pytest.raises(DamagedError, match=f"another cell than {BUDGET.name}"):
        runner.check_sent(BUDGET, record)


def test_workers_import_a_users_method_and_a_module_that_they_lack_fails_its_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dask_folder, client_folder = tmp_path / "dask", tmp_path / "client"
    for folder in (dask_folder, client_folder):
        folder.mkdir()
        (folder / "experiments_of_dask.py").write_text(MODULE)
    (client_folder / "experiments_of_client.py").write_text(MODULE)
    monkeypatch.chdir(client_folder)
    monkeypatch.setattr(sys, "path", [str(client_folder), *sys.path])
    mine, absent = cell("experiments_of_dask:Mine"), cell("experiments_of_client:Mine")
    with workers(dask_folder, "one") as (address, _), dask_engine.DaskEngine(address, tmp_path / "out") as engine:
        status = sweep.run_cells([mine, absent], engine, tmp_path / "out", {}, 1, lambda *_: None)
    assert status.counts == {"done": 1, "failed": 1}
    assert "no module named 'experiments_of_client'" in status.failed[absent.name]
    assert status.retries == [], "another attempt would fail, too"
    assert [path.stem for path in (tmp_path / "out").glob("*.json")] == [mine.name]


def test_a_scheduler_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"no Dask scheduler answers at 'tcp://127\.0\.0\.1:1'"):
        dask_engine.DaskEngine(f"{ADDRESS}:1", tmp_path, wait=0.5)
    assert list(tmp_path.iterdir()) == []
