"""What the learner trains, and that every form of data, precision, method and model goes through it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from halrp import Flat, Halrp, Learner, LossRate, Recipe, WarmUp, Whitened, seeding
from halrp.errors import TaskError
from halrp.method.fine_tune import FineTuning, prepare
from halrp.model import views
from halrp.model.codec import PRECISIONS, Precision
from halrp.store import task_file
from tests.helpers import FAST, NETS, Pairs, digest, drawn, net, tiny_task
from tests.test_forgetting import formatted, tensors

ROOMY = Halrp.budget(growth_per_task=0.9)
LONG = Recipe(epochs=12, batch=8, lr=1e-2)


def accuracy(logits: Tensor, y: Tensor) -> float:
    return float((logits.argmax(1) == y).float().mean())


@pytest.mark.parametrize("kind", NETS)
def test_tasks_are_learned(kind: str) -> None:
    learner = Learner(net(kind), recipe=LONG, method=ROOMY)
    for number in range(2):
        x, y = tiny_task(kind, number)
        learner.learn(f"t{number}", (x, y))
        assert accuracy(learner.predict(x, f"t{number}"), y) > 0.8  # chance is 1/3


def spied(monkeypatch: pytest.MonkeyPatch, look: Callable[[FineTuning], None]) -> None:
    """Look at every fine-tuning when it is ready to start."""

    def spy(*arguments: Any) -> FineTuning:
        run = prepare(*arguments)
        look(run)
        return run

    monkeypatch.setattr("halrp.method.fine_tune.prepare", spy)


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("growth", [0.9, 1.6])
def test_fine_tuning_trains_scales_factors_and_owned_parameters_and_nothing_else(
    kind: str, growth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Learner(net(kind), recipe=FAST, method=Halrp.budget(growth_per_task=growth, view="full"))
    learner.learn("a", tiny_task(kind, 0))
    seen: list[FineTuning] = []
    spied(monkeypatch, seen.append)
    base = digest(learner.module(None))
    learner.learn("b", tiny_task(kind, 1))
    (run,) = seen
    start, plan = run.start, learner._committed.ready.plan
    trainable = {id(p) for p in run.net.parameters() if p.requires_grad}
    expected = {id(t) for f in run.factors.values() for t in f.tensors()}
    parameters = plan.parameters
    names = {n for n, t in parameters.items() if t.kind == "owned"} | set(start.dense)
    expected |= {id(run.owned[name]) for name in names}
    assert trainable == expected
    roles = {parameters[name].role for name in names}
    assert roles <= ({"head", "bias", "norm", "other"} | ({"weight"} if start.dense else set()))
    assert set(run.factors) | set(start.dense) == set(plan.named("adapted"))
    optimised = {id(p) for group in run.groups for p in group.parameters}
    assert optimised <= trainable
    assert all(p.numel() == 0 for p in run.net.parameters() if id(p) in trainable - optimised)
    assert digest(learner.module(None)) == base


def test_a_linear_net_at_full_rank_loses_nothing_when_it_becomes_low_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check 9 of the specification: the free net's logits, right after the switch."""
    learner = Learner(net("mlp"), recipe=FAST, method=Halrp(allocate=Flat(12), start=WarmUp()), base="given")
    nets: list[nn.Module] = []
    original = views.trainable_copy

    def keep(*arguments: Any) -> nn.Module:
        nets.append(original(*arguments))
        return nets[-1]

    monkeypatch.setattr(views, "trainable_copy", keep)
    starts: list[Tensor] = []
    x = tiny_task("mlp", 1)[0]
    spied(monkeypatch, lambda run: starts.append(run.net(x).detach()))
    learner.learn("b", tiny_task("mlp", 1))
    free = nets[-1].eval()(x).detach()
    assert float((starts[0] - free).norm() / free.norm()) < 1e-5
    assert not torch.allclose(free, net("mlp")(x), rtol=1e-2)


SOURCES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tensors": lambda x, y: (x, y),
    "tensor data set": TensorDataset,
    "data set": Pairs,
    "loader": lambda x, y: DataLoader(Pairs(x, y), batch_size=6, shuffle=True),
}


@pytest.mark.parametrize("form", SOURCES)
def test_every_form_of_data_is_learned(form: str) -> None:
    x, y = tiny_task("conv", 0)
    learner = Learner(net("conv"), recipe=LONG, method=ROOMY)
    for name in "ab":
        learner.learn(name, SOURCES[form](x, y), val=SOURCES[form](x, y))
        assert accuracy(learner.predict(x, name), y) > 0.8


def test_tensors_and_their_tensor_data_set_are_one_task() -> None:
    x, y = tiny_task("mlp", 0)
    single, other = (Learner(net("mlp"), recipe=FAST, method=ROOMY, base="given") for _ in range(2))
    a, b = tensors(single.learn("a", (x, y))), tensors(other.learn("a", TensorDataset(x, y)))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", NETS)
