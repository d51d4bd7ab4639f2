"""Settings that save time and memory: float16 and compilation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp import Learner, Recipe
from halrp.errors import CheckpointWarning, CompileWarning, SettingError
from halrp.training.batches import loss_of
from halrp.training.checkpoint import Checkpoints
from tests.helpers import digest, net, tiny_task
from tests.training.runs import METHOD, assert_close, recipe, trained, training


def test_float16_scales_the_loss_so_that_small_gradients_survive() -> None:
    def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return 1e-6 * F.cross_entropy(module(x), y)

    grown = []
    for scaled in (True, False):
        module = net("mlp")
        before = digest(module)
        run = training(module, recipe(autocast=torch.float16, optimiser="sgd", lr=1e4), hooks={"loss": loss})
        if not scaled:
            run._updates._scaler = None
        first = next(module.parameters())
        gradients: list[Tensor] = []
        first.register_hook(gradients.append)
        run.run()
        assert digest(module) != before
        grown.append(float(torch.stack([g.count_nonzero() for g in gradients]).double().mean()))
    assert grown[0] > 1.5 * grown[1]


def test_float16_trains_about_as_float32_and_commits_its_precision(tmp_path: Path) -> None:
    x, y = data = tiny_task("mlp")
    settings = Recipe(epochs=20, batch=8, lr=5e-3, autocast=torch.float16)
    learner = Learner(net("mlp"), method=METHOD, recipe=settings, store=tmp_path)
    for name in "ab":
        delta = learner.learn(name, data)
    assert delta.autocast == "float16"
    assert float((learner.predict(x, "b").argmax(1) == y).double().mean()) > 0.9
    loaded = Learner.load(tmp_path, net("mlp"))
    assert loaded.recipe == settings
    assert torch.equal(loaded.predict(x, "b"), learner.predict(x, "b"))


def test_a_training_in_float16_resumes_bit_identically(tmp_path: Path) -> None:
    settings = recipe(autocast=torch.float16, optimiser="adamw", clip=1.0)
    whole, second = net("mlp"), net("mlp")
    for module in (whole, net("mlp")):
        folder = tmp_path if module is not whole else tmp_path / "whole"
        run = training(module, settings, checkpoints=Checkpoints(folder, "key"))
        run._updates._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=4)
        run.run(3 if module is whole else 2)
    assert run._updates._scaler is not None
    reached = run._updates._scaler.get_scale()
    run = training(second, settings, checkpoints=Checkpoints(tmp_path, "key"))
    assert run._updates._scaler is not None
    assert run._updates._scaler.get_scale() == reached != 2.0**16
    run._updates._scaler.set_growth_interval(4)
    run.run()
    assert digest(second) == digest(whole)


@pytest.mark.parametrize("scale", [None, 1.0, {"scale": 0.0, "_growth_tracker": 0}, {"scale": 2.0}])
def test_a_scale_of_the_loss_that_cannot_be_is_set_aside(scale: Any, tmp_path: Path) -> None:
    settings, checkpoints = recipe(autocast=torch.float16), Checkpoints(tmp_path, "key")
    training(net("mlp"), settings, checkpoints=checkpoints).run(1)
    loaded = checkpoints.load("s", 10**9)
    assert loaded is not None
    checkpoints.save("s", loaded[0], loaded[1] | {"scaler": scale})
    with pytest.warns(CheckpointWarning, match="its scale of the loss is"):
        assert training(net("mlp"), settings, checkpoints=checkpoints).epoch == 0


def test_float16_is_for_models_in_float32() -> None:
    with pytest.raises(SettingError, match=r"autocast=torch.float16.*parameters of torch.bfloat16.*\.float\(\)"):
        training(net("mlp").bfloat16(), recipe(autocast=torch.float16))


def test_a_compiled_step_gives_what_the_plain_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def compile_eagerly(function: Any) -> Any:
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile_eagerly)
    assert digest(trained(recipe(compile=True))) == digest(trained(recipe()))
    assert [function.func for function in compiled] == [loss_of]


def test_a_step_that_cannot_be_compiled_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Any:
        raise RuntimeError("no compiler\nis installed")

    monkeypatch.setattr(torch, "compile", lambda function: fails)
    with pytest.warns(CompileWarning, match=r"\(no compiler\); it runs as it is") as caught:
        module = trained(recipe(compile=True))
    assert len(caught) == 1
    assert digest(module) == digest(trained(recipe()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_compile_gives_the_same_to_tolerance() -> None:
    # Without dropout, whose draws in compiled code are others. Adam turns gradients near zero into steps of any sign.
    ours, theirs = net("mlp"), net("mlp")
    training(ours, recipe(compile=True, optimiser="sgd")).run()
    training(theirs, recipe(optimiser="sgd")).run()
    assert_close(ours, theirs, 1e-5)
