"""The runner of mutants: a child gives its value, and one without an end is ended."""

from __future__ import annotations

import itertools

import pytest

from tests.mutation import run
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
