"""Which task is it? What is stored for it, who is found, and that no other task changes a score."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from halrp import Halrp, Learner, Prototypes, Regression, Store, StorePredictor
from halrp.errors import BudgetTooSmall, DamagedError, DataError, ModelError, SettingError, UnknownTaskError
from halrp.method.method import Halrp as Method
from halrp.model import prototypes
from halrp.model.copies import held
from halrp.store import task_file
from tests.helpers import FAST, net, tiny_task

METHOD = Halrp.budget(prototypes=Prototypes(directions=2, unknown=0.1))
NAMES = ("t0", "t1", "t2")


def rows(number: int) -> Tensor:
    return tiny_task("mlp", number, examples=30)[0]


def learn(learner: Learner, *numbers: int, **options: Any) -> None:
    for number in numbers:
        learner.learn(f"t{number}", tiny_task("mlp", number, examples=30), **options)


def learner_of(*numbers: int, store: Path | None = None, method: Method = METHOD, base: Any = "given") -> Learner:
    learner = Learner(net("mlp"), recipe=FAST, method=method, base=base, store=store)
    learn(learner, *numbers)
    return learner


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    """Three tasks with prototypes in a store; tests never change it."""
    return learner_of(0, 1, 2, store=tmp_path_factory.mktemp("source") / "store")


@pytest.fixture
def folder(source: Learner, tmp_path: Path) -> Path:
    """A copy of its store."""
    source.save(tmp_path / "store")
    return tmp_path / "store"


def share(identified: tuple[str | None, ...], name: str) -> float:
    return sum(task == name for task in identified) / len(identified)


# ---- who is found -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(3))
def test_rows_are_found_to_be_of_their_task(source: Learner, number: int) -> None:
    identified = source.identify(rows(number), top=2)
    assert share(tuple(identified.best), f"t{number}") > 0.9
    assert share(identified.tasks, f"t{number}") > 0.7
    assert {len(names) for names in identified.candidates} == {2}
    assert identified.scores.shape == (30, 2)
    assert bool((identified.scores[:, 0] >= identified.scores[:, 1]).all())


def test_rows_like_no_task_are_of_none(source: Learner) -> None:
    strange = source.identify(20 * torch.randn(40, *rows(0).shape[1:], generator=torch.Generator().manual_seed(1)))
    assert strange.tasks.count(None) > 20
    assert None not in strange.best


def test_rows_that_share_a_task_are_scored_together(source: Learner) -> None:
    x = torch.cat([rows(0)[:4], rows(1)[:4]])
    alone = source.identify(x, top=3)
    together = source.identify(x, together=["a", 7] * 4, top=3)
    assert together.candidates[0] == together.candidates[2] == together.candidates[4]
    sums = dict.fromkeys(NAMES, 0.0)
    for row in range(0, 8, 2):
        for name, score in zip(alone.candidates[row], alone.scores[row].tolist(), strict=True):
            sums[name] += score
    best = max(sums, key=sums.__getitem__)
    assert together.candidates[0][0] == best
    assert float(together.scores[0, 0]) == pytest.approx(sums[best], rel=1e-4)
    assert set(source.identify(rows(2), together=True).tasks) == {"t2"}


def test_the_best_few_are_compared_by_their_outputs_too(source: Learner) -> None:
    x = rows(1)
    first, second = source.identify(x, top=3), source.identify(x, top=3, rerank=2)
    by_name = [dict(zip(n, s, strict=True)) for n, s in zip(first.candidates, first.scores.tolist(), strict=True)]
    temperatures = {name: prototypes.read(held(source.tasks[name].statistics)) for name in NAMES}
    for row in range(3):
        assert set(second.candidates[row][:2]) == set(first.candidates[row][:2])
        name = second.candidates[row][0]
        model = temperatures[name]
        assert model is not None
        energy = torch.logsumexp(source.predict(x[row : row + 1], name)[0] / model.temperature, 0)
        assert float(second.scores[row, 0]) == pytest.approx(by_name[row][name] + 8 * float(energy), rel=1e-3)


def test_some_tasks_are_compared_if_they_are_named(source: Learner) -> None:
    identified = source.identify(rows(0), tasks=["t2", "t1"], top=3)
    assert {frozenset(names) for names in identified.candidates} == {frozenset(["t1", "t2"])}
    with pytest.raises(UnknownTaskError, match="'other'"):
        source.identify(rows(0), tasks=["t1", "other"])


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"top": 0}, SettingError),
        ({"rerank": -1}, SettingError),
        ({"together": [1]}, DataError),
        ({"tasks": "t1"}, UnknownTaskError),
    ],
)
def test_what_makes_no_sense_is_refused(source: Learner, wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="identify"):
        source.identify(rows(0), **wrong)


# ---- outputs of the task that is found --------------------------------------------------------------------------


def test_auto_is_the_task_that_is_found(source: Learner) -> None:
    x = torch.cat([rows(0)[:5], rows(1)[:5], 20 * torch.ones(1, *rows(0).shape[1:])])
    identified = source.identify(x)
    outputs, answer = source.predict(x, "auto"), source.answer(x, "auto")
    expected = source.predict(x, identified.best)
    assert None in identified.tasks
    for row, name in enumerate(identified.tasks):
        if name is None:
            assert bool((outputs[row] == -torch.inf).all())
            assert (answer.labels[row], float(answer.probabilities[row].sum())) == (None, 0.0)
        else:
            assert torch.equal(outputs[row], expected[row])
            assert answer.labels[row] == int(expected[row].argmax())


def test_a_task_that_is_called_auto_is_that_task() -> None:
    learner = learner_of(0)
    learner.rename("t0", "auto")
    assert torch.equal(learner.predict(rows(0), "auto"), learner.predict(rows(0), ["auto"] * 30))


# ---- a score is a function of the task and the base -------------------------------------------------------------


def test_scores_of_a_task_are_the_same_bits_after_others_are_added() -> None:
    learner, x = learner_of(0, 1), torch.cat([rows(n) for n in range(3)])
    before = [learner.identify(x, tasks=[name], top=1).scores for name in ("t0", "t1")]
    learn(learner, 3, 4, 5)
    learner.remove("t1")
    alone, among = learner.identify(x, tasks=["t0"], top=1), learner.identify(x, top=4)
    assert torch.equal(alone.scores, before[0])
    column = [row[names.index("t0")] for names, row in zip(among.candidates, among.scores, strict=True)]
    assert torch.equal(torch.stack(column), before[0][:, 0])
    assert torch.equal(learner_of(0).identify(x, top=1).scores, before[0])


def test_a_store_and_a_copy_give_the_same_bits(source: Learner, folder: Path) -> None:
    x, predictor = rows(1), StorePredictor.open(folder, net("mlp"))
    identified = source.identify(x)
    for other in (predictor, Learner.load(folder, net("mlp"), check=True), copy.deepcopy(source)):
        again = other.identify(x)
        assert (again.tasks, again.candidates) == (identified.tasks, identified.candidates)
        assert torch.equal(again.scores, identified.scores)
    assert torch.equal(predictor.predict(x, "auto"), source.predict(x, "auto"))
    assert predictor.answer(x, "auto").labels == source.answer(x, "auto").labels
    reranked = predictor.identify(x, rerank=3)
    assert reranked.candidates == source.identify(x, rerank=3).candidates
    assert not StorePredictor.open(folder, net("mlp"), memory=1).identify(x).left_out  # nothing is kept


def test_a_predictor_follows_its_store_and_leaves_out_what_cannot_be_read(folder: Path) -> None:
    predictor = StorePredictor.open(folder, net("mlp"), follow_every=0.0)
    assert predictor.identify(rows(0)).left_out == ()
    learner = Learner.load(folder, net("mlp"), method=METHOD, recipe=FAST)
    learn(learner, 3)
    learner.remove("t1")
    assert share(tuple(predictor.identify(rows(3)).best), "t3") > 0.9
    assert all("t1" not in names for names in predictor.identify(rows(1), top=4).candidates)
    entry = Store(folder).manifest().tasks["t0"]
    (folder / entry.file).write_bytes(b"damaged")
    assert StorePredictor.open(folder, net("mlp")).identify(rows(0)).left_out == ("t0",)


# ---- what is stored ---------------------------------------------------------------------------------------------


def test_the_base_of_a_first_task_has_prototypes_too(tmp_path: Path) -> None:
    learner = learner_of(0, 1, base="first", store=tmp_path / "store")
    assert learner.tasks["t0"].is_base
    predictor = StorePredictor.open(tmp_path / "store", net("mlp"))
    for number in range(2):
        identified = predictor.identify(rows(number))
        assert share(tuple(identified.best), f"t{number}") > 0.8
    assert torch.equal(predictor.predict(rows(0), None), learner.predict(rows(0), "t0"))
    assert Learner.load(tmp_path / "store", net("mlp")).tasks["t0"].bytes == learner.tasks["t0"].bytes


def test_tasks_store_nothing_of_their_inputs_by_default(source: Learner) -> None:
    learner = learner_of(0, method=Halrp.budget())
    assert not learner.tasks["t0"].statistics
    with pytest.raises(SettingError, match="no task has prototypes"):
        learner.identify(rows(0))
    learner.method = METHOD
    learn(learner, 1)
    assert learner.identify(rows(0)).left_out == ("t0",)
    without = replace(source.tasks["t1"], statistics={})
    assert source.tasks["t1"].bytes - without.bytes < 400  # five rows of at most 12 numbers, and a header


@pytest.mark.parametrize("settings", [{}, {"precision": "float32", "rest": "float32"}])
def test_a_budget_pays_for_prototypes(settings: dict[str, Any]) -> None:
    with pytest.raises(BudgetTooSmall, match="raise it to at least") as too_small:
        learner_of(0, method=Halrp.budget(100, prototypes=Prototypes(), **settings))
    least = int(str(too_small.value).split("at least ")[1].split(", use")[0].replace(",", ""))
    for budget in (least, 4000):
        learner = learner_of(0, method=Halrp.budget(budget, prototypes=Prototypes(), **settings))
        assert learner.tasks["t0"].bytes <= budget
        assert len(task_file.write(learner.tasks["t0"])) == learner.tasks["t0"].bytes


def test_a_regression_has_one_prototype() -> None:
    learner = learner_of(0)
    x = rows(5)
    learner.learn("values", (x, x.flatten(1)[:, 0]), objective=Regression())
    model = prototypes.read(held(learner.tasks["values"].statistics))
    assert model is not None
    assert len(model.prototypes) == 1
    assert share(tuple(learner.identify(x).best), "values") > 0.8
    answers = learner.answer(x[:4], "auto")
    assert len(answers) == 4
    with pytest.raises(SettingError, match="no classification"):
        learner.identify(x, rerank=2)


def test_widths_that_cannot_be_compared_are_refused() -> None:
    learner = learner_of(0)
    learner.method = Halrp.budget(prototypes=Prototypes(width=4, directions=1))
    learn(learner, 1)
    with pytest.raises(SettingError, match="widths 4 "):
        learner.identify(rows(0))
    assert learner.identify(rows(1), tasks=["t1"]).best == ["t1"] * 30


def test_about_the_given_share_of_validation_examples_is_below_the_threshold() -> None:
    learner = Learner(net("mlp"), recipe=FAST, method=METHOD, base="given")
    x, y = tiny_task("mlp", 0, examples=80)
    learner.learn("t0", (x[:40], y[:40]), (x[40:], y[40:]))
    assert learner.identify(x[40:]).tasks.count(None) == 4  # unknown=0.1


@pytest.mark.parametrize(("wrong", "value"), [("width", 3), ("width", 0), ("directions", -1), ("unknown", 1.0)])
def test_settings_that_no_file_could_hold_are_refused(wrong: str, value: float) -> None:
    with pytest.raises(SettingError, match=wrong):
        Prototypes(**{wrong: value})  # type: ignore[arg-type]


def test_a_model_that_reads_its_heads_weight_itself_is_refused_before_training() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(self.body(x).relu(), self.head.weight, self.head.bias)

    torch.manual_seed(0)
    learner = Learner(Reads(), head="head", recipe=FAST, method=METHOD, base="given")
    with pytest.raises(ModelError, match="leave prototypes out"):
        learner.learn("t0", (torch.randn(12, 6), torch.arange(12) % 3))
    assert not learner.tasks


def test_changed_files_with_prototypes_are_refused_or_sound(source: Learner) -> None:
    base, delta = source._committed.ready, source.tasks["t0"]
    content, random, accepted = task_file.write(delta), Random(0), 0
    start = len(content) - sum(entry.bytes for entry in delta.entries.values())
    for _ in range(200):
        changed = bytearray(content)
        for _ in range(random.randint(1, 3)):
            changed[random.randrange(start, len(content))] = random.randrange(256)
        try:
            loaded = task_file.load(bytes(changed), base, "file")
        except DamagedError:
            continue
        model = prototypes.read(held(loaded.statistics))
        assert model is not None
        assert bool(model.scores(torch.eye(model.width)).isfinite().all())
        assert task_file.write(loaded) == bytes(changed)
        accepted += 1
    assert 0 < accepted < 200
