"""A lost manifest, made again from the files of a store.

A file's name holds its checksum, and a task's file its name, its base and its layout. The order of commits and which of
several versions was the present one are not written anywhere else; times of files decide, and the report says so.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import safetensors.torch
from safetensors import SafetensorError

from halrp import seeding
from halrp.errors import SignatureError, StoreError
from halrp.model.base import Base
from halrp.model.delta import Delta
from halrp.model.layout import Layout
from halrp.store import task_file
from halrp.store.files import RepairStep, named_content
from halrp.store.folder import TRASH, Folder
from halrp.store.manifest import BASE, LAYOUT, TASK, Entry, Manifest


@dataclass(frozen=True)
class _Stored:
    """A task's file."""

    entry: Entry
    delta: Delta
    time: int


@dataclass
class Rebuilt:
    """A manifest, and what else the files need."""

    manifest: Manifest | None = None
    steps: list[RepairStep] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    restored: dict[str, str] = field(default_factory=dict)


def rebuild(folder: Folder, like: Base | None) -> Rebuilt:
    """Read every file and name what is good. Raises `StoreError` if there is no base to build on."""
    result = Rebuilt()
    layouts = _layouts(folder, result)
    stored = _tasks(folder, layouts, result)
    fingerprint, base, counts_head, four_dimensions = _base(folder, stored, layouts, result)
    tasks = [item for item in stored if item.delta.base == fingerprint]
    for item in stored:
        if item.delta.base != fingerprint:
            note = f"task {item.delta.task!r} belongs to another base, {item.delta.base[:12]}…"
            result.steps.append(RepairStep("unreadable", item.entry.file, note))
    ours = {entry.sha256[:16]: entry for layout, entry in layouts.values() if layout.fingerprint == fingerprint}
    channels_last = four_dimensions and _channels_last(tasks)
    present, versions = _present_and_old(tasks, result)
    result.manifest = Manifest(
        head=_head(folder, tasks, layouts, like),
        channels_last=channels_last,
        fingerprint=fingerprint,
        base=base,
        counts_head=counts_head,
        tasks=present,
        layouts=ours,
        versions=versions,
    )
    return result


def _good(folder: Folder, file: str, result: Rebuilt) -> tuple[Entry, bytes] | None:
    """A file if it is what its name promises; otherwise one from the trash."""
    try:
        return named_content(folder, file)
    except SignatureError as error:
        result.steps.append(RepairStep("unreadable", file, " ".join(str(error).split())))
        return None
    except StoreError:
        if (folder.root / file).exists():
            result.damaged.append(file)
            result.steps.append(RepairStep("set aside", file, "its name has another checksum than its content"))
    try:
        entry, content = named_content(folder, file, f"{TRASH}/")
    except StoreError:
        return None
    result.restored[file] = f"{TRASH}/{file}"
    result.steps.append(RepairStep("restore", file, f"from {TRASH}/{file}"))
    return entry, content


def _layouts(folder: Folder, result: Rebuilt) -> dict[str, tuple[Layout, Entry]]:
    present = [file for file in folder.files(".") if LAYOUT.fullmatch(file)]
    thrown = [file.removeprefix(f"{TRASH}/") for file in folder.files(TRASH)]
    layouts = {}
    for file in (*present, *(file for file in thrown if LAYOUT.fullmatch(file) and file not in present)):
        good = _good(folder, file, result)
        if good is not None:
            entry, content = good
            try:
                layout = Layout.parse(content, file)
            except StoreError as error:
                result.steps.append(RepairStep("unreadable", file, str(error)))
            else:
                layouts[layout.digest] = layout, entry
    return layouts


