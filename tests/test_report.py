"""What a learner reports of its tasks, and that it claims what was compared and notices what has changed."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch

from halrp import Halrp, Learner, Recipe, Report, Store
from halrp.errors import StoreError
from halrp.model import proof
from halrp.report import of_store
from halrp.text_table import width_of
from tests.helpers import FAST, net, tiny_task

NAMES = ("left", "right")


def learned(store: Path | None = None, base: str = "given", method: Halrp | None = None) -> Learner:
    method = method or Halrp.budget(bytes_per_task=20_000)
    learner = Learner(net("mlp"), method=method, recipe=FAST, base=base, store=store)  # type: ignore[arg-type]
    for number, name in enumerate(NAMES):
        learner.learn(name, tiny_task("mlp", number), tiny_task("mlp", number + 10))
    return learner


@pytest.fixture(scope="module")
def in_memory() -> Learner:
    return learned()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "store"
    learned(folder)
    return folder


@pytest.fixture
def store(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "store"))


def states(report: Report) -> dict[str, str]:
    return {task.name: task.retained.state for task in report.tasks}


def checks(report: Report) -> set[str]:
    return {check.kind for check in report.checks}


# ---- what is shown -----------------------------------------------------------------------------------------------


def test_a_report_has_bytes_ranks_and_scores_of_every_task(in_memory: Learner) -> None:
    report = in_memory.report()
    for name, task in zip(NAMES, report.tasks, strict=True):
        delta = in_memory.tasks[name]
        assert (task.name, task.bytes) == (name, delta.bytes)
        assert task.ranks == {weight: rank for weight, rank in delta.ranks.items() if rank}
        assert task.score is not None
        assert task.start is not None
        text = str(report)
        assert f"{delta.bytes:,}" in text
        assert f"{100 * task.score:.1f}" in text
    assert report.bytes == report.base_bytes + sum(delta.bytes for delta in in_memory.tasks.values())
    assert report.base_bytes == in_memory.base_size.bytes


def test_the_base_itself_and_tasks_without_validation_data_are_named() -> None:
    learner = Learner(net("mlp"), method=Halrp.budget(growth_per_task=0.9), recipe=FAST)
    assert "There are no tasks yet." in str(learner.report())
    learner.learn("first", tiny_task("mlp"))
    report = learner.report()
    assert "the base itself" in str(report)
    assert report.tasks[0].score is None
    assert "Scores" not in str(report)
    assert states(report) == {"first": "bitwise"}


def test_a_task_that_only_guesses_is_named() -> None:
    learner = Learner(net("mlp"), method=Halrp.budget(growth_per_task=0.9), recipe=Recipe(epochs=2, lr=1e-9, batch=8))
    x, y = tiny_task("mlp")
    with pytest.warns(match="no better than that of guessing"):
        learner.learn("guesses", (x, y), (torch.zeros_like(x), y))
    assert "No better than guessing: guesses." in str(learner.report())


def test_text_is_as_narrow_as_asked_for_and_json_and_a_notebook_have_the_same(in_memory: Learner) -> None:
    report = in_memory.report()
    table = report.text(40).partition("\n\n")[0]
    assert max(map(width_of, table.splitlines())) <= 40
    facts = json.loads(json.dumps(report.to_json()))
    assert [task["name"] for task in facts["tasks"]] == list(NAMES)
    assert facts["retained"]["share_bitwise"] == 1.0
    assert facts["retained"]["checks"] == [check._asdict() for check in report.checks]
    assert report._repr_html_().count("<tr>") == 1 + len(NAMES)


def test_names_of_tasks_have_no_effect_in_a_terminal_or_a_notebook(in_memory: Learner) -> None:
    learner = copy.copy(in_memory)
    learner.rename("left", "\x1b[2J<b>")
    report = learner.report()
    assert "\x1b" not in str(report)
    assert "<b>" not in report._repr_html_()


# ---- what is claimed ---------------------------------------------------------------------------------------------


def test_a_learner_without_a_store_compares_memory_with_what_it_committed_and_outputs_with_proofs(
    in_memory: Learner,
) -> None:
    report = in_memory.report()
    assert states(report) == dict.fromkeys(NAMES, "bitwise")
    assert checks(report) == {"memory", "outputs"}
    assert [task.retained.outputs for task in report.tasks] == ["same bits"] * 2
    assert "Retained 100 % (bitwise): 2 tasks." in str(report)
    assert "files" not in str(report).partition("Retained")[2].partition("outputs")[0]


def test_a_report_changes_nothing(in_memory: Learner) -> None:
    x = tiny_task("mlp")[0]
    before, drawn = in_memory.predict(x, "left"), torch.get_rng_state()
    in_memory.report()
    assert torch.equal(in_memory.predict(x, "left"), before)
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_learner_with_a_store_also_compares_files(store: Path) -> None:
    report = Learner.load(store, net("mlp")).report()
    assert states(report) == dict.fromkeys(NAMES, "bitwise")
    assert checks(report) == {"files", "memory", "outputs"}
    assert (report.store, report.bytes) == (str(store), sum(e.bytes for e in Store(store).manifest().entries))


def test_a_loaded_copy_is_compared_with_the_checksums_of_its_files(store: Path) -> None:
    report = Learner.load(store, net("mlp"), attach=False).report()
    assert states(report) == dict.fromkeys(NAMES, "bitwise")
    assert checks(report) == {"memory", "outputs"}


def test_a_store_alone_is_compared_with_its_checksums_and_no_output_is_claimed(store: Path) -> None:
    report = of_store(Store(store))
    assert states(report) == dict.fromkeys(NAMES, "bitwise")
    assert [task.retained.outputs for task in report.tasks] == [None, None]
    assert "the base with its own" in str(report)
    assert "not computed, which needs the model" in str(report)


def test_renamed_reverted_and_copied_tasks_stay_what_they_are(in_memory: Learner) -> None:
    learner = copy.copy(in_memory)
    learner.rename("left", "west")
    learner.learn("right", tiny_task("mlp", 5), replace=True)
    assert states(learner.report()) == {"west": "bitwise", "right": "bitwise"}
    learner.revert("right")
    retained = learner.report().tasks[1].retained
    assert (retained.memory, retained.outputs, retained.state) == (None, "same bits", "bitwise")


@pytest.mark.parametrize(("method", "state"), [("official", "may have changed"), ("budget", "bitwise")])
def test_tasks_of_a_method_that_prunes_committed_tasks_are_not_counted(method: str, state: str) -> None:
    made = Halrp.official() if method == "official" else Halrp.budget(growth_per_task=0.9)
    report = learned(base="first", method=made).report()
    assert states(report) == {"left": "bitwise", "right": state}
    assert ("Retained 50 %" in str(report)) is (method == "official")


# ---- what is noticed ---------------------------------------------------------------------------------------------


@pytest.fixture
def outputs_off_by(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How far outputs are from what they were, as if the machine or the model were another."""
    share, real = [0.0], proof.summary
    monkeypatch.setattr(proof, "summary", lambda outputs: real(outputs) * (1 + share[0]))
    return share


