"""Bad targets of every kind of task are refused before anything is trained, by type and with the remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from halrp import Halrp, Learner, Recipe
from halrp.errors import DataError, HalrpError, HeadError, LabelError, SettingError, TaskError
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
from tests.helpers import drawn

N = 12


class Pixels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.body(x).relu())
        return logits


def rows() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))


def tokens() -> nn.Module:
    return nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 9))


X = torch.randn(N, 6, generator=torch.Generator().manual_seed(0))
IDS = torch.arange(N * 5).reshape(N, 5) % 9
PICTURES = torch.randn(N, 1, 4, 4, generator=torch.Generator().manual_seed(1))
NAN = torch.full((N,), torch.nan)
GOOD: dict[str, tuple[Any, Any, Tensor, Tensor]] = {
    "classification": (rows, Classification(), X, torch.arange(N) % 3),
    "multi-label": (rows, MultiLabel(), X, (X[:, :3] > 0).long()),
    "regression": (rows, Regression(), X, X[:, :2].clone()),
    "ordinal": (rows, Ordinal(), X, torch.arange(N) % 4),
    "tokens": (tokens, TokenClassification(), IDS, IDS % 3),
    "pixels": (Pixels, Segmentation(), PICTURES, (PICTURES[:, 0] > 0).long()),
    "language": (tokens, CausalLM(), IDS, IDS.clone()),
}
BAD: dict[tuple[str, str], tuple[Tensor, type[HalrpError], str]] = {
    ("classification", "numbers"): (torch.rand(N), LabelError, "class indices"),
    ("classification", "two columns"): (torch.zeros(N, 2, dtype=torch.long), LabelError, r"1-D .*\(\d+, 2\)"),
    ("classification", "a gap"): (torch.arange(N) % 3 * 2, LabelError, "never occur"),
    ("multi-label", "one column"): (torch.arange(N) % 2, DataError, r"\(examples, labels\)"),
    ("multi-label", "counts"): (torch.arange(2 * N).reshape(N, 2), LabelError, r"from 0 to \d+"),
    ("multi-label", "not a number"): (NAN[:, None].clone(), DataError, "targets hold NaN"),
    ("regression", "not a number"): (NAN.clone(), DataError, "targets hold NaN"),
    ("regression", "three dimensions"): (torch.zeros(N, 2, 2), DataError, r"\(examples, values\)"),
    ("regression", "truth values"): (torch.ones(N, dtype=torch.bool), DataError, "must be numbers"),
    ("ordinal", "below zero"): (torch.arange(N) - 1, LabelError, "from -1"),
    ("tokens", "one for a sequence"): (torch.arange(N) % 3, DataError, r"\(examples, length\)"),
    ("tokens", "another length"): (IDS[:, :4] % 3, DataError, "cannot compare outputs of shape"),
    ("tokens", "numbers"): (torch.rand(N, 5), DataError, "class indices"),
    ("tokens", "all ignored"): (torch.full((N, 5), -100), LabelError, "no label counts"),
    ("pixels", "one for a picture"): (torch.arange(N) % 2, DataError, r"\(examples, height, width\)"),
    ("pixels", "another size"): (torch.zeros(N, 3, 3, dtype=torch.long), DataError, "cannot compare outputs of shape"),
    ("pixels", "numbers"): (torch.rand(N, 4, 4), DataError, "class indices"),
    ("language", "one token"): (IDS[:, :1], DataError, "no next token"),
    ("language", "another length"): (IDS[:, :4], DataError, "cannot compare outputs of shape"),
    ("language", "numbers"): (IDS.double(), DataError, "class indices"),
}


def learner(kind: str, **settings: Any) -> Learner:
    head: Any = False if kind == "language" else None if kind != "pixels" else "fc"
    options: dict[str, Any] = {"method": Halrp.budget(bytes_per_task=8_000), "recipe": Recipe(epochs=2, batch=4)}
    return Learner(drawn(GOOD[kind][0]), head=head, base="given", progress=None, **(options | settings))


@pytest.mark.parametrize("kind", GOOD)
def test_every_kind_is_learned_and_answered_after_it_was_loaded(kind: str, tmp_path: Path) -> None:
    build, objective, x, y = GOOD[kind]
    first = learner(kind, store=tmp_path / "store")
    first.learn("a", (x, y), (x, y), objective=objective)
    again = Learner.load(tmp_path / "store", drawn(build))
    assert torch.equal(again.predict(x, "a"), first.predict(x, "a"))
    mine, loaded = first.answer(x, "a"), again.answer(x, "a")
    assert type(mine) is type(loaded)
    assert len(mine) == N
    for name, value in vars(mine).items():
        other = getattr(loaded, name)
        assert torch.equal(value, other) if isinstance(value, Tensor) else value == other


@pytest.mark.parametrize(("kind", "fault"), BAD)
@pytest.mark.parametrize("loaded", [False, True])
def test_bad_targets_are_refused_before_training_and_change_nothing(
    kind: str, fault: str, loaded: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("halrp.training.loop.Training.run", None)
    _, objective, x, _ = GOOD[kind]
    targets, error, message = BAD[kind, fault]
    refused = learner(kind, store=tmp_path / "store")
    train: Any = DataLoader(TensorDataset(x, targets), batch_size=4) if loaded else (x, targets)
    with pytest.raises(error, match=message):
        refused.learn("a", train, objective=objective)
    assert not refused.tasks
    assert not (tmp_path / "store" / "manifest.json").exists()


@pytest.mark.parametrize("kind", GOOD)
def test_validation_targets_are_checked_alike(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halrp.training.loop.Training.run", None)
    _, objective, x, y = GOOD[kind]
    faults = [fault for of, fault in BAD if of == kind and fault not in ("a gap", "all ignored")]
    assert faults
    for fault in faults:
        targets = BAD[kind, fault][0]
        with pytest.raises(DataError, match="a: val: "):
            learner(kind).learn("a", (x, y), (x, targets), objective=objective)


def test_objectives_and_settings_that_contradict_each_other_are_refused() -> None:
    x, y = X, torch.arange(N) % 3
    with pytest.raises(SettingError, match=r"classes=3 is for classification; with objective=Regression"):
        learner("regression").learn("a", (x, X[:, :2]), classes=3, objective=Regression())
    with pytest.raises(SettingError, match="is no objective"):
        learner("classification").learn("a", (x, y), objective="regression")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match=r"CausalLM keeps the model.s own outputs.*head=False"):
        learner("tokens").learn("a", (IDS, IDS), objective=CausalLM())
    with pytest.raises(TaskError, match="4 class names for 3 classes"):
        learner("classification").learn("a", (x, y), objective=Classification(3), class_names=list("abcd"))
    with pytest.raises(TaskError, match="head=False keeps the model's 9 outputs"):
        learner("language").learn("a", (IDS, IDS % 3), objective=TokenClassification(3))
    with pytest.raises(HeadError, match=r"outputs of shape \(2, 3\); token-classification takes 3 dimensions"):
        learner("classification").learn("a", (x, IDS % 3), objective=TokenClassification())

    class Unregistered(Classification):
        name = "unregistered"

    with pytest.raises(SettingError, match=r"Unregistered is not registered .*objectives\.register"):
        learner("classification").learn("a", (x, y), objective=Unregistered())


def test_an_objective_whose_loss_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Classification, "score", lambda *_: 0.5)
    with pytest.raises(SettingError, match=r"its score gives 0\.5, not a tensor with one number"):
        learner("classification").learn("a", (X, torch.arange(N) % 3))


def test_names_of_ordered_classes_and_values_are_answered() -> None:
    ordered = learner("ordinal")
    ordered.learn("size", (X, torch.arange(N) % 3), objective=Ordinal(), class_names=["small", "medium", "large"])
    assert set(ordered.answer(X, "size").labels) <= {"small", "medium", "large"}
    ordered.learn("place", (X, X[:, :2]), objective=Regression(), class_names=["north", "east"])
    assert ordered.answer(X, "place").names == ("north", "east")
    assert ordered.tasks["size"].objective["name"] == "ordinal"


def test_the_defaults_of_objectives_are_instances_of_the_base_class() -> None:
    assert all(isinstance(objective, Objective) for _, objective, _, _ in GOOD.values())
