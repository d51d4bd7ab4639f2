"""An I/O shim: everything that this process does to files below a folder, as steps that a fault can strike.

`watch` wraps the functions of `os` and `open`, through which every write of this package goes; files that are created
in another way are seen by an audit hook. A step is announced just before it happens, a write when half of its content
is in the file.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple


class Step(NamedTuple):
    """A change of the file system below the folder, with paths in it."""

    kind: str
    """One of create, write, flush, flush folder, move, remove, make folder, remove folder."""
    path: str
    target: str = ""
    """Where a file is moved to."""
    content: bytes = b""
    """All that the file holds after a write."""


Fault = Callable[[Step], None]
"""Called before each step; it may raise, or end the process."""


def no_fault(_: Step) -> None:
    """Let everything happen."""


@contextmanager
def watch(folder: Path, fault: Fault = no_fault) -> Iterator[list[Step]]:
    """Report the steps below a folder to a fault, for a block; yield the list of those that have happened."""
    shim = _Shim(os.path.realpath(folder), fault)
    if not _ACTIVE:
        sys.addaudithook(_audit)
        _ACTIVE.append(None)  # a hook stays for ever
    originals = {(owner, name): getattr(owner, name) for owner, name in _WRAPPED}
    try:
        _ACTIVE[0] = shim
        for (owner, name), original in originals.items():
            setattr(owner, name, shim.wrapped(name, original))
        yield shim.steps
    finally:
        _ACTIVE[0] = None
        for (owner, name), original in originals.items():
            setattr(owner, name, original)


_WRAPPED: tuple[tuple[Any, str], ...] = (
    (builtins, "open"),
    (io, "open"),
    *((os, name) for name in ("open", "write", "fsync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir")),
)
_OPEN = os.open
_WRITE = os.write
_ACTIVE: list[_Shim | None] = []
"""The shim of the block that is being watched, once there was one."""


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Announce the creation of a file by a call that is not wrapped, as that of a raw `io.FileIO`."""
    shim = _ACTIVE[0] if event == "open" else None
    if shim is not None and not shim.busy and isinstance(arguments[2], int):
        path, _, flags = arguments
        shim._create(path, flags, lambda: None)


