"""Bringing a store back to a state that can be read: files from the trash, a lost manifest, damaged files set aside.

A plan is made first, from what can be read; a dry run ends there. Nothing is deleted, except the trash if that is
asked for and files that a killed process was writing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from halrp.errors import FormatError, LinkError, SignatureError, StoreError, WriteError
from halrp.model.base import Base
from halrp.store import atomic, base_file, change, trash
from halrp.store.files import RepairStep, content_of, in_trash
from halrp.store.folder import FOLDERS, MANIFEST, TRASH, Folder
from halrp.store.manifest import BASE, Entry, Manifest
from halrp.store.rebuild import rebuild


@dataclass(frozen=True)
class Repair:
    """What a repair did, or would do."""

    steps: tuple[RepairStep, ...]
    lost: tuple[str, ...]
    """Tasks that cannot be brought back; the repaired manifest does not name them."""
    usable: bool
    """Whether the base and every task that the manifest then names can be read."""
    done: bool
    """False for a dry run."""

    def __bool__(self) -> bool:
        """Whether there was something to repair."""
        return bool(self.steps)


@dataclass
class _Plan:
    """What to do, in the order of the fields."""

    steps: list[RepairStep] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    """Files to set aside."""
    restored: dict[str, str] = field(default_factory=dict)
    """Files to bring back from the trash: their paths in the store, and in the trash."""
    written: list[tuple[str, bytes, str]] = field(default_factory=list)
    """Files to write again: stem, content, ending."""
    before: Manifest | None = None
    after: Manifest | None = None
    lost: list[str] = field(default_factory=list)
    usable: bool = True


def repair(folder: Folder, like: Base | None, dry_run: bool, empty_trash: bool) -> Repair:
    """Repair a store; `like`, a model's architecture, can give back a lost layout or a lost base with its weights."""
    folder.refuse_links()
    if not dry_run:
        folder.check_writable()
    if not folder.exists() and not trash.strays(folder, None):
        folder.manifest()  # raises: this is no store
    if dry_run:
        return _report(_planned(folder, like), _trashed(folder) if empty_trash else [], done=False)
    with atomic.locked(folder.root):
        folder.refuse_links()
        plan = _planned(folder, like)
        try:
            _apply(plan, folder)
            emptied = _trashed(folder) if empty_trash else []
            if empty_trash:
                trash.empty(folder, folder.manifest())
        except WriteError:
            raise
        except OSError as error:
            raise WriteError(
                f"{folder.root} could not be repaired: {error}; run it again when that is solved"
            ) from error
        return _report(plan, emptied, done=True)


def _report(plan: _Plan, emptied: list[RepairStep], done: bool) -> Repair:
    return Repair((*plan.steps, *emptied), tuple(plan.lost), plan.usable, done)


def _trashed(folder: Folder) -> list[RepairStep]:
    root = folder.path(TRASH)
    files = sorted(path for path in root.rglob("*") if path.is_symlink() or not path.is_dir())
    return [RepairStep("delete", path.relative_to(folder.root).as_posix(), "in the trash") for path in files]


# ---- planning ---------------------------------------------------------------------------------------------------


def _planned(folder: Folder, like: Base | None) -> _Plan:
    plan = _Plan()
    try:
        plan.before = folder.manifest()
    except (FormatError, LinkError, SignatureError):
        raise
    except StoreError as error:
        reason = "it is missing" if not folder.exists() else " ".join(str(error).split())
        _plan_rebuild(plan, folder, like, reason)
    else:
        _plan_files(plan, folder, plan.before, like)
    plan.steps += [RepairStep("delete", file, "a killed process was writing it") for file in trash.unfinished(folder)]
    return plan


def _plan_rebuild(plan: _Plan, folder: Folder, like: Base | None, reason: str) -> None:
    if folder.exists():
        plan.damaged.append(MANIFEST)
    plan.steps.append(RepairStep("rebuild", MANIFEST, f"{reason}; made again from the files"))
    result = rebuild(folder, like)
    plan.after, plan.usable = result.manifest, True
    plan.steps += result.steps
    plan.damaged += result.damaged
    plan.restored |= result.restored


