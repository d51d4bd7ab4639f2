"""Tensors that modules hold themselves, in a mixed batch: each row meets its own task's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils._python_dispatch import TorchDispatchMode

from halrp import Delta
from halrp.model.base import Base
from halrp.model.mixed import MixedModule
from halrp.model.plan import plan as plan_of
from halrp.model.plan import trained_buffers
from tests.helpers import drawn
from tests.model.mixing import (
    around,
    assert_close,
    assert_mixes,
    base_task,
    inputs,
    mixed_module,
    random_delta,
    shuffled_rows,
)

SIZE = 8
"""Rows, positions, features and channels are all of this number, so that nothing is known by its size."""
Code = Callable[[Any, Tensor], Tensor]


class Holding(nn.Module):
    """Parameters that a module holds itself, and code of (N, 8, 8) that uses them."""

    def __init__(self, code: Code, *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.body = nn.Linear(SIZE, SIZE)
        for name, shape in zip("pqr", shapes, strict=False):
            self.register_parameter(name, nn.Parameter(0.5 * torch.randn(shape)))
        self.code = code
        self.fc = nn.Linear(SIZE, 3)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.code(self, self.body(x)).mean(1)))


def images(x: Tensor) -> Tensor:
    """(N, 8, 4, 2)"""
    return x.view(-1, SIZE, 4, 2)


def heads(x: Tensor) -> Tensor:
    """(N, 2, 8, 4)"""
    return x.view(-1, SIZE, 2, 4).transpose(1, 2)


def class_token(m: Any, x: Tensor) -> Tensor:
    return torch.cat([m.p.expand(x.shape[0], -1, -1), x], 1).softmax(1)


def set_token(m: Any, x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 2] = m.p
    return y


def overwritten(m: Any, x: Tensor) -> Tensor:
    x += m.p
    return x.mul_(m.q)


def sequence_first(m: Any, x: Tensor) -> Tensor:
    return cast(Tensor, (x.transpose(0, 1) + m.p).transpose(0, 1))


def table_of_offsets(m: Any, x: Tensor) -> Tensor:
    offsets = torch.arange(SIZE)[:, None] - torch.arange(SIZE) + SIZE - 1
    bias = m.p[offsets.view(-1)].view(SIZE, SIZE, 2).permute(2, 0, 1)
    return F.scaled_dot_product_attention(heads(x), heads(x), heads(x), attn_mask=bias[None]).flatten(2)[:, :, :SIZE]


def resized_positions(m: Any, x: Tensor) -> Tensor:
    grid = m.p.view(1, 2, 2, SIZE).permute(0, 3, 1, 2)
    return x + F.interpolate(grid, size=(4, 2), mode="bicubic").flatten(2).transpose(1, 2)


def pooled_by_queries(m: Any, x: Tensor) -> Tensor:
    queries = m.p.repeat(x.shape[0], 1, 1)
    return F.scaled_dot_product_attention(queries, x, x)


def standardised(m: Any, x: Tensor) -> Tensor:
    weight = F.batch_norm(m.p.view(1, SIZE, -1), None, None, training=True).view_as(m.p)
    return F.conv1d(x, weight, padding=1)


def low_rank(m: Any, x: Tensor) -> Tensor:
    return cast(Tensor, x + x @ (m.p @ m.q))


def parts(m: Any, x: Tensor) -> Tensor:
    scale, shift = m.p.chunk(2, -1)
    return cast(Tensor, x * (1 + scale) + shift)


HELD: dict[str, tuple[Code, tuple[tuple[int, ...], ...]]] = {
    "positions": (lambda m, x: x + m.p, ((1, SIZE, SIZE),)),
    "positions without a first dimension": (lambda m, x: x + m.p, ((SIZE, SIZE),)),
    "some positions": (lambda m, x: x + m.p[:, 1 : 1 + x.shape[1]], ((1, SIZE + 2, SIZE),)),
    "positions of another size": (resized_positions, ((1, 4, SIZE),)),
    "positions of both kinds": (lambda m, x: x + (m.p + m.q).relu(), ((1, SIZE, 1), (1, 1, SIZE))),
    "positions where rows are second": (sequence_first, ((SIZE, 1, SIZE),)),
    "one token": (lambda m, x: x + m.p, ((1, SIZE),)),
    "class token": (class_token, ((1, 1, SIZE),)),
    "class token, repeated": (lambda m, x: torch.cat([x, m.p.repeat(x.shape[0], 1, 1)], 1), ((1, 1, SIZE),)),
    "prefix": (lambda m, x: torch.cat([m.p[None].expand(x.shape[0], -1, -1), x], 1).softmax(1), ((3, SIZE),)),
    "token, set": (set_token, ((SIZE,),)),
    "missing entries": (lambda m, x: torch.where(x > 0, x, m.p), ((1, 1, SIZE),)),
    "missing entries, expanded": (lambda m, x: torch.where(x > 0, x, m.p.expand_as(x)), ((SIZE,),)),
    "scale of the last dimension": (lambda m, x: x * m.p, ((SIZE,),)),
    "scale of the last dimension, first": (lambda m, x: m.p * x, ((SIZE,),)),
    "scale of channels": (lambda m, x: (images(x) * m.p.view(1, -1, 1, 1)).flatten(2), ((SIZE,),)),
    "scale of channels with their dimensions": (lambda m, x: (images(x) * m.p).flatten(2), ((SIZE, 1, 1),)),
    "scale of both": (lambda m, x: (x * m.p + m.q) * m.r, ((SIZE, 1), (SIZE,), ())),
    "one number": (lambda m, x: x * m.p.exp(), ((),)),
    "one number, divided by": (lambda m, x: (x / m.p.abs().clamp(min=0.1)).softmax(-1), ((1,),)),
    "number for each head": (lambda m, x: (heads(x) * m.p).transpose(1, 2).flatten(2), ((2, 1, 1),)),
    "scale in the type of the input": (lambda m, x: x * m.p.to(x).type_as(x), ((SIZE,),)),
    "scale and shift in one": (parts, ((2 * SIZE,),)),
    "added in place": (overwritten, ((1, SIZE, SIZE), (SIZE,))),
    "mixed with a constant": (lambda m, x: torch.addcmul(x, m.p, torch.linspace(0, 1, SIZE).to(x)), ((SIZE,),)),
    "between two": (lambda m, x: torch.lerp(x, x.relu(), m.p.sigmoid()), ((SIZE,),)),
    "bias of attention": (
        lambda m, x: (heads(x) @ heads(x).mT + m.p).softmax(-1).transpose(1, 2).flatten(2)[..., :SIZE],
        ((1, 2, SIZE, SIZE),),
    ),
    "table of offsets": (table_of_offsets, ((2 * SIZE - 1, 2),)),
    "queries": (pooled_by_queries, ((1, 4, SIZE),)),
    "matrix": (lambda m, x: x @ m.p, ((SIZE, SIZE),)),
    "matrix, transposed": (lambda m, x: x @ m.p.T, ((SIZE, SIZE),)),
    "two matrices": (low_rank, ((SIZE, 2), (2, SIZE))),
    "sum of products": (lambda m, x: torch.einsum("bld,de->ble", x, m.p), ((SIZE, SIZE),)),
    "linear": (lambda m, x: F.linear(x, m.p, m.q), ((SIZE, SIZE), (SIZE,))),
    "linear without bias": (lambda m, x: F.linear(x, m.p), ((SIZE, SIZE),)),
    "convolution": (lambda m, x: F.conv1d(x, m.p, m.q, padding=1), ((SIZE, SIZE, 3), (SIZE,))),
    "convolution by name": (lambda m, x: F.conv1d(x, m.p, padding="same"), ((SIZE, SIZE, 3),)),
    "convolution of images": (
        lambda m, x: F.conv2d(images(x), m.p, m.q, stride=2, groups=2).flatten(2).mT,
        ((SIZE, SIZE // 2, 2, 2), (SIZE,)),
    ),
    "standardised weight": (standardised, ((SIZE, SIZE, 3),)),
    "table of tokens": (lambda m, x: F.embedding((4 * x).long().clamp(0, 9)[..., 0], m.p), ((10, SIZE),)),
    "table of tokens, indexed": (lambda m, x: m.p[(4 * x).long().clamp(0, 9)[..., 0]], ((10, SIZE),)),
    "layer norm": (lambda m, x: F.layer_norm(x, (SIZE,), m.p, m.q), ((SIZE,), (SIZE,))),
    "layer norm without bias": (lambda m, x: F.layer_norm(x, (SIZE, SIZE), m.p, eps=1e-3), ((SIZE, SIZE),)),
    "root mean square": (lambda m, x: m.p * x * x.pow(2).mean(-1, keepdim=True).rsqrt(), ((SIZE,),)),
    "root mean square norm": (lambda m, x: F.rms_norm(x, (SIZE,), m.p), ((SIZE,),)),
    "group norm": (lambda m, x: F.group_norm(x, 2, m.p, m.q), ((SIZE,), (SIZE,))),
    "batch norm": (
        lambda m, x: F.batch_norm(x, torch.zeros(SIZE).to(x), torch.ones(SIZE).to(x), m.p, m.q),
        ((SIZE,), (SIZE,)),
    ),
    "windows": (lambda m, x: (x.view(-1, 4, SIZE) + m.p).softmax(1).view(-1, SIZE, SIZE), ((1, 4, SIZE),)),
}
USES = pytest.mark.parametrize("use", HELD)


def holding(use: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    code, shapes = HELD[use]
    return drawn(lambda: Holding(code, *shapes)).to(dtype).eval()


@USES
def test_each_row_meets_the_tensor_of_its_task(use: str) -> None:
    model = holding(use)
    plan = plan_of(model)
    deltas = [base_task(model, plan), *(random_delta(model, plan, seed) for seed in range(4))]
    changed = {*deltas[1].owned, *deltas[1].factors}
    assert {name for name, _ in model.named_parameters()} == changed
    assert_mixes(model, plan, deltas, inputs(SIZE, SIZE, SIZE))
    assert_mixes(model, plan, deltas, inputs(SIZE + 5, SIZE, SIZE))
    single = holding(use, torch.float32)  # for which torch has other kernels
    assert Base(single, plan_of(single), channels_last=False).structure(inputs(4, SIZE, SIZE).float()).reason == ""


@USES
def test_the_forms_in_one_call_agree_with_calls_for_one_task_after_another(
    use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = holding(use)
    plan = plan_of(model)
    mixed = mixed_module(model, plan, [random_delta(model, plan, seed) for seed in range(4)])
    x, rows = inputs(11, SIZE, SIZE), shuffled_rows(11, 4)
    got = mixed(x, rows)
    monkeypatch.setattr("halrp.model.per_task.ONE_CALL", {})
    assert_close(mixed(x, rows), got)
    assert mixed.one_pass, mixed.reason


class Operations(TorchDispatchMode):
    """Counts operations of torch by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("use", "operation"),
    [
        ("positions", "aten.add.Tensor"),
        ("scale of the last dimension", "aten.mul.Tensor"),
        ("layer norm", "aten.native_layer_norm.default"),
        ("group norm", "aten.native_group_norm.default"),
        ("batch norm", "aten.addcmul.out"),
        ("root mean square norm", "aten.rsqrt.default"),
        ("linear", "aten.mm.default"),
        ("matrix", "aten.mm.default"),
        ("table of tokens", "aten.embedding.default"),
        ("convolution", "aten.convolution.default"),
    ],
)
def test_the_number_of_tasks_does_not_multiply_operations(use: str, operation: str) -> None:
    model = holding(use)
    plan = plan_of(model)
    counts = []
    for tasks in (2, 8):
        deltas = [random_delta(model, plan, seed, rank=1) for seed in range(tasks)]
        mixed, x, rows = mixed_module(model, plan, deltas), inputs(8, SIZE, SIZE), torch.arange(8) % tasks
        mixed(x, rows)
        with Operations() as seen:
            mixed(x, rows)
        counts.append(seen.counts[operation])
    assert counts[0] == counts[1] > 0


