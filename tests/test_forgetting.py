"""A committed task never changes: logits bit-identical after every later task, the base untouched."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from halrp import Budget, Delta, Flat, Halrp, Learner, Prune
from tests.helpers import FAST, address, digest, drawn, net, tiny_task

ROOMY = Halrp.budget(growth_per_task=0.9)
LATER = 10


def stream(kind: str, count: int) -> list[tuple[Tensor, Tensor]]:
    """Tasks with different numbers of classes."""
    return [tiny_task(kind, seed, examples=16, classes=2 + seed % 4) for seed in range(count)]


def formatted(x: Tensor) -> Tensor:
    """Inputs in the format that `predict` uses: pictures with their channels last."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def tensors(delta: Delta) -> dict[str, Tensor]:
    """Every tensor of a delta, by name."""
    factors = {f"{n}.{part}": getattr(f, part) for n, f in delta.factors.items() for part in "rspq"}
    return {**delta.owned, **factors}


@pytest.mark.parametrize("kind", ["conv", "grouped", "transformer", "gru"])
def test_old_logits_are_bit_identical_after_each_of_ten_later_tasks(kind: str) -> None:
    learner = Learner(net(kind), recipe=FAST, method=ROOMY)
    tasks = stream(kind, 1 + LATER)
    remembered: dict[str, Tensor] = {}
    factored: dict[str, Tensor] = {}
    for number, (x, y) in enumerate(tasks):
        learner.learn(f"t{number}", (x, y), val=(x, y) if number % 2 else None)
        factored[f"t{number}"] = learner.module(f"t{number}")(formatted(x))
        if number == 0:
            base = digest(learner.module(None))
        for old, logits in remembered.items():
            assert torch.equal(learner.predict(tasks[int(old[1:])][0], old), logits)
            assert torch.equal(learner.module(old)(formatted(tasks[int(old[1:])][0])), factored[old])
        assert digest(learner.module(None)) == base
        logits = learner.predict(x, f"t{number}")
        assert logits.shape == (16, 2 + number % 4)
        remembered[f"t{number}"] = logits
    assert torch.equal(learner.predict(tasks[0][0], None), remembered["t0"])


def test_a_given_base_keeps_its_own_logits_and_never_changes() -> None:
    model = net("conv").eval()
    learner = Learner(model, recipe=FAST, method=ROOMY, base="given")
    x, _ = tiny_task("conv", 0)
    before, base = learner.predict(x, None), digest(model)
    torch.testing.assert_close(before, model(x).detach(), rtol=1e-5, atol=1e-6)  # another memory format
    for number, task in enumerate(stream("conv", 3)):
        learner.learn(f"t{number}", task)
    assert torch.equal(learner.predict(x, None), before)
    assert digest(learner.module(None)) == base == digest(model)


