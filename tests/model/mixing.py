"""What the tests of mixed batches share: random deltas, each row alone as the reference, and a net around a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from halrp import Delta, Plan
from halrp.model.base import Base
from halrp.model.description import Description
from halrp.model.factors import Factors
from halrp.model.layout import Layout
from halrp.model.mixed import MixedModule
from halrp.model.plan import plan as plan_of
from halrp.model.views import shared_copy, task_view
from tests.helpers import drawn

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
"""Relative to the largest logit. Sums of up to some hundred terms in another order differ by a few rounding units."""


def random_delta(
    model: nn.Module,
    plan: Plan,
    seed: int,
    classes: int = 3,
    view: str = "mean",
    dense: Sequence[str] = (),
    rank: int | None = None,
) -> Delta:
    """A delta in which everything that a task may change differs from the base."""
    generator = torch.Generator().manual_seed(seed)

    def draw(like: Tensor, *shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(like.dtype)

    factors: dict[str, Factors] = {}
    owned: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        parameter_plan, weight = plan.parameters[name], parameter.detach()
        if parameter_plan.kind == "shared":
            continue
        rows, columns = (weight.shape[0], weight[0].numel()) if weight.dim() > 1 else (weight.numel(), 1)
        if parameter_plan.role == "head":
            owned[name] = 0.3 * draw(weight, *plan.shape_for(name, tuple(weight.shape), classes))
        elif parameter_plan.kind == "adapted" and name not in dense:
            if view == "mean" and parameter_plan.kernel:
                columns = weight.shape[1]
            k = (seed + len(factors)) % 4 if rank is None else rank
            factors[name] = Factors(
                1 + 0.2 * draw(weight, rows),
                1 + 0.2 * draw(weight, weight.shape[1]),
                0.2 * draw(weight, rows, k),
                0.2 * draw(weight, k, columns),
            )
        else:
            owned[name] = weight + 0.2 * draw(weight, *weight.shape)
    for name, buffer in model.named_buffers():
        if buffer.is_floating_point():
            owned[name] = buffer + 0.3 * draw(buffer, *buffer.shape).abs()
    description = Description(task=f"task {seed}", classes=classes, view=view)
    return Delta.pack(description, layout_of(model, plan), factors, owned)


def layout_of(model: nn.Module, plan: Plan) -> Layout:
    """The layout of a model that is nobody's base yet."""
    return Layout.of("", plan, {**dict(model.named_parameters()), **dict(model.named_buffers())})


def base_task(model: nn.Module, plan: Plan) -> Delta:
    """The delta of the base's own task."""
    classes = len(model.get_submodule(plan.head).get_parameter("weight"))
    return Delta(task="", classes=classes, layout=layout_of(model, plan))


def mixed_module(model: nn.Module, plan: Plan, deltas: Sequence[Delta]) -> MixedModule:
    """Deltas over a model as one module."""
    return MixedModule(Base(model, plan, channels_last=False), deltas)


def task_views(model: nn.Module, plan: Plan, deltas: Sequence[Delta]) -> list[nn.Module]:
    """Each task's own view, built without the library's way to choose between base and task."""
    return [
        task_view(model, plan, delta.factors, delta.owned, delta.classes) if delta.owned else shared_copy(model).eval()
        for delta in deltas
    ]


def each_row_alone(views: Sequence[nn.Module], x: Tensor, rows: Tensor) -> Tensor:
    """The logits of each row alone in its own task's view, padded with −inf to the widest."""
    with torch.no_grad():
        logits = [views[task](x[n : n + 1])[0] for n, task in enumerate(rows.tolist())]
    width = max(len(each) for each in logits)
    return torch.stack([nn.functional.pad(each, (0, width - len(each)), value=-torch.inf) for each in logits])


def assert_close(got: Tensor, expected: Tensor) -> None:
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    assert torch.equal(got.isinf(), expected.isinf())
    assert torch.equal(got.argmax(1), expected.argmax(1))
    scale = float(expected[expected.isfinite()].abs().max())
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE[expected.dtype] * scale)


def assert_mixes(model: nn.Module, plan: Plan, deltas: Sequence[Delta], x: Tensor, seed: int = 0) -> None:
    """Random rows agree with the tasks' own views, also after the first call, which compares by itself."""
    mixed, views = mixed_module(model, plan, deltas), task_views(model, plan, deltas)
    assert mixed.one_pass, mixed.reason
    for start in range(2):
        rows = shuffled_rows(len(x), len(deltas), seed + start)
        expected = each_row_alone(views, x, rows)
        mixed(x, rows)
        assert mixed.one_pass, mixed.reason
        assert_close(mixed(x, rows), expected)


def shuffled_rows(count: int, tasks: int, seed: int = 0) -> Tensor:
    """A task for each row, every one used, in random order and unevenly."""
    generator = torch.Generator().manual_seed(seed)
    some = torch.randint(tasks, (count - tasks,), generator=generator) // 2
    return torch.cat([torch.arange(tasks), some])[torch.randperm(count, generator=generator)]


class Around(nn.Module):
    """A layer, and linear layers from its output to a head."""

    def __init__(self, layer: nn.Module, shape: Sequence[int]) -> None:
        super().__init__()
        self.layer = layer
        self.body = nn.Linear(12, 12)
        with torch.no_grad():
            features = self._features(torch.zeros(2, *shape, dtype=torch.float32))
        self.squeeze = nn.Linear(features.shape[1], 12)
        self.fc = nn.Linear(12, 3)

    def _features(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.layer(x).flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.body(self.squeeze(self._features(x)).tanh()).tanh()))


def around(build: Callable[[], nn.Module], *shape: int, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Plan]:
    model = drawn(lambda: Around(build(), shape)).to(dtype).eval()
    return model, plan_of(model)


def inputs(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
