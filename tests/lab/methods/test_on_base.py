"""Methods on a pretrained base: what their files hold, and the mathematics against plain references."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from halrp import Recipe, seeding
from halrp.errors import ModelError, SettingError, TaskError
from halrp.lab.backbones.operations import declare_image_operations
from halrp.lab.methods import make, rounding
from halrp.lab.methods.bitdelta import SCALES, SIGNS
from halrp.lab.methods.halrp import HalrpMethod
from halrp.lab.methods.least_squares import PENALTIES, Moments, fitted
from halrp.lab.methods.network import contents
from halrp.lab.methods.on_base import OnBase
from halrp.lab.methods.protocol import Size
from halrp.lab.methods.tiny import TINY, tiny_context, tiny_tasks
from halrp.lab.run.cell import Cell
from halrp.lab.streams import Split
from halrp.objectives import Regression


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def learned(name: str, tasks: int = 2, **settings: Any) -> OnBase:
    method = make(name, tiny_context(), **settings)
    assert isinstance(method, OnBase)
    for task in tiny_tasks()[:tasks]:
        method.learn(task)
    return method


def accuracy(method: OnBase, position: int) -> float:
    test = tiny_tasks()[position].test
    return float((method.predict(test.x, position).argmax(1) == test.y).double().mean())


@pytest.mark.parametrize("name", ["linear-probe", "ncm", "ridge", "bitfit"])
def test_what_is_stored_is_the_base_and_the_bytes_of_the_files(name: str) -> None:
    method = learned(name)
    base = Size.of(contents(method.body).values())
    assert method.stored().bytes == base.bytes + sum(len(file.content) for file in method.files)
    assert method.details() == {"file_bytes": len(method.files[-1].content)}


def test_a_rounded_file_is_smaller_and_about_as_good() -> None:
    exact, rounded = (learned("linear-probe", form=form) for form in ("float32", "int8"))
    assert len(rounded.files[0].content) < len(exact.files[0].content)
    assert accuracy(rounded, 0) == pytest.approx(accuracy(exact, 0), abs=0.1)


def test_a_matrix_without_rows_is_rounded_too() -> None:
    tensors = {"a": torch.zeros(0, 5), "b": torch.tensor([[1.0, -2.0], [0.5, 0.25]])}
    restored = rounding.decode(rounding.encode(tensors, "int8"))
    assert restored["a"].shape == (0, 5)
    torch.testing.assert_close(restored["b"], tensors["b"], rtol=0, atol=2 / 254)


def test_the_nearest_mean_is_that_of_the_features() -> None:
    method = learned("ncm", tasks=1, normalise=False)
    train, test = tiny_tasks()[0].train, tiny_tasks()[0].test
    with torch.no_grad():
        x, held = method.body(train.x), method.body(test.x)
    means = torch.stack([x[train.y == label].mean(0) for label in range(3)])
    expected = ((held.unsqueeze(1) - means) ** 2).sum(2).argmin(1)
    assert torch.equal(method.predict(test.x, 0).argmax(1), expected)


def samples(rows: int, seed: int) -> Split:
    generator = seeding.generator("ridge", seed)
    y = torch.arange(rows) % 3
    return Split(torch.randn(rows, 6, generator=generator) + 2 * torch.eye(6)[y], y)


def test_ridge_is_the_dense_solution_of_one_of_its_penalties() -> None:
    train, val = samples(60, 0), samples(30, 1)
    head = fitted(train, val, 3)
    x = train.x.double() - train.x.double().mean(0)
    y = torch.nn.functional.one_hot(train.y).double()
    unit = float(x.square().sum()) / 6
    solutions = [torch.linalg.solve(x.T @ x + p * unit * torch.eye(6), x.T @ (y - y.mean(0))) for p in PENALTIES]
    assert min(float((solution.T - head["weight"]).abs().max()) for solution in solutions) < 1e-5


def test_sums_over_a_stream_give_the_regression_on_all_its_examples() -> None:
    first, second = samples(60, 0), samples(45, 2)
    moments = Moments(6, torch.device("cpu"))
    moments.add(first, 3)
    moments.add(second, 3)
    x = torch.cat([first.x, second.x]).double()
    y = torch.nn.functional.one_hot(torch.cat([first.y, second.y + 3]), 6).double()
    centred, scale = x - x.mean(0), 0.1 * float(x.square().sum()) / 6
    expected = torch.linalg.solve(centred.T @ centred + scale * torch.eye(6), centred.T @ (y - y.mean(0))).T
    torch.testing.assert_close(moments.solved(0.1)[:, :-1], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "settings"), [("ncm", {}), ("ridge", {"memory": "stream"})])
def test_tasks_are_identified_more_often_than_by_chance(name: str, settings: dict[str, Any]) -> None:
    method = learned(name, tasks=3, **settings)
    right: list[Tensor] = []
    for position, task in enumerate(tiny_tasks()):
        positions = method.identify(task.test.x)
        assert positions is not None
        right.append(positions == position)
    assert float(torch.cat(right).double().mean()) > 0.5


def test_bitdelta_stores_a_bit_for_each_weight_and_one_scale_for_each_matrix() -> None:
    method = learned("bitdelta", tasks=1, lr=0.03, distil=5)
    tensors = safetensors.torch.load(method.files[0].content)
    matrices = {n: p for n, p in method.context.build(3, 0).named_parameters() if p.dim() > 1 and "head" not in n}
    assert {n.removeprefix(SIGNS) for n in tensors if n.startswith(SIGNS)} == matrices.keys()
    assert all(tensors[SIGNS + n].numel() == -(-p.numel() // 8) for n, p in matrices.items())
    assert tensors[SCALES].shape == (len(matrices),)


def test_bitdelta_loses_little_of_what_was_fine_tuned() -> None:
    whole, bits = learned("full-finetune", tasks=1, lr=0.03), learned("bitdelta", tasks=1, lr=0.03)
    assert len(bits.files[0].content) < len(whole.files[0].content) / 2
    assert accuracy(bits, 0) >= accuracy(whole, 0) - 0.15


def test_bitfit_changes_biases_and_the_head_alone() -> None:
    method = learned("bitfit", tasks=1, lr=0.01)
    names = safetensors.torch.load(method.files[0].content)
    assert names.keys() == {n for n, _ in method.context.build(3, 0).named_parameters() if "bias" in n or "head" in n}


def test_an_adapter_is_the_file_that_peft_writes() -> None:
    declare_image_operations()
    pytest.importorskip("peft")
    method = learned("lora", tasks=1, rank=2, layers="linear", lr=0.03)
    tensors = safetensors.torch.load(method.files[0].content)
    assert {tuple(tensor.shape) for tensor in tensors.values()} == {(2, 32), (16, 2), (3, 16), (3,)}
    with pytest.raises(ModelError, match=r"layers='nothing'.*no such layer of type Linear or Conv2d"):
        learned("lora", tasks=1, layers="nothing")


def test_a_base_that_is_given_is_not_trained_by_the_first_task() -> None:
    context = replace(tiny_context(), given=True, recipe=Recipe(epochs=2, batch=16))
    method = make("halrp", context, bytes_per_task=3000)
    assert isinstance(method, HalrpMethod)
    before = contents(context.build(2, 0))
    for task in tiny_tasks()[:2]:
        method.learn(task)
    assert method.learner is not None
    assert [delta.is_base for delta in method.learner.tasks.values()] == [False, False]
    after = contents(method.learner.module(None))
    assert all(torch.equal(after[name], before[name]) for name in after if "head" not in name)
    restored = make("halrp", context, bytes_per_task=3000)
    restored.restore(method.state())
    x = tiny_tasks()[0].test.x
    assert torch.equal(restored.predict(x, 0), method.predict(x, 0))


def test_a_method_of_a_given_base_is_refused_on_a_backbone_that_is_none() -> None:
    with pytest.raises(SettingError, match=r"'linear-probe' learns on a pretrained backbone, and 'lenet' is none"):
        Cell("linear-probe", "digits", "lenet")
    assert Cell("linear-probe", "digits", "efficientnet-lite0").name


@pytest.mark.parametrize(
    ("name", "settings", "match"),
    [
        ("lora", {"rank": 0}, "rank=0"),
        ("lora", {"lr": -1}, "lr=-1"),
        ("lora", {"form": "int4"}, "choose 'float32', 'bfloat16' or 'int8'"),
        ("bitdelta", {"distil": -1}, "distil=-1"),
        ("ranpac", {"width": 0}, "width=0"),
        ("ridge", {"memory": "all"}, "choose 'task' or 'stream'"),
    ],
)
def test_impossible_settings_are_refused_by_name(name: str, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(SettingError, match=match):
        make(name, tiny_context(), **settings)


def test_a_task_that_is_no_classification_is_refused_by_name() -> None:
    task = replace(tiny_tasks()[0], kind=Regression(3))
    with pytest.raises(TaskError, match="'tiny-0' is no classification"):
        make("ncm", tiny_context(recipe=TINY)).learn(task)