@USES
def test_tensors_that_no_task_changes_cost_what_shared_ones_cost(use: str) -> None:
    x, rows, counts = inputs(8, SIZE, SIZE), torch.arange(8) % 2, []
    for frozen in (True, False):
        model = holding(use)
        for _, parameter in model.named_parameters(recurse=False):
            parameter.requires_grad_(not frozen)
        plan = plan_of(model)
        mixed = mixed_module(model, plan, [without_held(model, random_delta(model, plan, s)) for s in range(2)])
        mixed(x, rows)
        with Operations() as seen:
            mixed(x, rows)
        assert mixed.one_pass, mixed.reason
        counts.append(seen.counts)
    assert counts[0] == counts[1]


def without_held(model: nn.Module, delta: Delta) -> Delta:
    """A delta that changes layers only."""
    held = {name for name, _ in model.named_parameters(recurse=False)}
    return replace(
        delta,
        plain={name: tensor for name, tensor in delta.plain.items() if name not in held},
        scales={name: pair for name, pair in delta.scales.items() if name not in held},
        coded={name: matrix for name, matrix in delta.coded.items() if name.partition("/")[2] not in held},
    )


def test_tasks_learned_later_change_no_bit_although_they_change_more() -> None:
    model = holding("scale of both", torch.float32)
    plan = plan_of(model)
    deltas = [without_held(model, random_delta(model, plan, 0)), random_delta(model, plan, 1)]
    later = [random_delta(model, plan, 2, rank=5), random_delta(model, plan, 3, classes=20)]
    x, rows = inputs(8, SIZE, SIZE, dtype=torch.float32), torch.arange(8) % 2
    alone, beside = mixed_module(model, plan, deltas), mixed_module(model, plan, deltas + later)
    assert torch.equal(alone(x, rows), beside(x, rows))
    assert alone.one_pass
    assert beside.one_pass


