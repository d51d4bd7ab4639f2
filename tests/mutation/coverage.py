"""A pytest plugin that finds which tests execute which lines of some files, and how long each computes.

The files are loaded from sources that name their lines as they run (`recording`). Nothing else is slowed down: a trace
function, which Python calls for every call in every library, would double the time of the tests.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

Line = tuple[str, int]
"""A file, and the number of a line in it."""
RAN = "__ran__"
"""The name under which a module that is measured finds what it calls with the numbers of its lines."""


class Coverage:
    """Lines of files by test. Lines that a fixture executes count for every test that uses it."""

    def __init__(self, files: Collection[str]) -> None:
        self.files = frozenset(files)
        self.seconds: dict[str, float] = {}
        self._by_test: dict[str, set[Line]] = {}
        self._by_fixture: dict[str, set[Line]] = {}
        self._fixtures: dict[str, list[str]] = {}
        self._lines: set[Line] = set()

    def tests(self) -> dict[str, dict[int, list[str]]]:
        """The tests that execute each line of each file, the fastest first."""
        lines: dict[str, dict[int, list[str]]] = {file: {} for file in self.files}
        for test in sorted(self._by_test, key=lambda name: (self.seconds.get(name, 0.0), name)):
            used = (self._by_fixture.get(name, set()) for name in self._fixtures[test])
            for file, line in self._by_test[test].union(*used):
                lines[file].setdefault(line, []).append(test)
        return lines

    def ran(self, file: str, *lines: int) -> None:
        """Lines of a file run now."""
        self._lines.update((file, line) for line in lines)

    @contextmanager
    def _into(self, lines: set[Line]) -> Iterator[None]:
        before, self._lines = self._lines, lines
        try:
            yield
        finally:
            self._lines = before

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        """Record the lines of a fixture apart: it may be set up for one test and used by many."""
        with self._into(self._by_fixture.setdefault(fixturedef.argname, set())):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Record the lines of a test, and the processor time of it and of the processes that it waits for."""
        self._fixtures[item.nodeid] = list(getattr(item, "fixturenames", ()))
        before = sum(os.times()[:4])
        try:
            with self._into(self._by_test.setdefault(item.nodeid, set())):
                return (yield)
        finally:
            self.seconds[item.nodeid] = sum(os.times()[:4]) - before


def recording(source: str) -> ast.Module:
    """A module whose functions call `RAN` before each of their statements, with the numbers of its lines.

    The lines of a statement are all of it that is no part of a statement inside it. What runs at import names none.
    """
    tree = ast.parse(source)
    _Recording().visit(tree)
    return ast.fix_missing_locations(tree)


class _Recording(ast.NodeTransformer):
    """Puts the calls into a tree, where a function is open."""

    def __init__(self) -> None:
        self.functions = 0

    def visit(self, node: ast.AST) -> Any:
        """The node; a statement of a function after the call that names its lines."""
        if not isinstance(node, ast.stmt):
            return self.generic_visit(node)
        call = _call(_lines_of(node), node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._visit_function(node)
        else:
            self.generic_visit(node)
        return [call, node] if self.functions and not _is_text(node) else node

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """A call of a function runs the lines above its body: a default value or a decorator shows only then."""
        entry, self.functions = _call(_lines_of(node), node.body[0]), self.functions + 1
        self.generic_visit(node)
        self.functions -= 1
        node.body.insert(int(_is_text(node.body[0])), entry)


def _lines_of(statement: ast.stmt) -> set[int]:
    """The lines of a statement without those of the statements inside it; its first line in any case."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(each.lineno for each in decorators)])
    inside = {line for each in ast.walk(statement) if isinstance(each, ast.stmt) for line in _range(each, statement)}
    return {*range(first, (statement.end_lineno or first) + 1)} - inside | {statement.lineno}


def _range(statement: ast.stmt, outside: ast.stmt) -> range:
    """The lines of a statement; none if it is the one outside."""
    return range(statement.lineno, (statement.end_lineno or 0) + 1) if statement is not outside else range(0)


def _is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a docstring, or a text after an attribute."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _call(lines: Collection[int], at: ast.stmt) -> ast.stmt:
    call = ast.Call(ast.Name(RAN, ast.Load()), [ast.Constant(line) for line in sorted(lines)], [])
    return ast.copy_location(ast.Expr(call), at)
