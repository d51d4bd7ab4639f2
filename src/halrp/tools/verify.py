"""Whether every file of a store is what was committed. Nothing is trusted or changed, and no error ends the reading.

Reading a store for use stops at its first damaged file. Here each file gets a finding of its own, so that one report
shows what must be restored. A file's name holds a part of its checksum, so files are checked even if the manifest is
lost.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
from torch import Tensor, nn

from halrp import seeding
from halrp.errors import DamagedError, HalrpError, InactiveError, SettingError, StoreError
from halrp.model import proof
from halrp.model.base import Base
from halrp.model.batch import Batch
from halrp.model.call import Pick
from halrp.model.layers.head import APPENDED
from halrp.model.layout import Layout
from halrp.model.settings import refuse_other_call
from halrp.model.usable import BaseNumbers, base_problem, task_problem
from halrp.model.wrappers import unwrapped
from halrp.serve.follow import Generation
from halrp.serve.opening import as_base
from halrp.store import atomic, task_file
from halrp.store.folder import SIGNATURES, TRASH
from halrp.store.manifest import Manifest
from halrp.store.signing import AnyKey
from halrp.store.store import Store

_NAMED = re.compile(r"(base|layout|tasks/.+)-([0-9a-f]{16})\.(?:safetensors|json)")


@dataclass(frozen=True)
class Finding:
    """The state of one file."""

    file: str
    """Relative to the store."""
    status: Literal["good", "bad", "orphan", "unfinished"]
    """An orphan is named by no commit, an unfinished file waits for its task to be resumed; both are harmless."""
    note: str


def verify(
    folder: str | os.PathLike[str],
    model: nn.Module | None = None,
    *,
    head: nn.Module | None = None,
    output: Pick = None,
    transform: Callable[[Batch], Batch] | None = None,
    verify_key: AnyKey = None,
) -> tuple[Finding, ...]:
    """Read every file of a store and report what is wrong with each.

    With a model, also whether its shapes fit, and whether tasks are active; `head`, `output` and `transform` are those
    of `Learner.load`. With a key or its file, also whether the key signed every file.
    """
    store = Store(folder, verify_key=verify_key)
    if not store.folder.is_dir():
        raise StoreError(f"{store.folder} is not a folder; name the folder that a learner saved to")
    present = sorted(path.relative_to(store.folder).as_posix() for path in _walk(store.folder))
    if not store.exists() and not any(_NAMED.fullmatch(name) for name in present):
        store.manifest()  # raises: this is no store
    options = {"head": head, "output": output, "transform": transform}
    return tuple(_Reading(store, None if model is None else unwrapped(model)[0], options).findings(present))


class _Reading:
    """One pass over a store, and what it has read so far."""

    def __init__(self, store: Store, model: nn.Module | None, options: Mapping[str, Any]) -> None:
        self.store, self.model, self.options = store, model, options
        self.manifest: Manifest | None = None
        self.fingerprint: str | None = None
        """Of the base: from the manifest, or else from its file."""
        self.base: Base | None = None
        """If there is a model that fits."""
        self.numbers: BaseNumbers | None = None
        """Of the base, if its file could be read."""
        self.layouts: dict[str, Layout] = {}
        """Of the base, by digest; those that could be read."""

    def findings(self, present: list[str]) -> Iterator[Finding]:
        """The manifest first, then the base, then tasks in order, then what nothing names."""
        yield self._finding("manifest.json", self._check_manifest)
        if self.manifest is not None:
            bases, tasks = [self.manifest.base.file], {e.file: n for n, e in self.manifest.tasks.items()}
            tasks |= {entry.file: name for name, old in self.manifest.versions.items() for entry in old}
            layouts = [entry.file for entry in self.manifest.layouts.values()]
        else:
            named = [name for name in present if _NAMED.fullmatch(name)]
            bases = [name for name in named if name.startswith("base-")]
            layouts = [name for name in named if name.startswith("layout-")]
            tasks = dict.fromkeys([name for name in named if name.startswith("tasks/")], "")
        of_layouts = [self._finding(file, partial(self._check_layout, file)) for file in layouts]
        for file in bases:
            yield self._finding(file, partial(self._check_base, file))
        yield from of_layouts
        for file, name in tasks.items():
            yield self._finding(file, partial(self._check_task, file, name))
        for file in present:
            if file in ("manifest.json", "lock", *bases, *layouts) or file in tasks:
                continue
            if file.startswith(f"{SIGNATURES}/") and file.endswith(".sig"):
                continue  # checked with the file that it signs
            if file.startswith("work/") and not file.endswith(atomic.TEMPORARY):
                yield Finding(
                    file, "unfinished", "checkpoint of an interrupted task; learning the task again resumes it"
                )
            elif file.startswith(f"{TRASH}/"):
                yield Finding(file, "orphan", "in the trash; halrp repair --empty-trash deletes it")
            else:
                yield Finding(file, "orphan", "no commit names it; the next one moves it to the trash")

    def _finding(self, file: str, check: Callable[[], str]) -> Finding:
        try:
            return Finding(file, "good", check())
        except Exception as error:  # whatever a file does to its reader, the other files must be read
            text = str(error) if isinstance(error, HalrpError) else f"{type(error).__name__}: {error}"
            note = " ".join(text.removeprefix(str(self.store.folder / file)).lstrip(": ").split())
            return Finding(file, "bad", note or type(error).__name__)

    def _check_manifest(self) -> str:
        self.manifest = self.store.manifest()
        self.fingerprint = self.manifest.fingerprint
        return f"{len(self.manifest.tasks)} tasks, written by halrp {self.manifest.version}"

    def _content(self, file: str) -> bytes:
        if self.manifest is not None:
            return self.store.content(next(entry for entry in self.manifest.entries if entry.file == file))
        content, match = atomic.read(self.store.folder / file), _NAMED.fullmatch(file)
        if match is None or not atomic.checksum(content).startswith(match[2]):
            raise DamagedError("it is not the file that was committed: its checksum is not the one in its name")
        self.store.check_signature(file, content)
        return content

    def _check_base(self, file: str) -> str:
        tensors = safetensors.torch.load(self._content(file))
        problem = base_problem(tensors, self._buffers())
        if problem:
            known = self.model is not None or self.layouts
            raise DamagedError(problem if known else f"{problem}; if it is a buffer and meant to, give the model")
        fingerprint = self._fingerprint_of(tensors)
        self.fingerprint = self.fingerprint or fingerprint
        if fingerprint != self.fingerprint:
            raise DamagedError(f"it has the fingerprint {fingerprint[:12]}…, not {self.fingerprint[:12]}…")
        self.numbers = BaseNumbers(tensors)
        note = f"the base, fingerprint {fingerprint[:12]}…"
        if self.model is None or self.manifest is None:
            return note
        like = as_base(self.store, Generation(self.manifest, self.layouts), self.model, **self.options)
        self.base = self.store.read_base(like)
        return f"{note}, fits the model"

    def _fingerprint_of(self, tensors: dict[str, Tensor]) -> str:
        """The fingerprint of a base: of everything, or of all but the head that layouts name."""
        known = {layout.fingerprint for layout in self.layouts.values()}
        if self.manifest is None or not self.manifest.counts_head:
            head = frozenset().union(*(layout.head for layout in self.layouts.values()))
            without = seeding.fingerprint({n: t for n, t in tensors.items() if n not in head})
            if self.manifest is not None or without in known:
                return without
        return seeding.fingerprint(tensors)

    def _check_layout(self, file: str) -> str:
        layout = Layout.parse(self._content(file), str(self.store.folder / file))
        if self.fingerprint is not None and layout.fingerprint != self.fingerprint:
            raise DamagedError(f"it belongs to a base {layout.fingerprint[:12]}…, not to {self.fingerprint[:12]}…")
        self.layouts[layout.digest] = layout
        return f"what tasks may own: {len(layout.slots)} tensors"

    def _buffers(self) -> set[str]:
        """What may hold any number: the buffers of the model, or those that layouts name."""
        if self.model is not None:
            prefix = "model." if self.manifest is not None and self.manifest.head in APPENDED else ""
            return {f"{prefix}{name}" for name, _ in self.model.named_buffers()}
        return {slot.name for layout in self.layouts.values() for slot in layout.slots if slot.kind == "buffer"}

    def _check_task(self, file: str, name: str) -> str:
        source = str(self.store.folder / file)
        delta = task_file.read(self._content(file), self.layouts, source)
        if name and delta.task != name:
            raise DamagedError(f"it holds the task {delta.task!r}, not {name!r}")
        if self.fingerprint is not None and delta.base != self.fingerprint:
            raise DamagedError(f"it belongs to a base {delta.base[:12]}…, not to {self.fingerprint[:12]}…")
        problem = task_problem(delta, self.numbers)
        if problem:
            raise DamagedError(problem)
        fits = ""
        if self.base is not None:
            task_file.check(delta, self.base, source)
            try:
                refuse_other_call(delta.task, delta.provenance, self.base.call)
            except SettingError as other:
                return f"task {delta.task!r}, {delta.classes} classes, fits the model, not run: {other}"
            inactive = proof.problem(delta.on(self.base.tensors), self.base)
            if inactive is not None:
                raise InactiveError(inactive)
            fits = ", fits the model" + (", active" if proof.has_proof(delta) else "")
        elif self.model is not None:
            fits = ", not compared with the model: the base cannot be used"
        return f"task {delta.task!r}, {delta.classes} classes{fits}"


def _walk(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() or path.is_symlink())
