"""The runner of mutants: which lines run, a child that gives its value, and one without an end that is ended."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.mutation import run
from tests.mutation.coverage import RAN, recording
from tests.mutation.mutants import mutants
from tests.mutation.run import in_child
from tests.timing import PATIENCE


def test_a_child_gives_its_value() -> None:
    assert in_child(lambda: {"a": [1, None]}, PATIENCE) == {"a": [1, None]}
    large = "x" * 1_000_000
    assert in_child(lambda: large, PATIENCE) == large


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_child_that_fails_gives_none(error: type[BaseException]) -> None:
    def work() -> None:
        raise error

    assert in_child(work, PATIENCE) is None


def test_a_child_that_computes_without_end_is_ended_whatever_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "WAITING", 1e6)
    assert run.in_child(lambda: sum(itertools.repeat(0)), 0.1) is None


SOURCE = '''\
from __future__ import annotations

def f(
    x=1,
):
    """A text."""
    if x > 0:
        return (
            x + 1)
    elif x < -1: return 0
    try:
        y = [
            g()
            for g in (lambda:
                      1 / x,)
        ]
    except ZeroDivisionError:
        global z
        z = 3
    else:
        raise AssertionError
'''


@pytest.mark.parametrize(
    ("x", "result", "lines"),
    [
        (1, 2, {3, 4, 5, 7, 8, 9}),
        (-2, 0, {3, 4, 5, 7, 10}),
        (0, None, {3, 4, 5, 7, *range(10, 21)}),
    ],
)
def test_a_measured_module_names_the_lines_that_run_and_does_what_it_did(
    x: int, result: int | None, lines: set[int]
) -> None:
    seen: set[int] = set()
    names = {RAN: lambda *numbers: seen.update(numbers)}
    exec(compile(recording(SOURCE), "source", "exec"), names)
    assert not seen, "what runs at import is of no test"
    function: Any = names["f"]
    assert function.__doc__ == "A text."
    assert function(x) == result
    assert seen == lines


def test_each_mutant_is_one_change_and_the_source_is_none_of_them() -> None:
    source = "def f(x):\n    if x > 0 and x != 3:\n        return x + 1\n    return -x\n"
    made = list(mutants(source))
    assert len({mutant.source for mutant in made}) == len(made)
    assert source.strip() not in {mutant.source for mutant in made}
    assert {mutant.change.partition(":")[0] for mutant in made} == {
        "arithmetic",
        "boolean",
        "comparison",
        "condition",
        "constant",
        "return",
    }
