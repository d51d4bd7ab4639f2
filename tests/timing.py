"""In place of clocks: how much a function does, as a count that is the same on every machine, and a bound on waiting.

A test waits for an event: a line that a process writes, a file, the end of a pipe. How long that takes is no part of
any test; `PATIENCE` only ends a test that would wait for ever.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

PATIENCE = 300.0
"""Seconds after which a test is given up; none waits as long unless something is wrong."""


def lines_of(function: Callable[[], object]) -> int:
    """The number of lines of Python that a call executes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def calls_of(function: Callable[[], object]) -> int:
    """The number of functions, of Python and of C, that a call of a function calls; cheaper to count than lines."""
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


ROOT = Path(__file__).parents[1]
MODULES = frozenset(
    (
        "asyncio",
        "concurrent",
        "http",
        "multiprocessing",
        "select",
        "signal",
        "socket",
        "subprocess",
        "threading",
        "time",
    )
)
"""Modules of Python with which a test can depend on how fast something runs."""


STARTING = frozenset(("multiprocessing", "subprocess"))
"""Those with which a test starts a process that has nothing of its own, as a fork has."""


def uses_timing(path: Path) -> bool:
    """Whether a module of tests uses processes, threads, signals, sockets or clocks, itself or by a helper of tests."""
    return uses(path, MODULES, fork=True)


@cache
def uses(path: Path, modules: frozenset[str], fork: bool = False) -> bool:
    """Whether a module of tests imports one of some modules, itself or by a helper of tests, or forks."""
    imported, forks = _read(path)
    if fork and forks:
        return True
    for name in imported:
        helper = ROOT / f"{name.replace('.', '/')}.py"
        if name.partition(".")[0] in modules:
            return True
        if name.startswith("tests.") and helper.is_file() and helper != path and uses(helper, modules, fork):
            return True
    return False


@cache
def _read(path: Path) -> tuple[tuple[str, ...], bool]:
    """The names that a file imports, and whether it forks."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    forks = any(isinstance(node, ast.Attribute) and node.attr == "fork" for node in ast.walk(tree))
    return tuple(_imported(tree)), forks


def _imported(tree: ast.AST) -> Iterator[str]:
    """The names that a module imports; of `from a import b` both a and a.b, since b may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
