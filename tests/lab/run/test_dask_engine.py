"""The engine on a Dask cluster: a scheduler and two workers on this machine, one of which is killed in a cell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from halrp.errors import SettingError
from halrp.lab.run import dask_engine, runner, sweep
from halrp.lab.run.engine import Event
from halrp.lab.run.status import SweepStatus
from halrp.store import atomic
from tests.lab.plugin_module import MODULE
from tests.lab.run.tiny_cells import BUDGET, FAILING, STL, alone, cell, records

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
        listen = ("--host=127.0.0.1", "--port=0")
        stack.enter_context(process(folder, "scheduler", "distributed.cli.dask_scheduler", *listen, *common))
        deadline = time.monotonic() + 60
        while not scheduler_file.exists() or not scheduler_file.read_text().strip():
            assert time.monotonic() < deadline, (folder / "scheduler.log").read_text()
            time.sleep(0.05)
        yield json.loads(scheduler_file.read_text())["address"], started


def test_a_killed_worker_loses_nothing_and_records_are_those_of_a_local_run(tmp_path: Path) -> None:
    out, dask_folder = tmp_path / "out", tmp_path / "dask"
    dask_folder.mkdir()
    killed: list[str] = []
    taken: list[str] = []
    cells = [BUDGET, STL, FAILING]
    another = ExitStack()  # a process that runs STL, and gives it up when it is asked for
    another.enter_context(atomic.locked(runner.RunState(out, STL).work))
    with (
        another,
        workers(dask_folder, "one", "two") as (address, processes),
        dask_engine.DaskEngine(address, out, wait=60) as engine,
    ):

        def observe(status: SweepStatus, event: Event | None) -> None:
            if event is not None and event.kind == "busy":
                taken.append(event.cell)
                another.close()
            if event is not None and event.kind == "row" and event.cell == BUDGET.name and not killed:
                deadline = time.monotonic() + 5
                while not (out / f"{event.cell}{runner.UNFINISHED}").exists() and time.monotonic() < deadline:
                    time.sleep(0.01)
                running = engine.client.processing()
                [where] = [at for at, keys in running.items() if any(BUDGET.name in str(key) for key in keys)]
                name = engine.client.scheduler_info()["workers"][where]["name"]
                processes[name].kill()
                killed.append(name)

        status = sweep.run_cells(cells, engine, out, {}, 2, observe)
        assert len(killed) == 1, "a worker was killed in the middle of a cell"
        assert engine.workers == 1
        assert taken == [STL.name]
        assert status.counts == {"done": 2, "failed": 1}, status.failed
        assert "the loss became" in status.failed[FAILING.name]
        assert status.retries == [f"{BUDGET.name}: its worker was lost"]
        assert sorted(path.suffix for path in out.iterdir() if not path.name.startswith(".")) == [".json", ".json"]

        # A client that leaves takes its cells along: the one worker is free for the next.
        with dask_engine.DaskEngine(address, out, wait=60) as leaving:
            leaving.submit(LONG)
            while not any(event.kind == "working" for event in leaving.collect()):
                pass

        # Workers that do not see the results folder keep states of their own and send records back.
        far = tmp_path / "far"
        with dask_engine.DaskEngine(address, far, jobs=1, wait=60) as other:
            other._marker.unlink()
            began = time.monotonic()

            def impatient(status: SweepStatus, event: Event | None) -> None:
                assert time.monotonic() < began + 30

            assert sweep.run_cells([STL], other, far, {}, 1, impatient).counts == {"done": 1}
    assert [path.name for path in far.iterdir()] == [f"{STL.name}.json"]
    assert not list((dask_folder / "cache").rglob("*.json")), "no record stays in a worker's cache"
    assert records(out) == alone(tmp_path / "alone", [BUDGET, STL])
    assert records(far) == alone(tmp_path / "alone", [STL])


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
