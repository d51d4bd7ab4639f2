"""A folder that keeps a base and its tasks: safetensors files and a JSON manifest.

    manifest.json                       what is in the store, with checksums; replacing it is the commit
    base-<checksum>.safetensors         the frozen base
    tasks/<name>-<checksum>.safetensors a task: everything it owns, and how it was learned
    work/                               where interrupted tasks stood
    lock                                held while a commit is written

A file's name holds its checksum, so a commit never overwrites a file that the manifest names: new files are written
first, then the manifest is replaced in one move. A reader sees the old set of tasks or the new one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from halrp._version import __version__
from halrp.errors import (
    ConflictError,
    DamagedError,
    FormatError,
    StoreError,
    UnknownTaskError,
    WriteError,
    WrongBaseError,
)
from halrp.model import views
from halrp.model.base import Base
from halrp.model.delta import Delta
from halrp.model.layers.head import new_head
from halrp.store import atomic, task_file

FORMAT = 1
_BASE = re.compile(r"base-[0-9a-f]{16}\.safetensors")
_TASK = re.compile(r"tasks/[a-z0-9-]{1,48}-[0-9a-f]{16}\.safetensors")
_TEMPORARY = re.compile(rf"(tasks/)?\..+{re.escape(atomic.TEMPORARY)}")
_LARGEST_MANIFEST = 64 * 2**20


@dataclass(frozen=True)
class Entry:
    """A file of the store."""

    file: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """What is in a store."""

    head: str
    """The name of the model's head."""
    channels_last: bool
    """Whether convolutions keep their channels last."""
    fingerprint: str
    """Of the base."""
    base: Entry
    tasks: Mapping[str, Entry] = field(default_factory=dict)
    """By name, in the order of commits."""

    version: str = __version__
    """Of the library that wrote it."""

    def to_bytes(self) -> bytes:
        """The manifest's file: JSON that holds a checksum of itself."""
        facts = {
            "format": FORMAT,
            "halrp": self.version,
            "head": self.head,
            "channels_last": self.channels_last,
            "fingerprint": self.fingerprint,
            "base": asdict(self.base),
            "tasks": [{"name": name, **asdict(entry)} for name, entry in self.tasks.items()],
        }
        facts["sha256"] = atomic.checksum(json.dumps(facts).encode())
        return f"{json.dumps(facts, indent=1)}\n".encode()

    @staticmethod
    def parse(content: bytes, what: str) -> Manifest:
        """Read a manifest, believing nothing: what it says must be written in exactly these bytes."""
        try:
            facts = json.loads(content)
            if facts["format"] != FORMAT:
                raise FormatError(f"{what} has format {facts['format']!r}; this version reads format {FORMAT}")
            tasks: dict[str, Entry] = {}
            for task in facts["tasks"]:
                name = task.pop("name")
                if not isinstance(name, str) or not name or name in tasks:
                    raise DamagedError(f"{what} names the task {name!r} twice or not at all")
                tasks[name] = _entry(task, _TASK, what)
            _check(isinstance(facts["head"], str), what, "head")
            _check(isinstance(facts["channels_last"], bool), what, "channels_last")
            _check(re.fullmatch(r"[0-9a-f]{64}", facts["fingerprint"]) is not None, what, "fingerprint")
            _check(isinstance(facts["halrp"], str), what, "version")
            base = _entry(facts["base"], _BASE, what)
            found = Manifest(facts["head"], facts["channels_last"], facts["fingerprint"], base, tasks, facts["halrp"])
            if found.to_bytes() != content:
                raise DamagedError(f"{what}: its checksum is wrong; it was changed or cut")
            return found
        except StoreError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(f"{what} is not a manifest ({type(error).__name__}: {error})") from error


def _entry(facts: dict[str, Any], names: re.Pattern[str], what: str) -> Entry:
    _check(facts.keys() == {"file", "sha256", "bytes"}, what, "entry")
    entry = Entry(**facts)
    # Only names that this library gives: none of them leaves the folder.
    _check(isinstance(entry.file, str) and names.fullmatch(entry.file) is not None, what, f"file {entry.file!r}")
    _check(isinstance(entry.bytes, int) and not isinstance(entry.bytes, bool) and entry.bytes >= 8, what, "size")
    _check(isinstance(entry.sha256, str) and re.fullmatch(r"[0-9a-f]{64}", entry.sha256) is not None, what, "checksum")
    _check(entry.file.endswith(f"-{entry.sha256[:16]}.safetensors"), what, f"file {entry.file!r}")
    return entry


