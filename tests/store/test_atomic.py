"""Atomic writes, and a lock that ends with the process that holds it."""

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from halrp.errors import DamagedError, LockedError, StoreError, WriteError
from halrp.store import atomic
from tests.timing import PATIENCE


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_written_and_replaced_whole(durable: bool, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    for content in (b"first", b"", b"a longer second"):
        atomic.write(path, content, durable=durable)
        assert path.read_bytes() == atomic.read(path) == content
        assert list(path.parent.iterdir()) == [path]


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    atomic.write(path, b"old")
    original, seen = os.replace, []

    def replace(source: Path, target: Path) -> None:
        seen.append((target.read_bytes(), source.read_bytes(), source.name.endswith(atomic.TEMPORARY), source.parent))
        original(source, target)

    monkeypatch.setattr(os, "replace", replace)
    atomic.write(path, b"new")
    # The same folder: a move between file systems would not be one step.
    assert seen == [(b"old", b"new", True, tmp_path)]
    assert path.read_bytes() == b"new"


def test_the_disk_has_the_content_before_a_durable_write_moves_it_into_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, replace = os.fsync, os.replace

    def fsync(handle: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "content")
        sync(handle)

    def move(*names: Any) -> None:
        steps.append("move")
        replace(*names)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", move)
    atomic.write(tmp_path / "file", b"x")
    assert steps == ["content", "move"]
    atomic.write(tmp_path / "other", b"x", durable=False)
    assert steps == ["content", "move", "move"]
    steps.clear()
    atomic.flush_folder(tmp_path)
    assert steps == ["folder"]
    atomic.write(tmp_path / "new" / "folder" / "file", b"x")  # each new folder is remembered by the one above it
    assert steps == ["folder", "folder", "folder", "content", "move"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), WriteError, r"file could not be written: the disk is full"),
        (PermissionError(errno.EACCES, "Permission denied"), WriteError, r"Permission denied; what was there before"),
        (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
    ],
)
def test_a_write_that_fails_leaves_the_old_file_and_nothing_unfinished(
    step: str,
    error: BaseException,
    raised: type[BaseException],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "file"
    atomic.write(path, b"old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(raised, match=message):
        atomic.write(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_a_write_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"in the way")
    with pytest.raises(WriteError, match="could not be written"):
        atomic.write(tmp_path / "file" / "below", b"x")
    with pytest.raises(WriteError, match="could not be opened"), atomic.locked(tmp_path / "file"):
        pass
    assert (tmp_path / "file").read_bytes() == b"in the way"


def test_a_write_error_is_a_store_error_and_an_os_error() -> None:
    assert issubclass(WriteError, (StoreError, OSError))


def test_long_names_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250)
    atomic.write(path, b"x")
    assert path.read_bytes() == b"x"


def test_a_missing_file_a_folder_and_a_file_too_large_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DamagedError, match="missing or not a file"):
        atomic.read(tmp_path / "nothing")
    with pytest.raises(DamagedError, match="missing or not a file"):
        atomic.read(tmp_path)
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert atomic.read(path, limit=5) == b"12345"
    with pytest.raises(DamagedError, match="5 bytes, more than the 4"):
        atomic.read(path, limit=4)


def test_a_sparse_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with open(tmp_path / "file", "wb") as file:
        file.truncate(8 << 30)
    with pytest.raises(DamagedError, match="8,589,934,592 bytes, more than the 4,294,967,296"):
        atomic.read(tmp_path / "file")


