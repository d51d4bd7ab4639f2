"""Methods by name, and the weights that all of them start from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from halrp.errors import SettingError
from halrp.lab.methods import Method, make
from halrp.lab.methods.finetune import FineTune
from halrp.lab.methods.frozen_base import FrozenBase
from halrp.lab.methods.halrp import HalrpMethod
from halrp.lab.methods.network import contents
from halrp.lab.methods.stl import Separate
from halrp.lab.methods.tiny import tiny_context, tiny_tasks


def first_network(method: Method) -> nn.Module:
    """The network of the only task that a method has learned."""
    if isinstance(method, HalrpMethod):
        assert method.learner is not None
        return method.learner.module(None)
    if isinstance(method, Separate):
        return method.nets[0]
    if isinstance(method, FineTune):
        assert method.net is not None
        return method.net
    assert isinstance(method, FrozenBase)
    assert method.base is not None
    return method.base.module


def after_first(name: str, **settings: Any) -> dict[str, Tensor]:
    method = make(name, tiny_context(seed=5), **settings)
    method.learn(tiny_tasks()[0])
    return contents(first_network(method))


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


@pytest.mark.parametrize("name", ["halrp-budget", "halrp-official", "lrp", "random-lrp", "finetune", "l2", "ewc", "bn"])
def test_the_first_task_has_the_same_weights_in_every_method_that_starts_plainly(name: str) -> None:
    assert same(after_first(name), after_first("stl"))


def test_the_papers_base_is_the_network_without_a_penalty() -> None:
    assert same(after_first("halrp-paper"), after_first("stl", l2=0.0))
    assert not same(after_first("halrp-paper"), after_first("stl"))


def test_batch_ensemble_differs_from_the_first_task_on() -> None:
    assert not same(after_first("be"), after_first("stl"))


def test_unknown_methods_and_settings_are_refused_by_name() -> None:
    with pytest.raises(SettingError, match="no method is called 'hlarp'"):
        make("hlarp", tiny_context())
    with pytest.raises(SettingError, match="the nearest name is 'parameters_per_task'"):
        make("halrp-budget", tiny_context(), parameters=3)
    with pytest.raises(SettingError, match="choose 'ones' or 'first'"):
        make("be", tiny_context(), start="zeros")


@pytest.mark.parametrize("settings", [{"labels": "guessed"}, {"labels": "exact"}, {"decay": 1.5}])
def test_impossible_settings_of_ewc_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="ewc"):
        make("ewc", tiny_context(), **settings)
