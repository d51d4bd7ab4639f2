"""A pytest plugin that finds which tests execute which lines of one file, and how long each computes."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest


class Coverage:
    """Lines of a file by test. Lines that a fixture executes count for every test that uses it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.seconds: dict[str, float] = {}
        self._by_test: dict[str, set[int]] = {}
        self._by_fixture: dict[str, set[int]] = {}
        self._fixtures: dict[str, list[str]] = {}
        self._lines: set[int] = set()

    def tests(self) -> dict[int, list[str]]:
        """The tests that execute each line, the fastest first."""
        lines: dict[int, list[str]] = {}
        for test in sorted(self._by_test, key=lambda name: (self.seconds.get(name, 0.0), name)):
            used = (self._by_fixture.get(name, set()) for name in self._fixtures[test])
            for line in self._by_test[test].union(*used):
                lines.setdefault(line, []).append(test)
        return lines

    @contextmanager
    def _into(self, lines: set[int]) -> Iterator[None]:
        before, self._lines = self._lines, lines
        try:
            yield
        finally:
            self._lines = before

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != self.file:
            return None
        self._lines.add(frame.f_lineno)
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
