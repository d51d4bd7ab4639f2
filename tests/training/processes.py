"""Several processes that learn together: forked children in one gloo group, which meet in a file and not at a port."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.helpers import one_thread
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
