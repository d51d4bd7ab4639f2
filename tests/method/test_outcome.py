"""The outcome of a task, as its file reports it: one length for all values, and read again."""

from __future__ import annotations

import itertools
import math

import pytest

from halrp.method.outcome import BLANK, KEY, Outcome, outcome_of
from halrp.training.stopping import Validation

NUMBERS = (0.0, -0.0, 1.0, -1.5, 1e-300, 3.4e38, 1e300, -1e300, 5e-99, math.inf, -math.inf, math.nan, 0.99999999)


def test_all_texts_are_equally_long() -> None:
    texts = {
        Outcome(Validation(first, second), Validation(second, first), epoch).text()
        for first, second in itertools.product(NUMBERS, NUMBERS)
        for epoch in (0, 1, 99, 100_000, 10**9)
    }
    assert {len(text) for text in texts} == {len(BLANK)}


@pytest.mark.parametrize("epoch", [0, 7, 12_345])
def test_a_text_gives_the_outcome_back_to_five_digits(epoch: int) -> None:
    given = Outcome(Validation(0.123456, 0.98765), Validation(12.5, -3e-7), epoch)
    read = outcome_of({KEY: given.text()})
    assert read is not None
    assert read.epoch == epoch
    assert [*read.start, *read.end] == pytest.approx([*given.start, *given.end], rel=1e-4)


def test_numbers_that_are_not_finite_are_read_as_huge_losses() -> None:
    read = outcome_of({KEY: Outcome(Validation(math.nan, 0.5), Validation(math.inf, 0.5), 1).text()})
    assert read is not None
    assert read.start.loss > 1e90
    assert read.end.loss > 1e90


@pytest.mark.parametrize("text", ["", "1 2 3", "a b c d 00001", "1 2 3 4 x", "1 2 3 4 5 6", None, 7])
def test_what_is_no_outcome_is_none(text: object) -> None:
    assert outcome_of({KEY: text}) is None
    assert outcome_of({}) is None


def test_words_say_whether_an_epoch_was_better() -> None:
    start = Validation(0.7, 0.801)
    assert str(Outcome(start, start, 0)) == "probe 80.1 on validation, and no epoch was better"
    assert str(Outcome(start, Validation(0.6, 0.85), 12)) == "probe 80.1 → delta 85.0 on validation, best epoch 12"
