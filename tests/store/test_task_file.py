"""The size of a task's file: exact before anything is serialised, with a small header."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from halrp import Halrp, Recipe
from halrp.lab import backbones
from halrp.model.base import Base
from halrp.model.codec import PRECISIONS, Precision
from halrp.model.delta import Delta, Recovered
from halrp.model.description import Description
from halrp.model.factors import Factors
from halrp.model.file_size import planned_bytes
from halrp.model.plan import plan
from halrp.provenance import describe
from halrp.store import task_file
from tests.helpers import drawn, net

PROVENANCE = {"halrp": "0.2.0", "method": describe(Halrp.budget(100_000)), "recipe": describe(Recipe()), "seed": 0}
BASES = {kind: Base(net(kind), plan(net(kind)), channels_last=False) for kind in ("conv", "grouped", "transformer")}


def inverted_residual(inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> nn.Module:
    """A block of MobileNetV2 and EfficientNet-Lite: expand, depthwise, project, each with batch norm."""
    hidden = inputs * expansion
    layers: list[nn.Module] = []
    if expansion > 1:
        layers += [nn.Conv2d(inputs, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU6()]
    layers += [
        nn.Conv2d(hidden, hidden, kernel, stride, kernel // 2, groups=hidden, bias=False),
        nn.BatchNorm2d(hidden),
        nn.ReLU6(),
        nn.Conv2d(hidden, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers)


def efficientnet_lite0(classes: int = 10) -> nn.Module:
    """The layers of EfficientNet-Lite0, without its skip connections, which no file sees."""
    stages = [(1, 16, 1, 3, 1), (6, 24, 2, 3, 2), (6, 40, 2, 5, 2), (6, 80, 3, 3, 2)]
    stages += [(6, 112, 3, 5, 1), (6, 192, 4, 5, 2), (6, 320, 1, 3, 1)]
    blocks: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
    width = 32
    for expansion, outputs, repeats, kernel, stride in stages:
        for number in range(repeats):
            blocks.append(inverted_residual(width, outputs, expansion, kernel, stride if number == 0 else 1))
            width = outputs
    blocks += [nn.Conv2d(320, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(1280, classes))


def task(base: Base, ranks: Mapping[str, int], description: Description, buffers: bool = True) -> Delta:
    """A delta with these ranks; other adapted weights are dense, and no entry is zero."""
    factors, owned = {}, {}
    for slot in base.layout.slots:
        tensor = base.tensors[slot.name]
        if slot.name in ranks and slot.kind == "adapted":
            rank = ranks[slot.name]
            shapes = ((slot.shape[0],), (slot.shape[1],), (slot.shape[0], rank), (rank, slot.columns(description.view)))
            factors[slot.name] = Factors(*(tensor.new_ones(shape) for shape in shapes))
        elif slot.kind != "buffer" or buffers:
            owned[slot.name] = torch.ones(slot.shape_in(description.classes), dtype=tensor.dtype)
    recovered = {slot.name: Recovered(0.1, 0.2, 0.3) for slot in base.layout.adapted}
    return Delta.pack(description, base.layout, factors, owned, recovered)


@given(
    st.sampled_from(sorted(BASES)),
    st.sampled_from(PRECISIONS),
    st.sampled_from(["mean", "full"]),
    st.text(min_size=1, max_size=30),
    st.integers(1, 3000),
    st.booleans(),
    st.data(),
)
@settings(deadline=None, max_examples=60)
def test_the_planned_size_is_the_size_of_the_file(
    kind: str, precision: Precision, view: str, name: str, classes: int, buffers: bool, data: st.DataObject
) -> None:
    base = BASES[kind]
    description = Description(task=name, classes=classes, view=view, precision=precision, provenance=PROVENANCE)
    most = {slot.name: min(slot.shape[0], slot.columns(view)) for slot in base.layout.adapted}
    ranks = {n: rank for n, m in most.items() if (rank := data.draw(st.integers(-1, m), label=n)) >= 0}
    delta = task(base, ranks, description, buffers)
    content = task_file.write(delta)
    assert planned_bytes(description, base.layout, ranks, set(delta.plain)) == len(content) == delta.bytes
    assert task_file.write(task_file.load(content, base, "file")) == content
    for p in delta.factors.values():  # zeros only make it smaller
        p.p[:, ::2] = 0
    assert len(task_file.write(delta.with_factors(delta.factors))) <= len(content)


def test_the_efficientnet_here_has_the_layers_of_the_real_net() -> None:
    model = efficientnet_lite0(classes=1000)
    kinds = [type(module) for module in model.modules()]
    # A stem, a block without and 15 with an expansion, and a last convolution, each followed by a batch norm.
    assert kinds.count(nn.Conv2d) == kinds.count(nn.BatchNorm2d) == 1 + 2 + 15 * 3 + 1
    assert sum(p.numel() for p in model.parameters()) == 4_652_008  # as published for 1000 classes


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_header_of_an_efficientnet_task_has_at_most_4_kilobytes(precision: Precision) -> None:
    model = drawn(efficientnet_lite0)
    base = Base(model, plan(model), channels_last=False)
    assert len(base.layout.adapted) == 49
    description = Description(
        task="client 12, season 2026", classes=10, view="mean", precision=precision, provenance=PROVENANCE
    )
    delta = task(base, {slot.name: 4 for slot in base.layout.adapted if min(slot.shape[:2]) > 4}, description)
    index = sum(delta.entries[name].bytes for name in ("index", "recovered"))
    assert len(task_file.write(delta)) - sum(entry.bytes for entry in delta.entries.values()) == delta.header
    assert delta.header + index <= 4096


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_header_of_a_lenet_task_has_at_most_one_and_a_half_kilobytes(precision: Precision) -> None:
    model = backbones.build("lenet", classes=10)
    base = Base(model, plan(model), channels_last=False)
    description = Description(
        task="CIFAR100-Split task 3", classes=10, view="mean", precision=precision, provenance=PROVENANCE
    )
    delta = task(base, {slot.name: 3 for slot in base.layout.adapted}, description)
    index = sum(delta.entries[name].bytes for name in ("index", "recovered"))
    assert delta.header + index <= 1536
