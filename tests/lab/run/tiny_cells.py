"""Cells of seconds, an engine without processes, and records to hold others against."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

from halrp.errors import HalrpError
from halrp.lab.run import runner
from halrp.lab.run.cell import Cell
from halrp.lab.run.engine import Engine, Event, one_line, run_cell
from tests.helpers import one_thread

COMMON: dict[str, Any] = {
    "stream": "digits",
    "backbone": "digits-net",
    "tasks": 3,
    "recipe": {"epochs": 2, "batch": 32},
}
SWEEP = """
stream = "digits"
backbone = "digits-net"
tasks = 3
recipe = { epochs = 2, batch = 32 }
[[cells]]
method = "halrp-budget"
settings = { growth_per_task = 0.2 }
[[cells]]
method = "finetune"
[[cells]]
method = "stl"
"""


def cell(method: str, **changes: Any) -> Cell:
    return Cell.of(COMMON | {"method": method} | changes)


BUDGET = cell("halrp-budget", settings={"growth_per_task": 0.2})
FINETUNE = cell("finetune")
STL = cell("stl")
FAILING = cell("stl", recipe={"epochs": 1, "lr": 1e38})
CELLS = [BUDGET, FINETUNE, STL]


def alone(folder: Path, cells: list[Cell] = CELLS) -> dict[str, runner.Record]:
    """Records of uninterrupted runs in this process, times aside."""
    with one_thread():
        return {cell.name: runner.without_times(runner.execute(cell, folder)) for cell in cells}


def records(folder: Path) -> dict[str, runner.Record]:
    """Records in a folder, times aside."""
    return {path.stem: runner.without_times(runner.read(path)) for path in folder.glob("*.json")}


class InlineEngine(Engine):
    """Runs cells in this process, one per `collect`."""

    def __init__(self, folder: Path, jobs: int = 1, *, data: Path | None = None, device: str = "cpu") -> None:
        self.folder, self.data, self.device = folder, data, device
        self.waiting: deque[Cell] = deque()

    def submit(self, cell: Cell) -> None:
        self.waiting.append(cell)

    def collect(self, seconds: float = 0.5) -> list[Event]:
        cell, events = self.waiting.popleft(), list[Event]()
        try:
            with one_thread():
                run_cell(cell.canonical(), self.folder, None, self.device, events.append)
        except HalrpError as error:
            return [*events, Event(cell.name, "failed", text=one_line(error))]
        return [*events, Event(cell.name, "done")]

    def stop(self) -> None:
        self.waiting.clear()
