"""The outcome of a task, as its file reports it: one length for all values, and read again."""

from __future__ import annotations

import itertools
import math

import pytest

from halrp.method.outcome import BLANK, BLANK_END, KEY, Outcome, outcome_of
from halrp.training.stopping import Validation

NUMBERS = (0.0, -0.0, 1.0, -1.5, 1e-300, 3.4e38, 1e300, -1e300, 5e-99, math.inf, -math.inf, math.nan, 0.99999999)


def test_all_texts_are_equally_long() -> None:
    texts = {
        Outcome(Validation(first, second), Validation(second, first), epoch, guess).text()
        for first, second in itertools.product(NUMBERS, NUMBERS)
        for epoch, guess in ((0, None), (1, 0.5), (99, -1e300), (100_000, math.nan), (10**9, 0.0))
    }
    assert {len(text) for text in texts} == {len(BLANK)}
    texts = {Outcome(None, Validation(n, n), 0, guess).text() for n in NUMBERS for guess in (None, *NUMBERS)}
    assert {len(text) for text in texts} == {len(BLANK_END)}


@pytest.mark.parametrize("epoch", [0, 7, 12_345])
def test_a_text_gives_the_outcome_back_to_five_digits(epoch: int) -> None:
    start, end = Validation(0.123456, 0.98765), Validation(12.5, -3e-7)
    for guess in (None, 0.0, 0.654321):
        read = outcome_of({KEY: Outcome(start, end, epoch, guess).text()})
        assert read is not None
        assert read.start is not None
        assert read.epoch == epoch
        assert [*read.start, *read.end] == pytest.approx([*start, *end], rel=1e-4)
        assert read.guess == (None if guess is None else pytest.approx(guess, rel=1e-4))
        alone = outcome_of({KEY: Outcome(None, end, guess=guess).text()})
        assert alone == Outcome(None, read.end, guess=read.guess)


def test_the_text_of_an_earlier_version_knows_no_guess() -> None:
    read = outcome_of({KEY: "+7.0000e-01 +8.0100e-01 +6.0000e-01 +8.5000e-01 00012"})
    assert read == Outcome(Validation(0.7, 0.801), Validation(0.6, 0.85), 12, None)


def test_numbers_that_are_not_finite_are_read_as_huge_losses() -> None:
    read = outcome_of({KEY: Outcome(Validation(math.nan, 0.5), Validation(math.inf, 0.5), 1).text()})
    assert read is not None
    assert read.start is not None
    assert read.start.loss > 1e90
    assert read.end.loss > 1e90


@pytest.mark.parametrize("text", ["", "1 2", "1 2 x", "a b c d 00001", "1 2 3 4 x", "1 2 3 4 5 6 7", None, 7])
def test_what_is_no_outcome_is_none(text: object) -> None:
    assert outcome_of({KEY: text}) is None
    assert outcome_of({}) is None


def test_words_say_whether_an_epoch_was_better() -> None:
    start = Validation(0.7, 0.801)
    assert str(Outcome(start, start, 0)) == "probe 80.1 on validation, and no epoch was better"
    assert str(Outcome(start, Validation(0.6, 0.85), 12)) == "probe 80.1 → delta 85.0 on validation, best epoch 12"


def test_words_say_where_a_score_is_no_better_than_guessing() -> None:
    at = Validation(0.7, 0.5)
    assert str(Outcome(None, at, guess=0.5)) == "50.0 on validation, no better than guessing (50.0)"
    assert str(Outcome(None, at, guess=0.49)) == str(Outcome(None, at)) == "50.0 on validation"
    assert str(Outcome(None, Validation(2.0, -1.0), guess=0.0)).endswith("no better than guessing (0.0)")
    assert str(Outcome(at, at, 0, 0.6)).endswith("no epoch was better, no better than guessing (60.0)")
