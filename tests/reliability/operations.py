"""Every operation that writes to a disk: the one list on which all faults run.

An operation starts from a folder, and running it again after a fault finishes it. Learning and laboratory cells start
from their checkpoints then; what is compared at the end is every byte of the folder.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

from halrp import Halrp, Learner, Recipe, Store
from halrp.errors import DamagedTaskWarning
from halrp.lab.records.schema import without_times
from halrp.lab.run import runner
from halrp.lab.run.cell import Cell
from halrp.store import atomic, task_file
from tests.helpers import net, tiny_task
from tests.reliability.crash_states import Tree, restore, tree_of

RECIPE = Recipe(epochs=2, batch=12)
METHODS = {
    "budget": Halrp.budget(growth_per_task=0.9, precision="int8"),
    "pruning": Halrp.official(growth=0.05, cap=8),
}


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation on a folder, and how to see what it did."""

    name: str
    begin: Callable[[Path], None]
    """Make the folder as it is before."""
    run: Callable[[Path], None]
    """Do it, or what is left of it after a fault."""
    seen: Callable[[Path], object]
    """What a reader finds: the same before a fault and after it, or what an uninterrupted run leaves."""
    final: Callable[[Path], object]
    """What must be equal to an uninterrupted run once it has been finished: every file, times aside."""

    def before(self) -> Tree:
        """The folder before the operation."""
        return _made(self)[0]

    def old(self) -> object:
        """What a reader finds before it."""
        return _made(self)[1]

    def new(self) -> object:
        """What a reader finds after it."""
        return _made(self)[2]

    def end(self) -> object:
        """What an uninterrupted run leaves."""
        return _made(self)[3]


@cache
def _made(operation: Operation) -> tuple[Tree, object, object, object]:
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "store"
        folder.mkdir()
        operation.begin(folder)
        before, old = tree_of(folder), operation.seen(folder)
        operation.run(folder)
        return before, old, operation.seen(folder), operation.final(folder)


# ---- stores --------------------------------------------------------------------------------------------------------


def opened(folder: Path, method: str = "budget") -> Learner:
    """A learner on a store, with a checkpoint after every epoch."""
    return Learner(net("mlp"), recipe=RECIPE, method=METHODS[method], store=Store(folder, checkpoint_every=0))


@cache
def _stored(tasks: int, method: str) -> Tree:
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        learner = opened(Path(scratch), method)
        for number in range(tasks):
            learner.learn(f"t{number}", tiny_task("mlp", number))
        return tree_of(Path(scratch))


def store_with(tasks: int, method: str = "budget") -> Callable[[Path], None]:
    """What puts a store with some tasks t0, t1, … into a folder."""

    def begin(folder: Path) -> None:
        if tasks:
            folder.rmdir()
            restore(_stored(tasks, method), folder)

    return begin


def tasks_of(folder: Path) -> object:
    """Every task as a loaded learner has it; None if there is no store. Reads and checks every file."""
    if not Store(folder).exists():
        return None
    learner = Learner.load(folder, net("mlp"))
    return [(name, task_file.write(delta)) for name, delta in learner.tasks.items()]


def store_operation(
    name: str,
    begin: Callable[[Path], None],
    act: Callable[[Path], None],
    method: str = "budget",
    seen: Callable[[Path], object] = tasks_of,
) -> Operation:
    """An operation on a store. A save that changes nothing then removes what a fault left over."""

    def run(folder: Path) -> None:
        act(folder)
        opened(folder, method).save(folder)

    return Operation(name, begin, run, seen, lambda folder: tree_of(folder))


def learning(method: str) -> Callable[[Path], None]:
    """What learns a task into a store, with checkpoints."""

    def act(folder: Path) -> None:
        learner = opened(folder, method)
        if "new" not in learner.tasks:
            learner.learn("new", tiny_task("mlp", 5), val=tiny_task("mlp", 6))

    return act


@cache
def learned_elsewhere() -> Learner:
    """A learner of several tasks that has no store, on the base of the stores here."""
    learner = Learner(net("mlp"), recipe=RECIPE, method=METHODS["budget"])
    for name, number in (("t0", 0), ("t1", 1), ("a", 3), ("b", 4)):
        learner.learn(name, tiny_task("mlp", number))
    return learner


