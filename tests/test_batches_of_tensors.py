"""Tuples and dicts of tensors go every way that one tensor goes: learning, loaders, mixed batches, files."""

from __future__ import annotations

from collections import UserDict, namedtuple
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from halrp import Halrp, Learner, Recipe
from halrp.errors import DataError, ModelError, SettingError
from halrp.model import batch as tree
from halrp.objectives import Classification, Regression
from halrp.tools import export
from tests.helpers import drawn

METHOD = Halrp.budget(bytes_per_task=6_000)
FAST = Recipe(epochs=3, batch=8)


class TwoInputs(nn.Module):
    """Takes two inputs by position or by name, and gives whatever a test wants."""

    def __init__(self, give: Any = None) -> None:
        super().__init__()
        self.left, self.right, self.body, self.fc = (
            nn.Linear(6, 16),
            nn.Linear(4, 16),
            nn.Linear(16, 16),
            nn.Linear(16, 3),
        )
        self.give = give

    def forward(self, left: Tensor, right: Tensor) -> Any:
        logits = self.fc(self.body((self.left(left) + self.right(right)).relu()).relu())
        return logits if self.give is None else self.give(logits)


def inputs(count: int = 24, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 6, generator=generator), torch.randn(count, 4, generator=generator)


LEFT, RIGHT = inputs()
Y = (LEFT[:, 0] > 0).long() + (RIGHT[:, 0] > 0).long()
Pair = namedtuple("Pair", "left right")
FORMS: dict[str, Any] = {
    "tuple": (LEFT, RIGHT),
    "list": [LEFT, RIGHT],
    "named tuple": Pair(LEFT, RIGHT),
    "dict": {"left": LEFT, "right": RIGHT},
    "mapping": UserDict({"left": LEFT, "right": RIGHT}),
}


def learner(give: Any = None, **settings: Any) -> Learner:
    options: dict[str, Any] = {"method": METHOD, "recipe": FAST, "base": "given", "head": "fc", "progress": None}
    return Learner(drawn(lambda: TwoInputs(give)), **(options | settings))


@pytest.fixture(scope="module")
def expected() -> Tensor:
    first = learner()
    first.learn("a", ((LEFT, RIGHT), Y))
    return first.predict((LEFT, RIGHT), "a")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_inputs_gives_the_same_bits(form: str, expected: Tensor) -> None:
    other = learner()
    other.learn("a", (FORMS[form], Y))
    assert torch.equal(other.predict(FORMS[form], "a"), expected)
    assert torch.equal(other.predict(FORMS["dict"], "a"), expected)


def test_a_mapping_with_labels_is_a_task(expected: Tensor) -> None:
    other = learner()
    other.learn("a", {"left": LEFT, "right": RIGHT, "labels": Y})
    assert torch.equal(other.predict(FORMS["tuple"], "a"), expected)


class Examples(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"left": LEFT[index], "right": RIGHT[index], "label": Y[index]}


def collate(rows: list[dict[str, Tensor]]) -> tuple[dict[str, Tensor], Tensor]:
    names = ("left", "right")
    return {name: torch.stack([row[name] for row in rows]) for name in names}, torch.stack(
        [row["label"] for row in rows]
    )


@pytest.mark.parametrize("collated", [False, True])
def test_loaders_of_dicts_are_learned_and_resume_to_the_same_bits(collated: bool, tmp_path: Path) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(Examples(), batch_size=8, shuffle=True, collate_fn=collate if collated else None)

    whole = learner()
    whole.learn("a", loader(), loader())

    class KilledError(Exception):
        pass

    def stop(progress: Any) -> None:
        if progress.stage.startswith("fine-tune") and progress.epoch == 1:
            raise KilledError

    interrupted = learner(store=tmp_path / "store", progress=stop)
    interrupted._committed.store.checkpoint_every = 0.0  # type: ignore[union-attr]
    with pytest.raises(KilledError):
        interrupted.learn("a", loader(), loader())
    resumed = learner(store=tmp_path / "store")
    resumed.learn("a", loader(), loader())
    assert torch.equal(resumed.predict(FORMS["dict"], "a"), whole.predict(FORMS["dict"], "a"))
    loaded = Learner.load(tmp_path / "store", drawn(TwoInputs))
    assert torch.equal(loaded.predict(FORMS["dict"], "a"), whole.predict(FORMS["dict"], "a"))