# ---- other modules that run their own code ------------------------------------------------------------------------


class Doubled(nn.Linear):
    """A linear layer that the library does not know."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class SameConv(nn.Conv2d):
    """Pads as other frameworks do, then convolves."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.weight, self.bias)


class Reader(nn.Module):
    """Reads a layer's weight and bias instead of calling the layer, and asks for its type."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.layer.bias, x.to(self.layer.weight.dtype), self.layer.weight)


class TiedLayers(nn.Module):
    """Two layers with one weight, and a table that is a third."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.table = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE), nn.Embedding(SIZE, SIZE)
        self.second.weight = self.table.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.second(self.first(x).tanh()) + self.table(x.argmax(1)))


class Coordinates(nn.Module):
    """A small network of coordinates that are the same for every row, as in continuous position biases."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, SIZE))
        self.register_buffer("grid", torch.cartesian_prod(torch.linspace(0, 1, 4), torch.linspace(0, 1, 2)))

    def forward(self, x: Tensor) -> Tensor:
        return x + cast(Tensor, self.net(self.grid)).diagonal()


class Positions(nn.Module):
    """Embeds positions that are the same for every row."""

    def __init__(self, first: bool, size: int = SIZE) -> None:
        super().__init__()
        self.table = nn.Embedding(size, 4)
        self.register_buffer("ids", torch.arange(size)[None] if first else torch.arange(size))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, (x[:, :, None] + self.table(self.ids)).flatten(1))


class Running(nn.BatchNorm1d):
    """A batch norm with its activation."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


