"""Changed files of every kind that is read, and what reading them must do.

Two families. In the first a file is changed as disks, transfers and people do it, and the checksums that guard it stay:
reading gives the original value, or a typed error, or sets the file aside. In the second every checksum is put right,
as an enemy would: reading gives a typed error, or something that this library could have written. Anything else fails.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import torch

from halrp import Flat, Halrp, Learner, Store
from halrp.errors import CheckpointWarning, HalrpError
from halrp.lab.records import schema, state_file
from halrp.lab.records.state_file import Saved
from halrp.lab.run import runner
from halrp.lab.run.state import RunState
from halrp.model.layout import Layout
from halrp.store import atomic, task_file
from halrp.store.manifest import Manifest
from halrp.training.checkpoint import Checkpoints
from halrp.training.progress import Progress
from tests.helpers import net, tiny_task
from tests.parts import parts_task
from tests.reliability.changed_json import changed_json
from tests.reliability.crash_states import restore, tree_of
from tests.reliability.operations import METHODS, RECIPE, cell, opened
from tests.store.hostile import mutated, replaced
from tests.store.test_folder_fuzz import resealed as with_checksum

SET_ASIDE = object()
"""What a reader gives that ignores a file it cannot use."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """Files of a kind, a way to change them, and their reader."""

    name: str
    originals: list[bytes]
    read: Callable[[bytes, int], object]
    """The value of a content that is put in place of the n-th original, or `SET_ASIDE`."""
    change: Callable[[bytes, Random], bytes]
    sound: Callable[[bytes, Any], bool] | None = None
    """Whether another value than the original's is accepted rightly; without it, none is."""
    share: float = 1.0
    """How many of these are made, relative to the other kinds."""


@dataclasses.dataclass
class Counts:
    """What became of the changed files of a kind."""

    mutants: int = 0
    refused: int = 0
    set_aside: int = 0
    same: int = 0
    """Read as the original value: the change did not touch what the file says."""
    sound: int = 0
    """Another value that the library could have written, with every checksum put right."""


class WronglyAcceptedError(AssertionError):
    """A changed file was read as something else than was written, without an error."""


def check(kind: Kind, count: int, seed: int = 0) -> Counts:
    """Read changed files of a kind. An error that is not typed propagates, with the number of the file as a note."""
    counts, random = Counts(), Random(f"{kind.name}, {seed}")
    values = [kind.read(content, at) for at, content in enumerate(kind.originals)]
    assert all(value is not SET_ASIDE for value in values)
    while counts.mutants < count:
        at = counts.mutants % len(kind.originals)
        content = kind.originals[at]
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            content = kind.change(content, random) if content else b"\0"
        if content == kind.originals[at]:
            continue
        counts.mutants += 1
        try:
            value = kind.read(content, at)
        except HalrpError:
            counts.refused += 1
            continue
        except BaseException as error:
            error.add_note(f"{kind.name}, seed {seed}, mutant {counts.mutants}: {content[:300]!r}…")
            raise
        if value is SET_ASIDE:
            counts.set_aside += 1
        elif value == values[at]:
            counts.same += 1
        elif kind.sound is not None and kind.sound(content, value):
            counts.sound += 1
        else:
            raise WronglyAcceptedError(f"{kind.name}, seed {seed}, mutant {counts.mutants}: {content[:300]!r}…")
    if kind.sound is not None and count >= 500:
        assert counts.sound, f"{kind.name}: nothing was accepted, so the checksums may not have been put right"
    for at, content in enumerate(kind.originals):
        assert kind.read(content, at) == values[at], f"{kind.name}: the original is not read as before"
    return counts


# ---- stores ----------------------------------------------------------------------------------------------------------


