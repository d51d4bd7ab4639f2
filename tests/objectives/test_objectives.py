"""Losses and scores of every kind of task, against independent formulas in float64 and against scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from sklearn import metrics
from torch import Tensor

from halrp.errors import DataError, LabelError, SettingError
from halrp.objectives import (
    CausalLM,
    Classification,
    MultiLabel,
    Objective,
    Ordinal,
    Regression,
    Segmentation,
    TokenClassification,
    described,
    register,
    restored,
)
from tests.helpers import drawn

N, C, L = 12, 4, 5


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(*shape: int, high: int = C, seed: int = 1) -> Tensor:
    values = torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))
    values.view(-1)[:high] = torch.arange(high)
    return values


def log_softmax(logits: Tensor, dim: int) -> Tensor:
    return logits - logits.exp().sum(dim, keepdim=True).log()


# ---- losses ---------------------------------------------------------------------------------------------------------


def test_cross_entropy_is_weighted_and_smoothed_as_the_formula_says() -> None:
    logits, y = draw(N, C), labels(N)
    weights, smoothing = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64), 0.2
    target = (1 - smoothing) * torch.nn.functional.one_hot(y, C) + smoothing / C
    expected = -(target * weights * log_softmax(logits, 1)).sum() / weights[y].sum()
    objective = Classification(C, tuple(weights.tolist()), smoothing)
    # torch holds the share of smoothing in float32.
    torch.testing.assert_close(objective.loss(logits, y), expected, rtol=1e-7, atol=0)
    total = objective.total_loss(logits, y) / objective.weight(y)
    torch.testing.assert_close(total.double(), expected, rtol=1e-6, atol=0)


def test_binary_cross_entropy_weighs_present_labels() -> None:
    logits, y = draw(N, L), labels(N, L, high=2).double()
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    p = 1 / (1 + (-logits).exp())
    expected = -(weights * y * p.log() + (1 - y) * (1 - p).log()).mean()
    objective = MultiLabel(L, tuple(weights.tolist()))
    torch.testing.assert_close(objective.loss(logits, y), expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("error", ["squared", "huber"])
def test_regression_is_learned_in_standard_units(error: Any) -> None:
    y = 1000 + 50 * draw(N, 2)
    objective = Regression(error=error, delta=0.7).fitted([y[:5], y[5:]], "train")
    assert objective.values == 2
    mean, deviation = y.mean(0), y.std(0, correction=0)
    torch.testing.assert_close(torch.tensor(objective.mean, dtype=torch.float64), mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.tensor(objective.deviation, dtype=torch.float64), deviation, rtol=1e-12, atol=0)
    outputs = draw(N, 2, seed=3)
    gap = (outputs - (y - mean) / deviation).abs()
    huber = torch.where(gap < 0.7, gap.square() / 2, 0.7 * (gap - 0.35))
    expected = (gap.square() if error == "squared" else huber).mean()
    torch.testing.assert_close(objective.loss(outputs, y), expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(objective.decode(outputs).values, mean + deviation * outputs, rtol=1e-12, atol=0)


def test_a_regression_whose_targets_do_not_vary_has_finite_units() -> None:
    objective = Regression().fitted([torch.full((6, 1), 7.0)], "train")
    assert (objective.mean, objective.deviation) == ((7.0,), (1.0,))
    assert math.isfinite(float(objective.loss(torch.zeros(6, 1), torch.full((6, 1), 7.0))))


def test_ordinal_loss_asks_one_question_per_step() -> None:
    logits, y = draw(N, C - 1), labels(N)
    above = (y[:, None] > torch.arange(C - 1)).double()
    p = 1 / (1 + (-logits).exp())
    expected = -(above * p.log() + (1 - above) * (1 - p).log()).mean()
    torch.testing.assert_close(Ordinal(C).loss(logits, y), expected, rtol=1e-10, atol=0)


def test_tokens_that_are_ignored_count_nowhere() -> None:
    logits, y = draw(N, L, C), labels(N, L)
    y[::2, 3:] = -100
    counted = y != -100
    expected = -log_softmax(logits, 2)[counted].gather(1, y[counted][:, None]).mean()
    objective = TokenClassification(C)
    torch.testing.assert_close(objective.loss(logits, y), expected, rtol=1e-12, atol=0)
    assert float(objective.weight(y)) == int(counted.sum())
    right = (logits.argmax(2) == y)[counted].double().mean()
    assert float(objective.score(logits, y)) == pytest.approx(float(right), abs=1e-6)


def test_a_batch_without_a_token_that_counts_has_loss_and_gradient_zero() -> None:
    logits = draw(2, L, C).requires_grad_()
    loss = TokenClassification(C).loss(logits, torch.full((2, L), -100))
    loss.backward()
    assert float(loss.detach()) == 0
    assert logits.grad is not None
    assert not logits.grad.any()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_batch_of_classes_without_weight_has_loss_and_gradient_zero(smoothing: float) -> None:
    logits, y = draw(3, 2).requires_grad_(), torch.tensor([1, 1, 1])
    objective = Classification(2, (1.0, 0.0), smoothing)
    objective.loss(logits, y).backward()
    assert logits.grad is not None
    assert float(logits.grad.abs().max()) < 1
    assert float(objective.score(logits.detach(), y)) == 0
    if not smoothing:
        assert not logits.grad.any()


def test_a_language_model_is_compared_with_the_next_token() -> None:
    logits, tokens = draw(N, L, C), labels(N, L)
    tokens[0, 3:] = -100
    following = tokens[:, 1:]
    counted = following != -100
    expected = -log_softmax(logits, 2)[:, :-1][counted].gather(1, following[counted][:, None]).mean()
    torch.testing.assert_close(CausalLM().loss(logits, tokens), expected, rtol=1e-12, atol=0)
    assert int(CausalLM().weight(tokens)) == int(counted.sum())


def test_dice_is_the_overlap_of_the_classes_that_a_picture_has() -> None:
    logits, y = draw(3, C, 4, 4), labels(3, 4, 4)
    y[0] = 2
    p, losses = log_softmax(logits, 1).exp(), []
    for picture in range(3):
        present = y[picture].unique().tolist()
        dice = [
            float(2 * (p[picture, c] * (y[picture] == c)).sum() / (p[picture, c].sum() + (y[picture] == c).sum()))
            for c in present
        ]
        losses.append(1 - sum(dice) / len(dice))
    dice_loss = Segmentation(C, error="dice").loss(logits, y)
    assert float(dice_loss) == pytest.approx(sum(losses) / 3, rel=1e-10)
    both = Segmentation(C, error="both").loss(logits, y)
    assert float(both - dice_loss) == pytest.approx(float(Segmentation(C).loss(logits, y)), rel=1e-10)


# ---- scores, against scikit-learn -----------------------------------------------------------------------------------


def test_scores_are_those_of_scikit_learn() -> None:
    logits, y = draw(N, C), labels(N)
    assert float(Classification(C).score(logits, y)) == pytest.approx(metrics.accuracy_score(y, logits.argmax(1)))
    weights = (1.0, 2.0, 0.5, 3.0)
    weighted = metrics.accuracy_score(y, logits.argmax(1), sample_weight=[weights[label] for label in y])
    assert float(Classification(C, weights).score(logits, y)) == pytest.approx(weighted, rel=1e-6)
    several, truth = draw(N, L), labels(N, L, high=2)
    f1 = metrics.f1_score(truth, several.sigmoid() >= 0.4, average="samples", zero_division=1.0)
    assert float(MultiLabel(L, thresholds=0.4).score(several, truth.double())) == pytest.approx(f1, rel=1e-6)
    targets, outputs = 3 * draw(N, 2) + 5, draw(N, 2, seed=2)
    regression = Regression().fitted([targets], "train")
    explained = metrics.r2_score(targets, regression.decode(outputs).values)
    assert float(regression.score(outputs, targets)) == pytest.approx(explained, rel=1e-9)


def test_the_score_of_masks_is_intersection_over_union() -> None:
    logits, y = draw(3, C, 4, 4), labels(3, 4, 4)
    y[1, :2] = -100
    values = []
    for predicted, truth in zip(logits.argmax(1), y, strict=True):
        counted = truth != -100
        present = sorted({*predicted[counted].tolist(), *truth[counted].tolist()})
        values.append(metrics.jaccard_score(truth[counted], predicted[counted], average="macro", labels=present))
    assert float(Segmentation(C).score(logits, y)) == pytest.approx(sum(values) / 3, rel=1e-6)


def test_an_ordinal_score_is_one_minus_the_mean_error_as_a_share_of_the_longest() -> None:
    y = labels(N)
    steps = torch.arange(C - 1)
    perfect = torch.where(y[:, None] > steps, 3.0, -3.0)
    assert float(Ordinal(C).score(perfect, y)) == 1
    off_by_one = torch.where((y[:, None] - 1).clamp(min=0) > steps, 3.0, -3.0)
    error = float((y > 0).double().mean()) / (C - 1)
    assert float(Ordinal(C).score(off_by_one, y)) == pytest.approx(1 - error, rel=1e-6)
    answer = Ordinal(C).decode(perfect)
    assert answer.labels == tuple(y.tolist())
    torch.testing.assert_close(answer.probabilities.sum(1), torch.ones(N))
    assert (answer.probabilities >= 0).all()


CASES: dict[str, tuple[Callable[[], Objective], tuple[int, ...], Tensor]] = {
    "classification": (lambda: Classification(C, (1.0, 2.0, 0.5, 3.0), 0.1), (N, C), labels(N)),
    "multi-label": (lambda: MultiLabel(L), (N, L), labels(N, L, high=2).double()),
    "regression": (lambda: Regression().fitted([draw(N, 2)], "train"), (N, 2), draw(N, 2)),
    "one value": (lambda: Regression().fitted([draw(N, 1)], "train"), (N, 1), draw(N, 1)),
    "ordinal": (lambda: Ordinal(C), (N, C - 1), labels(N)),
    "tokens": (lambda: TokenClassification(C), (N, L, C), torch.where(labels(N, L) == 3, -100, labels(N, L))),
    "segmentation": (lambda: Segmentation(C, error="both"), (N, C, 4, 4), labels(N, 4, 4)),
    "language model": (CausalLM, (N, L, C), labels(N, L)),
}


@pytest.mark.parametrize("name", [name for name in CASES if name != "segmentation"])
def test_means_of_batches_add_up_by_their_weights(name: str) -> None:
    make, shape, y = CASES[name]
    objective, outputs = make(), draw(*shape)
    for total, mean in ((objective.total_loss, objective.loss), (objective.total_score, objective.score)):
        parts = [total(outputs[part], y[part]) for part in (slice(5), slice(5, N))]
        weight = objective.weight(y[:5]) + objective.weight(y[5:])
        assert float(sum(parts) / weight) == pytest.approx(float(mean(outputs, y)), rel=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_targets_that_are_not_looked_at_have_the_form_of_checked_ones(name: str) -> None:
    make, _, y = CASES[name]
    raw = y if y.is_floating_point() else y.int()
    raw = raw.squeeze(1) if name == "one value" else raw
    assert torch.equal(make().convert(raw), make().check(raw, "train"))
    assert make().convert(raw).dtype == make().check(raw, "train").dtype


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_the_loss_are_right(name: str) -> None:
    make, shape, y = CASES[name]
    objective = make()
    assert torch.autograd.gradcheck(lambda z: objective.loss(z, y), draw(*shape).requires_grad_())


@pytest.mark.parametrize("name", CASES)
def test_an_objective_comes_back_from_its_description(name: str) -> None:
    make, shape, _ = CASES[name]
    objective = make()
    width = shape[objective.width_dim]
    again = restored(described(objective), width, "birds")
    assert again == objective
    assert type(again) is type(objective)


def test_classification_is_described_by_its_name_alone() -> None:
    assert described(Classification(7)) == {"name": "classification"}, "so that files stay what they were"


# ---- what follows from targets --------------------------------------------------------------------------------------


def test_settings_follow_from_the_training_targets() -> None:
    y = torch.tensor([0, 0, 0, 1, 2, 2])
    balanced = Classification(weights="balanced").fitted([y[:2], y[2:]], "train")
    assert balanced.classes == 3
    assert balanced.weights == pytest.approx((6 / 9, 6 / 3, 6 / 6))
    tokens = torch.tensor([[0, 1, -100], [1, 2, -100]])
    assert TokenClassification().fitted([tokens], "train").classes == 3
    present = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    several = MultiLabel(positive_weights="balanced").fitted([present], "train")
    assert several.labels == 2
    assert several.positive_weights == pytest.approx((1 / 3, 3.0))
    assert Ordinal().fitted([y], "train").outputs == 2


BAD: dict[str, tuple[Objective, Tensor, type[Exception], str]] = {
    "labels of numbers": (Classification(), torch.rand(4), LabelError, "class indices"),
    "a label too high": (Classification(3), torch.tensor([0, 3]), LabelError, "label 3 does not fit classes=3"),
    "a negative label": (TokenClassification(3), torch.tensor([[0, -1]]), LabelError, "from -1 to 0"),
    "one label for a sequence": (TokenClassification(), torch.tensor([0, 1]), DataError, r"\(examples, length\)"),
    "a mask of numbers": (Segmentation(), torch.rand(2, 4, 4), DataError, "class indices"),
    "several labels in one column": (MultiLabel(), torch.tensor([0, 1]), DataError, r"\(examples, labels\)"),
    "a label that is two": (MultiLabel(), torch.tensor([[0, 2]]), LabelError, "absent .0. or present .1."),
    "other labels": (MultiLabel(3), torch.zeros(4, 2), DataError, "2 labels, not 3"),
    "not a number": (Regression(), torch.tensor([1.0, math.nan]), DataError, "1 of 2 targets hold NaN"),
    "truth values": (Regression(), torch.tensor([True, False]), DataError, "must be numbers"),
    "other values": (Regression(2), torch.zeros(4, 3), DataError, "3 values, not 2"),
    "one token": (CausalLM(), torch.tensor([[1], [2]]), DataError, "no next token"),
}


@pytest.mark.parametrize("name", BAD)
def test_targets_that_mean_nothing_are_refused(name: str) -> None:
    objective, targets, error, message = BAD[name]
    with pytest.raises(error, match=f"birds: train: .*{message}"):
        objective.check(targets, "birds: train")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Classification(smoothing=1.0), "smoothing=1.0"),
        (lambda: Classification(2, weights=(1.0,)), "1 weights for 2 classes"),
        (lambda: Classification(weights="equal"), "'balanced', or None"),  # type: ignore[arg-type]
        (lambda: Classification(weights=(0.0, 0.0)), "not all 0"),
        (lambda: Classification("3"), "classes='3'"),  # type: ignore[arg-type]
        (lambda: MultiLabel(thresholds=1.5), "thresholds=1.5"),
        (lambda: MultiLabel(3, thresholds=(0.5, 0.5)), "2 thresholds for 3 labels"),
        (lambda: Regression(error="cubic"), "error='cubic'"),  # type: ignore[arg-type]
        (lambda: Regression(delta=0.0), "delta=0.0"),
        (lambda: Regression(mean=(1.0,)), "both mean and deviation"),
        (lambda: Regression(mean=(1.0,), deviation=(0.0,)), "above 0"),
        (lambda: Ordinal(1), "two classes or more"),
        (lambda: Segmentation(error="iou"), "error='iou'"),  # type: ignore[arg-type]
        (lambda: TokenClassification(ignore=0.5), "ignore=0.5"),  # type: ignore[arg-type]
    ],
)
def test_settings_that_mean_nothing_are_refused(make: Callable[[], Objective], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make()


def test_balanced_weights_need_every_class() -> None:
    with pytest.raises(LabelError, match="class 1 never occurs"):
        Classification(3, weights="balanced").fitted([torch.tensor([0, 2])], "train")
    with pytest.raises(LabelError, match="label 1 is present in no example or in all"):
        MultiLabel(positive_weights="balanced").fitted([torch.tensor([[1.0, 0.0], [0.0, 0.0]])], "train")


# ---- the registry ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Poisson(Objective):
    """Counts, whose logarithm the model gives."""

    name: ClassVar[str] = "poisson"
    scale: float = 1.0

    @property
    def outputs(self) -> int:
        return 1


def test_a_name_means_one_class() -> None:
    register(Poisson)
    register(Poisson)
    assert restored({"name": "poisson", "settings": {"scale": 2.0}}, 1, "birds") == Poisson(2.0)

    @dataclass(frozen=True)
    class Other(Objective):
        name: ClassVar[str] = "poisson"

    with pytest.raises(SettingError, match="'poisson' is registered already, as Poisson"):
        register(Other)
    with pytest.raises(SettingError, match="has no name"):
        register(type("Nameless", (Objective,), {}))
    with pytest.raises(SettingError, match="subclass of"):
        register(dict)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"name": "unheard of"}, "birds: its objective 'unheard of' is not known here.*import the module"),
        ({"name": "classification", "settings": {"colour": 1}}, "settings of its objective 'classification'"),
        ({"name": "classification", "settings": {"smoothing": 2}}, "smoothing=2"),
    ],
)
def test_a_description_that_means_nothing_is_refused(description: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        restored(description, 3, "birds")


def test_settings_that_no_file_holds_are_refused() -> None:
    register(Poisson)
    with pytest.raises(SettingError, match="cannot be written to a file"):
        described(Poisson(math.inf))
    with pytest.raises(SettingError, match="cannot be written to a file"):
        described(Poisson(drawn(lambda: torch.nn.Linear(1, 1))))  # type: ignore[arg-type]