def _plan_files(plan: _Plan, folder: Folder, manifest: Manifest, like: Base | None) -> None:
    missing: set[Entry] = set()
    for entry in dict.fromkeys(manifest.entries):
        if _is_good(folder, entry):
            continue
        if os.path.lexists(folder.root / entry.file):
            plan.damaged.append(entry.file)
            plan.steps.append(RepairStep("set aside", entry.file, "it is not what was committed"))
        source = in_trash(folder, entry)
        if source is not None:
            plan.restored[entry.file] = source
            plan.steps.append(RepairStep("restore", entry.file, f"from {source}"))
        elif not _plan_rewrite(plan, folder, manifest, entry, like):
            missing.add(entry)
    _plan_losses(plan, manifest, missing)


def _plan_rewrite(plan: _Plan, folder: Folder, manifest: Manifest, entry: Entry, like: Base | None) -> bool:
    """Write a base or a layout again, if a model has it exactly."""
    base = None if like is None else _base(folder, manifest, like)
    if base is None:
        return False
    is_base = BASE.fullmatch(entry.file) is not None
    content = base_file.write(base) if is_base else base.layout.content
    if atomic.checksum(content) != entry.sha256:
        return False
    plan.written.append(("base", content, ".safetensors") if is_base else ("layout", content, ".json"))
    plan.steps.append(RepairStep("rebuild", entry.file, "from the model"))
    return True


def _base(folder: Folder, manifest: Manifest, like: Base) -> Base | None:
    """The store's base on the model's architecture, or the model itself if it has the base's weights."""
    try:
        return base_file.read(content_of(folder, manifest.base), manifest, like, manifest.base.file)
    except StoreError:
        fingerprint = like.fingerprint if manifest.counts_head else like.fingerprint_without_head
        return like if fingerprint == manifest.fingerprint else None


def _plan_losses(plan: _Plan, manifest: Manifest, missing: set[Entry]) -> None:
    if manifest.base in missing:
        plan.usable = False
        note = "the base; bring a copy of it back, or give a model with its weights (--model)"
        plan.steps.append(RepairStep("lost", manifest.base.file, note))
    for entry in manifest.layouts.values():
        if entry in missing:
            plan.usable = False
            note = "the layout of tasks; bring a copy of it back, or give the model (--model)"
            plan.steps.append(RepairStep("lost", entry.file, note))
    tasks, versions = dict(manifest.tasks), dict(manifest.versions)
    for name, entry in manifest.tasks.items():
        old = manifest.versions.get(name, ())
        for version in old:
            if version in missing:
                plan.steps.append(RepairStep("lost", version.file, f"an old version of task {name!r}"))
        left = tuple(version for version in old if version not in missing)
        if entry in missing and left:
            plan.steps.append(
                RepairStep("lost", entry.file, f"task {name!r}; {left[0].file}, the version before, is back")
            )
            tasks[name], left = left[0], left[1:]
        elif entry in missing:
            plan.steps.append(RepairStep("lost", entry.file, f"task {name!r}"))
            plan.lost.append(name)
            del tasks[name]
        versions[name] = left
    if missing:
        old_versions = {name: left for name, left in versions.items() if left}
        plan.after = manifest.edited(tasks=tasks, versions=old_versions)


def _is_good(folder: Folder, entry: Entry) -> bool:
    try:
        folder.content(entry)
    except SignatureError:  # not damaged, but somebody else's: nothing that a repair may decide
        raise
    except StoreError:
        return False
    return True


# ---- doing ------------------------------------------------------------------------------------------------------


def _apply(plan: _Plan, folder: Folder) -> None:
    for file in plan.damaged:
        if file != MANIFEST:  # that one is replaced in one move, below
            trash.discard(folder, file, ".damaged")
    for file, source in plan.restored.items():
        target = folder.path(file)
        atomic.make_folder(target.parent)
        os.replace(folder.path(source), target)
    for stem, content, ending in plan.written:
        folder.put(stem, content, ending)
    after = plan.before if plan.after is None else plan.after.following(plan.before)
    changed = after is not None and after is not plan.before
    if changed:
        _preserve(folder, plan.before)
    for name in FOLDERS:
        if (folder.root / name).is_dir():
            atomic.flush_folder(folder.root / name)
    if changed and after is not None:
        change.replace_manifest(folder, after)
    for file in trash.unfinished(folder):
        os.unlink(folder.root / file)


def _preserve(folder: Folder, before: Manifest | None) -> None:
    """Copy the manifest to the trash: it names what was lost."""
    if folder.exists():
        content = folder.path(MANIFEST).read_bytes() if before is None else before.content
        name = f"manifest-{atomic.checksum(content)[:16]}.json{'.damaged' if before is None else ''}"
        atomic.write(folder.path(f"{TRASH}/{name}"), content)
