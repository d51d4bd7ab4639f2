"""A folder with a base and its tasks: safetensors files and a JSON manifest.

    manifest.json                       what is in the store, with checksums; replacing it is the commit
    base-<checksum>.safetensors         the frozen base
    layout-<checksum>.json              names, types and shapes of what tasks may own
    tasks/<name>-<checksum>.safetensors a task: everything it owns, and how it was learned
    work/                               checkpoints of interrupted tasks
    lock                                held while a commit is written

A file's name holds its checksum, so a commit never overwrites a file that the manifest names: new files are written
first, then the manifest is replaced in one move. A reader sees the old set of tasks or the new one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError

from halrp.errors import ConflictError, DamagedError, StoreError, UnknownTaskError, WriteError, WrongBaseError
from halrp.model import views
from halrp.model.base import Base
from halrp.model.delta import Delta
from halrp.model.layers.head import new_head
from halrp.model.layout import Layout
from halrp.store import atomic, task_file
from halrp.store.manifest import BASE, LAYOUT, TASK, Entry, Manifest, entry_of
from halrp.store.tensors import copy_of

_TEMPORARY = re.compile(rf"(tasks/)?\..+{re.escape(atomic.TEMPORARY)}")
_LARGEST_MANIFEST = 64 * 2**20
_CONVERSIONS = {
    torch.float64: "double",
    torch.float32: "float",
    torch.bfloat16: "bfloat16",
    torch.float16: "half",
}
"""How a model's precision is changed."""


