"""Several processes that serve together: `supervise`.

The supervisor opens the store, starts no thread, and forks, so that its workers share the memory of the base, and of
tasks that are pinned, with it. All accept connections from one listening socket. A worker that dies is replaced from
the same memory; connections that wait to be accepted go to the others until then. When the supervisor is asked to end,
it asks its workers and waits for them; when it is killed, a pipe that only it holds ends, and they finish on their own.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from halrp.checks import is_whole
from halrp.errors import SettingError

LOG = logging.getLogger("halrp.server")
ASKED = (signal.SIGTERM, signal.SIGINT)
MOST = 256
QUICK = 5.0
"""Seconds: a worker that lives for less waits before it is replaced, longer each time, so that failing is cheap."""
LONGEST_WAIT = 5.0

Work = Callable[[int, "Orphaned"], None]
"""What a worker does, given its number, until it is asked to end by SIGTERM."""


class Orphaned:
    """Whether the supervisor is gone; a worker watches the pipe that it holds."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def watch(self, end: Callable[[], None], seconds: float) -> None:
        """Call `end` when the supervisor is gone; a process that has not ended `seconds` later is ended."""

        def wait() -> None:
            os.read(self._pipe, 1)
            end()
            time.sleep(seconds)
            os._exit(1)

        threading.Thread(target=wait, name="halrp-orphaned", daemon=True).start()


class _Workers:
    """The processes by their numbers."""

    def __init__(self, count: int, work: Work) -> None:
        self.count, self._work = count, work
        self.processes: dict[int, int] = {}
        """Process to number."""
        self._due: dict[int, float] = dict.fromkeys(range(count), 0.0)
        """When a number is to be started, by those that have no process."""
        self._started: dict[int, float] = {}
        self._quick = dict.fromkeys(range(count), 0)
        self._reading, self._writing = os.pipe()

    def start_due(self) -> float | None:
        """Start what is due; return the seconds until the next is, if any."""
        now = time.monotonic()
        for number in [number for number, due in self._due.items() if due <= now]:
            del self._due[number]
            self._start(number)
        return None if not self._due else max(0.0, min(self._due.values()) - now)

    def _start(self, number: int) -> None:
        # A signal that came to a new process before it has its handlers would be lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ASKED)
        process = os.fork()
        if process == 0:
            status = 1
            try:
                os.close(self._writing)
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches all; the supervisor decides
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                self._work(number, Orphaned(self._reading))
                status = 0
            except BaseException:
                LOG.exception("worker %d failed", number)
            finally:
                os._exit(status)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.processes[process] = number
        self._started[number] = time.monotonic()

    def reap(self) -> None:
        """Note the processes that ended, and when each is to be replaced."""
        while self.processes:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                return
            number = self.processes.pop(process, None)
            if number is None:
                continue
            now = time.monotonic()
            quick = now - self._started[number] < QUICK
            self._quick[number] = self._quick[number] + 1 if quick else 0
            wait = min(LONGEST_WAIT, 0.1 * 2 ** self._quick[number]) if quick else 0.0
            self._due[number] = now + wait
            code = os.waitstatus_to_exitcode(status)
            reason = f"signal {-code}" if code < 0 else f"exit code {code}"
            LOG.warning("worker %d (process %d) ended by %s; it is replaced", number, process, reason)

    def end(self, seconds: float, hurry: Callable[[], bool]) -> None:
        """Ask all to end, and end those that do not; at once if there is a hurry."""
        self._signal(signal.SIGTERM)
        until = time.monotonic() + seconds
        while self.processes:
            process, _ = os.waitpid(-1, os.WNOHANG)
            if process:
                self.processes.pop(process, None)
                continue
            if time.monotonic() > until or hurry():
                self._signal(signal.SIGKILL)
            time.sleep(0.02)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes:
            os.kill(process, number)


def prepare_forks(count: int) -> int:
    """Before a process that will fork computes anything: let it start no threads; return how many each worker may have.

    A process that is forked from one with threads for tensors waits for them for ever.
    """
    if not is_whole(count, 1, MOST + 1):
        raise SettingError(f"--workers {count} is out of range; give 1 to {MOST}")
    threads = torch.get_num_threads()
    if count > 1:
        torch.set_num_threads(1)
    return max(1, threads // count)


def supervise(count: int, work: Work, seconds: float, started: Callable[[], None]) -> None:
    """Keep a number of workers at work until SIGTERM or SIGINT; each has `seconds` to end, or none after a second one.

    Forks, so no other thread may run in this process.
    """
    if not hasattr(os, "fork"):  # pragma: no cover
        raise SettingError("--workers needs a system that can fork; start one process, or use containers")
    asked: list[int] = []
    gc.freeze()  # a collection would write to, and so copy, what the workers share
    with _signals(asked) as waking:
        workers = _Workers(count, work)
        wait = workers.start_due()
        started()
        while not asked:
            if select.select([waking], [], [], wait)[0]:
                os.read(waking, 4096)
            workers.reap()
            wait = workers.start_due() if not asked else None
        workers.end(seconds, lambda: len(asked) > 1)


@contextmanager
def _signals(asked: list[int]) -> Iterator[int]:
    """Note the signals that ask to end; yields a descriptor that can be read when one of them, or of a child, came."""

    def note(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            asked.append(number)

    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = {number: signal.signal(number, note) for number in (*ASKED, signal.SIGCHLD)}
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)
