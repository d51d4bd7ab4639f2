"""The score of the best constant answer, against scoring every constant answer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from halrp.objectives import (
    CausalLM,
    Classification,
    MultiLabel,
    Objective,
    Ordinal,
    Regression,
    Segmentation,
    TokenClassification,
)

N, C = 30, 4


def skewed(*shape: int, seed: int = 0) -> Tensor:
    """Labels of which lower ones are more frequent, and all occur."""
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(seed)).square() * C
    labels = drawn.long()
    labels.view(-1)[:C] = torch.arange(C)
    return labels


def in_batches(targets: Tensor) -> Iterator[Tensor]:
    yield from targets.split(8)


def best_of(objective: Objective, targets: Tensor, answers: Iterator[Tensor]) -> float:
    """The highest score, in batches as they are evaluated, of outputs that are the same for every row."""
    scores = []
    for answer in answers:
        total = weight = torch.zeros((), dtype=torch.float64)
        for batch in in_batches(targets):
            outputs = answer.expand(len(batch), *answer.shape)
            total = total + objective.total_score(outputs, batch)
            weight = weight + objective.weight(batch)
        scores.append(float(total / weight))
    return max(scores)


def one_hot() -> Iterator[Tensor]:
    yield from torch.eye(C)


IGNORED = skewed(N, 6, seed=3).where(torch.arange(N * 6).reshape(N, 6) % 5 > 0, -100)
WEIGHTS = (0.2, 3.0, 1.0, 0.5)
PIXELS = skewed(N, 3, 3, seed=4).where(torch.arange(N * 9).reshape(N, 3, 3) % 7 > 0, -100)
SETS = torch.rand(N, 5, generator=torch.Generator().manual_seed(5)) < torch.tensor([0.9, 0.5, 0.3, 0.1, 0.6])
CASES: dict[str, tuple[Objective, Tensor, Any]] = {
    "classification": (Classification(C), skewed(N), one_hot),
    "classification, weighted": (Classification(C, weights=WEIGHTS), skewed(N), one_hot),
    "tokens": (TokenClassification(C), IGNORED, lambda: (row.expand(6, C) for row in torch.eye(C))),
    "tokens, weighted": (TokenClassification(C, WEIGHTS), IGNORED, lambda: (row.expand(6, C) for row in torch.eye(C))),
    "next tokens": (CausalLM(), IGNORED, lambda: (row.expand(6, C) for row in torch.eye(C))),
    "ordinal": (Ordinal(C), skewed(N), lambda: (torch.where(torch.arange(C - 1) < c, 1.0, -1.0) for c in range(C))),
    "pixels": (Segmentation(C), PIXELS, lambda: (row.view(C, 1, 1).expand(C, 3, 3) for row in torch.eye(C))),
    "several labels": (
        MultiLabel(5),
        SETS.float(),
        lambda: (torch.tensor(signs) for signs in product((-1.0, 1.0), repeat=5)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_no_constant_answer_scores_more_and_one_scores_as_much(case: str) -> None:
    objective, targets, answers = CASES[case]
    score = objective.constant_score(in_batches(targets))
    assert score == pytest.approx(best_of(objective, targets, answers()), abs=1e-6)  # scores are computed in float32
    assert score is not None
    assert 0 < score < 1


@pytest.mark.parametrize("standardise", [True, False])
def test_a_regression_is_a_guess_at_an_r_squared_of_zero(standardise: bool) -> None:
    targets = torch.randn(N, 2, generator=torch.Generator().manual_seed(6), dtype=torch.float64) * 3 + 5
    objective = Regression(standardise=standardise).fitted([2 * targets + 1], "task")
    score = objective.constant_score(in_batches(targets))
    units = torch.ones(2, dtype=torch.float64) if objective.deviation is None else torch.tensor(objective.deviation)
    shift = torch.zeros(2) if objective.mean is None else torch.tensor(objective.mean)
    answer = (targets.mean(0) - shift) / units
    assert score == pytest.approx(float(objective.score(answer.expand(N, 2), targets)))
    assert score is not None
    assert score > float(objective.score(answer.expand(N, 2) + 0.01, targets))


@pytest.mark.parametrize(
    ("objective", "targets"),
    [
        (Classification(C), torch.full((N,), 2)),
        (Classification(2, weights=(0.0, 1.0)), torch.arange(N) % 2),
        (TokenClassification(C), torch.full((N, 3), -100)),
        (CausalLM(), torch.ones(N, 3, dtype=torch.long)),
        (Ordinal(C), torch.full((N,), 1)),
        (Segmentation(C), torch.full((N, 2, 2), 3)),
        (MultiLabel(2), torch.tensor([[1.0, 0.0]]).expand(N, 2)),
        (Regression(1, standardise=False), torch.full((N, 1), 0.5)),
    ],
)
def test_nothing_is_known_of_a_guess_where_targets_do_not_differ(objective: Objective, targets: Tensor) -> None:
    assert objective.constant_score(in_batches(targets)) is None


def test_an_objective_need_not_know_what_guessing_is() -> None:
    assert Objective().constant_score(in_batches(skewed(N))) is None