def test_norm_statistics_belong_to_the_task() -> None:
    learner = Learner(net("conv"), recipe=FAST, method=ROOMY)
    learner.learn("a", tiny_task("conv", 0))
    x, y = tiny_task("conv", 1)
    delta = learner.learn("b", (x + 5, y))
    names = {n for n, role in delta.roles.items() if role == "buffer"}
    assert {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"} <= names
    view, base = learner.module("b"), learner.module("a")
    assert not torch.equal(view.get_buffer("norm.running_mean"), base.get_buffer("norm.running_mean"))


class LateWriter(nn.Module):
    """A net that writes to a buffer in steps 4 and 5 of every six: never in a warm-up of three steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.fc = nn.Linear(10, 12), nn.Linear(12, 3)
        self.steps, self.late = nn.Buffer(torch.zeros(())), nn.Buffer(torch.zeros(12))

    def forward(self, x: Tensor) -> Any:
        y = self.first(x)
        if self.training:
            self.steps.add_(1)
            if self.steps % 6 in (4, 5):
                self.late.add_(y.detach().mean(0))
        return self.fc(y - self.late)


def test_a_buffer_first_written_while_fine_tuning_is_the_tasks_own() -> None:
    learner = Learner(drawn(LateWriter), recipe=FAST, method=ROOMY)
    x, y = tiny_task("mlp", 0, examples=24)
    learner.learn("a", (x, y))
    base, logits = digest(learner.module(None)), learner.predict(x, "a")
    delta = learner.learn("b", tiny_task("mlp", 1, examples=24))
    assert "late" in delta.owned
    assert digest(learner.module(None)) == base
    assert torch.equal(learner.predict(x, "a"), logits)


def test_views_share_the_bases_memory() -> None:
    learner = Learner(net("conv"), recipe=FAST, method=ROOMY)
    learner.learn("a", tiny_task("conv", 0))
    learner.learn("b", tiny_task("conv", 1))
    base: Any = learner.module(None)
    first: Any = learner.module("b")
    other: Any = learner.module("b")
    assert address(first.conv.base_weight) == address(other.conv.base_weight) == address(base.conv.weight)


def test_the_first_task_is_the_base_and_owns_nothing() -> None:
    learner = Learner(net("mlp"), recipe=FAST, method=ROOMY)
    delta = learner.learn("a", tiny_task("mlp", 0))
    assert not delta.owned
    assert not delta.factors
    assert delta.bytes == delta.parameters == 0
    x = tiny_task("mlp", 0)[0]
    assert torch.equal(learner.predict(x, "a"), learner.predict(x, None))


def test_the_base_holds_no_gradients() -> None:
    learner = Learner(net("mlp"), recipe=FAST, method=ROOMY)
    learner.learn("a", tiny_task("mlp", 0))
    base = learner.module(None)
    assert all(p.grad is None and not p.requires_grad for p in base.parameters())


def pruned(method: Halrp) -> tuple[dict[str, Tensor], dict[str, Tensor], Delta]:
    """The tensors of the second task before and after a third, and the third's delta."""
    learner = Learner(net("conv"), recipe=FAST, method=method)
    learner.learn("a", tiny_task("conv", 0))
    before = copy.deepcopy(tensors(learner.learn("b", tiny_task("conv", 1))))
    third = learner.learn("c", tiny_task("conv", 2))
    return before, tensors(learner.tasks["b"]), third


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


@pytest.mark.parametrize("preset", ["official", "paper"])
def test_the_published_pruning_changes_committed_tasks_in_p_and_q_alone(preset: str) -> None:
    method = Halrp.official(growth=0.1) if preset == "official" else Halrp.paper(growth=0.5)
    before, after, _ = pruned(method)
    assert changed(before, after)
    assert all(name.endswith((".p", ".q")) for name in changed(before, after))


def test_a_module_made_for_a_task_that_pruning_changed_is_made_anew() -> None:
    learner = Learner(net("conv"), recipe=FAST, method=Halrp.official(growth=0.1))
    learner.learn("a", tiny_task("conv", 0))
    learner.learn("b", tiny_task("conv", 1))
    x = tiny_task("conv", 1)[0]
    before = learner.predict(x, "b")
    learner.learn("c", tiny_task("conv", 2))
    after = learner.predict(x, "b")
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, learner.module("b")(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "method",
    [
        Halrp.budget(growth_per_task=0.9),
        Halrp(allocate=Flat(2)),
        dataclasses.replace(Halrp.official(growth=0.1), compress=Prune(growth=0.1)),
    ],
)
def test_methods_that_do_not_prune_committed_tasks_never_change_one(method: Halrp) -> None:
    before, after, _ = pruned(method)
    assert not changed(before, after)


def test_pruning_without_committed_tasks_cuts_the_newest() -> None:
    _, _, third = pruned(dataclasses.replace(Halrp.official(growth=0.1), compress=Prune(growth=0.1)))
    zeros = [float((t == 0).float().mean()) for f in third.factors.values() for t in (f.p, f.q) if t.numel()]
    assert max(zeros) > 0.3


def test_pruning_a_task_that_owns_every_weight_outright_changes_nothing() -> None:
    learner = Learner(net("mlp"), recipe=FAST, method=Halrp(allocate=Budget(growth=5.0), compress=Prune(growth=0.1)))
    learner.learn("a", tiny_task("mlp", 0))
    delta = learner.learn("b", tiny_task("mlp", 1))
    assert not delta.factors
    assert {"0.weight", "2.weight"} <= set(delta.owned)
    assert isinstance(learner.export("b"), nn.Sequential)
