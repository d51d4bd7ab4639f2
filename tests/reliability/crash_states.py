"""What may be on a disk after a power cut: a model of a file system that keeps only what was flushed.

The rules are those of POSIX without any promise of order. What a file holds is safe once the file is flushed; without
that, it may be all there, empty, cut or zeros. That a name exists, or no longer does, is safe once its folder is
flushed; without that, each change of a folder may have happened or not, alone, in any combination. A move changes its
two names together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random

from tests.reliability.shim import Step

Tree = dict[str, bytes | None]
"""Contents of files by path; None for a folder."""
_Change = tuple[tuple[int, str, int | None], ...]
"""Folder, name, and the node that has it afterwards; all of them at once."""


def tree_of(folder: Path) -> Tree:
    """All that a folder holds."""
    paths = sorted(folder.rglob("*")) if folder.is_dir() else []
    return {p.relative_to(folder).as_posix(): None if p.is_dir() else p.read_bytes() for p in paths}


def restore(tree: Tree, folder: Path) -> None:
    """Make a folder that holds a tree."""
    folder.mkdir(parents=True)
    for path, content in sorted(tree.items()):
        if content is None:
            (folder / path).mkdir(parents=True, exist_ok=True)
        else:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)


class Disk:
    """A file system as the processes see it, and as it would be after a power cut."""

    def __init__(self, tree: Tree) -> None:
        """Begin with a tree that is safe."""
        self._numbers = itertools.count(1)
        self._folders: dict[int, dict[str, int]] = {0: {}}
        self._safe: dict[int, dict[str, int]] = {0: {}}
        self._content: dict[int, bytes] = {}
        self._flushed: dict[int, bytes] = {}
        self._waiting: list[_Change] = []
        for path, content in sorted(tree.items()):
            node = self._new(content)
            folder, name = self._parent(path)
            self._folders[folder][name] = self._safe[folder][name] = node
            if content is not None:
                self._flushed[node] = content

    def happen(self, step: Step) -> None:
        """Take over a step."""
        match step.kind:
            case "create":
                self._change((*self._parent(step.path), self._new(b"")))
            case "make folder":
                self._change((*self._parent(step.path), self._new(None)))
            case "write":
                self._content[self._node(step.path)] = step.content
            case "flush":
                node = self._node(step.path)
                self._flushed[node] = self._content[node]
            case "flush folder":
                self._flush_folder(self._node(step.path))
            case "move":
                node = self._node(step.path)
                self._change((*self._parent(step.path), None), (*self._parent(step.target), node))
            case "remove" | "remove folder":
                self._change((*self._parent(step.path), None))
            case kind:
                raise ValueError(kind)

    def states(self, random: Random, most: int) -> Iterator[Tree]:
        """Trees that a power cut may leave now: every one, or the plainest and a random sample if there are too many.

        With few changes waiting these are all combinations of changes and of torn files.
        """
        for happened in _subsets(self._waiting, random, most):
            names = self._names(happened)
            torn = [node for node in names.values() if self._content.get(node) != self._flushed.get(node)]
            yield self._tree(names, {})
            for node in torn:
                for content in _remains(self._content[node], self._flushed[node]):
                    yield self._tree(names, {node: content})
            if torn:
                yield self._tree(names, {node: self._flushed[node] for node in torn})

    def _tree(self, names: dict[str, int], torn: dict[int, bytes]) -> Tree:
        return {
            path: torn.get(node, self._content[node]) if node in self._content else None for path, node in names.items()
        }

    def _names(self, happened: Iterable[_Change]) -> dict[str, int]:
        """Nodes by path after some of the changes that wait."""
        folders = {folder: dict(entries) for folder, entries in self._safe.items()}
        for change in happened:
            for folder, name, node in change:
                if node is None:
                    folders[folder].pop(name, None)
                else:
                    folders[folder][name] = node
        nodes: dict[str, int] = {}

        def walk(folder: int, prefix: str) -> None:
            for name, node in folders[folder].items():
                nodes[f"{prefix}{name}"] = node
                if node in folders:
                    walk(node, f"{prefix}{name}/")

        walk(0, "")
        return nodes

    def _new(self, content: bytes | None) -> int:
        node = next(self._numbers)
        if content is None:
            self._folders[node], self._safe[node] = {}, {}
        else:
            self._content[node], self._flushed[node] = content, b""
        return node

    def _change(self, *entries: tuple[int, str, int | None]) -> None:
        for folder, name, node in entries:
            if node is None:
                del self._folders[folder][name]
            else:
                self._folders[folder][name] = node
        self._waiting.append(entries)

    def _flush_folder(self, folder: int) -> None:
        for change in self._waiting:
            if any(entry[0] == folder for entry in change):
                for above, name, node in change:
                    if node is None:
                        self._safe[above].pop(name, None)
                    else:
                        self._safe[above][name] = node
        self._waiting = [change for change in self._waiting if all(entry[0] != folder for entry in change)]

    def _node(self, path: str) -> int:
        node = 0
        for part in Path(path).parts:
            node = self._folders[node][part]
        return node

    def _parent(self, path: str) -> tuple[int, str]:
        return self._node(str(Path(path).parent)), Path(path).name


def _remains(content: bytes, flushed: bytes) -> list[bytes]:
    """What a write that was not flushed may leave."""
    return [flushed, b"", content[: len(content) // 2], bytes(len(content))]


def _subsets(waiting: Sequence[_Change], random: Random, most: int) -> Iterator[list[_Change]]:
    if 2 ** len(waiting) <= most:
        for chosen in itertools.product((False, True), repeat=len(waiting)):
            yield [change for change, happens in zip(waiting, chosen, strict=True) if happens]
        return
    yield []
    yield list(waiting)
    for at in random.sample(range(len(waiting)), min(len(waiting), most // 4)):
        yield [waiting[at]]  # it overtook all others
        yield [*waiting[:at], *waiting[at + 1 :]]  # it alone was lost
    for _ in range(most // 2):
        yield [change for change in waiting if random.random() < 0.5]


def crash_states(before: Tree, steps: Sequence[Step], seed: int = 0, most: int = 16) -> Iterator[tuple[int, Tree]]:
    """The distinct trees that a power cut may leave, each with the number of steps that had happened before it."""
    disk, random = Disk(before), Random(seed)
    seen: set[int] = set()
    for number in range(len(steps) + 1):
        if number:
            disk.happen(steps[number - 1])
        returned = number == len(steps)
        for tree in disk.states(random, most):
            key = hash((returned, frozenset(tree.items())))
            if key not in seen:
                seen.add(key)
                yield number, tree