def test_a_file_that_memory_cannot_hold_is_a_typed_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Crowded(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            raise MemoryError

    (tmp_path / "file").write_bytes(b"12345")
    monkeypatch.setattr(Path, "open", lambda path, mode: Crowded(str(path), mode))
    with pytest.raises(DamagedError, match="no memory for its 5 bytes"):
        atomic.read(tmp_path / "file")


def test_a_checksum_is_the_sha256_of_the_content() -> None:
    assert atomic.checksum(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_lock_is_free_again_after_its_block_and_after_an_error(tmp_path: Path) -> None:
    for _ in range(2):
        with atomic.locked(tmp_path / "new", wait=0.0):
            pass
    with pytest.raises(RuntimeError), atomic.locked(tmp_path, wait=0.0):
        raise RuntimeError
    with atomic.locked(tmp_path, wait=0.0):
        pass


def test_a_lock_that_is_removed_while_it_is_taken_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")
    folder, flock, removed = tmp_path / "work", fcntl.flock, list[Path]()

    def slow(handle: int, operation: int) -> None:
        flock(handle, operation)
        if not removed:  # the former holder leaves, and removes its folder as it does
            shutil.rmtree(folder)
            removed.append(folder)

    monkeypatch.setattr(fcntl, "flock", slow)
    with atomic.locked(folder, wait=1.0):
        assert removed
        with pytest.raises(LockedError), atomic.locked(folder, wait=0.0):
            pass


def test_folders_have_locks_of_their_own(tmp_path: Path) -> None:
    with atomic.locked(tmp_path / "one", wait=0.0), atomic.locked(tmp_path / "other", wait=0.0):
        for name in ("one", "other"):
            with pytest.raises(LockedError, match=name), atomic.locked(tmp_path / name, wait=0.0):
                pass


HOLDER = """
import sys
from pathlib import Path
from halrp.store import atomic

with atomic.locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.name != "posix", reason="the system has no file locks")
def test_a_lock_held_by_another_process_is_named_and_is_free_when_that_process_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            began = time.monotonic()
            message = r"another process is writing to .*not free for 0\.2 seconds"
            with pytest.raises(LockedError, match=message), atomic.locked(tmp_path, wait=0.2):
                pass
            assert time.monotonic() - began >= 0.2
            holder.send_signal(signal.SIGKILL)
            # The system frees it as the process ends; waiting for that is what the lock does by itself.
            with atomic.locked(tmp_path, wait=PATIENCE):
                pass
        finally:
            holder.kill()


def _use(folder: Path) -> None:
    with atomic.locked(folder, wait=0.0):
        time.monotonic()


def test_a_lock_is_free_after_an_interrupt_at_any_instruction_between_taking_and_using_it(tmp_path: Path) -> None:
    """Every instruction of `locked`, of what it calls and of its caller; the traceback is still alive."""
    files = {_use.__code__.co_filename, atomic.locked.__code__.co_filename}
    instructions = 0

    def interrupted_at(number: int) -> BaseException | None:
        nonlocal instructions
        instructions = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal instructions
            if frame.f_code.co_filename not in files or frame.f_code.co_name in ("__del__", "interrupted_at"):
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                instructions += 1
                if instructions == number:
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            _use(tmp_path)
        except KeyboardInterrupt as error:
            return error
        finally:
            sys.settrace(None)
        return None

    assert interrupted_at(0) is None
    handles = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    total, caught = instructions, []
    assert total > 50
    for number in range(1, total + 1):
        caught.append(interrupted_at(number))
        with atomic.locked(tmp_path, wait=0.0):  # raises LockedError if the lock is held
            pass
    assert all(isinstance(error, KeyboardInterrupt) for error in caught)
    assert handles is None or len(os.listdir("/proc/self/fd")) == handles


def test_a_folder_that_another_process_makes_meanwhile_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, is_dir = tmp_path / "new", Path.is_dir

    def slow(path: Path) -> bool:
        answer = is_dir(path)
        if path == folder and not answer:
            os.mkdir(folder)
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_dir", slow)
        atomic.make_folder(folder)
    assert folder.is_dir()


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with pytest.raises(DamagedError, match=rf"^{path} cannot be read: Input/output error$"):
            atomic.read(path)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="handles are counted in /proc")
def test_flushing_folders_and_locks_that_are_taken_leave_no_open_handle(tmp_path: Path) -> None:
    def target(handle: str) -> str:
        try:
            return os.readlink(f"/proc/self/fd/{handle}")
        except FileNotFoundError:  # the handle of the listing itself
            return ""

    def handles() -> list[str]:
        targets = [target(handle) for handle in os.listdir("/proc/self/fd")]
        return [path for path in targets if path.startswith(str(tmp_path))]

    atomic.flush_folder(tmp_path)
    assert handles() == []
    with atomic.locked(tmp_path):
        assert atomic.take_lock(tmp_path / "lock") is None
        assert handles() == [str(tmp_path / "lock")]
    assert handles() == []


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, fstat = tmp_path / "file", os.fstat
    path.write_bytes(b"content")

    def smaller(handle: int) -> os.stat_result:
        fields = list(fstat(handle))
        fields[stat.ST_SIZE] = 3
        return os.stat_result(fields)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", smaller)
        with pytest.raises(DamagedError, match="it grows while it is read"):
            atomic.read(path)
    assert atomic.read(path) == b"content"


def test_a_write_error_has_the_reason_of_the_system_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error", "somewhere")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", refuse)
        with pytest.raises(WriteError, match="could not be written: Input/output error; what was there"):
            atomic.write(tmp_path / "file", b"content")
