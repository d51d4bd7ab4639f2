"""`clr`: filters that start as nothing, a base that stays, norm layers that are shared or not, and what is stored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.errors import SettingError
from halrp.lab import backbones
from halrp.lab.methods import network
from halrp.lab.methods.check import ITEMS, check_method
from halrp.lab.methods.clr import FILTER, Filtered, Reprogramming, filtered, identity_filter, insert
from halrp.lab.methods.tiny import tiny_context, tiny_tasks
from halrp.model.layers.norm import BATCH_NORMS
from halrp.training.loop import Group
from tests.lab.methods.small_nets import SMALL, check_two_tasks, small_context, small_tasks


def learned(tasks: int = 3, **settings: Any) -> Reprogramming:
    method = Reprogramming(tiny_context(), **settings)
    for task in tiny_tasks()[:tasks]:
        method.learn(task)
    return method


def copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {n: t.clone() for n, t in tensors.items()}


@pytest.mark.parametrize("bn", ["per_task", "shared"])
def test_it_keeps_the_contract(bn: Any) -> None:
    report = check_method(lambda context: Reprogramming(context, bn=bn))
    assert len(report.passed) == len(ITEMS)


def test_only_norms_of_its_own_make_a_task_frozen() -> None:
    private, shared = Reprogramming(tiny_context()), Reprogramming(tiny_context(), bn="shared")
    assert (private.frozen, private.first_decides) == (True, True)
    assert (shared.frozen, shared.first_decides) == (False, False)


@pytest.mark.parametrize("name", SMALL)
def test_new_filters_change_nothing(name: str) -> None:
    context = small_context(name)
    plain, changed = context.build(3, 0).eval(), context.build(3, 0).eval()
    result = filtered(changed)
    insert(changed, {n: identity_filter(conv) for n, conv in result.items()})
    assert sum(isinstance(m, Filtered) for m in changed.modules()) == len(result)
    x = small_tasks(name)[0].test.x
    with torch.no_grad():
        assert torch.equal(changed(x), plain(x))


def test_a_filter_works_on_each_channel_alone_and_behind_the_bias() -> None:
    generator = seeding.generator("filter")
    conv = nn.Conv2d(2, 3, 3, padding=1)
    kernels = torch.randn(3, 1, 3, 3, generator=generator)
    x = torch.randn(4, 2, 5, 5, generator=generator)
    with torch.no_grad():
        y = conv(x)
        result = Filtered(conv, kernels)(x)
        for channel in range(3):
            alone = nn.functional.conv2d(y[:, channel : channel + 1], kernels[channel : channel + 1], padding=1)
            torch.testing.assert_close(result[:, channel : channel + 1], alone)


def test_kernels_of_one_pixel_have_no_filter() -> None:
    names = filtered(small_context("resnet18").build(2, 0))
    assert names
    assert not any("shortcut" in n for n in names)
    assert not filtered(small_context("mlp").build(2, 0))


@pytest.mark.parametrize(
    ("name", "settings", "filters", "norms"),
    [
        ("lenet", {}, 630, 2740),
        ("lenet-large", {}, 1728, 8384),
        ("alexnet", {}, 4032, 9088),
        ("resnet18", {}, 17_568, 4800),
        ("resnet18", {"width": 20}, 10_980, 3000),
    ],
)
def test_a_task_costs_nine_numbers_per_filtered_channel(
    name: str, settings: dict[str, Any], filters: int, norms: int
) -> None:
    with torch.device("meta"):
        net = backbones.BACKBONES[name].load()(classes=5, **settings)
    assert sum(identity_filter(conv).numel() for conv in filtered(net).values()) == filters
    affine = [p for m in net.modules() if isinstance(m, BATCH_NORMS) for p in m.parameters()]
    assert sum(p.numel() for p in affine) == norms


@pytest.mark.parametrize(("bn", "per_task", "shared"), [("per_task", 28, 0), ("shared", 0, 28)])
def test_what_is_stored_is_the_body_once_and_filters_norms_and_heads(bn: Any, per_task: int, shared: int) -> None:
    method = learned(bn=bn)
    body = (6 * 27 + 6) + (8 * 54 + 8) + (16 * 32 + 16)
    private = sum(9 * (6 + 8) + per_task + 17 * classes for classes in (3, 2, 4))
    assert method.counted() == body + shared + private
    assert method.stored() == (body + shared + private, 4 * (body + shared + private))


@pytest.mark.parametrize("bn", ["per_task", "shared"])
def test_the_base_and_what_earlier_tasks_own_stay_to_the_bit(bn: Any) -> None:
    method = learned(1, bn=bn)
    assert method.base is not None
    base, first = copies(method.base.tensors), copies(dict(method.tasks[0].tensors))
    for task in tiny_tasks()[1:]:
        method.learn(task)
    assert all(torch.equal(t, base[n]) for n, t in method.base.tensors.items())
    assert all(torch.equal(t, first[n]) for n, t in method.tasks[0].tensors.items())


def test_a_task_uses_the_bases_own_tensors() -> None:
    method = learned()
    assert method.base is not None
    for i in range(3):
        net = method.module(i)
        assert net.get_submodule("conv1.conv").weight is method.base.module.get_submodule("conv1").weight
        assert net.get_submodule("linear").weight is method.base.module.get_submodule("linear").weight


def test_logits_of_earlier_tasks_stay_unless_norms_are_shared() -> None:
    x = tiny_tasks()[0].test.x
    for bn, same in (("per_task", True), ("shared", False)):
        method = learned(1, bn=bn)
        before = method.predict(x, 0)
        method.learn(tiny_tasks()[1])
        assert torch.equal(method.predict(x, 0), before) == same


def test_every_task_has_filters_the_first_one_too_and_the_bases_head_is_thrown_away() -> None:
    method = learned()
    names = {f"{FILTER}conv1", f"{FILTER}conv2", "head.weight", "head.bias"}
    norms = {f"norm{i}.{part}" for i in (1, 2) for part in ("weight", "bias")}
    for private in method.tasks:
        assert set(private.tensors) == names | norms
        identity = torch.zeros(6, 1, 3, 3)
        identity[:, :, 1, 1] = 1
        assert not torch.equal(private.tensors[f"{FILTER}conv1"], identity)
    assert method.base is not None
    assert method.tasks[0].tensors["head.weight"].shape == method.base.tensors["head.weight"].shape
    assert not torch.equal(method.tasks[0].tensors["head.weight"], method.base.tensors["head.weight"])


@pytest.mark.parametrize(("bn", "same"), [("per_task", True), ("shared", False)])
def test_norms_start_as_the_bases_or_as_the_last_tasks(bn: Any, same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    method = learned(1, bn=bn)
    assert method.base is not None
    last = copies(method.norms) if bn == "shared" else {n: t for n, t in method.tasks[0].tensors.items() if "norm" in n}
    monkeypatch.setattr(network, "fit", lambda *args, **kwargs: None)
    method.learn(tiny_tasks()[1])
    now = method.norms if bn == "shared" else {n: t for n, t in method.tasks[1].tensors.items() if "norm" in n}
    assert len(now) == 4
    for n, t in now.items():
        assert torch.equal(t, method.base.tensors[n]) == same
        assert torch.equal(t, last[n]) != same
    assert torch.equal(method.tasks[1].tensors[f"{FILTER}conv2"], identity_filter(nn.Conv2d(6, 8, 3)))


def test_the_penalty_is_on_filters_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    method = learned(1, l2=0.5)
    given: list[Group] = []
    monkeypatch.setattr(network, "fit", lambda context, task, net, groups, *rest: given.extend(groups))
    method.learn(tiny_tasks()[1])
    penalised = [p for g in given if g.l2 for p in g.parameters]
    assert [tuple(p.shape) for p in penalised] == [(6, 1, 3, 3), (8, 1, 3, 3)]
    assert {g.l2 for g in given} == {0.5, 0.0}


def test_norms_use_the_statistics_of_the_batch() -> None:
    method = learned(1)
    assert method.base is not None
    assert not list(method.base.module.buffers())
    x = tiny_tasks()[0].test.x
    assert not torch.equal(method.predict(x, 0)[:4], method.predict(x[:4], 0))


def test_an_unknown_kind_of_norms_is_refused() -> None:
    with pytest.raises(SettingError, match="choose 'shared' or 'per_task'"):
        Reprogramming(tiny_context(), bn="own")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SMALL)
def test_it_learns_with_every_backbone(name: str) -> None:
    check_two_tasks(Reprogramming(small_context(name)), name)
