"""Run the tests near a module on mutants of it, in children that are forked from a process that has torch loaded."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from random import Random
from types import CodeType, ModuleType
from typing import Any

import pytest

from tests.mutation.coverage import RAN, Coverage, recording
from tests.mutation.mutants import Mutant, mutants

OPTIONS = ["-q", "-n", "0", "-m", "not slow", "-p", "no:cacheprovider", "--no-header", "--hypothesis-seed=0"]
MOST_SECONDS = 60.0
"""Processor time of the tests that one mutant is given, by their times without it. The fastest come first."""
SLACK = 20.0
"""Seconds that a child may compute beyond three times what its tests take: one without an end counts as killed."""
WAITING = 10.0
"""How many times as long a child may take by the clock: a busy machine must not look like a mutant that hangs."""


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: killed by a test, by a timeout, or alive."""

    mutant: Mutant
    result: str
    tests: int


_RESULTS = {
    None: "timeout",
    pytest.ExitCode.OK: "alive",
    pytest.ExitCode.NO_TESTS_COLLECTED: "alive",
    pytest.ExitCode.TESTS_FAILED: "killed",
    pytest.ExitCode.INTERRUPTED: "killed",  # a test file cannot be imported
    pytest.ExitCode.USAGE_ERROR: "killed",  # a conftest cannot be imported
}


class _Loader(importlib.abc.SourceLoader):
    """Loads one module from changed code, under its own path, with some names that it finds there."""

    def __init__(self, path: str, code: CodeType, names: Mapping[str, object]) -> None:
        self.path, self.code, self.names = path, code, names

    def get_filename(self, fullname: str) -> str:
        return self.path

    def get_data(self, path: str) -> bytes:
        return Path(path).read_bytes()

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(self.names)
        exec(self.code, module.__dict__)


class Changed(importlib.abc.MetaPathFinder):
    """Finds one module with changed code."""

    def __init__(self, module: str, code: str | ast.Module, **names: object) -> None:
        self.module, path = module, path_of(module)
        self.loader = _Loader(path, compile(code, path, "exec"), names)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self.loader) if fullname == self.module else None


class _Selection:
    """A plugin that runs the named tests, in the order of their names' list."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.rank = {test: at for at, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.rank), key=lambda item: self.rank[item.nodeid])


def in_child(work: Callable[[], object], seconds: float) -> Any:
    """The JSON value that `work` returns in a forked child; None if it ended otherwise or took too long.

    The seconds are of the processor, so that a busy machine changes no result. By the clock there are `WAITING` times
    as many, for a child that waits for ever.
    """
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        try:
            os.setpgid(0, 0)
            os.close(reading)
            used = resource.getrusage(resource.RUSAGE_SELF)
            most = int(used.ru_utime + used.ru_stime + seconds) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (most, most))
            silent = os.open(os.devnull, os.O_RDWR)
            for handle in (0, 1, 2):
                os.dup2(silent, handle)
            result = json.dumps(work()).encode()
            os.set_blocking(writing, True)
            while result:
                result = result[os.write(writing, result) :]
        finally:
            os._exit(0)
    os.close(writing)
    deadline, content = time.monotonic() + WAITING * seconds, b""
    while (left := deadline - time.monotonic()) > 0:
        if select.select([reading], [], [], left)[0]:
            part = os.read(reading, 1 << 16)
            content += part
            if not part:
                break
    os.close(reading)
    for group in (True, False):
        try:
            os.killpg(process, signal.SIGKILL) if group else os.kill(process, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    os.waitpid(process, 0)
    return json.loads(content) if content else None


@dataclass(frozen=True)
class Measured:
    """The tests near a module as they are without a change."""

    by_line: dict[int, list[str]]
    """Those that execute each line of it, the fastest first."""
    seconds: dict[str, float]
    """Of the processor, by test."""


def measured(targets: Mapping[str, Sequence[str]]) -> dict[str, Measured]:
    """What the tests near each module execute, in one run of all of them; every test must pass."""
    paths, files = {path_of(module): module for module in targets}, sorted(set().union(*targets.values()))

    def work() -> object:
        coverage = Coverage(paths)
        for path, module in paths.items():
            code = recording(Path(path).read_text("utf-8"))
            sys.meta_path.insert(0, Changed(module, code, **{RAN: partial(coverage.ran, path)}))
        exit_code = pytest.main([*OPTIONS, *files], plugins=[coverage])
        lines = {paths[path]: list(tests.items()) for path, tests in coverage.tests().items()}
        return [int(exit_code), lines, coverage.seconds]

    result = in_child(work, 3600)
    if result is None or result[0] != 0:
        raise SystemExit(f"the tests {' '.join(files)} do not pass as they are")
    _, lines, seconds = result
    near = {}
    for module, test_files in targets.items():
        its = {test: used for test, used in seconds.items() if test.partition("::")[0] in test_files}
        near[module] = Measured({at: [test for test in tests if test in its] for at, tests in lines[module]}, its)
    return near


def path_of(module: str) -> str:
    """The source file of a module, relative without importing it."""
    relative = Path(*module.split("."))
    for root in sys.path:
        path = Path(root or ".") / relative.with_suffix(".py")
        if path.is_file():
            return str(path.resolve())
    raise SystemExit(f"{module} is not on the path")


def sample(source: str, count: int | None, seed: int) -> list[Mutant]:
    """Mutants of a source that compile, or a random sample of them, in the order of lines."""
    every = [mutant for mutant in mutants(source) if ast.parse(mutant.source)]
    drawn = every if count is None or count >= len(every) else Random(seed).sample(every, count)
    return sorted(drawn, key=lambda mutant: (mutant.line, mutant.change))


def outcome(module: str, mutant: Mutant, near: Measured) -> Outcome:
    """Run the tests that execute the mutant's line, the fastest first; all tests for a line that runs at import."""
    seconds = near.seconds
    tests = near.by_line.get(mutant.line) or sorted(seconds, key=lambda name: seconds[name])
    chosen: list[str] = []
    total = 0.0
    for test in tests:
        if total + seconds[test] > MOST_SECONDS and chosen:
            break
        chosen.append(test)
        total += seconds[test]
    needed = sorted({test.partition("::")[0] for test in chosen})

    def work() -> object:
        sys.meta_path.insert(0, Changed(module, mutant.source))
        return int(pytest.main([*OPTIONS, "-x", *needed], plugins=[_Selection(chosen)]))

    code = in_child(work, 3 * total + SLACK)
    return Outcome(mutant, _RESULTS[code], len(chosen))