def store_kinds(scratch: Path) -> list[Kind]:
    """Manifest, base, layout and tasks of a store with a task of each precision, one of them sparse."""
    folder = scratch / "store"
    learner = Learner(net("mlp"), recipe=RECIPE, method=METHODS["budget"], store=folder)
    for name, method in (
        ("first", METHODS["budget"]),
        ("int8", METHODS["budget"]),
        ("sparse", dataclasses.replace(METHODS["pruning"], precision="bfloat16")),
        ("float", Halrp(allocate=Flat(3))),
    ):
        learner.method = method
        learner.learn(name, tiny_task("mlp", 3))
    store, like = Store(folder), Learner(net("mlp"), recipe=RECIPE)._committed.initial
    manifest, base = store.manifest(), store.read_base(like)
    tasks = [name for name in manifest.tasks if name != "first"]
    task_files = [store.content(manifest.tasks[name]) for name in tasks]
    layout = next(iter(manifest.layouts.values()))
    text = manifest.content

    def put(file: str, content: bytes) -> None:
        (folder / file).write_bytes(content)

    def read_manifest(content: bytes, _: int) -> object:
        return Manifest.parse(content, "manifest").content

    def read_task(content: bytes, at: int) -> object:
        put(manifest.tasks[tasks[at]].file, content)
        return task_file.write(store.read(tasks[at], base))

    def read_base(content: bytes, _: int) -> object:
        put(manifest.base.file, content)
        return store.read_base(like).fingerprint

    def read_resealed_base(content: bytes, _: int) -> object:
        try:
            replaced(folder, None, content)
            return store.read_base(like).fingerprint
        finally:
            put("manifest.json", text)

    def read_layout(content: bytes, _: int) -> object:
        put(layout.file, content)
        return [each.content for each in store.layouts(manifest).values()]

    def read_resealed_task(content: bytes, _: int) -> object:
        return task_file.write(task_file.load(content, base, "task"))

    def read_resealed_layout(content: bytes, _: int) -> object:
        return Layout.parse(content, "layout").content

    parts_files = [task_file.write(parts_task(base, seed)) for seed in range(5)]

    return [
        Kind("manifest", [text], read_manifest, mutated, share=3),
        Kind("manifest, checksum put right", [text], read_manifest, resealed_manifest, _canonical, share=3),
        Kind("task", task_files, read_task, mutated, share=2),
        Kind("task, checksums put right", task_files, read_resealed_task, changed_task, _canonical, share=4),
        Kind("task of parts, checksums put right", parts_files, read_resealed_task, changed_task, _canonical, share=2),
        Kind("base", [store.content(manifest.base)], read_base, mutated),
        Kind("base, checksums put right", [store.content(manifest.base)], read_resealed_base, mutated, share=0.5),
        Kind("layout", [store.content(layout)], read_layout, mutated),
        Kind(
            "layout, checksums put right",
            [store.content(layout)],
            read_resealed_layout,
            lambda content, random: _dumped(changed_json(json.loads(content), random)),
            _canonical,
        ),
    ]


def _canonical(content: bytes, value: Any) -> bool:
    """A value that is written in exactly the bytes that were read."""
    return bool(value == content)


def _dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("utf-8", "surrogatepass")


def resealed_manifest(content: bytes, random: Random) -> bytes:
    """A manifest with other values and its own checksum put right."""

    def edit(facts: dict[str, Any]) -> None:
        changed = changed_json(facts, random)
        facts.clear()
        facts.update(changed)

    return with_checksum(content, edit)


def changed_task(content: bytes, random: Random) -> bytes:
    """A task file with other bytes, or with other values in its header or its facts."""
    return changed_tensors(content, "halrp", random)


def changed_tensors(content: bytes, key: str, random: Random) -> bytes:
    """A safetensors file with other bytes, or with other values in its header or in the JSON of its metadata."""
    kind = random.randrange(4)
    if kind < 2 or len(content) < 8:
        return mutated(content, random)
    length = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + length])
        if kind == 2:
            header = changed_json(header, random)
        else:
            facts = changed_json(json.loads(header["__metadata__"][key]), random)
            separators = (",", ":") if key == "halrp" else None
            header["__metadata__"][key] = json.dumps(facts, sort_keys=True, separators=separators)
    except (ValueError, LookupError, TypeError, AttributeError):  # an earlier change left no header
        return mutated(content, random)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + content[8 + length :]


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def checkpoint_kinds(scratch: Path) -> list[Kind]:
    """The checkpoint of an interrupted training."""
    checkpoints = Checkpoints(scratch / "work", "key")
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(4, 5, generator=generator) for name in ("module/weight", "optimiser/0/momentum")}
    checkpoints.save("warm-up", tensors, {"epoch": 3, "losses": [0.5, 0.25]})
    (path,) = (scratch / "work").iterdir()

    def read(content: bytes, _: int) -> object:
        path.write_bytes(content)
        with without_warnings():
            state = checkpoints.load("warm-up")
        if state is None:
            return SET_ASIDE
        return {name: tensor.tolist() for name, tensor in state[0].items()}, state[1]

    return [Kind("checkpoint", [path.read_bytes()], read, mutated), *resumed_kinds(scratch / "resumed")]


