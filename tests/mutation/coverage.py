"""A pytest plugin that finds which tests execute which lines of some files, and how long each computes."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

Line = tuple[str, int]
"""A file, and the number of a line in it."""


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

    @contextmanager
    def _into(self, lines: set[Line]) -> Iterator[None]:
        before, self._lines = self._lines, lines
        try:
            yield
        finally:
            self._lines = before

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if file not in self.files:
            return None
        self._lines.add((file, frame.f_lineno))
        return self._trace

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
        sys.settrace(self._trace)
        try:
            with self._into(self._by_test.setdefault(item.nodeid, set())):
                return (yield)
        finally:
            sys.settrace(None)
            self.seconds[item.nodeid] = sum(os.times()[:4]) - before
