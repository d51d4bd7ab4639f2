"""The precision of forward passes belongs to a task, not to the learner that predicts for it."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from halrp import Halrp, Learner, Recipe
from halrp.store import format_1
from halrp.tools import export
from tests.helpers import FAST, net, tiny_task

LOW = replace(FAST, autocast=torch.bfloat16)
ROOMY = Halrp.budget(growth_per_task=0.9)
X = tiny_task("conv", seed=9)[0]


@pytest.fixture(scope="module")
def learner() -> Learner:
    """The base and a delta in bfloat16, another delta in the model's own precision; tests only look at it."""
    learner = Learner(net("conv"), method=ROOMY, recipe=LOW)
    learner.learn("low base", tiny_task("conv", 0))
    learner.learn("low", tiny_task("conv", 1))
    learner.recipe = FAST
    learner.learn("full", tiny_task("conv", 2))
    return learner


def logits(learner: Learner) -> dict[str, Tensor]:
    names = [*learner.tasks, None]
    rows = [names[n % len(names)] for n in range(len(X))]
    return {str(name): learner.predict(X, name) for name in names} | {"mixed": learner.predict(X, rows)}


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert [name for name in expected if not torch.equal(got[name], expected[name])] == []


def test_tasks_predict_in_the_precision_in_which_they_were_learned(learner: Learner) -> None:
    types = {name: tensor.dtype for name, tensor in logits(learner).items()}
    assert types == {
        "low base": torch.bfloat16,
        "low": torch.bfloat16,
        "full": torch.float32,
        "None": torch.bfloat16,
        "mixed": torch.float32,
    }


@pytest.mark.parametrize("recipe", [None, FAST, LOW, Recipe(epochs=3)])
def test_a_store_that_is_opened_with_another_recipe_gives_the_same_bits(
    learner: Learner, recipe: Recipe | None, tmp_path: Path
) -> None:
    learner.save(tmp_path)
    assert_same(logits(Learner.load(tmp_path, net("conv"), recipe=recipe)), logits(learner))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_region_of_the_caller_changes_nothing(learner: Learner, dtype: torch.dtype) -> None:
    expected = logits(learner)
    with torch.autocast("cpu", dtype=dtype):
        assert_same(logits(learner), expected)


@pytest.mark.parametrize("task", ["low base", "low", "full", None])
def test_modules_run_in_the_precision_of_their_task(learner: Learner, task: str | None) -> None:
    expected, module = learner.predict(X, task), learner.module(task)
    x = X.contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        outputs = module(x)
        assert torch.equal(copy.deepcopy(module)(x), outputs)
        exported = learner.export(task)(X)
    if task == "full":  # predict merges weights only where they are not rounded to a lower precision
        torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-6)
    else:
        assert torch.equal(outputs, expected)
    assert exported.dtype == expected.dtype
    assert isinstance(learner.export(task), type(net("conv")))
    # Merged weights round differently: a few units in the last of 8 bits, or of 24.
    scale = float(expected.abs().max())
    unit = torch.finfo(expected.dtype).eps
    torch.testing.assert_close(exported.float(), expected.float(), rtol=0, atol=8 * unit * scale)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch copies its own tree specifications
@pytest.mark.parametrize("ending", [".onnx", ".pt2"])
def test_files_for_other_runtimes_are_compared_with_the_tasks_own_precision(
    learner: Learner, ending: str, tmp_path: Path
) -> None:
    written = export.write(learner.export("low"), lambda x: learner.predict(x, "low"), X[:2], tmp_path / f"low{ending}")
    assert written.difference < 0.1  # of logits of order one, with the eight bits of bfloat16


def test_the_recipe_of_a_file_of_format_1_names_its_precision() -> None:
    assert format_1._autocast({"recipe": {"autocast": "torch.bfloat16"}}) == "bfloat16"
    assert format_1._autocast({"recipe": {"autocast": None}}) is None
    assert format_1._autocast({}) is None