def test_rounding_is_not_the_same_bits_and_a_wrong_model_is_no_rounding(
    in_memory: Learner, outputs_off_by: list[float]
) -> None:
    outputs_off_by[0] = 1e-5
    report = in_memory.report()
    assert {task.retained.outputs for task in report.tasks} == {"to rounding"}
    assert states(report) == dict.fromkeys(NAMES, "bitwise"), "the numbers are what was committed"
    outputs_off_by[0] = 0.5
    report = in_memory.report()
    assert states(report) == dict.fromkeys(NAMES, "damaged")
    assert "Retained 0 % (bitwise): 0 of 2 tasks; 2 damaged." in str(report)
    assert "are off by" in report.problems["left"]


def test_a_base_that_was_written_to_is_noticed() -> None:
    learner = learned()
    learner._committed.ready.module[0].weight.data[0, 0] += 1.0  # type: ignore[index]
    report = learner.report()
    assert states(report) == dict.fromkeys(NAMES, "damaged")
    assert "the base's weights in memory" in report.problems["left"]


def test_numbers_that_were_written_to_are_noticed(in_memory: Learner) -> None:
    learner = copy.copy(in_memory)
    learner._committed.digests["left"] = "0" * 64
    assert states(learner.report()) == {"left": "damaged", "right": "bitwise"}
    assert "numbers in memory" in learner.report().problems["left"]


def test_a_changed_file_is_noticed_and_the_others_are_still_read(store: Path) -> None:
    learner = Learner.load(store, net("mlp"))
    path = store / Store(store).manifest().tasks["left"].file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    for report in (learner.report(), of_store(Store(store))):
        assert states(report) == {"left": "damaged", "right": "bitwise"}
        assert report.share == 0.5
        assert "it was changed or cut" in report.problems["left"]
    with pytest.warns(match="cannot be read"):
        loaded = Learner.load(store, net("mlp"), skip_damaged=True)
    assert states(loaded.report()) == {"right": "bitwise", "left": "damaged"}


def test_without_the_base_no_task_is_what_it_was(store: Path) -> None:
    (store / Store(store).manifest().base.file).unlink()
    report = of_store(Store(store))
    assert states(report) == dict.fromkeys(NAMES, "damaged")
    shutil.rmtree(store)
    with pytest.raises(StoreError, match="not a store"):
        of_store(Store(store))