def _check(good: bool, what: str, field_name: str) -> None:
    if not good:
        raise DamagedError(f"{what} has a bad {field_name}")


class Store:
    """A folder of tasks. Reading needs no lock; writing holds it."""

    def __init__(self, folder: str | os.PathLike[str], checkpoint_every: float = 0.0) -> None:
        """Name a folder; nothing is read or written yet.

        A training that is interrupted goes on from a state that is at most `checkpoint_every` seconds and an epoch old.
        """
        self.folder, self.checkpoint_every = Path(folder), checkpoint_every

    def exists(self) -> bool:
        """Whether something has been committed here."""
        path = self.folder / "manifest.json"
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:  # saying no would let a commit begin anew over what cannot be seen now
            raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error
        return True

    def manifest(self) -> Manifest:
        """What is in the store now."""
        path = self.folder / "manifest.json"
        if not self.exists():
            raise StoreError(f"{self.folder} is not a store: it has no manifest.json; save a learner there first")
        return Manifest.parse(atomic.read(path, _LARGEST_MANIFEST), str(path))

    def content(self, entry: Entry) -> bytes:
        """A file of the store, checked against its checksum."""
        path = self.folder / entry.file
        content = atomic.read(path, entry.bytes)
        if len(content) != entry.bytes or atomic.checksum(content) != entry.sha256:
            raise DamagedError(
                f"{path} is not the file that was committed: it was changed or cut; restore a copy of it"
            )
        return content

    def read_all(self, base: Base) -> dict[str, Delta]:
        """Every task of the store, as one commit left them: begun anew if another process commits meanwhile."""
        while True:
            manifest = self.manifest()
            try:
                return {name: self.read(name, base, manifest) for name in manifest.tasks}
            except DamagedError:
                if self.manifest() == manifest:
                    raise

    def read(self, name: str, base: Base, manifest: Manifest | None = None) -> Delta:
        """A task of the store, held against the base."""
        tasks = (manifest or self.manifest()).tasks
        if name not in tasks:
            raise UnknownTaskError(f"{self.folder} has no task {name!r}; it has: {', '.join(tasks) or 'none'}")
        what = str(self.folder / tasks[name].file)
        delta = task_file.check(task_file.parse(self.content(tasks[name]), what), base, what)
        if delta.task != name:
            raise DamagedError(f"{what} holds the task {delta.task!r}, not {name!r}")
        return delta

    def read_base(self, like: Base) -> Base:
        """The store's base, on the architecture of `like`."""
        manifest = self.manifest()
        what = str(self.folder / manifest.base.file)
        try:
            tensors = safetensors.torch.load(self.content(manifest.base))
        except (SafetensorError, LookupError, ValueError, TypeError, RuntimeError) as error:
            raise DamagedError(f"{what} cannot be read: {error}") from error
        if manifest.head != like.plan.head:
            raise WrongBaseError(f"{what} was made with the head {manifest.head!r}, the model's is {like.plan.head!r}")
        net = views.clone(like.module)
        ours, theirs = like.tensors, tensors
        weight = f"{like.plan.head}.weight"
        classes = theirs[weight].shape[0] if weight in theirs and theirs[weight].dim() else 0
        head = {n for n in like.plan.parameters if like.plan.role(n) == "head"}
        shapes = {n: (classes, *t.shape[1:]) if n in head else tuple(t.shape) for n, t in ours.items()}
        wrong = sorted(ours.keys() ^ theirs.keys()) or [
            n for n in ours if shapes[n] != tuple(theirs[n].shape) or ours[n].dtype != theirs[n].dtype
        ]
        if wrong or not classes:
            raise WrongBaseError(
                f"{what} does not fit the model at {', '.join(wrong[:3]) or weight}; pass the model it was made with"
            )
        fresh = new_head(like.module.get_submodule(like.plan.head), classes, torch.device("meta"))
        views.replace_module(net, like.plan.head, fresh.to_empty(device=like.device))
        for name, tensor in theirs.items():
            # A copy lies in memory as a trained tensor does; the last bits of a product may depend on it.
            views.get_tensor(net, name).data = tensor.to(like.device, copy=True)
        base = Base(net, like.plan, manifest.channels_last)
        if base.fingerprint != manifest.fingerprint:
            raise DamagedError(f"{what} has the fingerprint {base.fingerprint[:12]}…, not {manifest.fingerprint[:12]}…")
        return base

    def commit(self, base: Base, deltas: Sequence[Delta], known: Mapping[str, Delta] | None = None) -> None:
        """Add tasks to the store, or replace tasks that pruning changed: all of them or none.

        With `known`, the tasks as the caller last saw them, a task is replaced only if it is still that one; another
        one of the same name, committed by somebody else, raises `ConflictError`.
        """
        with atomic.locked(self.folder):
            manifest = self.manifest() if self.exists() else None
            if manifest is not None and manifest.fingerprint != base.fingerprint:
                raise ConflictError(
                    f"{self.folder} holds tasks of another base ({manifest.fingerprint[:12]}…, not "
                    f"{base.fingerprint[:12]}…); choose another folder"
                )
            if manifest is None:
                entry = self._put(
                    "base", safetensors.torch.save({n: atomic.copy_of(t) for n, t in base.tensors.items()})
                )
                manifest = Manifest(base.plan.head, base.channels_last, base.fingerprint, entry)
            tasks = dict(manifest.tasks)
            contents = {delta.task: delta.to_bytes() for delta in deltas}
            if not self.exists():
                self._refuse_without_manifest(contents)
            for delta in deltas:
                content = contents[delta.task]
                if known is not None and delta.task in tasks:
                    self._refuse_other(tasks[delta.task], content, known.get(delta.task), delta.task)
                task_file.check(task_file.parse(content, delta.task), base, delta.task)  # nothing that cannot be read
                tasks[delta.task] = self._put(f"tasks/{slug(delta.task)}", content)
            new = Manifest(manifest.head, manifest.channels_last, manifest.fingerprint, manifest.base, tasks)
            content = new.to_bytes()
            path = self.folder / "manifest.json"
            if not self.exists() or atomic.read(path) != content:
                # The manifest may name only what the disk holds.
                for folder in ("tasks", ".") if tasks else (".",):
                    atomic.flush_folder(self.folder / folder)
                atomic.write(path, content)
                # The commit has happened; that it may not outlive a power cut does not undo it.
                with suppress(WriteError):
                    atomic.flush_folder(self.folder)
            self._tidy(new)

    def work_folder(self, name: str) -> Path:
        """Where checkpoints of a task may lie until it is committed."""
        digest = atomic.checksum(name.encode(errors="surrogatepass"))
        return self.folder / "work" / f"{slug(name)}-{digest[:16]}"

    def _refuse_without_manifest(self, contents: Mapping[str, bytes]) -> None:
        """Refuse to begin a store where tasks lie that no manifest names; they would be removed as leftovers."""
        ours = {_file(f"tasks/{slug(name)}", atomic.checksum(content)) for name, content in contents.items()}
        found = {path.relative_to(self.folder).as_posix() for path in (self.folder / "tasks").glob("*")}
        lost = sorted(file for file in found - ours if _TASK.fullmatch(file))
        if lost:
            raise ConflictError(
                f"{self.folder} holds {len(lost)} task files but no manifest.json ({lost[0]}, …); restore the "
                "manifest, move the files away, or choose another folder"
            )

    def _refuse_other(self, there: Entry, content: bytes, known: Delta | None, name: str) -> None:
        ours = {atomic.checksum(content)} | (set() if known is None else {atomic.checksum(known.to_bytes())})
        if there.sha256 not in ours:
            raise ConflictError(
                f"{self.folder} already holds another task {name!r}, and a committed task never changes; choose "
                "another name, or open the store again and use the task that is there"
            )

    def _put(self, stem: str, content: bytes) -> Entry:
        digest = atomic.checksum(content)
        entry = Entry(_file(stem, digest), digest, len(content))
        path = self.folder / entry.file
        if not path.exists() or atomic.checksum(atomic.read(path)) != digest:
            atomic.write(path, content)
        return entry

    def _tidy(self, manifest: Manifest) -> None:
        """Remove files that no commit names: replaced tasks, and what a killed process left unfinished.

        What cannot be removed stays: the commit has happened.
        """
        named = {manifest.base.file, *(entry.file for entry in manifest.tasks.values())}
        for path in (*self.folder.glob("*"), *(self.folder / "tasks").glob("*")):
            relative = path.relative_to(self.folder).as_posix()
            ours = _BASE.fullmatch(relative) or _TASK.fullmatch(relative) or _TEMPORARY.fullmatch(relative)
            with suppress(OSError):
                if ours and relative not in named and path.is_file():
                    path.unlink(missing_ok=True)
        left = set((self.folder / "work").glob("*"))
        for folder in left & {self.work_folder(name) for name in manifest.tasks} if left else ():
            shutil.rmtree(folder, ignore_errors=True)


def _file(stem: str, digest: str) -> str:
    return f"{stem}-{digest[:16]}.safetensors"


def slug(name: str) -> str:
    """A readable, harmless piece of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "task"
