"""Two processes that learn together end with what one process learns from the same batches."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from halrp import Halrp, Learner, Progress, Recipe, StopTraining, Store
from halrp.errors import BatchOfOneError, DataError, ProcessError, SettingError
from halrp.method.gradients import Gradients
from halrp.method.warm_up import WarmUp
from halrp.objectives import Classification, TokenClassification
from halrp.store import task_file
from halrp.training.distributed import GradientAverage, Processes
from halrp.training.updates import Updates
from tests.helpers import CLASSES, Pairs, net, one_thread, tiny_task
from tests.training.processes import KILLED, together

RECIPE = Recipe(epochs=4, batch=8, lr=5e-3)
METHOD = dataclasses.replace(Halrp.budget(growth_per_task=0.9), warm_up=2, trial=0.5)


def assert_close(shared: Tensor, alone: Tensor) -> None:
    """Compare up to rounding: sums of two processes have another order, which Adam carries on for dozens of steps."""
    torch.testing.assert_close(shared, alone, rtol=1e-4, atol=1e-5)


def learner(kind: str = "mlp", distributed: bool = True, **settings: Any) -> Learner:
    defaults: dict[str, Any] = {"recipe": RECIPE, "method": METHOD, "base": "given", "progress": None}
    return Learner(net(kind), distributed=distributed, **defaults | settings)


def outputs(kind: str, data: dict[str, Any], **settings: Any) -> Callable[[int | None], tuple[Tensor, bytes]]:
    """A function that learns a task, alone without a rank, and gives its predictions and its file."""

    def work(rank: int | None) -> tuple[Tensor, bytes]:
        torch.manual_seed(rank or 0)  # what a process has drawn before does not matter
        result = learner(kind, rank is not None, **settings)
        delta = result.learn("a", **data)
        return result.predict(tiny_task(kind, 3)[0], "a"), task_file.write(delta)

    return work


def both(work: Callable[[int | None], tuple[Tensor, bytes]], folder: Path) -> tuple[Tensor, Tensor]:
    """Predictions of one process and of two, which are the same in both of them."""
    with one_thread():
        alone = work(None)[0]  # before the others: what it imports need not be imported by each of them
    results = together(work, folder)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    assert results[0][1] == results[1][1]
    assert torch.equal(results[0][0], results[1][0])
    return alone, results[0][0]


TOKENS = torch.where(torch.arange(29 * 6).reshape(29, 6) % 7 < 3, -100, torch.arange(29 * 6).reshape(29, 6) % CLASSES)


class Tagger(nn.Module):
    """A layer on each of six vectors, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.fc = nn.Linear(8, 12), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.fc(self.hidden(x).relu())


