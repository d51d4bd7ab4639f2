"""Changed files of a store, and what reading a changed task file must do: shared by the tests of both formats."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from random import Random

import torch
from hypothesis import strategies as st

from halrp import Store
from halrp.errors import StoreError
from halrp.model.base import Base
from halrp.store import atomic, task_file
from halrp.store.manifest import Entry

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def contents(folder: Path) -> list[bytes]:
    """The files of the tasks that own something."""
    store = Store(folder)
    return [store.content(entry) for name, entry in store.manifest().tasks.items() if name not in ("t0", "base")]


def mutated(content: bytes, random: Random) -> bytes:
    """Change a file in one of the ways in which disks, transfers and people change files."""
    data, at = bytearray(content), random.randrange(len(content))
    # Half of the changes hit the header, where the structure is.
    if random.random() < 0.5:
        at = random.randrange(min(len(content), 8 + int.from_bytes(content[:8], "little") % 2**20))
    length = min(random.choice((1, 2, 8, 64, 512)), len(data) - at)
    kind = random.randrange(9)
    if kind == 0:
        data[at] ^= 1 << random.randrange(8)
    elif kind == 1:
        data[at] = random.randrange(256)
    elif kind == 2:
        del data[at:]
    elif kind == 3:
        data[at:at] = random.randbytes(length)
    elif kind == 4:
        data[at : at + length] = bytes(length)
    elif kind == 5:
        data[at:at] = data[at : at + length]
    elif kind == 6:
        other = random.randrange(len(data) - length + 1)
        data[at : at + length], data[other : other + length] = data[other : other + length], data[at : at + length]
    elif kind == 7:
        data += random.randbytes(length)
    else:
        del data[at : at + length]
    return bytes(data)


def survives(content: bytes, base: Base) -> bool:
    """Whether a file is read as a task; if so it must be sound. Anything but a `StoreError` fails the test."""
    try:
        delta = task_file.load(content, base, "file")
    except StoreError:
        return False
    again = task_file.write(delta)
    assert again == content or b'"format\\":1,' in content  # a file of format 1 is written in format 2
    assert task_file.write(task_file.load(again, base, "again")) == again
    assert delta.is_base or delta.bytes == len(again)
    module = base.view(delta)
    with torch.no_grad():
        x = torch.ones(2, next(base.module.parameters()).shape[1], 8, 8)
        assert module(base.prepare_inputs(x)).shape == (2, delta.classes)
    assert delta.parameters >= delta.paper_count() >= 0
    return True


def fuzz_task_files(files_: list[bytes], base: Base, mutations: int, seed: int) -> int:
    random = Random(seed)
    accepted = 0
    for number in range(mutations):
        content = files_[number % len(files_)]
        for _ in range(random.choice((1, 1, 1, 3))):
            content = mutated(content or b"\0", random)
        accepted += survives(content, base)
    return accepted


def replaced(folder: Path, name: str | None, content: bytes) -> None:
    """Put another content in the place of a task's file (None: the base's), with every checksum put right."""
    store = Store(folder)
    manifest = store.manifest()
    old = manifest.base if name is None else manifest.tasks[name]
    digest = atomic.checksum(content)
    entry = Entry(old.file[: -len("0123456789abcdef.safetensors")] + f"{digest[:16]}.safetensors", digest, len(content))
    (folder / entry.file).write_bytes(content)
    if name is None:
        manifest = dataclasses.replace(manifest, base=entry)
    else:
        manifest = dataclasses.replace(manifest, tasks={**manifest.tasks, name: entry})
    (folder / "manifest.json").write_bytes(manifest.content)