def test_module_export_and_chunks_agree_with_predict(kind: str) -> None:
    model = net(kind)
    learner = Learner(model, recipe=FAST, method=ROOMY)
    for number in range(2):
        learner.learn(f"t{number}", tiny_task(kind, number, classes=2 + number))
    x = tiny_task(kind, 5, examples=20)[0]
    for task in (None, "t0", "t1"):
        logits = learner.predict(x, task)
        assert not logits.requires_grad
        torch.testing.assert_close(learner.module(task)(formatted(x)), logits, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(learner.predict(x, task, batch=7), logits, rtol=1e-5, atol=1e-6)
        exported = learner.export(task)
        torch.testing.assert_close(exported(x), logits, rtol=1e-5, atol=1e-6)
        assert not exported.training
        assert not learner.module(task).training
        assert [type(m) for m in exported.modules()] == [type(m) for m in model.modules()]
        storages = {t.untyped_storage().data_ptr() for t in exported.state_dict().values()}
        shared_storages = {
            t.untyped_storage().data_ptr() for t in learner._committed.ready.module.state_dict().values()
        }
        shared_storages |= {t.untyped_storage().data_ptr() for d in learner.tasks.values() for t in tensors(d).values()}
        assert not storages & shared_storages
        assert list(exported.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("kind", NETS)
def test_an_exported_model_carries_no_trace_of_the_library(kind: str) -> None:
    learner = Learner(net(kind), recipe=FAST, method=ROOMY)
    learner.learn("a", tiny_task(kind, 0))
    learner.learn("b", tiny_task(kind, 1))
    original = dict(net(kind).named_modules())
    for path, module in learner.export("b").named_modules():
        assert all(not base.__module__.startswith("halrp") for base in type(module).__mro__)
        assert set(vars(module)) == set(vars(original[path]))
        for value in vars(module).values():
            assert not type(value).__module__.startswith("halrp")


class Conv1dNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.Conv1d(8, 8, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten())
        self.append(nn.Linear(8, 3))


class Conv3dNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv3d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten())
        self.append(nn.Linear(8, 3))


class ConvHeadNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.mark.parametrize("view", ["full", "mean", "validation"])
@pytest.mark.parametrize(
    ("build", "shape", "head"), [(Conv1dNet, (64,), None), (Conv3dNet, (4, 4, 4), None), (ConvHeadNet, (8, 8), "2")]
)
def test_convolutions_of_any_dimension_and_convolutional_heads(
    build: Callable[[], nn.Module], shape: tuple[int, ...], head: str | None, view: Any
) -> None:
    learner = Learner(drawn(build), head=head, recipe=FAST, method=Halrp.budget(growth_per_task=0.9, view=view))
    for number in range(2):
        x, y = tiny_task("conv", number, examples=12, classes=2 + number)
        x = x.flatten(2)[:, :, : torch.Size(shape).numel()].unflatten(2, shape)
        learner.learn(f"t{number}", (x, y), val=(x, y))
    delta = learner.tasks["t1"]
    assert delta.view in (("mean", "full") if view == "validation" else (view,))
    torch.testing.assert_close(learner.export("t1")(x), learner.predict(x, "t1"), rtol=1e-5, atol=1e-6)
    assert learner.predict(x, "t1").shape == (12, 3)


METHODS = {
    "full view": Halrp.budget(growth_per_task=0.9, view="full"),
    "mean view": Halrp.budget(growth_per_task=0.9, view="mean"),
    "validated view": ROOMY,
    "whitened": dataclasses.replace(ROOMY, decompose=Whitened()),
    "flat": Halrp(allocate=Flat(2)),
    "random": Halrp(allocate=Flat(2), initial="random"),
    "random components": Halrp(allocate=LossRate(0.9), initial="random components"),
    "paper": Halrp.paper(),
    "official": Halrp.official(),
}


@pytest.mark.parametrize("kind", ["conv", "transformer"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_a_later_task(name: str, kind: str) -> None:
    learner = Learner(net(kind), recipe=LONG, method=METHODS[name])
    x, y = tiny_task(kind, 1)
    learner.learn("a", tiny_task(kind, 0))
    delta = learner.learn("b", (x, y), val=(x, y))
    assert accuracy(learner.predict(x, "b"), y) > 0.6  # chance is 1/3
    assert delta.bytes > 0
    assert set(delta.recovered) == set(learner._committed.ready.plan.named("adapted"))


def test_the_view_of_a_warmed_up_network_is_mean_without_validation_data() -> None:
    learner = Learner(net("conv"), recipe=FAST, method=dataclasses.replace(ROOMY, start=WarmUp()), base="given")
    assert learner.learn("a", tiny_task("conv", 0)).view == "mean"


@pytest.mark.parametrize("kind", NETS)
def test_lower_precision_learns(kind: str) -> None:
    learner = Learner(net(kind), recipe=dataclasses.replace(FAST, autocast=torch.bfloat16), method=ROOMY)
    for number in range(2):
        task = tiny_task(kind, number)
        delta = learner.learn(f"t{number}", task, val=task)
    logits = learner.predict(task[0], "t1")
    assert logits.isfinite().all()
    assert all(t.dtype == torch.float32 for t in tensors(delta).values() if t.is_floating_point())


@pytest.mark.parametrize("kind", ["conv", "transformer", "mlp"])
def test_a_double_model_stays_double(kind: str) -> None:
    learner = Learner(net(kind).double(), recipe=FAST, method=ROOMY)
    for number in range(2):
        x, y = tiny_task(kind, number)
        delta = learner.learn(f"t{number}", (x.double(), y))
    assert learner.predict(x.double(), "t1").dtype == torch.float64
    assert all(t.dtype == torch.float64 for t in tensors(delta).values() if t.is_floating_point())
    assert all(p.dtype == torch.float64 for p in learner.export("t1").parameters())


def test_deltas_are_read_only() -> None:
    learner = Learner(net("mlp"), recipe=FAST, method=ROOMY, base="given")
    delta = learner.learn("a", tiny_task("mlp", 0))
    with pytest.raises(TypeError):
        cast(Any, learner.tasks)["b"] = delta
    with pytest.raises(TypeError):
        cast(Any, delta.owned)["4.bias"] = torch.zeros(3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        cast(Any, delta).task = "b"


def test_a_delta_names_the_base_it_belongs_to() -> None:
    learner = Learner(net("mlp"), recipe=FAST, method=ROOMY)
    base, later = learner.learn("a", tiny_task("mlp", 0)), learner.learn("b", tiny_task("mlp", 1))
    module = learner.module(None)
    state: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    assert base.base == later.base == seeding.fingerprint(state)


def test_a_task_stays_within_its_budget() -> None:
    model = net("conv")
    for bound in (6_000, 7_000, 9_000):
        learner = Learner(model, recipe=FAST, method=Halrp.budget(bound), base="given")
        task = tiny_task("conv", 0)
        delta = learner.learn("a", task, val=task)
        assert delta.bytes == len(task_file.write(delta)) <= bound
        assert any(delta.ranks.values()) or delta.dense  # something was stored


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["conv", "transformer"])
def test_a_task_predicts_from_what_its_file_holds(kind: str, precision: Precision) -> None:
    method = dataclasses.replace(ROOMY, precision=precision)
    learner = Learner(net(kind), recipe=LONG, method=method, base="given")
    x, y = tiny_task(kind, 0)
    delta = learner.learn("a", (x, y))
    matrices = {key: stored for key, stored in delta.precisions.items() if key[:2] in ("p/", "q/", "de")}
    assert matrices
    assert set(matrices.values()) == {precision}
    assert accuracy(learner.predict(x, "a"), y) > 0.8  # chance is 1/3
    other = Learner(net(kind), recipe=LONG, method=method, base="given")
    other._committed.tasks = {"a": task_file.load(task_file.write(delta), other._committed.ready, "a")}
    assert torch.equal(other.predict(x, "a"), learner.predict(x, "a"))
    assert task_file.write(other.tasks["a"]) == task_file.write(delta)


def test_a_delta_tells_how_it_was_learned() -> None:
    learner = Learner(net("mlp"), recipe=FAST, method=ROOMY, seed=3, base="given")
    delta = learner.learn("a", tiny_task("mlp", 0), class_names=["x", "y", "z"])
    assert delta.class_names == ("x", "y", "z")
    assert delta.provenance["seed"] == 3
    assert delta.provenance["recipe"]["epochs"] == FAST.epochs
    assert delta.provenance["method"]["allocate"] == {
        "type": "Budget",
        "bytes": None,
        "parameters": None,
        "growth": 0.9,
    }
    assert json.loads(json.dumps(dict(delta.provenance))) == delta.provenance


def test_class_names_give_the_number_of_classes_and_must_fit_it() -> None:
    learner = Learner(net("mlp"), recipe=FAST, method=ROOMY, base="given")
    assert learner.learn("a", tiny_task("mlp", 0), class_names=list("vwxyz")).classes == 5
    with pytest.raises(TaskError, match="2 class names for 3 classes"):
        learner.learn("b", tiny_task("mlp", 0), classes=3, class_names=["x", "y"])
    assert list(learner.tasks) == ["a"]


@pytest.mark.parametrize("name", ["\ud83d", "birds-\udcff", "\udc00\ud800"])
def test_a_name_with_half_of_a_surrogate_pair_is_refused_before_training(name: str) -> None:
    learner = Learner(net("mlp"), recipe=FAST, progress=lambda event: pytest.fail("it was trained"))
    with pytest.raises(TaskError, match="half of a surrogate pair"):
        learner.learn(name, tiny_task("mlp"))
    with pytest.raises(TaskError, match="half of a surrogate pair"):
        learner.learn("birds", tiny_task("mlp"), class_names=["a", name, "c"])
    assert not learner.tasks