def _tasks(folder: Folder, layouts: dict[str, tuple[Layout, Entry]], result: Rebuilt) -> list[_Stored]:
    """Every task that can be read, the oldest file first."""
    stored = []
    known = {digest: layout for digest, (layout, _) in layouts.items()}
    for file in folder.files("tasks"):
        good = _good(folder, file, result) if TASK.fullmatch(file) else None
        if good is None:
            continue
        entry, content = good
        try:
            delta = task_file.read(content, known, file)
        except StoreError as error:
            result.steps.append(RepairStep("unreadable", file, " ".join(str(error).split())))
        else:
            path = folder.root / result.restored.get(file, file)
            stored.append(_Stored(entry, delta, path.stat().st_mtime_ns))
    return sorted(stored, key=lambda item: (not item.delta.is_base, item.time, item.delta.task, item.entry.file))


def _base(
    folder: Folder, tasks: list[_Stored], layouts: dict[str, tuple[Layout, Entry]], result: Rebuilt
) -> tuple[str, Entry, bool, bool]:
    """The base that most tasks, or else layouts, name.

    Its fingerprint, its file, whether the fingerprint counts the head, and whether it may have convolutions of images.
    """
    head = frozenset().union(*(layout.head for layout, _ in layouts.values()))
    files = [file for file in folder.files(".") if BASE.fullmatch(file)]
    thrown = [file.removeprefix(f"{TRASH}/") for file in folder.files(TRASH)]
    bases = {}
    for file in (*files, *(file for file in thrown if BASE.fullmatch(file) and not files)):
        good = _good(folder, file, result)
        if good is not None:
            entry, content = good
            try:
                tensors = safetensors.torch.load(content)
            except (SafetensorError, LookupError, ValueError, TypeError, RuntimeError) as error:
                result.steps.append(RepairStep("unreadable", file, str(error)))
            else:
                four = any(tensor.dim() == 4 for tensor in tensors.values())
                bases[seeding.fingerprint(tensors)] = entry, True, four
                without = {name: tensor for name, tensor in tensors.items() if name not in head}
                bases.setdefault(seeding.fingerprint(without), (entry, False, four))
    if not bases:
        raise StoreError(f"{folder.root} cannot be repaired: it has no base that can be read; bring a copy of it back")
    named = [item.delta.base for item in tasks] or [layout.fingerprint for layout, _ in layouts.values()]
    fingerprint = max(bases, key=named.count)
    return fingerprint, *bases[fingerprint]


def _present_and_old(tasks: list[_Stored], result: Rebuilt) -> tuple[dict[str, Entry], dict[str, tuple[Entry, ...]]]:
    by_name: dict[str, list[Entry]] = {}
    for item in tasks:
        by_name.setdefault(item.delta.task, []).insert(0, item.entry)
    for name, entries in by_name.items():
        if len(entries) > 1:
            note = f"task {name!r} has {len(entries)} versions; the newest file is the present one"
            result.steps.append(RepairStep("choose", entries[0].file, note))
    present = {name: entries[0] for name, entries in by_name.items()}
    return present, {name: tuple(entries[1:]) for name, entries in by_name.items() if len(entries) > 1}


def _channels_last(tasks: list[_Stored]) -> bool:
    """How the oldest task was learned; the default if no file tells."""
    for item in tasks:
        recipe = item.delta.provenance.get("recipe")
        if isinstance(recipe, dict) and isinstance(recipe.get("channels_last"), bool):
            return bool(recipe["channels_last"])
    return True


def _head(folder: Folder, tasks: list[_Stored], layouts: dict[str, tuple[Layout, Entry]], like: Base | None) -> str:
    shown = [layout for layout, _ in layouts.values()] + [item.delta.layout for item in tasks]
    known = [layout for layout in shown if layout.slots and not layout.partial]
    if known:  # a head of several layers is what they have in common; without one, the model's own is kept
        paths = {tuple(name.split(".")[:-1]) for layout in known for name in layout.head}
        common = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
        return ".".join(parts[0] for parts in common)
    if like is None:
        raise StoreError(f"{folder.root} cannot be repaired without its model: no file names the head; give the model")
    return like.plan.head