def spectral() -> nn.Module:
    return parametrizations.spectral_norm(nn.Linear(SIZE, SIZE))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "a layer's subclass": lambda: Doubled(SIZE, SIZE),
    "a convolution's subclass": lambda: nn.Sequential(nn.Unflatten(1, (2, 2, 2)), SameConv(2, 6, 2)),
    "a norm's subclass": lambda: Running(SIZE),
    "a weight that is read": Reader,
    "tied weights": TiedLayers,
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(SIZE, SIZE)),
    "weight norm of a convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2, 2)), parametrizations.weight_norm(nn.Conv2d(2, 6, 2))
    ),
    "spectral norm": spectral,
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(SIZE, SIZE)),
    "a network of coordinates": Coordinates,
    "positions": lambda: Positions(first=True),
    "positions without a first dimension": lambda: Positions(first=False),
}


@pytest.mark.parametrize("kind", MODULES)
def test_a_module_without_a_mixed_form_runs_its_own_code_for_each_task(kind: str) -> None:
    model, plan = around(MODULES[kind], SIZE)
    known = {name for name, _ in model.named_parameters()} | set(trained_buffers(model))
    deltas = [base_task(model, plan), *(only(random_delta(model, plan, seed), known) for seed in range(4))]
    assert any(name.startswith("layer") for name in (*deltas[1].owned, *deltas[1].factors))
    assert_mixes(model, plan, deltas, inputs(SIZE, SIZE))


