"""Several processes that learn together: forked children in one gloo group, which meet in a file and not at a port."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from halrp import Halrp, Learner, Progress, Recipe
from tests.helpers import net, one_thread
from tests.timing import PATIENCE

KILLED = "killed"
"""The result of a process that was killed."""


def together(work: Callable[[int], Any], folder: Path, size: int = 2) -> list[Any]:
    """What `work(rank)` returns in each of `size` processes, or the exception that it raises."""
    folder.mkdir(parents=True, exist_ok=True)
    with one_thread():
        children = [_child(work, folder, rank, size) for rank in range(size)]
    for child in children:
        os.waitpid(child, 0)
    files = [folder / f"result-{rank}" for rank in range(size)]
    return [pickle.loads(file.read_bytes()) if file.exists() else KILLED for file in files]


def _child(work: Callable[[int], Any], folder: Path, rank: int, size: int) -> int:
    child = os.fork()
    if child:
        return child
    try:
        signal.alarm(int(PATIENCE))  # nobody waits for ever
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        meeting = f"file://{folder / 'meeting'}"
        patience = timedelta(seconds=PATIENCE)
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size, timeout=patience)
        try:
            result = work(rank)
        except BaseException as error:
            result = error
        try:
            content = pickle.dumps(result)
        except Exception as error:
            content = pickle.dumps(error)
        (folder / f"result-{rank}").write_bytes(content)
    finally:
        os._exit(0)


RECIPE = Recipe(epochs=4, batch=8, lr=5e-3)
METHOD = dataclasses.replace(Halrp.budget(growth_per_task=0.9), warm_up=2, trial=0.5)


def learner(kind: str = "mlp", distributed: bool = True, **settings: Any) -> Learner:
    defaults: dict[str, Any] = {"recipe": RECIPE, "method": METHOD, "base": "given", "progress": None}
    return Learner(net(kind), distributed=distributed, **defaults | settings)


class Log:
    """A progress callback that notes finished epochs, and does something after a number of them."""

    def __init__(self, after: int = 0, then: Callable[[], None] = lambda: None) -> None:
        self.after, self.then = after, then
        self.epochs: list[tuple[str, int]] = []

    def __call__(self, at: Progress) -> None:
        if at.step == 0:
            self.epochs.append((at.stage, at.epoch))
            if len(self.epochs) == self.after:
                self.then()
