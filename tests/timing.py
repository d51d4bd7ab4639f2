"""In place of clocks: how much a function does, as a count that is the same on every machine, and a bound on waiting.

A test waits for an event: a line that a process writes, a file, the end of a pipe. How long that takes is no part of
any test; `PATIENCE` only ends a test that would wait for ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
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
