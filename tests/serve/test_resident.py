"""The modules that predictions are computed with: merged, shared, in bounded memory, with bits that never change."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from halrp import Adapted, Delta, Halrp, Learner, WarmUp
from halrp.model.base import Base
from halrp.serve import resident
from halrp.serve.resident import ResidentModules
from tests.helpers import FAST, net, tiny_task

METHOD = replace(Halrp.budget(growth_per_task=0.9), start=WarmUp())


def learned(kind: str = "conv", **recipe: Any) -> Learner:
    learner = Learner(net(kind), method=METHOD, recipe=replace(FAST, **recipe), base="given")
    for number, name in enumerate("abc"):
        learner.learn(name, tiny_task(kind, number))
    return learner


def base_of(learner: Learner) -> Base:
    return learner._committed.ready


def adapted(module: nn.Module) -> list[str]:
    return [name for name, part in module.named_modules() if isinstance(part, Adapted)]


@pytest.mark.parametrize("kind", ["conv", "grouped", "transformer", "mlp"])
def test_predictions_are_bit_identical_to_those_of_the_exported_module(kind: str) -> None:
    learner = learned(kind)
    x = base_of(learner).prepare_inputs(tiny_task(kind, 5)[0])
    with torch.no_grad():
        assert torch.equal(learner.export("b")(x), learner.predict(x, "b"))


def test_a_module_is_plain_and_shares_every_tensor_that_the_task_does_not_change() -> None:
    learner = learned()
    base, delta = base_of(learner), learner.tasks["a"]
    assert delta.factors
    delta = replace(delta, scales={}, coded={k: c for k, c in delta.coded.items() if k.startswith("dense/")})
    for task in (delta, learner.tasks["a"]):
        module = base.serving_view(task)
        assert not adapted(module)
        changed = {*task.factors, *task.owned}
        for name, tensor in base.tensors.items():
            assert (module.state_dict()[name].data_ptr() == tensor.data_ptr()) == (name not in changed)


def test_tables_and_tasks_in_a_lower_precision_keep_their_factors() -> None:
    tokens = learned("gru")
    assert adapted(base_of(tokens).serving_view(tokens.tasks["a"])) == ["embedding"]
    low = learned("mlp", autocast=torch.bfloat16)
    assert adapted(base_of(low).serving_view(low.tasks["a"])) == [n[:-7] for n in low.tasks["a"].factors]
    half = Learner(net("mlp").bfloat16(), method=METHOD, recipe=FAST, base="given")
    half.learn("a", (tiny_task("mlp")[0].bfloat16(), tiny_task("mlp")[1]))
    assert adapted(base_of(half).serving_view(half.tasks["a"]))


def test_memory_is_bounded_and_a_module_that_is_built_again_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    roomy = learned()
    inputs = {name: tiny_task("conv", number)[0] for number, name in enumerate("abc")}
    expected = {name: roomy.predict(x, name) for name, x in inputs.items()}
    size = base_of(roomy).size.bytes
    monkeypatch.setattr(resident, "LEAST_BYTES", 0)
    monkeypatch.setattr(resident, "TIMES_BASE", 1)
    tight = learned()
    residents = tight._committed.predictor._residents
    assert residents.limit == size
    for name in "abcacbba":
        assert torch.equal(tight.predict(inputs[name], name), expected[name])
        assert 0 < residents.bytes <= size
    rows = torch.cat([inputs[name] for name in "ab"])
    tasks = ["a"] * len(inputs["a"]) + ["b"] * len(inputs["b"])
    torch.testing.assert_close(
        tight.predict(rows, tasks), torch.cat([expected["a"], expected["b"]]), rtol=1e-5, atol=1e-5
    )
    assert residents.bytes <= size


def test_the_least_recently_used_module_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learned()
    base, tasks = base_of(learner), learner.tasks
    each = sum(4 * weight.numel() for weight in base.adapted_weights().values())
    built: list[str] = []
    view = Base.serving_view

    def recorded(self: Base, delta: Delta) -> nn.Module:
        built.append(delta.task)
        return view(self, delta)

    monkeypatch.setattr(Base, "serving_view", recorded)
    residents = ResidentModules(base, limit=2 * each)
    for name in "abacab":
        residents.module(tasks[name])
    assert "".join(built) == "abcb"
    residents.forget_all_but([tasks["a"]])
    residents.module(tasks["a"])
    residents.module(tasks["b"])
    assert "".join(built) == "abcbb"
    assert ResidentModules(base, limit=0).module(tasks["a"]) is not None


def test_a_task_that_is_removed_leaves_no_module_behind() -> None:
    learner = learned()
    x = tiny_task("conv")[0]
    for name in "abc":
        learner.predict(x, name)
    residents = learner._committed.predictor._residents
    before = residents.bytes
    learner.remove("b")
    assert learner._committed.predictor._residents is residents
    assert 0 < residents.bytes < before


def test_threads_get_the_same_bits_while_modules_come_and_go() -> None:
    learner = learned()
    inputs = {name: tiny_task("conv", number)[0] for number, name in enumerate("abc")}
    expected = {name: learner.predict(x, name) for name, x in inputs.items()}
    cast(Any, learner._committed.predictor._residents).limit = 1
    wrong: list[str] = []

    def predict(names: str) -> None:
        for name in names * 5:
            outputs: Tensor = learner.predict(inputs[name], name)
            if not torch.equal(outputs, expected[name]):
                wrong.append(name)

    threads = [threading.Thread(target=predict, args=(names,)) for names in ("abc", "cba", "bac", "aab")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