def save(folder: Path) -> None:
    """Commit several tasks at once."""
    learned_elsewhere().save(folder)


def remove(folder: Path) -> None:
    """Remove a task."""
    if "t1" in Store(folder).manifest().tasks:
        Store(folder).remove("t1")


def rename(folder: Path) -> None:
    """Give a task another name."""
    if "t1" in Store(folder).manifest().tasks:
        Store(folder).rename("t1", "renamed")


def replace(folder: Path) -> None:
    """Learn a new version of a task."""
    learner = opened(folder)
    if not learner.versions("t1"):
        learner.learn("t1", tiny_task("mlp", 5), replace=True)


def with_version(folder: Path) -> None:
    """Put a store whose task t1 has an old version into a folder."""
    store_with(2)(folder)
    replace(folder)


def revert(folder: Path) -> None:
    """Bring the old version of a task back."""
    manifest = Store(folder).manifest()
    if manifest.generation == 3:
        Store(folder).revert("t1")


def drop(folder: Path) -> None:
    """Remove the old version of a task."""
    Store(folder).drop_versions("t1")


@cache
def _other() -> Tree:
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        learned_elsewhere().save(Path(scratch) / "other")
        return tree_of(Path(scratch) / "other")


def merge(folder: Path) -> None:
    """Bring the tasks of another store in."""
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        restore(_other(), Path(scratch) / "other")
        Store(folder).merge(Path(scratch) / "other")


def damaged(folder: Path) -> None:
    """Put a store into a folder with one task in the trash that the manifest names, and one damaged."""
    store_with(3)(folder)
    entries = Store(folder).manifest().tasks
    (folder / "trash" / "tasks").mkdir(parents=True)
    (folder / entries["t1"].file).rename(folder / "trash" / entries["t1"].file)
    (folder / entries["t2"].file).write_bytes(b"damaged")


def repair(folder: Path) -> None:
    """Bring back what can be brought back, and drop what is lost."""
    Store(folder).repair()


def readable_tasks(folder: Path) -> object:
    """Every task of a store that can be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamagedTaskWarning)
        learner = Learner.load(folder, net("mlp"), skip_damaged=True)
    return [(name, task_file.write(delta)) for name, delta in learner.tasks.items()]


# ---- laboratory ------------------------------------------------------------------------------------------------------


def cell(method: str, **settings: object) -> Cell:
    """A cell of a tenth of a second."""
    return Cell.of(
        {
            "method": method,
            "settings": settings,
            "stream": "digits",
            "backbone": "digits-net",
            "tasks": 2,
            "recipe": {"epochs": 2, "batch": 256},
        }
    )


def cell_operation(method: str, **settings: object) -> Operation:
    """A cell of a sweep: rows after each task, the state of an interrupted run, and the record."""
    named = cell(method, **settings)

    def record(folder: Path) -> object:
        path = folder / f"{named.name}.json"
        return without_times(runner.read(path)) if path.exists() else None

    def run(folder: Path) -> None:
        runner.execute(named, folder)

    def final(folder: Path) -> object:
        # A process that was killed while it wrote leaves a hidden file without a use, which nothing reads.
        files = [path for path in tree_of(folder) if not path.endswith(atomic.TEMPORARY)]
        return sorted(files), record(folder)

    return Operation(f"sweep: {method}", lambda folder: None, run, record, final)


OPERATIONS = [
    store_operation("learn the first task", store_with(0), learning("budget")),
    store_operation("learn", store_with(2), learning("budget")),
    store_operation("learn, and prune old tasks", store_with(3, "pruning"), learning("pruning"), "pruning"),
    store_operation("save to a new store", store_with(0), save),
    store_operation("save to a store", store_with(2), save),
    store_operation("remove", store_with(3), remove),
    store_operation("rename", store_with(3), rename),
    store_operation("replace", store_with(2), replace),
    store_operation("revert", with_version, revert),
    store_operation("drop old versions", with_version, drop),
    store_operation("merge", store_with(2), merge),
    store_operation("repair", damaged, repair, seen=readable_tasks),
    cell_operation("finetune"),
    cell_operation("halrp-budget", growth_per_task=0.2),
]
NAMED = {operation.name: operation for operation in OPERATIONS}
