"""Mixed batches of whole networks, and what calls must not change."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from halrp import Delta, Halrp, Learner, Plan
from halrp.errors import DataError
from halrp.lab import backbones
from halrp.model.base import Base
from halrp.model.mixed import MixedModule
from halrp.model.plan import plan as plan_of
from halrp.model.views import merged_view
from halrp.store import task_file
from tests.helpers import FAST, NETS, digest, drawn, net, tiny_task
from tests.model.mixing import (
    TOLERANCE,
    around,
    assert_mixes,
    base_task,
    inputs,
    mixed_module,
    random_delta,
    shuffled_rows,
    task_views,
)

ROOMY = Halrp.budget(growth_per_task=0.9)


def of(learner: Learner) -> tuple[nn.Module, Plan, list[Delta]]:
    """The base, the plan and the tasks of a learner; the first stands for the base's own task."""
    base = cast(Any, learner)._committed.base
    return base.module, base.plan, [base.task, *learner.tasks.values()]


class Block(nn.Module):
    """Two convolutions with batch norm beside a shortcut that changes the width."""

    def __init__(self, columns: int, rows: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(columns, rows, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(rows)
        self.conv2 = nn.Conv2d(rows, rows, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(rows)
        self.short = nn.Sequential(nn.Conv2d(columns, rows, 1, stride, bias=False), nn.BatchNorm2d(rows))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        y += self.short(x)
        return cast(Tensor, self.relu(y))


def residual() -> nn.Module:
    """A small network with shortcuts."""
    body = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), Block(8, 8, 1), Block(8, 16, 2), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(body, nn.Flatten(), nn.Linear(16, 3))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("view", ["mean", "full"])
@pytest.mark.parametrize("kind", ["residual", "lenet", "resnet18"])
def test_whole_networks_agree_in_both_precisions(kind: str, view: str, dtype: torch.dtype) -> None:
    model = (drawn(residual) if kind == "residual" else backbones.build(kind)).to(dtype).eval()
    plan = plan_of(model)
    dense = ("conv1.weight", "0.1.conv2.weight", "blocks.3.conv2.weight")
    deltas = [
        base_task(model, plan),
        *(random_delta(model, plan, seed, 2 + seed, view, dense if seed % 2 else (), rank=seed) for seed in range(4)),
    ]
    shape = (16, 3, 9, 9) if kind == "residual" else (16, 3, 32, 32)
    assert_mixes(model, plan, deltas, inputs(*shape, dtype=dtype))


class Twice(nn.Module):
    """One layer that is called twice, once by another name."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.again = self.body
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.again(self.body(x).tanh()).tanh()))


def test_a_layer_may_be_called_twice_and_by_two_names() -> None:
    model = drawn(Twice).double().eval()
    plan = plan_of(model)
    deltas = [base_task(model, plan), *(random_delta(model, plan, seed) for seed in range(3))]
    assert_mixes(model, plan, deltas, inputs(11, 8))


@pytest.mark.parametrize("kind", NETS)
def test_learned_tasks_give_the_same_logits_and_answers_on_a_test_set(kind: str) -> None:
    learner = Learner(net(kind), recipe=FAST, method=ROOMY)
    for seed, classes in enumerate((3, 2, 4, 3)):
        learner.learn(f"task {seed}", tiny_task(kind, seed, classes=classes))
    base, plan, deltas = of(learner)
    x, _ = tiny_task(kind, seed=9, examples=40)
    assert_mixes(base, plan, deltas, x)


def test_logits_are_as_wide_as_the_widest_task_present() -> None:
    model, plan = around(lambda: nn.Linear(10, 9), 10)
    deltas = [base_task(model, plan), random_delta(model, plan, 1, classes=2), random_delta(model, plan, 2, classes=7)]
    mixed, x = mixed_module(model, plan, deltas), inputs(6, 10)
    for _ in range(2):
        narrow = mixed(x, torch.tensor([0, 1, 0, 1, 1, 0]))
        assert narrow.shape == (6, 3)
        assert torch.equal(narrow.isneginf().sum(1), torch.tensor([0, 1, 0, 1, 1, 0]))
        wide = mixed(x, torch.tensor([0, 1, 2, 2, 1, 0]))
        assert wide.shape == (6, 7)
        assert torch.equal(wide.isneginf().sum(1), torch.tensor([4, 5, 0, 0, 5, 4]))


def test_tasks_learned_later_change_no_bit_of_a_mixed_call() -> None:
    def bits(model: nn.Module, plan: Plan, x: Tensor) -> list[bool]:
        deltas = [random_delta(model, plan, seed, 2 + seed, ("mean", "full")[seed % 2], rank=seed) for seed in range(4)]
        later = [random_delta(model, plan, 8, 100, "full", rank=17), random_delta(model, plan, 9, 37, "mean", rank=9)]
        rows = shuffled_rows(len(x), len(deltas))
        alone, beside = (mixed_module(model, plan, each) for each in (deltas, deltas + later))
        same = torch.equal(alone(x, rows), beside(x, rows))
        return [same, alone.one_pass, beside.one_pass]

    model = backbones.build("lenet").eval()
    assert bits(model, plan_of(model), inputs(64, 3, 32, 32, dtype=torch.float32)) == [True, True, True]

    def with_conv_head() -> nn.Module:
        head = nn.Conv2d(64, 3, 1)
        return nn.Sequential(nn.Conv2d(8, 64, 3), nn.ReLU(), head, nn.AdaptiveAvgPool2d(1), nn.Flatten())

    model = drawn(with_conv_head).eval()
    assert bits(model, plan_of(model, "2"), inputs(64, 8, 9, 9, dtype=torch.float32)) == [True, True, True]


class Shifted(nn.Module):
    """A layer of the user's own with a buffer, for which there is no mixed form."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(columns))

    def forward(self, x: Tensor) -> Tensor:
        return x - cast(Tensor, self.centre)


def test_a_task_without_a_mixed_form_is_computed_alone_and_changes_no_bit_of_the_others() -> None:
    model = nn.Sequential(drawn(lambda: nn.Linear(10, 12)), Shifted(12), nn.ReLU(), nn.Linear(12, 3)).eval()
    plan = plan_of(model)
    deltas = [random_delta(model, plan, seed, classes=2 + seed) for seed in range(4)]
    older = [replace(d, plain={n: t for n, t in d.plain.items() if n != "1.centre"}) for d in deltas[:3]]
    x = inputs(24, 10, dtype=torch.float32)
    rows = shuffled_rows(len(x), len(older))
    before, beside = mixed_module(model, plan, older), mixed_module(model, plan, [*older, deltas[3]])
    expected = before(x, rows)
    assert before.one_pass
    assert torch.equal(beside(x, rows), expected)
    assert "Shifted" in beside.reason
    rows[::4] = 3
    got = beside(x, rows)
    assert torch.equal(got[::4], mixed_module(model, plan, deltas[3:])(x[::4].contiguous(), torch.zeros(6).long()))
    others = before(x[rows != 3], rows[rows != 3])
    assert torch.equal(got[rows != 3][:, : others.shape[1]], others)


def test_a_softmax_after_the_head_sees_only_the_classes_of_the_task() -> None:
    model = nn.Sequential(drawn(lambda: nn.Linear(10, 12)), nn.Linear(12, 3), nn.LogSoftmax(1)).double().eval()
    plan = plan_of(model, "1")
    deltas = [base_task(model, plan), *(random_delta(model, plan, seed, classes=2 + seed) for seed in range(3))]
    assert_mixes(model, plan, deltas, inputs(15, 10))


@pytest.mark.parametrize("bias", [True, False])
def test_a_head_may_be_a_convolution(bias: bool) -> None:
    def build() -> nn.Module:
        head = nn.Conv2d(9, 3, 1, bias=bias)
        return nn.Sequential(nn.Conv2d(8, 9, 3), nn.ReLU(), head, nn.AdaptiveAvgPool2d(1), nn.Flatten())

    model = drawn(build).double().eval()
    plan = plan_of(model, "2")
    deltas = [base_task(model, plan), *(random_delta(model, plan, seed, classes=2 + seed) for seed in range(3))]
    assert_mixes(model, plan, deltas, inputs(15, 8, 5, 5))


def test_none_and_a_task_that_owns_nothing_are_the_base() -> None:
    model, plan = around(lambda: nn.Linear(10, 9), 10)
    empty = replace(base_task(model, plan), task="first")
    deltas = [base_task(model, plan), random_delta(model, plan, 1), empty]
    assert_mixes(model, plan, deltas, inputs(9, 10))
    x = inputs(4, 10)
    with torch.no_grad():
        expected = model(x)
    assert torch.equal(mixed_module(model, plan, deltas)(x, torch.tensor([0, 2, 2, 0])), expected)


def test_rows_of_one_task_are_that_tasks_own_pass_to_the_bit() -> None:
    model, plan = around(lambda: nn.Conv2d(8, 9, 3), 8, 5, 5)
    delta = random_delta(model, plan, 1)
    x = inputs(7, 8, 5, 5)
    with torch.no_grad():
        expected = merged_view(model, plan, delta.factors, delta.owned, delta.classes)(x)
    assert torch.equal(
        mixed_module(model, plan, [base_task(model, plan), delta])(x, torch.ones(7, dtype=torch.long)), expected
    )


def test_a_comparison_is_made_once() -> None:
    model, plan = around(lambda: nn.Linear(10, 9), 10)
    base, asked = Base(model, plan, channels_last=False), []

    def module_of(delta: Delta) -> nn.Module:
        asked.append(delta.task)
        return base.serving_view(delta)

    mixed = MixedModule(base, [random_delta(model, plan, seed) for seed in range(3)], module_of)
    x, rows = inputs(6, 10), torch.arange(6) % 3
    mixed(x, rows)
    assert len(asked) == 3
    mixed(x, rows)
    assert len(asked) == 3


@pytest.mark.parametrize("precisions", [("bfloat16",), ("bfloat16", None)])
def test_each_row_is_computed_in_the_precision_of_its_task_in_one_pass_for_each(
    precisions: tuple[str | None, ...],
) -> None:
    model, plan = around(lambda: nn.Conv2d(8, 9, 3), 8, 5, 5, dtype=torch.float32)
    deltas = [base_task(model, plan), *(random_delta(model, plan, seed) for seed in range(3))]
    deltas = [replace(delta, autocast=precisions[n % len(precisions)]) for n, delta in enumerate(deltas)]
    mixed, x = mixed_module(model, plan, deltas), inputs(16, 8, 5, 5, dtype=torch.float32)
    rows = torch.arange(16) % 4
    views, logits = task_views(model, plan, deltas), mixed(x, rows)
    assert mixed.one_pass, mixed.reason
    with torch.autocast("cpu", dtype=torch.float16):  # a region of the caller's changes nothing
        assert torch.equal(mixed(x, rows), logits)
    for number, delta in enumerate(deltas):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=delta.autocast is not None), torch.no_grad():
            expected = views[number](x[rows == number]).float()
        # bfloat16 has eight bits: a few roundings of 0.4 %. In float32 the rounding of other sums, about 1e-6.
        tolerance = 1e-5 if delta.autocast is None else 0.05
        got = logits[rows == number].float()
        torch.testing.assert_close(got, expected, rtol=0, atol=tolerance * float(expected.abs().max()))


def test_the_same_call_gives_the_same_bits_the_first_time_and_later() -> None:
    model = drawn(residual).eval()
    plan = plan_of(model)
    deltas = [random_delta(model, plan, seed) for seed in range(3)]
    x, other = inputs(12, 3, 9, 9, dtype=torch.float32), inputs(12, 3, 9, 9, seed=1, dtype=torch.float32)
    rows = torch.arange(12) % 3
    mixed = mixed_module(model, plan, deltas)
    first = mixed(x, rows)
    assert torch.equal(mixed(x, rows), first)
    later = mixed_module(model, plan, deltas)  # whose first batch is another one
    later(other, rows)
    assert torch.equal(later(x, rows), first)
    assert later.one_pass
    by_task = torch.stack([task_views(model, plan, deltas)[t](row[None])[0] for row, t in zip(x, rows, strict=True)])
    assert not torch.equal(first, by_task)  # the two ways differ in the last bits, or this test could not fail


# ---- contracts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([0, 1], "for each"),
        ([0.0, 1.0, 1.0], "an integer"),
        ([0, 1, 2], "names task 2"),
        ([0, -1, 1], "names task -1"),
    ],
)
def test_rows_that_name_no_task_are_refused(rows: list[float], message: str) -> None:
    model, plan = around(lambda: nn.Linear(10, 9), 10)
    mixed = mixed_module(model, plan, [base_task(model, plan), random_delta(model, plan, 1)])
    with pytest.raises(DataError, match=message):
        mixed(inputs(3, 10), torch.tensor(rows))


