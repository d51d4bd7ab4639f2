"""`Learner.answer`: labels and probabilities."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import halrp
from halrp import Halrp, Learner
from halrp.errors import UnknownTaskError
from halrp.objectives import classification
from tests.helpers import FAST, net, tiny_task

X = tiny_task("mlp", seed=9)[0]


@pytest.fixture(scope="module")
def learner() -> Learner:
    """Three tasks: of three classes with names, five without and two with names; tests only look at it."""
    learner = Learner(net("mlp"), method=Halrp.budget(growth_per_task=0.9), recipe=FAST)
    learner.learn("birds", tiny_task("mlp", 0), class_names=["owl", "rook", "wren"])
    learner.learn("cars", tiny_task("mlp", 1, classes=5))
    learner.learn("coins", tiny_task("mlp", 2, classes=2), class_names=["head", "tail"])
    return learner


@pytest.mark.parametrize("task", ["birds", "coins", None])
def test_labels_are_the_class_names_of_the_largest_logits(learner: Learner, task: str | None) -> None:
    names = learner.tasks["coins" if task == "coins" else "birds"].class_names
    assert names is not None
    logits, answer = learner.predict(X, task), learner.answer(X, task)
    assert isinstance(answer, halrp.Answer)
    assert len(answer) == len(X)
    assert answer.labels == tuple(names[index] for index in logits.argmax(1).tolist())
    assert torch.equal(answer.indices, logits.argmax(1))
    torch.testing.assert_close(answer.probabilities, logits.softmax(1))
    assert torch.equal(answer.confidence, answer.probabilities.max(1).values)


def test_a_task_without_class_names_answers_by_index(learner: Learner) -> None:
    assert learner.answer(X, "cars").labels == tuple(learner.predict(X, "cars").argmax(1).tolist())


def test_rows_of_different_tasks_are_answered_in_the_words_of_their_own(learner: Learner) -> None:
    names = ["birds", "cars", "coins", None]
    rows = [names[n % 4] for n in range(len(X))]
    answer, logits = learner.answer(X, rows), learner.predict(X, rows)
    for n, task in enumerate(rows):
        class_names = learner.tasks[task or "birds"].class_names
        index = int(logits[n].argmax())
        assert answer.labels[n] == (index if class_names is None else class_names[index])
    assert bool((answer.probabilities[torch.isneginf(logits)] == 0).all())
    torch.testing.assert_close(answer.probabilities.sum(1), torch.ones(len(X)))


def test_answers_survive_saving(learner: Learner, tmp_path: Path) -> None:
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, net("mlp"))
    for task in ("birds", "cars", None):
        assert loaded.answer(X, task).labels == learner.answer(X, task).labels


def test_an_unknown_task_has_no_answer(learner: Learner) -> None:
    with pytest.raises(UnknownTaskError, match="no task named 'planes'"):
        learner.answer(X, "planes")


def test_logits_of_low_precision_are_decoded_in_float32() -> None:
    answer = classification.decode(torch.tensor([[1.0, 3.0]], dtype=torch.bfloat16), [None])
    assert answer.probabilities.dtype == torch.float32
    assert answer.labels == (1,)