class Store:
    """A folder of tasks. Reading needs no lock; writing holds it."""

    def __init__(self, folder: str | os.PathLike[str], checkpoint_every: float = 0.0) -> None:
        """Name a folder; nothing is read or written yet.

        A training that is interrupted is resumed from a checkpoint at most `checkpoint_every` seconds and an epoch old.
        """
        self.folder, self.checkpoint_every = Path(folder), checkpoint_every

    def exists(self) -> bool:
        """Whether something has been committed here."""
        path = self.folder / "manifest.json"
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:  # answering no would let a commit replace what cannot be seen now
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

    def layouts(self, manifest: Manifest) -> Mapping[str, Layout]:
        """What the task files of a manifest are laid out by, by digest."""
        layouts = {}
        for digest, entry in manifest.layouts.items():
            source = str(self.folder / entry.file)
            layouts[digest] = layout = Layout.parse(self.content(entry), source)
            if layout.fingerprint != manifest.fingerprint:
                raise DamagedError(f"{source} belongs to another base, {layout.fingerprint[:12]}…")
        return layouts

    def read_all(self, base: Base) -> dict[str, Delta]:
        """Every task of the store, as one commit left them: read again if another process commits meanwhile."""
        while True:
            manifest = self.manifest()
            try:
                layouts = self.layouts(manifest)
                return {name: self._read(name, base, manifest, layouts) for name in manifest.tasks}
            except DamagedError:
                if self.manifest() == manifest:
                    raise

    def read(self, name: str, base: Base) -> Delta:
        """A task of the store, compared with the base."""
        manifest = self.manifest()
        if name not in manifest.tasks:
            known = ", ".join(manifest.tasks) or "none"
            raise UnknownTaskError(f"{self.folder} has no task {name!r}; it has: {known}")
        return self._read(name, base, manifest, self.layouts(manifest))

    def _read(self, name: str, base: Base, manifest: Manifest, layouts: Mapping[str, Layout]) -> Delta:
        entry = manifest.tasks[name]
        source = str(self.folder / entry.file)
        delta = task_file.check(task_file.read(self.content(entry), layouts, source), base, source)
        if delta.task != name:
            raise DamagedError(f"{source} holds the task {delta.task!r}, not {name!r}")
        return delta

    def read_base(self, like: Base) -> Base:
        """The store's base, on the architecture of `like`."""
        manifest = self.manifest()
        source = str(self.folder / manifest.base.file)
        try:
            tensors = safetensors.torch.load(self.content(manifest.base))
        except (SafetensorError, LookupError, ValueError, TypeError, RuntimeError) as error:
            raise DamagedError(f"{source} cannot be read: {error}") from error
        if manifest.head != like.plan.head:
            raise WrongBaseError(
                f"{source} was made with the head {manifest.head!r}, the model's is {like.plan.head!r}"
            )
        classes = _classes_of(tensors, like, source)
        net = views.clone(like.module)
        fresh = new_head(like.module.get_submodule(like.plan.head), classes, torch.device("meta"))
        views.replace_module(net, like.plan.head, fresh.to_empty(device=like.device))
        for name, tensor in tensors.items():
            # A copy lies in memory as a trained tensor does; the last bits of a product may depend on it.
            views.get_tensor(net, name).data = tensor.to(like.device, copy=True)
        base = Base(net, like.plan, manifest.channels_last)
        if base.fingerprint != manifest.fingerprint:
            ours, theirs = base.fingerprint[:12], manifest.fingerprint[:12]
            raise DamagedError(f"{source} has the fingerprint {ours}…, not {theirs}…")
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
                content = safetensors.torch.save({n: copy_of(t) for n, t in base.tensors.items()})
                manifest = Manifest(base.plan.head, base.channels_last, base.fingerprint, self._put("base", content))
            contents = {delta.task: task_file.write(delta) for delta in deltas}
            if not self.exists():
                self._refuse_without_manifest(contents)
            layouts = dict(manifest.layouts)
            for layout in {delta.layout.digest: delta.layout for delta in deltas}.values():
                layouts[layout.digest] = self._put("layout", layout.content, ".json")
            tasks = dict(manifest.tasks)
            for delta in deltas:
                tasks[delta.task] = self._task_entry(delta, contents[delta.task], base, manifest, known)
            new = Manifest(manifest.head, manifest.channels_last, manifest.fingerprint, manifest.base, tasks, layouts)
            self._replace_manifest(new)
            self._tidy(new)

    def _task_entry(
        self, delta: Delta, content: bytes, base: Base, manifest: Manifest, known: Mapping[str, Delta] | None
    ) -> Entry:
        """The entry of a task to commit: the one that is there if it is the same task, or that of a new file."""
        there = manifest.tasks.get(delta.task)
        if there is not None and there.sha256 != atomic.checksum(content):
            stored = self._rewritten(delta.task, base, manifest)
            if stored == content:  # the same task, in the format of an earlier version
                return there
            if known is not None:
                before = known.get(delta.task)
                if before is None or stored != task_file.write(before):
                    raise ConflictError(
                        f"{self.folder} already holds another task {delta.task!r}, and a committed task never "
                        "changes; choose another name, or open the store again and use the task that is there"
                    )
        # Nothing that cannot be read.
        read = task_file.read(content, {delta.layout.digest: delta.layout}, delta.task)
        task_file.check(read, base, delta.task)
        return self._put(f"tasks/{slug(delta.task)}", content)

    def _rewritten(self, name: str, base: Base, manifest: Manifest) -> bytes | None:
        """A task of the store as this version writes it; None if it cannot be read."""
        try:
            return task_file.write(self._read(name, base, manifest, self.layouts(manifest)))
        except StoreError:
            return None

    def _replace_manifest(self, manifest: Manifest) -> None:
        content = manifest.to_bytes()
        path = self.folder / "manifest.json"
        if self.exists() and atomic.read(path, _LARGEST_MANIFEST) == content:
            return
        # The manifest may name only what the disk holds.
        for folder in ("tasks", ".") if manifest.tasks else (".",):
            atomic.flush_folder(self.folder / folder)
        atomic.write(path, content)
        # The commit has happened; that it may not outlive a power cut does not undo it.
        with suppress(WriteError):
            atomic.flush_folder(self.folder)

    def work_folder(self, name: str) -> Path:
        """Where checkpoints of a task may lie until it is committed."""
        digest = atomic.checksum(name.encode(errors="surrogatepass"))
        return self.folder / "work" / f"{slug(name)}-{digest[:16]}"

    def _refuse_without_manifest(self, contents: Mapping[str, bytes]) -> None:
        """Refuse to begin a store where tasks lie that no manifest names; they would be removed as leftovers."""
        ours = {entry_of(f"tasks/{slug(name)}", content).file for name, content in contents.items()}
        present = {path.relative_to(self.folder).as_posix() for path in (self.folder / "tasks").glob("*")}
        lost = sorted(file for file in present - ours if TASK.fullmatch(file))
        if lost:
            raise ConflictError(
                f"{self.folder} holds {len(lost)} task files but no manifest.json ({lost[0]}, …); restore the "
                "manifest, move the files away, or choose another folder"
            )

    def _put(self, stem: str, content: bytes, ending: str = ".safetensors") -> Entry:
        entry = entry_of(stem, content, ending)
        path = self.folder / entry.file
        if not path.exists() or path.stat().st_size != entry.bytes or atomic.read(path, entry.bytes) != content:
            atomic.write(path, content)
        return entry

    def _tidy(self, manifest: Manifest) -> None:
        """Remove files that no commit names: replaced tasks, and what a killed process left unfinished.

        What cannot be removed stays: the commit has happened.
        """
        named = {entry.file for entry in (manifest.base, *manifest.layouts.values(), *manifest.tasks.values())}
        for path in (*self.folder.glob("*"), *(self.folder / "tasks").glob("*")):
            relative = path.relative_to(self.folder).as_posix()
            ours = any(pattern.fullmatch(relative) for pattern in (BASE, LAYOUT, TASK, _TEMPORARY))
            with suppress(OSError):
                if ours and relative not in named and path.is_file():
                    path.unlink(missing_ok=True)
        left = set((self.folder / "work").glob("*"))
        for folder in left & {self.work_folder(name) for name in manifest.tasks} if left else ():
            shutil.rmtree(folder, ignore_errors=True)


def _classes_of(tensors: Mapping[str, torch.Tensor], like: Base, source: str) -> int:
    """The classes of a stored base's head, or an error if its tensors do not fit the architecture of `like`."""
    ours = like.tensors
    weight = f"{like.plan.head}.weight"
    classes = tensors[weight].shape[0] if weight in tensors and tensors[weight].dim() else 0
    head = {n for n in like.plan.parameters if like.plan.role(n) == "head"}
    shapes = {n: (classes, *t.shape[1:]) if n in head else tuple(t.shape) for n, t in ours.items()}
    wrong = sorted(ours.keys() ^ tensors.keys()) or [n for n in ours if shapes[n] != tuple(tensors[n].shape)]
    other_types = [] if wrong else [n for n in ours if ours[n].dtype != tensors[n].dtype]
    if other_types:
        name = other_types[0]
        stored = tensors[name].dtype
        convert = f"model.{_CONVERSIONS[stored]}()" if stored in _CONVERSIONS else "tensors of the stored types"
        raise WrongBaseError(
            f"{source} holds {name} as {stored}, the model has {ours[name].dtype} ({len(other_types)} such tensors); "
            f"pass the model it was made with, in its precision: {convert}"
        )
    if wrong or not classes:
        raise WrongBaseError(
            f"{source} does not fit the model at {', '.join(wrong[:3]) or weight}; pass the model it was made with"
        )
    return classes


def slug(name: str) -> str:
    """A readable, harmless piece of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "task"
