"""Commands that change a store: remove, rename, versions of a task, merge and repair. Each is one commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from halrp.cli import completion
from halrp.cli.options import Json
from halrp.cli.screen import show
from halrp.cli.store import Folder
from halrp.terminal import echo, echo_json
from halrp.tools.importing import build_model

if TYPE_CHECKING:
    from halrp.model.base import Base
    from halrp.store.repair import Repair
    from halrp.store.store import Store

SigningKey: TypeAlias = Annotated[
    Path | None, typer.Option("--key", metavar="FILE", help="sign the change with this key, and verify what is there")
]
Task: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="TASK", help="the name of a task", show_default=False, autocompletion=completion.tasks),
]


def remove_task(store: Folder, task: Task, key: SigningKey = None, as_json: Json = False) -> None:
    """Remove a task and its old versions from a store.

    Their files go to the store's trash; halrp repair --empty-trash deletes them for good. The base and all other tasks
    stay as they are, even if the task made the base.

    Example: halrp remove store/ birds
    """
    _store(store, key).remove(task)
    trash = store / "trash"
    show({"removed": task, "trash": str(trash)}, f"removed task {task!r}; its files are in {trash}", as_json)


def rename_task(
    store: Folder,
    task: Task,
    name: Annotated[str, typer.Argument(metavar="NAME", help="its new name", show_default=False)],
    key: SigningKey = None,
    as_json: Json = False,
) -> None:
    """Give a task another name. Its predictions and its position stay the same.

    Example: halrp rename store/ birds "birds of 2025"
    """
    _store(store, key).rename(task, name)
    show({"renamed": task, "name": name}, f"renamed task {task!r} to {name!r}", as_json)


def list_versions(store: Folder, task: Task, as_json: Json = False) -> None:
    """List the versions of a task, the present one first.

    Example: halrp versions store/ birds
    """
    opened = _store(store)
    old = opened.versions(task)
    entries = (opened.manifest().tasks[task], *old)
    if as_json:
        echo_json([entry._asdict() for entry in entries])
        return
    for number, entry in enumerate(entries):
        echo(f"{'old' if number else 'present':<8}  {entry.bytes:>12,} bytes  {entry.file}")


def revert_task(store: Folder, task: Task, key: SigningKey = None, as_json: Json = False) -> None:
    """Bring the version of a task back that was replaced last.

    The present version becomes an old one, so that the same command brings it back again.

    Example: halrp revert store/ birds
    """
    entry = _store(store, key).revert(task).tasks[task]
    show({"reverted": task, **entry._asdict()}, f"task {task!r} is {entry.file} again", as_json)


def drop_versions(store: Folder, task: Task, key: SigningKey = None, as_json: Json = False) -> None:
    """Remove the old versions of a task; their files go to the store's trash.

    Example: halrp drop store/ birds
    """
    opened = _store(store, key)
    count = len(opened.versions(task))
    opened.drop_versions(task)
    show({"task": task, "dropped": count}, f"dropped {count} old versions of task {task!r}", as_json)


def merge_stores(
    store: Folder,
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="a store of the same base", show_default=False)],
    key: SigningKey = None,
    as_json: Json = False,
) -> None:
    """Add the tasks of another store of the same base; OTHER stays as it is.

    Tasks that both have must be identical. Otherwise all conflicts are named and nothing changes: rename or remove
    those tasks in one of the two stores first. Into a folder that does not exist or is empty, the store is copied.

    Example: halrp merge store/ from_the_other_site/
    """
    added = _store(store, key).merge(other)
    names = ", ".join(map(repr, added)) or "none; it has them all"
    show({"added": list(added)}, f"added {len(added)} tasks: {names}", as_json)


def repair_store(
    store: Folder,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would be done")] = False,
    empty_trash: Annotated[bool, typer.Option("--empty-trash", help="delete what no commit names, for good")] = False,
    model: Annotated[str | None, typer.Option(help="package.module:callable; can give back layout and base")] = None,
    key: SigningKey = None,
    as_json: Json = False,
) -> None:
    """Bring a damaged store back to a state that can be read, as far as its files allow.

    Files come back from the trash, damaged ones are set aside there, and a lost manifest is made again from the files.
    Tasks whose files are lost are reported and no longer named. Exits with 1 if something is lost.

    Example: halrp repair store/ --dry-run
    """
    opened = _store(store, key)
    like = None if model is None else _base_of(model, opened)
    report = opened.repair(like=like, dry_run=dry_run, empty_trash=empty_trash)
    if as_json:
        echo_json(asdict(report))
    else:
        _print_repair(report)
    if report.lost or not report.usable:
        raise typer.Exit(1)


def _print_repair(report: Repair) -> None:
    for step in report.steps:
        echo(f"{step.kind:<10}  {step.file}: {step.note}")
    if not report:
        echo("nothing to repair")
    elif not report.done:
        echo("a dry run: nothing was changed")
    if report.lost:
        echo(f"lost: {len(report.lost)} tasks: {', '.join(map(repr, report.lost))}")


def _store(folder: Path, key: Path | None = None) -> Store:
    from halrp.store.store import Store

    return Store(folder, signing_key=key)


def _base_of(reference: str, store: Store) -> Base:
    """The base that a model is, with the head that the store's manifest names if it can be read."""
    from halrp.errors import StoreError
    from halrp.model import views
    from halrp.model.appended import as_stored, with_head
    from halrp.model.base import Base
    from halrp.model.plan import plan

    module, head, channels_last = *with_head(build_model(reference), None), True
    try:
        manifest = store.manifest()
        module, head = as_stored(module, manifest.head, store.layouts(manifest).values())
        channels_last = manifest.channels_last
    except StoreError:
        pass
    return Base(views.clone(module), plan(module, head), channels_last)


COMMANDS: dict[str, Callable[..., None]] = {
    "remove": remove_task,
    "rename": rename_task,
    "versions": list_versions,
    "revert": revert_task,
    "drop": drop_versions,
    "merge": merge_stores,
    "repair": repair_store,
}
