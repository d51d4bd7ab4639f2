"""A task outside the library: exported, traced, compiled, and run by another runtime, with the same logits."""

from __future__ import annotations

from typing import NamedTuple

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from halrp import Halrp, Learner
from tests.helpers import FAST, net, tiny_task

KINDS = ("conv", "transformer", "mlp")

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch copies its own tree specifications


class Case(NamedTuple):
    """A model, a learner on it with two tasks, the second of them a delta of its own width, and inputs."""

    model: nn.Module
    learner: Learner
    x: Tensor


@pytest.fixture(scope="module", params=KINDS)
def case(request: pytest.FixtureRequest) -> Case:
    kind: str = request.param
    learner = Learner(net(kind), recipe=FAST, method=Halrp.budget(growth_per_task=0.9, view="mean"))
    learner.learn("base", tiny_task(kind, 0))
    delta = learner.learn("task", tiny_task(kind, 1, classes=4))
    assert delta.factors
    return Case(net(kind), learner, tiny_task(kind, 2)[0][:6])


def assert_close(logits: Tensor, expected: Tensor) -> None:
    # Merged and factored weights round differently: single precision, values of order one, a few layers.
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def dynamic() -> tuple[dict[int, object]]:
    return ({0: torch.export.Dim.DYNAMIC},)


def test_an_exported_task_is_a_plain_module_of_the_models_own_classes(case: Case) -> None:
    model, learner, x = case
    module = learner.export("task")
    original = {name: type(part) for name, part in model.named_modules()}
    assert {name: type(part) for name, part in module.named_modules()} == original
    for part in module.modules():
        assert not type(part).__module__.startswith("halrp")
        assert not hasattr(part, "parametrizations")
        assert "base_weight" not in part._buffers
        assert not part._forward_hooks
        assert not part._forward_pre_hooks
    assert not module.training
    assert_close(module(x), learner.predict(x, "task"))


def test_an_exported_task_shares_no_memory_with_the_base(case: Case) -> None:
    _, learner, x = case
    before = {task: learner.predict(x, task) for task in ("base", "task")}
    module = learner.export("task")
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.zero_()
    assert all(torch.equal(learner.predict(x, task), logits) for task, logits in before.items())


def test_an_exported_task_can_be_trained_further(case: Case) -> None:
    _, learner, x = case
    module = learner.export("task").requires_grad_(True)
    module(x).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


@pytest.mark.parametrize("task", ["base", "task"])
@pytest.mark.parametrize("form", ["export", "module"])
def test_a_task_survives_torch_export(case: Case, form: str, task: str) -> None:
    _, learner, x = case
    module: nn.Module = getattr(learner, form)(task)
    program = torch.export.export(module, (x,), dynamic_shapes=dynamic())
    for rows in (1, len(x)):
        assert_close(program.module()(x[:rows]), learner.predict(x[:rows], task))


def test_a_task_runs_as_onnx(case: Case) -> None:
    _, learner, x = case
    program = torch.onnx.export(learner.export("task"), (x,), dynamo=True, dynamic_shapes=dynamic(), verbose=False)
    assert program is not None
    content = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for rows in (1, len(x)):
        logits = session.run(None, {session.get_inputs()[0].name: x[:rows].numpy()})[0]
        assert_close(torch.from_numpy(logits), learner.predict(x[:rows], "task"))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_task_that_shares_the_base_can_be_compiled(case: Case, backend: str) -> None:
    _, learner, x = case
    torch.compiler.reset()
    compiled = torch.compile(learner.module("task"), backend=backend, fullgraph=True)
    with torch.no_grad():
        assert_close(compiled(x), learner.predict(x, "task"))