UNEVEN = tiny_task("mlp", 0, examples=29)
"""Batches of eight leave five: three for one process and two for the other."""
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "start from gradients": ("mlp", {"train": UNEVEN, "val": tiny_task("mlp", 5)}, {}),
    "start from warm-up": (
        "mlp",
        {"train": UNEVEN},
        {"method": dataclasses.replace(METHOD, start=WarmUp())},
    ),
    "the base": ("gru", {"train": tiny_task("gru")}, {"base": "first"}),
    "accumulated batches": ("gru", {"train": tiny_task("gru", 0, 29)}, {"recipe": Recipe(3, 4, accumulate=3)}),
    "class weights": (
        "mlp",
        {"train": UNEVEN, "objective": Classification(CLASSES, weights=(0.1, 1.0, 5.0))},
        {"recipe": dataclasses.replace(RECIPE, clip=0.1, ema=0.9, balanced=True)},
    ),
    "a data set": (
        "mlp",
        {"train": Pairs(*UNEVEN)},
        {"recipe": dataclasses.replace(RECIPE, shuffle=False), "method": dataclasses.replace(METHOD, start=WarmUp())},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_two_processes_learn_what_one_learns(case: str, tmp_path: Path) -> None:
    kind, data, settings = CASES[case]
    alone, shared = both(outputs(kind, data, **settings), tmp_path)
    assert_close(shared, alone)


def test_ignored_tokens_do_not_count_in_either_process(tmp_path: Path) -> None:
    def work(rank: int | None) -> tuple[Tensor, bytes]:
        x = torch.randn(29, 6, 8, generator=torch.Generator().manual_seed(0))
        torch.manual_seed(0)
        result = Learner(Tagger(), recipe=RECIPE, method=METHOD, base="given", distributed=rank is not None)
        delta = result.learn("a", (x, TOKENS), objective=TokenClassification(CLASSES))
        return result.predict(x, "a"), task_file.write(delta)

    assert len({int((part != -100).sum()) for part in (TOKENS[0:8:2], TOKENS[1:8:2])}) == 2
    alone, shared = both(work, tmp_path)
    assert_close(shared, alone)


def test_a_start_from_gradients_sketches_the_gradient_of_all_examples(tmp_path: Path) -> None:
    def scores(rank: int | None) -> dict[str, Tensor]:
        result = learner("gru", rank is not None, method=dataclasses.replace(METHOD, start=Gradients(components=2)))
        result.learn("a", tiny_task("gru", examples=29))
        # A layer's curvature is that of the batches of each process; relative to the largest, scores are σ² alone.
        return {name: values / values.max() for name, values in result.scores["a"].items()}

    with one_thread():
        alone = scores(None)
    first, second = together(scores, tmp_path)
    for name, values in alone.items():
        assert torch.equal(first[name], second[name])
        assert_close(first[name], values)


def test_gradients_are_those_of_all_rows_and_absent_where_no_process_has_one(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        processes = Processes.of(torch.device("cpu"))
        assert processes is not None
        shared, here, none, kernel = (nn.Parameter(torch.zeros(2, 2, 1, 3)) for _ in range(4))
        kernel.data = kernel.data.to(memory_format=torch.channels_last)
        average = GradientAverage(processes, [shared, here, none, kernel])
        shared.grad = torch.full_like(shared, 1.0 + rank)
        kernel.grad = torch.arange(12.0).view(2, 2, 1, 3).to(memory_format=torch.channels_last)
        if rank == 1:
            here.grad = torch.ones_like(here)
        average(torch.tensor(1.0 + 2 * rank))
        first = [p.grad if p.grad is None else p.grad.clone() for p in (shared, here, none, kernel)]
        average(0)
        return first, shared.grad, kernel.grad.stride() == kernel.stride()

    for first, without_weight, laid_out in together(work, tmp_path):
        assert first[0].unique().tolist() == [(1 * 1 + 3 * 2) / 4]
        assert first[1].unique().tolist() == [0.75]
        assert first[2] is None
        assert torch.equal(first[3], torch.arange(12.0).view(2, 2, 1, 3))
        assert not without_weight.any()
        assert laid_out


def test_running_statistics_are_the_same_everywhere_and_near_those_of_one_process(tmp_path: Path) -> None:
    def statistics(rank: int | None) -> dict[str, Tensor]:
        result = learner("conv", rank is not None, base="first")
        result.learn("a", tiny_task("conv"))
        return {name: buffer.clone() for name, buffer in result.module("a").named_buffers()}

    first, second = together(statistics, tmp_path)
    with one_thread():
        alone = statistics(None)
    changed = [name for name in first if not torch.equal(first[name], dict(net("conv").named_buffers())[name])]
    assert any("running_var" in name for name in changed)
    for name, buffer in first.items():
        assert torch.equal(buffer, second[name])
        torch.testing.assert_close(buffer, alone[name], rtol=0.3, atol=0.1)  # statistics of half the rows


def test_dropout_draws_other_numbers_in_each_process_and_the_same_in_every_run(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        drawn: list[Tensor] = []

        def augment(x: Any, generator: torch.Generator) -> Any:
            drawn.append(torch.stack([torch.rand((), generator=generator), torch.rand(())]))  # as dropout draws
            return x

        result = learner("transformer")
        delta = result.learn("a", tiny_task("transformer"), augment=augment)
        return torch.stack(drawn), task_file.write(delta)

    runs = [together(work, tmp_path / str(number)) for number in range(2)]
    for first, second in zip(*runs, strict=True):
        assert torch.equal(first[0], second[0])
        assert first[1] == second[1]
    assert runs[0][0][1] == runs[0][1][1]
    assert not torch.isin(runs[0][0][0], runs[0][1][0]).any()


# ---- store, checkpoints, decisions ----------------------------------------------------------------------------------


class Log:
    """A progress callback that notes finished epochs, and does something after a number of them."""

    def __init__(self, after: int = 0, then: Callable[[], None] = lambda: None) -> None:
        self.after, self.then = after, then
        self.epochs: list[tuple[str, int]] = []

    def __call__(self, at: Progress) -> None:
        if at.step == 0:
            self.epochs.append((at.stage, at.epoch))
            if len(self.epochs) == self.after:
                self.then()


def learn_two(folder: Path, log: Log | None = None, kill: int | None = None) -> Callable[[int], Any]:
    """Learn two tasks in a store; the process `kill` ends in the middle of the second epoch of the second."""

    def work(rank: int) -> Any:
        if kill == rank:
            _die_at(5)
        store = Store(folder, checkpoint_every=0)
        result = learner("conv", base="first", store=store, progress=log)
        for name, seed in (("a", 0), ("b", 1)):
            if name not in result.tasks:
                result.learn(name, tiny_task("conv", seed), val=tiny_task("conv", 5))
        entries = result._committed._entries
        return [task_file.write(d) for d in result.tasks.values()], [] if log is None else log.epochs, entries

    return work


def _die_at(step: int) -> None:
    """End this process in a step of the stages after the base's, as a kill does."""
    steps = 0
    end = Updates.end

    def dying(*arguments: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 4 * 3 + step:
            os._exit(9)
        end(*arguments)

    setattr(Updates, "end", dying)  # noqa: B010  (for mypy; this process ends here)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_store_is_written_once_and_loads_in_one_process(tmp_path: Path) -> None:
    first, second = together(learn_two(tmp_path / "tasks", Log()), tmp_path / "group")
    assert first[0] == second[0]
    assert first[2] == second[2]
    assert {stage for stage, _ in first[1]} >= {"base", "warm-up"}
    assert second[1] == []  # one process reports
    loaded = Learner.load(tmp_path / "tasks", net("conv"), progress=None)
    assert [task_file.write(delta) for delta in loaded.tasks.values()] == first[0]
    assert loaded.tasks["b"].provenance["processes"] == 2
    manifest = Store(tmp_path / "tasks").manifest()
    assert manifest.generation == 2  # one commit for each task
    loaded.learn("c", tiny_task("conv", 2))  # and it learns on, alone
    assert "processes" not in loaded.tasks["c"].provenance


@pytest.mark.parametrize("kill", [0, 1])
def test_after_a_kill_of_either_process_two_others_end_with_the_same_files(kill: int, tmp_path: Path) -> None:
    whole = together(learn_two(tmp_path / "whole", Log()), tmp_path / "first")
    interrupted = together(learn_two(tmp_path / "tasks", kill=kill), tmp_path / "second")
    assert interrupted[kill] == KILLED
    assert isinstance(interrupted[1 - kill], ProcessError)
    assert "another process ended" in str(interrupted[1 - kill])
    assert list(Store(tmp_path / "tasks").manifest().tasks) == ["a"]
    resumed = together(learn_two(tmp_path / "tasks", Log()), tmp_path / "third")
    assert resumed[0][0] == whole[0][0] == resumed[1][0]
    done = len([stage for stage, _ in whole[0][1] if stage == "base"])
    assert 0 < len(resumed[0][1]) < len(whole[0][1]) - done  # epochs of the killed run are not trained again
    assert contents(tmp_path / "tasks") == contents(tmp_path / "whole")


def test_after_an_interrupt_of_the_first_process_no_finished_epoch_is_trained_again(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    def learn(log: Log) -> Callable[[int], Any]:
        def work(rank: int) -> Any:
            result = learner(store=Store(tmp_path / "tasks", checkpoint_every=1e6), progress=log)
            result.learn("a", tiny_task("mlp"))
            return log.epochs

        return work

    first, second = together(learn(Log(after=1, then=interrupt)), tmp_path / "first")
    assert isinstance(first, KeyboardInterrupt)
    assert isinstance(second, ProcessError)
    resumed, _ = together(learn(Log()), tmp_path / "second")
    assert len(resumed) == RECIPE.epochs - 1


def test_early_stopping_and_stop_training_end_all_processes_alike(tmp_path: Path) -> None:
    def stop() -> None:
        raise StopTraining

    def work(rank: int) -> Any:
        log = Log(after=3, then=stop)
        stopped = learner(progress=log)
        stopped.learn("a", tiny_task("mlp"), val=tiny_task("mlp", 5))
        patient = learner(recipe=dataclasses.replace(RECIPE, epochs=30, lr=0.1, patience=1))
        patient.learn("a", tiny_task("mlp"), val=tiny_task("mlp", 5))
        return task_file.write(stopped.tasks["a"]), task_file.write(patient.tasks["a"]), log.epochs

    first, second = together(work, tmp_path)
    assert first[:2] == second[:2]
    assert len(first[2]) == 3
    assert second[2] == []


# ---- refusals -------------------------------------------------------------------------------------------------------


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """A data set that has one example less in every pass."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y, self.passes = x, y, 0

    def __iter__(self) -> Any:
        self.passes += 1
        return iter([(x, y) for x, y in zip(self.x, self.y, strict=True)][: len(self.y) + 3 - self.passes])


X, Y = tiny_task("mlp")


def loader(rank: int, rows: slice | None = None, batch: int = 4) -> DataLoader[Any]:
    rows = slice(rank, None, 2) if rows is None else rows
    return DataLoader(Pairs(X[rows], Y[rows]), batch_size=batch, shuffle=True)


def sampled(rank: int) -> DataLoader[Any]:
    data = Pairs(X, Y)
    return DataLoader(data, 4, sampler=DistributedSampler(data, num_replicas=2, rank=rank, seed=1))


REFUSED: dict[str, tuple[Callable[[int], dict[str, Any]], dict[int, tuple[type[Exception], str]]]] = {
    "loaders of different lengths": (
        lambda rank: {"train": loader(rank, slice(0, 12) if rank else slice(12, 20))},
        dict.fromkeys((0, 1), (DataError, "have 2, 3 batches")),
    ),
    "loaders of the same data": (
        lambda rank: {"train": loader(rank, slice(None))},
        dict.fromkeys((0, 1), (DataError, "the same first batch")),
    ),
    "a part of the validation data": (
        lambda rank: {"train": (X, Y), "val": sampled(rank)},
        dict.fromkeys((0, 1), (DataError, "DistributedSampler")),
    ),
    "other examples": (
        lambda rank: {"train": (X + rank, Y)},
        dict.fromkeys((0, 1), (ProcessError, "differ in the examples")),
    ),
    "labels of a part": (
        lambda rank: {"train": DataLoader(Pairs(X[rank::2], (Y % (2 + rank))[rank::2]), 4)},
        dict.fromkeys((0, 1), (ProcessError, "differ in the (objective|width)")),
    ),
    "an error in one process": (
        lambda rank: {"train": (X if rank else X.log(), Y)},
        {0: (DataError, "NaN"), 1: (ProcessError, "process 0 failed.*DataError.*NaN")},
    ),
    "another task": (
        lambda rank: {"name": f"task {rank}", "train": (X, Y)},
        dict.fromkeys((0, 1), (ProcessError, "differ in the task: task 0 and task 1")),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_shared_is_refused_in_every_process_before_training(case: str, tmp_path: Path) -> None:
    arguments, expected = REFUSED[case]

    def work(rank: int) -> Any:
        log = Log()
        result = learner(progress=log)
        with pytest.raises(expected[rank][0], match=expected[rank][1]):
            result.learn(**{"name": "a"} | arguments(rank))
        return log.epochs, list(result.tasks)

    assert together(work, tmp_path) == [([], []), ([], [])]


@pytest.mark.parametrize(
    ("settings", "error", "reason"),
    [
        ({"recipe": Recipe(batch=1)}, SettingError, "less than one example for each of 2 processes"),
        ({"kind": "conv", "recipe": Recipe(batch=3)}, BatchOfOneError, "one example in one of 2 processes"),
        ({"seed": None}, ProcessError, "differ in settings"),
    ],
)
def test_settings_that_cannot_be_shared_are_refused(
    settings: dict[str, Any], error: type[Exception], reason: str, tmp_path: Path
) -> None:
    def work(rank: int) -> Any:
        given = {"kind": "mlp"} | settings | ({"seed": rank} if "seed" in settings else {})
        with pytest.raises(error, match=reason):
            learner(**given).learn("a", tiny_task(given["kind"]))
        return True

    assert together(work, tmp_path) == [True, True]


def test_loaders_with_parts_of_the_data_learn_together(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        result = learner()
        sampler = sampled(rank)
        written = [task_file.write(result.learn("a", sampler, classes=CLASSES, val=DataLoader(Pairs(X, Y), 5)))]
        epochs = sampler.sampler.epoch  # type: ignore[attr-defined]
        return [*written, task_file.write(result.learn("b", loader(rank)))], epochs, result.predict(X, "a")

    first, second = together(work, tmp_path)
    assert first[0] == second[0]
    assert first[1] == second[1]
    assert torch.equal(first[2], second[2])


def test_a_loader_that_has_fewer_batches_later_ends_every_process(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        if rank:
            return learner().learn("a", DataLoader(Stream(X[1::2], Y[1::2]), 1), classes=CLASSES)
        return learner().learn("a", loader(rank, batch=1), classes=CLASSES)

    first, second = together(work, tmp_path)
    assert isinstance(second, DataError)
    assert "had 12 before" in str(second)
    assert isinstance(first, ProcessError)


def test_without_a_group_distributed_learning_is_refused_and_a_group_of_one_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="init_process_group"):
        learner()
    work = outputs("mlp", {"train": UNEVEN})
    ((shared, written),) = together(work, tmp_path, size=1)
    with one_thread():
        alone, expected = work(None)
    assert torch.equal(shared, alone)
    assert written == expected


def test_workers_and_processes_contradict_each_other(tmp_path: Path) -> None:
    def work(rank: int) -> Any:
        with ThreadPoolExecutor(1) as engine, pytest.raises(SettingError, match="leave one out"):
            learner().learn_many({"a": ((X, Y),)}, engine)
        return True

    assert together(work, tmp_path, size=1) == [True]
