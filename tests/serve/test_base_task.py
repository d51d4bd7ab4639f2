"""The base's own task: `None` for users, and a delta that owns nothing below the predictor."""

from __future__ import annotations

import torch

from halrp import Halrp, Learner
from halrp.model.base import Base
from halrp.model.plan import plan
from halrp.serve.predictor import Predictor
from tests.helpers import FAST, net, tiny_task


def test_none_is_the_delta_that_owns_nothing() -> None:
    base = Base(net("conv"), plan(net("conv")), channels_last=False)
    delta = Predictor(base, {}).delta(None)
    assert delta is base.task
    assert delta.is_base
    assert (delta.classes, delta.base, delta.bytes, delta.parameters) == (3, base.fingerprint, 0, 0)
    assert not delta.factors
    assert not delta.owned


def test_a_first_task_is_the_base_and_a_later_one_is_not() -> None:
    learner = Learner(net("conv"), method=Halrp.budget(growth_per_task=0.9), recipe=FAST)
    for name in ("first", "later"):
        learner.learn(name, tiny_task("conv"))
    assert [learner.tasks[name].is_base for name in ("first", "later")] == [True, False]
    x, _ = tiny_task("conv", seed=9)
    assert torch.equal(learner.predict(x, None), learner.predict(x, "first"))
    assert torch.equal(learner.predict(x, [None, "first"] * (len(x) // 2)), learner.predict(x, "first"))
    assert not torch.equal(learner.predict(x, "later"), learner.predict(x, "first"))