@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_mixed_batches_are_one_pass_and_agree_with_each_task(form: str) -> None:
    several = learner()
    several.learn("a", (FORMS[form], Y))
    several.learn("b", (FORMS[form], Y % 2))
    several.learn("values", (FORMS[form], LEFT[:, :2]), objective=Regression())
    rows = ["a", "b", "values", None] * 6
    mixed = several.predict(FORMS[form], rows)
    assert several._committed.predictor._mixed is not None
    assert several._committed.predictor._mixed.one_pass
    assert mixed.shape == (24, 3)
    for task, width in (("a", 3), ("b", 2), ("values", 2), (None, 3)):
        numbers = [number for number, name in enumerate(rows) if name == task]
        alone = several.predict(tree.take(tree.as_batch(FORMS[form], ""), numbers), task)
        # One pass rounds other products than the merged weights do: a few units in the last place of numbers near 1.
        torch.testing.assert_close(mixed[numbers][:, :width], alone, rtol=0, atol=2e-6)
        assert (mixed[numbers][:, width:] == -torch.inf).all()
    answers = several.answer(FORMS[form], rows)
    assert [type(answer).__name__ for answer in answers[:3]] == ["Answer", "Answer", "Values"]
    whole = several.answer(FORMS[form], "values").values
    torch.testing.assert_close(answers[2].values[0], whole[2], rtol=0, atol=1e-5)


Logits = namedtuple("Logits", "logits")
Scores = namedtuple("Scores", "logits scores")
GIVES: dict[str, tuple[Any, Any]] = {
    "an object with logits": (Logits, None),
    "a mapping with logits": (lambda y: {"logits": y}, None),
    "a key": (lambda y: {"scores": y, "other": y * 2}, "scores"),
    "an attribute": (lambda y: Scores(y * 2, y), "scores"),
    "a position": (lambda y: (y * 2, y), 1),
    "a function": (lambda y: [{"deep": y}], lambda given: given[0]["deep"]),
}


@pytest.mark.parametrize("kind", GIVES)
def test_the_outputs_are_what_the_model_calls_logits_or_what_output_picks(kind: str, expected: Tensor) -> None:
    give, output = GIVES[kind]
    other = learner(give, output=output)
    other.learn("a", (FORMS["tuple"], Y))
    other.learn("b", (FORMS["tuple"], Y))
    assert torch.equal(other.predict(FORMS["tuple"], "a"), expected)
    torch.testing.assert_close(other.predict(FORMS["tuple"], ["a"] * 12 + ["b"] * 12)[:12], expected[:12])


def test_outputs_that_cannot_be_found_are_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halrp.training.loop.Training.run", None)
    with pytest.raises(ModelError, match=r"gives a tuple of 2, not a tensor or something with `logits`.*output="):
        learner(lambda y: (y, y)).learn("a", (FORMS["tuple"], Y))
    with pytest.raises(ModelError, match=r"output='scores' picks a NoneType from the dict.*'logits'"):
        learner(lambda y: {"logits": y}, output="scores").learn("a", (FORMS["tuple"], Y))
    with pytest.raises(SettingError, match=r"output=1\.5"):
        learner(output=1.5)
    with pytest.raises(SettingError, match="transform=3 cannot be called"):
        learner(transform=3)