def resumed_kinds(scratch: Path) -> list[Kind]:
    """Checkpoints with their checksum put right: a task that resumes from one is committed, or the error is typed."""
    folder, data = scratch / "store", tiny_task("mlp", 5)

    def stop(event: Progress) -> None:
        if event.stage.startswith("fine-tune"):
            raise KeyboardInterrupt

    learner = opened(folder)
    learner.learn("first", tiny_task("mlp", 0))
    learner.progress = stop
    with suppress(KeyboardInterrupt):
        learner.learn("new", data)
    interrupted = tree_of(folder)
    files = [path for path, content in interrupted.items() if path.startswith("work/") and content is not None]
    assert files

    def read(content: bytes, at: int) -> object:
        shutil.rmtree(folder)
        restore({**interrupted, files[at]: content}, folder)
        with without_warnings():
            return task_file.write(opened(folder).learn("new", data))

    def resealed(content: bytes, random: Random) -> bytes:
        changed = changed_tensors(content[64:], "facts", random)
        return atomic.checksum(changed).encode() + changed

    contents = [interrupted[file] or b"" for file in files]
    # A state that was made up to look right gives another task: nothing in the file says what it should have been.
    return [Kind("checkpoint, checksum put right", contents, read, resealed, lambda *_: True, share=0.05)]


@contextmanager
def without_warnings() -> Iterator[None]:
    """Ignore warnings about a file that is set aside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CheckpointWarning)
        yield


# ---- laboratory ------------------------------------------------------------------------------------------------------


def record_kinds(scratch: Path) -> list[Kind]:
    """The record of a finished cell."""
    path = scratch / "record.json"
    original = (json.dumps(runner.execute(cell("finetune"), scratch / "results"), indent=1) + "\n").encode()

    def read(content: bytes, _: int) -> object:
        path.write_bytes(content)
        raw = schema.read(path)
        schema.check(raw)
        return raw

    def resealed(content: bytes, random: Random) -> bytes:
        facts = json.loads(content)
        facts.pop("checksum", None)
        facts = changed_json(facts, random)
        return json.dumps(facts | {"checksum": schema.checksum(facts)}).encode()

    return [
        Kind("record", [original], read, mutated),
        Kind("record, checksum put right", [original], read, resealed, lambda _, raw: "rows" in raw, share=0.5),
    ]


def state_kinds(scratch: Path) -> list[Kind]:
    """The state of an interrupted run. The file alone is read; `tests/lab/run` has what a run does with it."""
    path, named = scratch / "state.unfinished", cell("finetune")
    state = RunState(scratch, named)
    rows = [{"position": 0, "identity": 3, "task": "0-1", "classes": 2, "test": [0.5], "val": [0.5]}]
    original = state_file.pack(Saved(state.origin, ["0" * 64], rows, {"tasks": 1}, b"\x02\0\0\0\0\0\0\0{}"))

    def read(content: bytes, _: int) -> object:
        path.write_bytes(content)
        return state_file.read(path)

    def resealed(content: bytes, random: Random) -> bytes:
        facts, tensors = content.split(b"\n", 2)[1:]
        saved = changed_json(json.loads(facts), random)
        body = json.dumps(saved).encode() + b"\n" + tensors
        first = b"halrp run state %d %d %s\n" % (state_file.FORMAT, len(body), atomic.checksum(body).encode())
        return first + body

    def canonical(content: bytes, saved: Any) -> bool:
        return state_file.pack(saved) == content

    return [
        Kind("run state", [original], read, mutated),
        Kind("run state, checksum put right", [original], read, resealed, canonical, share=0.5),
    ]


def kinds(scratch: Path) -> list[Kind]:
    """Every kind of file that is read, with files in a scratch folder."""
    return [*store_kinds(scratch), *checkpoint_kinds(scratch), *state_kinds(scratch), *record_kinds(scratch)]
