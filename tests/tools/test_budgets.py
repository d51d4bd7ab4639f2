"""What budgets pay for on a given base: the counted files are those that would be written."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from halrp import Halrp, Learner, explain
from halrp.errors import BudgetTooSmall
from halrp.method.budget import DEFAULT_SHARE, DEFAULT_TIMES, Budget
from halrp.model.base import Base
from halrp.model.call import Call
from halrp.model.codec import Precision
from halrp.model.delta import Delta, Recovered
from halrp.model.file_size import PROOF_INPUTS, PROOF_NUMBERS
from halrp.model.plan import plan
from halrp.objectives import Classification
from halrp.store import task_file
from halrp.tools import budgets
from halrp.tools.budgets import Paid
from halrp.tools.foreseen import Foreseen
from tests.helpers import drawn, net, tiny_task


class TextNet(nn.Module):
    """Token and position embeddings, a norm, two layers and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(400, 24)
        self.positions = nn.Parameter(torch.randn(1, 6, 24))
        self.norm = nn.LayerNorm(24)
        self.up, self.down = nn.Linear(24, 96), nn.Linear(96, 24)
        self.fc = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.tokens(x) + self.positions)
        return cast(Tensor, self.fc((x + self.down(self.up(x).relu())).mean(1)))


def model_of(kind: str) -> nn.Module:
    return drawn(TextNet) if kind == "text" else net(kind)


def foreseen(model: nn.Module, classes: int = 5) -> Foreseen:
    return Foreseen(model, plan(model), Classification(classes), Call(), "int8", "given")


def written(model: nn.Module, task: Foreseen, paid: Paid) -> int:
    """The bytes of a file with what a budget pays for, every entry of which is not zero."""
    base = Base(model, task.plan, False, counts_head=False)
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return 1 + torch.rand(shape, generator=generator)

    parts: dict[str, tuple[Tensor, Precision]] = {}
    for slot in base.layout.slots:
        tensor = base.tensors[slot.name]
        if slot.is_head:
            parts[f"plain/{slot.name}"] = noise(*slot.shape_in(task.classes)), "int8"
        elif slot.role in ("norm", "bias") and paid.groups.get("norms and biases"):
            parts[f"plain/{slot.name}"] = tensor + noise(*slot.shape), "int8"
        elif slot.kind == "adapted":
            if paid.groups["column scales"]:
                parts[f"s/{slot.name}"] = 1 + noise(slot.shape[1]), "int8"
            rank = min(paid.rank, slot.shape[0], slot.columns("mean")) if slot.name in task.with_components else 0
            if rank:
                parts[f"p/{slot.name}"] = noise(slot.shape[0], rank), "int8"
                parts[f"q/{slot.name}"] = noise(rank, slot.columns("mean")), "int8"
    description = task.description("mean", Budget(bytes=None if paid.is_default else paid.budget))
    recovered = {slot.name: Recovered(1.0, 1.0, 1.0) for slot in base.layout.adapted}
    delta = Delta.of_parts(description, base.layout, base.tensors, parts, recovered)
    proof = {"inputs": torch.zeros(PROOF_INPUTS, dtype=torch.uint8), "outputs": torch.zeros(PROOF_NUMBERS)}
    return len(task_file.write(replace(delta, probe=proof)))


@pytest.mark.parametrize("kind", ["conv", "grouped", "transformer", "gru", "mlp", "text"])
def test_the_file_of_what_a_budget_pays_for_has_exactly_the_size_that_is_shown(kind: str) -> None:
    model = model_of(kind)
    task = foreseen(model)
    bounds = [smallest_with(task, room) for room in (0, 40, 150, 400, 1_000, 4_000, 100_000)]
    shown = budgets.paid_by(task, [*bounds, None])
    assert [paid.budget for paid in shown[:-1]] == bounds
    for paid in shown:
        assert written(model, task, paid) == paid.bytes <= paid.budget
    assert 0 == shown[0].rank < shown[-2].rank


def smallest_with(task: Foreseen, room: int) -> int:
    return budgets.smallest(task) + room


