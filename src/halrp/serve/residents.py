"""The tasks of a store that are in memory, at most a number of bytes of them: `ResidentTasks`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from itertools import count
from threading import Lock

from torch import nn

from halrp.serve.loaded import LoadedTask

Version = str
"""The checksum of a task's file."""


class ResidentTasks:
    """Tasks by version; the least recently used ones make room. Threads may ask at the same time.

    What a task takes is its delta and, once it has been asked for alone, its merged weights, which are the first to go.
    A task that is being used stays until its call ends, also beyond the limit.
    """

    def __init__(self, limit: int) -> None:
        """Bound the bytes of all tasks together."""
        self.limit = limit
        self.loads = self.evictions = 0
        """Files read, and tasks dropped to make room."""
        self._tasks: OrderedDict[Version, LoadedTask] = OrderedDict()
        self._sizes: dict[Version, int] = {}
        self._loading: dict[Version, Future[LoadedTask]] = {}
        self._pinned: frozenset[Version] = frozenset()
        self._lock, self._uses = Lock(), count(1)

    @property
    def bytes(self) -> int:
        """What the tasks take at present."""
        with self._lock:
            return sum(self._sizes.values())

    @property
    def sizes(self) -> Mapping[Version, int]:
        """What each task takes at present."""
        with self._lock:
            return dict(self._sizes)

    def task(self, version: Version, read: Callable[[], LoadedTask]) -> LoadedTask:
        """A task, which is read if it is not in memory: once, also if several threads ask for it."""
        with self._lock:
            task = self._tasks.get(version)
            if task is not None:
                self._use(task)
                return task
            future = self._loading.get(version)
            reads = future is None
            if future is None:
                future = self._loading[version] = Future()
        if not reads:
            return future.result()
        try:
            task = read()
        except BaseException as error:
            with self._lock:
                del self._loading[version]
            future.set_exception(error)
            raise
        with self._lock:
            del self._loading[version]
            self._tasks[version], task.resident = task, True
            self.loads += 1
            self._use(task)
            self._make_room(task)
        future.set_result(task)
        return task

    def module(self, task: LoadedTask) -> nn.Module:
        """The module of a task, whose merged weights count from now on."""
        module = task.module()
        with self._lock:
            if not task.resident:
                task.drop_module()  # whoever asks has the module; nobody would count it
            elif self._sizes[task.version] != task.bytes:
                self._make_room(task)
        return module

    def pin(self, versions: Collection[Version]) -> None:
        """Say which tasks never make room for others, instead of those before."""
        with self._lock:
            self._pinned = frozenset(versions)

    def keep_only(self, versions: Collection[Version]) -> None:
        """Drop the tasks that a store no longer names."""
        with self._lock:
            for version in self._tasks.keys() - set(versions):
                self._drop(version)

    def drop(self, version: Version) -> bool:
        """Drop a task, if it is in memory."""
        with self._lock:
            there = version in self._tasks
            if there:
                self._drop(version)
            return there

    # ---- with the lock held -------------------------------------------------------------------------------------

    def _use(self, task: LoadedTask) -> None:
        task.last_use = next(self._uses)
        self._tasks.move_to_end(task.version)

    def _make_room(self, used: LoadedTask) -> None:
        """Drop merged weights, which can be built again, and then whole tasks, until the rest fits the limit."""
        self._sizes[used.version] = used.bytes
        total = sum(self._sizes.values())
        others = [version for version in self._tasks if version != used.version and version not in self._pinned]
        for version in others if total > self.limit else ():
            task = self._tasks[version]
            total -= self._sizes[version] - task.delta_bytes
            task.drop_module()
            self._sizes[version] = task.delta_bytes
            if total <= self.limit:
                return
        for version in others if total > self.limit else ():
            total -= self._sizes[version]
            self._drop(version)
            self.evictions += 1
            if total <= self.limit:
                return

    def _drop(self, version: Version) -> None:
        task = self._tasks.pop(version)
        task.resident = False
        task.drop_module()
        del self._sizes[version]
