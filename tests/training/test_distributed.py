"""Two processes that learn together end with what one process learns from the same batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from halrp import Flat, Halrp, Learner, Recipe
from halrp.errors import SettingError
from halrp.method.from_probe import FromProbe
from halrp.method.offers import Wanted, collect
from halrp.method.warm_up import WarmUp
from halrp.method.weight_gradients import Summed
from halrp.objectives import Classification, TokenClassification
from halrp.store import task_file
from halrp.training.batches import InMemory, Part, TaskData
from halrp.training.distributed import GradientAverage, Processes
from halrp.training.run import TaskRun
from tests.helpers import CLASSES, Pairs, net, one_thread, tiny_task
from tests.training.processes import METHOD, RECIPE, learner, together


def assert_close(shared: Tensor, alone: Tensor) -> None:
    """Compare up to rounding: sums of two processes have another order, which Adam carries on for dozens of steps."""
    torch.testing.assert_close(shared, alone, rtol=1e-4, atol=1e-5)


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


FIXED = Halrp(allocate=Flat(2), start=FromProbe(held_out=0, folds=0))
"""Stores the same parts whatever they promise: their curvature is that of the rows which each process has. The head
trains along, as it does in several processes in any case."""
UNEVEN = tiny_task("mlp", 0, examples=29)
"""Batches of eight leave five: three for one process and two for the other."""
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "start at the probe": ("mlp", {"train": UNEVEN, "val": tiny_task("mlp", 5)}, {"method": FIXED}),
    "start from warm-up": (
        "mlp",
        {"train": UNEVEN},
        {"method": dataclasses.replace(METHOD, start=WarmUp())},
    ),
    "the base": ("gru", {"train": tiny_task("gru")}, {"base": "first"}),
    "accumulated batches": (
        "gru",
        {"train": tiny_task("gru", 0, 29)},
        {"recipe": Recipe(3, 4, accumulate=3), "method": FIXED},
    ),
    "class weights": (
        "mlp",
        {"train": UNEVEN, "objective": Classification(CLASSES, weights=(0.1, 1.0, 5.0))},
        {"recipe": dataclasses.replace(RECIPE, clip=0.1, ema=0.9, balanced=True), "method": FIXED},
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
        result = Learner(Tagger(), recipe=RECIPE, method=FIXED, base="given", distributed=rank is not None)
        delta = result.learn("a", (x, TOKENS), objective=TokenClassification(CLASSES))
        return result.predict(x, "a"), task_file.write(delta)

    assert len({int((part != -100).sum()) for part in (TOKENS[0:8:2], TOKENS[1:8:2])}) == 2
    alone, shared = both(work, tmp_path)
    assert_close(shared, alone)


def test_what_parts_promise_comes_from_the_gradient_of_all_examples(tmp_path: Path) -> None:
    names = ("0.weight", "2.weight")

    def work(rank: int | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        module, processes = net("mlp").double(), None if rank is None else Processes.of(torch.device("cpu"))
        x, y = tiny_task("mlp", examples=29)
        data = InMemory(x.double(), y, part=Part() if processes is None else processes.part)
        run = TaskRun("a", TaskData(data, None, CLASSES), RECIPE, (0, "base", "a"), processes=processes)
        weights = {name: Summed(module.get_parameter(name).detach(), {"full": 2}) for name in names}
        wanted = Wanted(weights, frozenset(names), frozenset(names), frozenset({"0.bias"}))
        vectors, _ = collect(module, wanted, run, 10**6)
        # The curvature is that of the rows which each process has of a batch; without it, scores are products of means.
        products = {key: vector.score * vector.curvature for key, vector in vectors.items()}
        return products, {name: weights[name].components("full").v for name in names}

    with one_thread():
        products, directions = work(None)
    first, second = together(work, tmp_path)
    assert any(bool(product > 0) for product in products.values())
    for key, product in products.items():
        assert torch.equal(first[0][key], second[0][key])
        torch.testing.assert_close(first[0][key], product, rtol=1e-9, atol=1e-15)
    for name, v in directions.items():
        assert torch.equal(first[1][name], second[1][name])
        torch.testing.assert_close((first[1][name] * v).sum(0).abs(), torch.ones_like(v[0]), rtol=1e-9, atol=0)


@pytest.mark.parametrize("kind", ["tensors", "a data set", "loaders"])
def test_the_probe_is_fitted_on_the_examples_of_all_processes(kind: str, tmp_path: Path) -> None:
    x, y = tiny_task("mlp", examples=30)

    def work(rank: int | None) -> tuple[Tensor, bytes]:
        rows = slice(rank, None, 2)
        part = Pairs(x, y) if rank is None else Pairs(x[rows], y[rows])
        loader = DataLoader(part, batch_size=8 if rank is None else 4)
        train: Any = {"tensors": (x, y), "a data set": Pairs(x, y), "loaders": loader}[kind]
        still = dataclasses.replace(RECIPE, lr=1e-12)
        result = learner("mlp", rank is not None, method=FIXED, recipe=still)
        delta = result.learn("a", train, classes=CLASSES)
        return result.predict(tiny_task("mlp", 3)[0], "a"), task_file.write(delta)

    alone, shared = both(work, tmp_path)
    # Rows of loaders come in another order, so folds are others; the head is stored in int8.
    tolerance = 0.3 if kind == "loaders" else 1e-4
    assert float((shared - alone).norm() / alone.norm()) < tolerance


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


def test_without_a_group_distributed_learning_is_refused_and_a_group_of_one_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="init_process_group"):
        learner()
    work = outputs("mlp", {"train": UNEVEN})
    ((shared, written),) = together(work, tmp_path, size=1)
    with one_thread():
        alone, expected = work(None)
    assert torch.equal(shared, alone)
    assert written == expected