def only(delta: Delta, names: Container[str]) -> Delta:
    """A delta without buffers that no rule declares."""
    return replace(delta, plain={name: tensor for name, tensor in delta.plain.items() if name in names})


# ---- what cannot be mixed -----------------------------------------------------------------------------------------


def rescaled(m: Any, x: Tensor) -> Tensor:
    m.p.relu_()
    return cast(Tensor, x * m.p)


REFUSED: dict[str, tuple[Code, str]] = {
    "a number from a parameter": (lambda m, x: x * float(m.p.sum()), "cannot be traced"),
    "a list from a parameter": (lambda m, x: x * m.p.tolist()[0], "makes a number|cannot be traced"),
    "a branch on a parameter": (lambda m, x: x * m.p if m.p.sum() > 0 else x, "cannot be traced"),
    "a parameter that is written to": (rescaled, "writes"),
    "a parameter that is written to by a setting": (lambda m, x: x * F.relu(m.p, inplace=True), "writes"),
    "the number of rows, as a number": (lambda m, x: x + m.p.expand(len(x), 1, -1), "number of rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_uses_of_a_parameter_are_refused_and_go_task_by_task(case: str) -> None:
    code, reason = REFUSED[case]
    model = drawn(lambda: Holding(code, (SIZE,))).double().eval()
    plan = plan_of(model)
    deltas = [random_delta(model, plan, seed) for seed in range(3)]
    before = model.get_parameter("p").detach().clone()
    mixed, x, rows = mixed_module(model, plan, deltas), inputs(SIZE, SIZE, SIZE), torch.arange(SIZE) % 3
    got = mixed(x, rows)
    assert not mixed.one_pass
    assert re.search(reason, mixed.reason)
    expected = torch.cat([mixed(x[rows == task], rows[rows == task]) for task in range(3)])
    assert_close(got, expected[torch.cat([(rows == task).nonzero().flatten() for task in range(3)]).argsort()])
    if case != "a parameter that is written to":
        assert torch.equal(model.get_parameter("p"), before)


def test_code_that_takes_another_way_than_the_trace_is_noticed() -> None:
    calls = []

    def code(m: Any, x: Tensor) -> Tensor:
        calls.append(1)
        return cast(Tensor, m.p + x if len(calls) == 1 else x - m.p)

    model = drawn(lambda: Holding(code, (SIZE,))).double().eval()
    plan = plan_of(model)
    mixed, x = mixed_module(model, plan, [random_delta(model, plan, seed) for seed in range(2)]), inputs(4, SIZE, SIZE)
    mixed(x, torch.arange(4) % 2)
    assert "its structure has another function" in mixed.reason


def test_a_pass_costs_no_module_of_a_task() -> None:
    model, plan = around(lambda: Positions(first=True), SIZE)
    base, asked = Base(model, plan, channels_last=False), []

    def module_of(delta: Delta) -> nn.Module:
        asked.append(delta.task)
        return base.serving_view(delta)

    mixed = MixedModule(base, [random_delta(model, plan, seed) for seed in range(3)], module_of)
    x, rows = inputs(6, SIZE), torch.arange(6) % 3
    mixed(x, rows)
    asked.clear()  # the first batch is compared
    mixed(x, rows)
    assert mixed.one_pass, mixed.reason
    assert not asked