def normalise(x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return x[0].float() / 255, x[1]


def test_a_transform_runs_on_the_device_before_the_model_and_belongs_to_the_task(tmp_path: Path) -> None:
    pixels = (LEFT.sigmoid() * 255).to(torch.uint8)
    small = learner(transform=normalise, store=tmp_path / "store")
    small.learn("a", ((pixels, RIGHT), Y))
    plain = learner()
    plain.learn("a", (normalise((pixels, RIGHT)), Y))
    assert torch.equal(small.predict((pixels, RIGHT), "a"), plain.predict(normalise((pixels, RIGHT)), "a"))
    loaded = Learner.load(tmp_path / "store", drawn(TwoInputs), transform=normalise)
    assert torch.equal(loaded.predict((pixels, RIGHT), "a"), small.predict((pixels, RIGHT), "a"))
    with pytest.raises(SettingError, match=r"'a' was learned with transform .*normalise', not none.*pass the same"):
        Learner.load(tmp_path / "store", drawn(TwoInputs))
    with pytest.raises(SettingError, match="'a' was learned with transform"):
        learner(store=tmp_path / "store")


NAN = LEFT.clone()
NAN[3, 2] = torch.nan
BAD: dict[str, tuple[Any, str]] = {
    "rows that disagree": (((LEFT, RIGHT[:5]), Y), r"x\[0\] has 24 rows, but x\[1\] has 5"),
    "rows that disagree by name": (({"left": LEFT, "right": RIGHT[:5]}, Y), "left has 24 rows, but right has 5"),
    "targets of other rows": (((LEFT, RIGHT), Y[:5]), "24 inputs but 5 targets"),
    "not a number": (({"left": NAN, "right": RIGHT}, Y), "1 of 24 inputs hold NaN or infinity in left"),
    "no tensor": (((), Y), "hold no tensor"),
    "a text": (({"left": "texts", "right": RIGHT}, Y), "left is a str; pass a tensor"),
    "a number": (({"left": LEFT, "right": torch.tensor(1.0)}, Y), "right is a single number"),
    "a key that is no name": (({1: LEFT}, Y), "the key 1"),
    "no labels": ({"left": LEFT, "right": RIGHT}, "targets under 'labels'"),
    "three parts": ((LEFT, RIGHT, Y), "expected a pair .x, y., got tuple of 3"),
    "targets that are no tensor": (((LEFT, RIGHT), Y.tolist()), "targets must be a tensor, got list"),
    "empty": (((LEFT[:0], RIGHT[:0]), Y[:0]), "at least one example"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_batches_are_refused_before_training(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halrp.training.loop.Training.run", None)
    train, message = BAD[name]
    refused = learner()
    with pytest.raises(DataError, match=f"a: train: .*{message}"):
        refused.learn("a", train)
    assert not refused.tasks


def test_keys_that_the_model_lacks_or_validation_lacks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halrp.training.loop.Training.run", None)
    with pytest.raises(ModelError, match=r"a: train: .*fails on inputs of .*left.*missing 1 required .*'right'"):
        learner().learn("a", ({"left": LEFT}, Y))
    with pytest.raises(DataError, match="a: val: the inputs lack right and have middle besides"):
        learner().learn("a", (FORMS["dict"], Y), ({"left": LEFT, "middle": RIGHT}, Y))


def test_predictions_of_other_inputs_are_refused(expected: Tensor) -> None:
    ready = learner()
    ready.learn("a", (FORMS["dict"], Y))
    for x, message in (
        ({"left": LEFT}, "the model fails on inputs of .*left .24, 6.*right"),
        ((LEFT, RIGHT[:3]), r"x\[0\] has 24 rows, but x\[1\] has 3"),
        ({"left": LEFT, "right": RIGHT.tolist()}, "right"),
        ({}, "hold no tensor"),
    ):
        with pytest.raises(DataError, match=f"predict: .*{message}"):
            ready.predict(x, "a")
    assert torch.equal(ready.predict(FORMS["dict"], "a"), expected)


def test_augmentation_sees_the_batch_and_keeps_its_form() -> None:
    def noise(x: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        return x | {"left": x["left"] + torch.randn(x["left"].shape, generator=generator)}

    noisy, same = learner(), learner()
    noisy.learn("a", (FORMS["dict"], Y), augment=noise)
    same.learn("a", (FORMS["dict"], Y), augment=noise)
    assert torch.equal(noisy.predict(FORMS["dict"], "a"), same.predict(FORMS["dict"], "a"))
    for wrong, message in (
        (lambda x, g: {"left": x["left"]}, "other tensors than its input"),
        (lambda x, g: x["left"], "other tensors than its input"),
        (lambda x, g: x | {"right": x["right"].double()}, r"dtype of a batch \(right\)"),
    ):
        with pytest.raises(DataError, match=message):
            learner().learn("b", (FORMS["dict"], Y), augment=wrong)


@pytest.mark.parametrize("form", ["tuple", "dict"])
@pytest.mark.parametrize("ending", ["pt2", "onnx"])
def test_a_task_is_written_with_its_inputs_by_name(form: str, ending: str, tmp_path: Path) -> None:
    ready = learner(lambda y: {"logits": y})
    ready.learn("a", (FORMS[form], Y))
    example = tree.take(tree.as_batch(FORMS[form], ""), slice(4))
    path = tmp_path / f"a.{ending}"
    written = export.write(ready.export("a"), lambda x: ready.predict(x, "a"), example, path)
    assert written.rows == (4, 1, 5)
    if ending == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
        assert [given.name for given in session.get_inputs()] == ["left", "right"]


class Padded(Dataset[tuple[Tensor, int]]):
    """Texts of different lengths."""

    texts: ClassVar[list[list[int]]] = [[1, 2], [2, 3, 4], [3], [1, 1, 2, 4], [4, 4], [3, 3, 3]] * 4

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor(self.texts[index]), self.texts[index][0] % 2


def pad(rows: list[tuple[Tensor, int]]) -> tuple[dict[str, Tensor], Tensor]:
    ids = nn.utils.rnn.pad_sequence([tokens for tokens, _ in rows], batch_first=True)
    return {"ids": ids, "mask": (ids != 0).float()}, torch.tensor([label for _, label in rows])


class MeanOfTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.body, self.fc = nn.Embedding(6, 8, padding_idx=0), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        tokens = self.table(ids) * mask.unsqueeze(2)
        logits: Tensor = self.fc(self.body(tokens.sum(1) / mask.sum(1, keepdim=True)).relu())
        return logits


def test_sequences_that_are_padded_batch_by_batch_are_learned() -> None:
    text = Learner(
        drawn(MeanOfTokens), method=METHOD, recipe=Recipe(epochs=30, lr=0.02), base="given", head="fc", progress=None
    )
    loader = DataLoader(Padded(), batch_size=6, shuffle=True, collate_fn=pad)
    text.learn("a", loader, loader, objective=Classification(2))
    x, y = pad([Padded()[index] for index in range(6)])
    assert text.answer(x, "a").labels == tuple(y.tolist())
    alone = [text.predict({"ids": x["ids"][n : n + 1], "mask": x["mask"][n : n + 1]}, "a") for n in range(6)]
    torch.testing.assert_close(torch.cat(alone), text.predict(x, "a"), rtol=0, atol=1e-5)