class _Shim:
    def __init__(self, root: str, fault: Fault) -> None:
        self.root, self.fault, self.steps = root, fault, list[Step]()
        self.busy = False
        """Whether a call is under way that has been announced."""

    def wrapped(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """A function that announces its step and then calls the original."""
        method = getattr(self, f"_{name}")

        def call(*arguments: Any, **options: Any) -> Any:
            return method(original, *arguments, **options)

        return call

    def inside(self, path: Any, folder: int | None = None) -> str | None:
        """A path relative to the root; None if it lies elsewhere or is the root itself."""
        if isinstance(path, int):
            full = os.readlink(f"/proc/self/fd/{path}")
        else:
            above = None if folder is None else os.readlink(f"/proc/self/fd/{folder}")
            text = os.fsdecode(path)
            full = os.path.join(above, text) if above else os.path.abspath(text)
            full = os.path.join(os.path.realpath(os.path.dirname(full)), os.path.basename(full))
        return os.path.relpath(full, self.root) if full == self.root or full.startswith(f"{self.root}/") else None

    def happen(self, step: Step, act: Callable[[], Any]) -> Any:
        """Announce a step, do it, and note it."""
        self.fault(step)
        before, self.busy = self.busy, True
        try:
            result = act()
        finally:
            self.busy = before
        self.steps.append(step)
        return result

    def noted_write(self, path: str) -> None:
        """Note a write that has happened: what the file holds is read from it."""
        handle = _OPEN(os.path.join(self.root, path), os.O_RDONLY)
        with io.FileIO(handle) as file:
            self.steps.append(Step("write", path, content=file.readall()))

    # ---- one method for each wrapped function ---------------------------------------------------------------------

    def _open(self, original: Any, path: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(path, int):
            return original(path, *arguments, **options)
        if original is _OPEN:
            flags = arguments[0] if arguments else options["flags"]
            return self._create(path, flags, lambda: original(path, *arguments, **options), options.get("dir_fd"))
        mode = arguments[0] if arguments else options.get("mode", "r")
        inside = self.inside(path)
        # A folder is opened for a file without a name, which is no change of the folder.
        if inside is None or not set(mode) & set("wxa+") or os.path.isdir(path):
            return original(path, *arguments, **options)
        return self._file(inside, path, mode, options)

    def _create(self, path: Any, flags: int, act: Callable[[], Any], folder: int | None = None) -> Any:
        inside = None if isinstance(path, int) else self.inside(path, folder)
        if inside is None or not flags & os.O_CREAT or os.path.lexists(os.path.join(self.root, inside)):
            return act()
        return self.happen(Step("create", inside), act)

    def _file(self, inside: str, path: Any, mode: str, options: dict[str, Any]) -> Any:
        """A file of the wanted mode, over a raw one whose writes are steps."""
        raw_mode = mode.replace("b", "").replace("t", "")
        new = not os.path.lexists(os.path.join(self.root, inside))
        open_raw: Callable[[], _Raw] = lambda: _Raw(self, inside, path, raw_mode)  # noqa: E731
        raw = self.happen(Step("create", inside), open_raw) if new else open_raw()
        if not new and "w" in mode:
            self.noted_write(inside)
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding=options.get("encoding"))

    def _write(self, original: Any, handle: int, content: Any) -> int:
        inside = self.inside(handle) if os.path.isfile(f"/proc/self/fd/{handle}") else None
        return int(original(handle, content)) if inside is None else self.torn(handle, inside, bytes(content))

    def torn(self, handle: int, inside: str, content: bytes) -> int:
        """Write half of a content, announce the write, and write the rest."""
        half = len(content) // 2
        _WRITE(handle, content[:half])
        self.fault(Step("write", inside, content=content))
        _WRITE(handle, content[half:])
        self.noted_write(inside)
        return len(content)

    def _fsync(self, original: Any, handle: Any) -> None:
        number = handle if isinstance(handle, int) else handle.fileno()
        inside = self.inside(number)
        if inside is None:
            return original(handle)  # type: ignore[no-any-return]
        kind = "flush folder" if os.path.isdir(f"/proc/self/fd/{number}") else "flush"
        # The model of crashes decides what survives: waiting for the real disk would only take time.
        self.happen(Step(kind, inside), lambda: None)
        return None

    def _replace(
        self, original: Any, source: Any, target: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        first, second = self.inside(source, src_dir_fd), self.inside(target, dst_dir_fd)
        act = lambda: original(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)  # noqa: E731
        if first is None or second is None:
            act()
        else:
            self.happen(Step("move", first, second), act)

    _rename = _replace

    def _unlink(self, original: Any, path: Any, *, dir_fd: int | None = None) -> None:
        self._change("remove", original, path, dir_fd=dir_fd)

    _remove = _unlink

    def _rmdir(self, original: Any, path: Any, *, dir_fd: int | None = None) -> None:
        self._change("remove folder", original, path, dir_fd=dir_fd)

    def _mkdir(self, original: Any, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._change("make folder", original, path, mode, dir_fd=dir_fd)

    def _change(self, kind: str, original: Any, path: Any, *arguments: Any, dir_fd: int | None) -> None:
        inside = self.inside(path, dir_fd)
        there = inside is not None and os.path.lexists(os.path.join(self.root, inside))
        act = lambda: original(path, *arguments, dir_fd=dir_fd)  # noqa: E731
        if inside is None or there == (kind == "make folder"):  # it fails, and changes nothing
            act()
        else:
            self.happen(Step(kind, inside), act)


class _Raw(io.FileIO):
    """A file whose writes are steps."""

    def __init__(self, shim: _Shim, inside: str, path: Any, mode: str) -> None:
        super().__init__(path, mode)
        self.shim, self.inside_root = shim, inside

    def write(self, content: Any) -> int:
        """Write half, announce the step, write the rest."""
        return self.shim.torn(self.fileno(), self.inside_root, bytes(content))
