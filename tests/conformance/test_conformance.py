"""Every promise for every family of models and every objective that fits it, from one matrix."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import halrp.objectives
from halrp import Halrp, Learner
from halrp.lab.report.documents import filled
from halrp.method.budget import DEFAULT_SHARE, DEFAULT_TIMES
from halrp.model import batch as tree
from halrp.objectives import Objective
from halrp.tools import export
from tests.conformance import document
from tests.conformance.learned import CASES, FIRST, NAMES, QUICK, Case, Learned, learned
from tests.conformance.models import FAMILIES
from tests.conformance.refused import REFUSED
from tests.conformance.tasks import TARGETS
from tests.helpers import one_thread

REMEDY = "run: python -m tests.conformance"
ONNX = ("conv-batch-norm", "two-inputs", "hf-bert")
"""Families that are written as ONNX in `make test`: a tensor, a tuple and a dict. Each takes some seconds."""


def parameters(cases: Iterable[Case], quick: Callable[[Case], bool]) -> list[Any]:
    """Some cases; all but the quick ones are slow."""
    return [pytest.param(case, id=str(case), marks=() if quick(case) else pytest.mark.slow) for case in cases]


def installed(case: Case) -> Case:
    """The case, unless its library is missing."""
    if not case.family.installed:
        pytest.skip(f"{case.family.library} is not installed")
    return case


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module", params=parameters(CASES, lambda case: case in QUICK))
def case(request: pytest.FixtureRequest) -> Case:
    return installed(request.param)


@pytest.fixture
def state(case: Case) -> Learned:
    return learned(case)


def tolerance(expected: Tensor) -> float:
    return 1e-5 * max(1.0, float(expected.abs().max()))


def close(got: Tensor, expected: Tensor) -> None:
    """Compare outputs that are computed in two ways, in float32.

    Factored and merged weights round differently: 1e-6 of the largest output in networks of a few layers, and a tenth
    of the digits as a margin. A row that met the weights of another task is off by far more.
    """
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance(expected))


def test_the_matrix_is_complete() -> None:
    assert len(FAMILIES) == 28
    assert len(CASES) == 91
    assert {case.family_name for case in QUICK} == set(FAMILIES)
    assert {case.objective for case in QUICK} == set(TARGETS)
    kinds = [getattr(halrp.objectives, name) for name in halrp.objectives.__all__]
    shipped = {kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Objective)} - {Objective}
    assert {type(each.objective) for case in CASES for each in case.tasks().values()} == shipped


def test_explain_refuses_nothing_and_states_a_budget_that_is_enough(case: Case) -> None:
    explanation = case.explanation()
    assert explanation.refused == ()
    assert explanation.fixed_bytes is not None
    learner = case.learner(method=Halrp.budget(bytes_per_task=explanation.fixed_bytes))
    case.learn_first(learner)
    assert learner.tasks[FIRST].bytes <= explanation.fixed_bytes
    assert learner.tasks[FIRST].bytes > 0 or not learner.head, "only a task without a head may store nothing"


def test_a_task_is_learned_without_a_bound_and_changes_more_than_the_head(state: Learned) -> None:
    delta, first = state.learner.tasks[FIRST], state.tasks[FIRST]
    smallest = state.case.explanation().fixed_bytes
    assert smallest is not None
    smallest += 150  # the method names its start
    assert delta.bytes <= max(DEFAULT_SHARE * state.learner.base_size.bytes, DEFAULT_TIMES * smallest)
    width = first.objective.outputs or delta.classes
    assert first.objective.refuse_outputs(state.before, tree.rows(state.probe), width) == ""
    assert state.before.isfinite().all()
    assert len(state.learner.answer(state.probe, FIRST)) == tree.rows(state.probe)
    base, task = state.learner.export(None).state_dict(), state.learner.export(FIRST).state_dict()
    head = f"{state.learner.head}."
    assert any(not torch.equal(base[name], task[name]) for name in base if not name.startswith(head))


def test_old_outputs_are_bit_identical_after_three_more_tasks(state: Learned) -> None:
    assert list(state.learner.tasks) == list(NAMES)
    assert torch.equal(state.learner.predict(state.probe, FIRST), state.before)


def test_a_base_is_trained_by_the_first_task(case: Case) -> None:
    learner, tasks = case.learner(base="first"), case.tasks()
    probe = tasks["third"].x
    case.learn_first(learner)
    before = learner.predict(probe, FIRST)
    delta = learner.learn("second", tasks["second"].data, objective=tasks["second"].objective)
    assert learner.tasks[FIRST].is_base
    assert not delta.is_base
    assert torch.equal(learner.predict(probe, FIRST), before)
    assert torch.equal(learner.predict(probe, None), before)


def test_tasks_are_bit_identical_after_loading(state: Learned, tmp_path: Path) -> None:
    state.learner.save(tmp_path / "store")
    settings = {name: value for name, value in state.case.family.settings.items() if name == "output"}
    loaded = Learner.load(tmp_path / "store", state.case.family.model(), **settings)
    for name in NAMES:
        assert torch.equal(loaded.predict(state.probe, name), state.learner.predict(state.probe, name)), name
    assert torch.equal(loaded.predict(state.probe, state.rows), state.learner.predict(state.probe, state.rows))


class KilledError(Exception):
    """Stands for the end of a process."""


def test_a_killed_task_resumes_to_the_same_bits(state: Learned, tmp_path: Path) -> None:
    def kill(progress: Any) -> None:
        if progress.stage.startswith("fine-tune") and progress.epoch == 1:
            raise KilledError

    killed = state.case.learner(store=tmp_path / "store", progress=kill)
    killed._committed.store.checkpoint_every = 0.0  # type: ignore[union-attr]
    with pytest.raises(KilledError):
        state.case.learn_first(killed)
    stages: list[tuple[str, int]] = []
    resumed = state.case.learner(
        store=tmp_path / "store", progress=lambda progress: stages.append((progress.stage, progress.epoch))
    )
    state.case.learn_first(resumed)
    assert all(stage.startswith("fine-tune") for stage, _ in stages), stages
    assert torch.equal(resumed.predict(state.probe, FIRST), state.before)


def test_mixed_batches_agree_with_each_task_and_repeat_their_bits(state: Learned) -> None:
    mixed = state.learner.predict(state.probe, state.rows)
    assert torch.equal(state.learner.predict(state.probe, state.rows), mixed)
    for name in dict.fromkeys(state.rows):
        numbers = [number for number, row in enumerate(state.rows) if row == name]
        alone = state.learner.predict(tree.take(state.probe, numbers), name)
        dimension = 1 if state.case.objective == "segmentation" else -1
        width = alone.shape[dimension]
        close(mixed[numbers].narrow(dimension, 0, width), alone)
        absent = mixed[numbers].narrow(dimension, width, mixed.shape[dimension] - width)
        assert (absent == -torch.inf).all()


def test_tasks_differ_by_more_than_the_tolerance_of_the_other_checks(state: Learned) -> None:
    outputs = [state.learner.predict(state.probe, name) for name in NAMES]
    same = [(a, b) for a, b in itertools.combinations(outputs, 2) if a.shape == b.shape]
    assert same
    assert all((a - b).abs().max() > 100 * tolerance(b) for a, b in same)


def test_a_mixed_batch_is_one_pass_where_the_document_says_so(state: Learned) -> None:
    if not document.is_comparable(state.case):
        pytest.skip("the record was made with other versions of the libraries")
    assert state.reason == document.record()["mixed"][str(state.case)], REMEDY


def test_exported_and_shared_modules_agree_with_predictions(state: Learned) -> None:
    for name in NAMES[:2]:
        expected = state.learner.predict(state.probe, name)
        exported = state.learner.export(name)
        assert type(exported) is type(state.learner._committed.body.module)
        close(state.outputs(exported, state.probe), expected)
        close(state.outputs(state.learner.module(name), state.probe), expected)


@pytest.mark.parametrize("written", parameters(QUICK, lambda case: case.family_name in ONNX))
def test_a_task_is_written_as_onnx_with_names_and_any_number_of_rows(written: Case, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    state = learned(installed(written))
    call = state.learner._committed.body.call
    path, example = tmp_path / "task.onnx", tree.take(state.probe, slice(4))
    module, predict = state.learner.export(FIRST), lambda x: state.learner.predict(x, FIRST)
    assert export.write(module, predict, example, path, call=call).rows == (4, 1, 5)
    inputs = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"]).get_inputs()
    assert all(isinstance(given.shape[0], str) for given in inputs)
    if isinstance(example, dict):
        assert [given.name for given in inputs] == list(example)


@pytest.mark.parametrize("fault", REFUSED)
def test_a_model_that_cannot_be_treated_is_refused_by_name_with_a_remedy(fault: str) -> None:
    message = REFUSED[fault].message()
    assert message
    assert message == document.record()["refused"][fault], REMEDY


def test_the_document_shows_the_record_of_this_matrix() -> None:
    text, record = document.DOCUMENT.read_text("utf-8"), document.record()
    assert filled(text, document.parts()) == text, REMEDY
    assert all(f"<!-- begin {name} -->" in text for name in document.parts())
    assert list(record["mixed"]) == list(map(str, CASES)), REMEDY
    assert list(record["refused"]) == list(REFUSED), REMEDY