@pytest.mark.parametrize("kind", ["conv", "transformer", "text"])
def test_one_rank_more_does_not_fit(kind: str) -> None:
    model = model_of(kind)
    task = foreseen(model)
    paid = budgets.paid_by(task, [smallest_with(task, 1_000)])[0]
    more = Paid(paid.budget, False, paid.groups, paid.rank + 1, 0)
    assert written(model, task, more) > paid.budget


def test_a_group_that_does_not_fit_is_left_out_and_the_next_is_tried() -> None:
    task = foreseen(model_of("text"))
    groups = budgets.paid_by(task, [smallest_with(task, 10_000)])[0].groups
    norms, columns = groups["norms and biases"], groups["column scales"]
    assert norms is not None
    assert columns is not None
    assert norms == (24 + 4) * 3 + 96 + 4
    assert columns == 2 * (24 + 4) + 96 + 4
    tight = budgets.paid_by(task, [smallest_with(task, columns + 8)])[0]
    assert tight.groups == {"head": groups["head"], "norms and biases": None, "column scales": columns}


def test_a_budget_below_the_smallest_pays_for_nothing() -> None:
    task = foreseen(net("mlp"))
    paid = budgets.paid_by(task, [smallest_with(task, -1)])[0]
    assert (paid.bytes, paid.rank, set(paid.groups.values())) == (0, 0, {None})
    assert any("too small" in line for line in budgets.as_lines([paid]))


def test_the_default_bound_is_a_share_of_the_base_or_twice_the_least() -> None:
    small, large = explain(net("mlp")), explain(nn.Sequential(nn.Linear(900, 900), nn.Linear(900, 3)))
    size = 4 * (900 * 900 + 900 + 3 * 900 + 3)
    assert large.budgets[-1].budget == int(DEFAULT_SHARE * size)
    assert small.budgets[-1].is_default
    # The file names its budget: null instead of a number of four digits, in words of eight bytes.
    assert small.fixed_bytes is not None
    assert abs(small.budgets[-1].budget - DEFAULT_TIMES * small.fixed_bytes) <= 8 * DEFAULT_TIMES


def test_tables_of_embeddings_have_column_scales_and_no_ranks() -> None:
    rows = {row.name: row for row in explain(model_of("text")).rows}
    assert rows["tokens.weight"].rank_bytes == {}
    assert rows["tokens.weight"].scale_bytes == 24 + 4
    assert explain(model_of("text"), base="first").rows[1].rank_bytes


def test_the_text_has_a_line_for_every_budget() -> None:
    explained = explain(model_of("text"))
    shown = str(explained)
    for paid in explained.budgets:
        assert f"\n{paid.budget:,}" in shown
        assert f"{paid.bytes:,}" in shown


def test_models_whose_outputs_are_kept_have_no_head_to_pay_for() -> None:
    explained = explain(net("mlp"), head=False)
    assert explained.fixed.keys() == {"header"}
    assert all("head" not in paid.groups for paid in explained.budgets)


def test_the_statistics_of_a_norm_in_a_new_head_are_counted_where_the_base_has_others() -> None:
    def model(mean: float) -> nn.Module:
        head = nn.Sequential(nn.Linear(12, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
        made = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), head)
        made.get_buffer("2.1.running_mean").fill_(mean)
        return made

    new, run = (explain(model(mean), head="2") for mean in (0.0, 9.0))
    assert run.fixed["head"] - new.fixed["head"] == 6 * 2  # in bfloat16
    kinds = [{row.name: row.kind for row in each.rows}["2.1.running_mean"] for each in (new, run)]
    assert kinds == ["shared", "owned"]
    refused = Learner(model(9.0), head="2", method=Halrp.budget(10), base="given")
    with pytest.raises(BudgetTooSmall, match="at least") as refusal:
        refused.learn("n" * 40, tiny_task("mlp"), val=tiny_task("mlp"))
    least = int(str(refusal.value).split("at least ")[1].split(", use")[0].replace(",", ""))
    assert run.fixed_bytes is not None
    assert run.fixed_bytes - 8 <= least <= run.fixed_bytes  # a header has whole words, and this recipe a shorter text
