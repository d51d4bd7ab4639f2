"""Models in half and double precision, and models inside the wrappers that people train with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor, nn

from halrp import FromProbe, Halrp, Learner, Recipe, Store, Whitened, explain
from halrp.errors import SettingError, WrongBaseError
from halrp.model.wrappers import unwrapped
from halrp.store import task_file
from halrp.tools.verify import verify
from halrp.training.batches import InMemory
from halrp.training.loop import Group, Hooks, Stage, Training
from tests.helpers import FAST, digest, net, tiny_task

HALF = [torch.bfloat16, torch.float16]
METHOD = Halrp.budget(growth_per_task=0.9)


def task(kind: str, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    x, y = tiny_task(kind, seed)
    return (x.to(dtype) if x.is_floating_point() else x), y


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("kind", ["conv", "transformer", "gru"])
def test_a_model_in_half_precision_learns_saves_and_loads(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    recipe = replace(FAST, epochs=20)
    learner = Learner(net(kind).to(dtype), method=METHOD, recipe=recipe)
    for seed, name in enumerate("ab"):
        learner.learn(name, task(kind, dtype, seed), val=task(kind, dtype, seed))
    for seed, name in enumerate("ab"):
        x, y = task(kind, dtype, seed)
        logits = learner.predict(x, name)
        assert logits.dtype == dtype
        assert (logits.argmax(1) == y).float().mean() > 0.8  # a third by chance, nearly all in float32
    assert {t.dtype for f in learner.tasks["b"].factors.values() for t in f.tensors()} == {dtype}
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path, net(kind, 1).to(dtype))
    x = task(kind, dtype, 1)[0]
    assert torch.equal(loaded.predict(x, "b"), learner.predict(x, "b"))


@pytest.mark.parametrize("dtype", HALF)
def test_every_precision_and_curvature_work_on_a_model_in_half_precision(dtype: torch.dtype) -> None:
    for method in (
        replace(METHOD, decompose=Whitened()),
        replace(METHOD, precision="int8", view="full"),
        Halrp.paper(),
    ):
        learner = Learner(net("conv").to(dtype), method=method, recipe=FAST, base="given")
        learner.learn("a", task("conv", dtype, 0))
        assert bool(learner.predict(task("conv", dtype, 0)[0], "a").isfinite().all())


@pytest.mark.parametrize("dtype", HALF)
def test_a_task_in_half_precision_resumes_bit_identically(dtype: torch.dtype, tmp_path: Path) -> None:
    def learn(store: Path, stop: int | None) -> Learner:
        def progress(at: Any) -> None:
            if at.step == 0 and (at.stage.partition(":")[0], at.epoch) == ("fine-tune", stop):
                raise KeyboardInterrupt

        model, folder = net("conv").to(dtype), Store(store, checkpoint_every=0)
        learner = Learner(
            model,
            method=replace(METHOD, start=FromProbe(held_out=0)),
            recipe=replace(FAST, epochs=4),
            base="given",
            store=folder,
            progress=progress,
        )
        learner.learn("a", task("conv", dtype, 0))
        return learner

    whole = learn(tmp_path / "whole", None)
    with pytest.raises(KeyboardInterrupt):
        learn(tmp_path / "resumed", 2)
    resumed = learn(tmp_path / "resumed", None)
    assert task_file.write(resumed.tasks["a"]) == task_file.write(whole.tasks["a"])


@pytest.mark.parametrize("dtype", HALF)
def test_steps_that_half_precision_would_round_away_add_up(dtype: torch.dtype) -> None:
    module = nn.Linear(1, 1, bias=False).to(dtype)
    with torch.no_grad():
        module.weight.fill_(1.0)
    recipe = Recipe(epochs=100, batch=1, lr=1e-4, schedule="constant", optimiser="sgd")
    data = InMemory(torch.ones(1, 1, dtype=dtype), torch.zeros(1, dtype=torch.long))
    hooks = Hooks(loss=lambda m, x, y: m(x).sum())  # a gradient of one
    Training(module, [Group(list(module.parameters()))], data, recipe, Stage(100, ("a",)), hooks).run()
    assert module.weight.item() == pytest.approx(0.99, abs=float(torch.finfo(dtype).eps))


def test_a_hook_that_changes_weights_in_half_precision_is_followed() -> None:
    module = nn.Linear(2, 1, bias=False).bfloat16()

    def clear() -> None:
        module.weight[0, 0] = 0

    data = InMemory(torch.ones(4, 2).bfloat16(), torch.zeros(4, dtype=torch.long))
    hooks = Hooks(loss=lambda m, x, y: m(x).sum(), after_step=clear)
    Training(module, [Group(list(module.parameters()))], data, Recipe(epochs=3, batch=2), Stage(3, ("a",)), hooks).run()
    assert module.weight[0, 0].item() == 0
    assert module.weight[0, 1].item() != 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8, "bfloat16"])
def test_autocast_to_anything_but_half_precision_is_refused(dtype: Any) -> None:
    with pytest.raises(SettingError, match=r"autocast=.*give torch\.bfloat16"):
        Recipe(autocast=dtype)


@pytest.mark.parametrize(
    ("stored", "ours", "remedy"),
    [
        (torch.float32, torch.bfloat16, r"model\.float\(\)"),
        (torch.float32, torch.float64, r"model\.float\(\)"),
        (torch.float64, torch.float32, r"model\.double\(\)"),
        (torch.bfloat16, torch.float16, r"model\.bfloat16\(\)"),
        (torch.float16, torch.float32, r"model\.half\(\)"),
    ],
)
def test_a_store_of_another_precision_names_both_and_the_remedy(
    stored: torch.dtype, ours: torch.dtype, remedy: str, tmp_path: Path
) -> None:
    learner = Learner(net("mlp").to(stored), base="given")
    learner.save(tmp_path)
    with pytest.raises(WrongBaseError, match=rf"as {stored}, the model has {ours} .*{remedy}"):
        Learner.load(tmp_path, net("mlp").to(ours))
    Learner.load(tmp_path, net("mlp").to(stored))


@pytest.fixture
def process_group(tmp_path: Path) -> Any:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def wrapped(kind: str) -> nn.Module:
    model = net("mlp")
    if kind == "DataParallel":
        return nn.DataParallel(model)
    if kind == "DistributedDataParallel":
        return nn.parallel.DistributedDataParallel(model)
    compiled = torch.compile(model if kind == "compile" else nn.DataParallel(model), backend="eager")
    assert isinstance(compiled, nn.Module)
    return compiled


WRAPPERS = {
    "DataParallel": "module.",
    "DistributedDataParallel": "module.",
    "compile": "_orig_mod.",
    "compiled DataParallel": "_orig_mod.module.",
}


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_wrapped_model_is_treated_as_the_model_inside(kind: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method": METHOD, "recipe": FAST, "base": "given"}
    model = wrapped(kind)
    before = digest(model)
    plain = Learner(net("mlp"), **settings)
    plain.learn("a", tiny_task("mlp"))
    for head in (None, "4", f"{WRAPPERS[kind]}4"):
        learner = Learner(model, head=head, **settings)
        assert learner.head == "4"
    learner.learn("a", tiny_task("mlp"))
    assert task_file.write(learner.tasks["a"]) == task_file.write(plain.tasks["a"])
    learner.save(tmp_path / "store")
    x = tiny_task("mlp")[0]
    assert torch.equal(Learner.load(tmp_path / "store", model).predict(x, "a"), plain.predict(x, "a"))
    assert str(explain(model, head=f"{WRAPPERS[kind]}4")) == str(explain(net("mlp")))
    assert {finding.status for finding in verify(tmp_path / "store", model)} == {"good"}
    assert digest(model) == before


def test_a_model_of_ones_own_with_such_a_part_is_left_as_it_is() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = net("mlp")

    model = Mine()
    assert unwrapped(model, "module.4") == (model, "module.4")