def test_neither_base_nor_deltas_nor_inputs_are_changed() -> None:
    model = drawn(residual).eval()
    plan = plan_of(model)
    deltas = [base_task(model, plan), *(random_delta(model, plan, seed) for seed in range(3))]

    base = Base(model, plan, channels_last=False)

    def state() -> list[object]:
        files = [task_file.write(d) for d in deltas]
        flags = [(p.requires_grad, p.grad) for p in model.parameters()]
        return [digest(model), files, flags, [m.training for m in model.modules()], [*vars(model.get_submodule("0.0"))]]

    before, x, rows = state(), inputs(8, 3, 9, 9, dtype=torch.float32), torch.arange(8) % 4
    given = x.clone()
    mixed = MixedModule(base, deltas)
    logits = [mixed(x, rows) for _ in range(3)]
    assert mixed.one_pass
    assert state() == before
    assert torch.equal(x, given)
    assert torch.equal(rows, torch.arange(8) % 4)
    assert not any(each.requires_grad for each in logits)
    assert torch.equal(logits[1], logits[2])


def test_threads_with_different_rows_do_not_meet() -> None:
    model = drawn(residual).eval()
    plan = plan_of(model)
    mixed = mixed_module(model, plan, [random_delta(model, plan, seed) for seed in range(4)])
    x = inputs(12, 3, 9, 9, dtype=torch.float32)
    rows = [shuffled_rows(12, 4, seed) for seed in range(2)]
    mixed(x, rows[0])
    expected = [mixed(x, each) for each in rows]
    start = threading.Barrier(2)
    got: list[list[Tensor]] = [[], []]

    def serve(number: int) -> None:
        start.wait()
        for _ in range(20):
            got[number].append(mixed(x, rows[number]))

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(2):
        assert len(got[number]) == 20
        assert all(torch.equal(each, expected[number]) for each in got[number])
