"""A task on a given base starts at the probe: what it owns, what it costs, and that training never makes it worse."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from halrp import Delta, Flat, FromProbe, Halrp, Learner, Progress, Recipe
from halrp.errors import BudgetTooSmall
from halrp.method.budget import Budget
from halrp.method.cross_fit import CrossFit
from halrp.method.from_probe import OFFERS
from halrp.method.outcome import outcome_of
from halrp.method.start import Starts
from halrp.model.base import Base
from halrp.model.task_parts import kind_of, name_of
from halrp.store import task_file
from halrp.training.loop import Training
from halrp.training.run import TaskRun
from tests.helpers import CLASSES, FAST, address, digest, drawn, net, tiny_task

ROOMY = Halrp.budget(growth_per_task=0.9)
LONGER = Recipe(epochs=25, batch=8, lr=0.01)
KINDS = ("mlp", "conv", "transformer", "gru", "grouped")
HEADS = {"mlp": "4", "conv": "fc", "transformer": "fc", "gru": "fc", "grouped": "fc"}


def learner(kind: str = "conv", method: Halrp = ROOMY, recipe: Recipe = FAST, **settings: Any) -> Learner:
    return Learner(net(kind), method=method, recipe=recipe, base="given", **settings)


def stored(delta: Delta) -> set[str]:
    """The parts of a task's file besides its head."""
    head = delta.layout.head
    return {key for key in delta.precisions if name_of(key) not in head}


def head_alone(delta: Delta) -> bool:
    return not stored(delta)


# ---- where fine-tuning starts ---------------------------------------------------------------------------------------


class Caught(FromProbe):
    """A start at the probe that shows what it found, and the head that it fitted."""

    starts: ClassVar[Starts]
    fitted: ClassVar[nn.Module]

    def __call__(self, *arguments: Any) -> Starts:
        Caught.starts = super().__call__(*arguments)
        return Caught.starts

    def _fit_head(self, base: Base, net: nn.Module, run: TaskRun) -> tuple[CrossFit | None, float]:
        result = super()._fit_head(base, net, run)
        Caught.fitted = copy.deepcopy(net.get_submodule(base.plan.head))
        return result


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_where_fine_tuning_starts_are_those_of_the_probe(kind: str) -> None:
    x, y = tiny_task(kind)
    result = learner(kind, replace(ROOMY, start=Caught()))
    result.learn("a", (x, y), val=tiny_task(kind, 1))
    base, ((_, start),), owned = result._committed.ready, Caught.starts.by_view.items(), Caught.starts.owned
    assert owned.keys() == base.layout.head
    view = base.tuning_view(start.factors, {**owned, **start.small, **start.dense}, CLASSES).eval()
    expected, head = net(kind).eval(), HEADS[kind]
    expected.set_submodule(head, Caught.fitted)
    with torch.no_grad():
        torch.testing.assert_close(view(x), expected(x), rtol=1e-4, atol=1e-5)
    assert start.factors or start.small or start.dense  # else nothing is compared


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_is_learned_in_every_model_and_nothing_of_the_base_changes(kind: str) -> None:
    model, (x, y) = net(kind), tiny_task(kind, examples=48)
    before = digest(model)
    result = Learner(model, method=ROOMY, recipe=LONGER, base="given")
    base = digest(result._committed.ready.module)
    result.learn("a", (x, y), val=(x, y))
    assert float((result.predict(x, "a").argmax(1) == y).float().mean()) > 0.9
    assert digest(model) == before
    assert digest(result._committed.ready.module) == base


class TwiceTheHead(nn.Module):
    """A network whose outputs are not its head's own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(10, 12), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.body(x).relu())
        return 2 * outputs


def test_a_head_whose_outputs_are_processed_is_trained_through_the_network_first() -> None:
    stages: list[str] = []

    def progress(at: Progress) -> None:
        stages.append(at.stage)

    data = tiny_task("mlp")
    result = Learner(drawn(TwiceTheHead), head="head", recipe=FAST, method=ROOMY, base="given", progress=progress)
    result.learn("a", data, val=data)
    assert stages[0] == "warm-up"
    assert outcome_of(result.tasks["a"].provenance) is not None


def test_a_head_that_is_not_fitted_is_drawn() -> None:
    probes = {}
    for head in ("probe", "random"):
        result = learner("mlp", replace(ROOMY, start=FromProbe(head=head)))
        outcome = outcome_of(result.learn("a", tiny_task("mlp"), val=tiny_task("mlp")).provenance)
        assert outcome is not None
        assert outcome.start is not None
        probes[head] = outcome.start
    assert probes["probe"].loss < 0.5 * probes["random"].loss


# ---- what trains and what is stored ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("growth", [0.2, 0.9])
def test_only_chosen_parts_are_stored_and_all_else_is_the_bases_own_memory(kind: str, growth: float) -> None:
    result = learner(kind, Halrp.budget(growth_per_task=growth), LONGER)
    data = tiny_task(kind)
    delta = result.learn("a", data, val=data)
    base = result._committed.ready
    view = base.serving_view(delta)
    stored_names = {name_of(key) for key in delta.precisions}
    originals = base.tensors
    shared = {
        n: t for n, t in (*view.named_parameters(), *view.named_buffers()) if n in originals and n not in stored_names
    }
    assert shared
    for name, tensor in shared.items():
        assert address(tensor.detach()) == address(originals[name])
    assert {kind_of(key) for key in delta.precisions} <= {"r", "s", "p", "q", "plain", "dense"}
    for name in delta.dense:
        assert not {f"r/{name}", f"s/{name}", f"p/{name}"} & delta.precisions.keys()


def test_only_what_is_stored_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []
    make = Training.__init__

    def recorded(self: Training, module: nn.Module, groups: Any, *arguments: Any, **options: Any) -> None:
        trained.append(sum(parameter.numel() for group in groups for parameter in group.parameters))
        assert sum(p.numel() for p in module.parameters() if p.requires_grad) == trained[-1]
        make(self, module, groups, *arguments, **options)

    monkeypatch.setattr(Training, "__init__", recorded)
    data = tiny_task("conv")
    # An epoch that changes nothing visible would be no better than the start: train long enough to be.
    delta = learner("conv", Halrp.budget(growth_per_task=0.5), LONGER).learn("a", data, val=data)
    assert not head_alone(delta)
    factors = {n: dict(zip("rspq", f.tensors(), strict=True)) for n, f in delta.factors.items()}
    entries = {key: factors.get(name_of(key), delta.owned).get(kind_of(key)) for key in delta.precisions}
    owned = {key: delta.owned[name_of(key)] for key in delta.precisions if kind_of(key) in ("plain", "dense")}
    assert trained == [sum(t.numel() for t in (entries | owned).values() if t is not None)]


@pytest.mark.parametrize("validated", [True, False])
def test_running_statistics_never_change(validated: bool) -> None:
    result = learner("conv", recipe=LONGER)
    data = tiny_task("conv")
    delta = result.learn("a", data, val=data if validated else None)
    module = result.module("a")
    for name, buffer in net("conv").named_buffers():
        assert torch.equal(module.get_buffer(name), buffer)
    assert not any("running" in key or "num_batches" in key for key in delta.precisions)


def test_a_task_may_have_its_own_running_statistics_which_its_budget_pays_for(tmp_path: Path) -> None:
    data = tiny_task("conv")
    statistics = {name for name, _ in net("conv").named_buffers()}
    for budget in (3_000, 6_000):
        method = replace(Halrp.budget(budget), start=FromProbe(statistics="own", held_out=0))
        result = learner("conv", method, LONGER)
        delta = result.learn("a", data)
        assert delta.bytes == len(task_file.write(delta)) <= budget
        assert statistics <= {name_of(key) for key in delta.precisions}
        assert not torch.equal(delta.owned["norm.running_mean"], net("conv").get_buffer("norm.running_mean"))
        assert delta.precisions["plain/norm.running_var"] == "bfloat16"
    result.save(tmp_path)
    loaded = Learner.load(tmp_path, net("conv"))
    assert torch.equal(loaded.predict(data[0], "a"), result.predict(data[0], "a"))
    with pytest.raises(BudgetTooSmall, match=r"running_(mean|var)"):
        learner("conv", replace(method, allocate=Budget(bytes=1_000))).learn("a", data)


@pytest.mark.parametrize("part", OFFERS)
def test_a_start_offers_the_kinds_of_parts_that_it_is_given(part: str) -> None:
    result = learner("conv", Halrp(allocate=Flat(2), start=FromProbe(parts=(part,), redundant=True)), LONGER)
    data = tiny_task("conv")
    delta = result.learn("a", data, val=data)
    roles = {"norms": "norm", "biases": "bias"}
    for key in stored(delta):
        kind = kind_of(key)
        if part in roles:
            assert kind == "plain"
            assert delta.layout.by_name[name_of(key)].role == roles[part]
        else:
            assert kind in {"rows": "r", "columns": "s", "components": "pq", "others": ()}[part]
    assert head_alone(delta) == (part == "others")  # there are none


def offered(redundant: bool) -> set[str]:
    result = learner("conv", Halrp(allocate=Flat(2), start=FromProbe(redundant=redundant)))
    result.learn("a", tiny_task("conv"), val=tiny_task("conv"))
    return set(result.scores["a"])


def test_row_scales_and_biases_before_a_norm_are_offered_only_on_request() -> None:
    extra = {"r/features.0.weight", "plain/features.0.bias", "r/conv.weight"}
    assert offered(redundant=True) - offered(redundant=False) == extra


def test_without_components_nothing_is_predicted_of_them_and_the_file_is_read_again(tmp_path: Path) -> None:
    result = learner("gru", Halrp(allocate=Flat(1), start=FromProbe(parts=("columns", "biases"))), LONGER)
    data = tiny_task("gru")
    delta = result.learn("a", data, val=data)
    result.save(tmp_path)
    loaded = Learner.load(tmp_path, net("gru"))
    assert torch.equal(loaded.predict(data[0], "a"), result.predict(data[0], "a"))
    assert task_file.write(loaded.tasks["a"]) == task_file.write(delta)
    assert {layer.predicted for layer in delta.recovered.values()} == {0.0}


# ---- budgets --------------------------------------------------------------------------------------------------------


def smallest(kind: str) -> int:
    with pytest.raises(BudgetTooSmall) as refusal:
        learner(kind, Halrp.budget(10)).learn("a", tiny_task(kind), val=tiny_task(kind))
    return int(str(refusal.value).split("at least ")[1].split(", use")[0].replace(",", ""))


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_at_most_their_budgets_down_to_the_head_alone(kind: str) -> None:
    least = smallest(kind)
    data = tiny_task(kind)
    sizes = []
    for more in (0, 1, 8, 30, 100, 400, 2_500, 100_000):
        delta = learner(kind, Halrp.budget(least + more), replace(LONGER, epochs=3)).learn("a", data, val=data)
        assert delta.bytes == len(task_file.write(delta)) <= least + more
        assert more or len(stored(delta)) <= 1  # the padding of the header may have room for a few numbers
        sizes.append(delta.bytes)
    assert max(sizes) > least + 200


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_less_than_the_head_is_refused_before_anything_is_built(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    least = smallest(kind)

    def build(*_: object) -> None:
        raise AssertionError("something is built or trained")

    monkeypatch.setattr(Base, "owning_copy", build)
    monkeypatch.setattr(Training, "run", build)
    with pytest.raises(BudgetTooSmall, match=f"at least {least:,}"):
        learner(kind, Halrp.budget(least - 1)).learn("a", tiny_task(kind), val=tiny_task(kind))


def test_the_smallest_budget_pays_for_the_statistics_of_a_norm_in_the_head() -> None:
    def model() -> nn.Module:
        head = nn.Sequential(nn.Linear(12, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES))
        made = drawn(lambda: nn.Sequential(nn.Linear(10, 12), nn.ReLU(), head))
        made.get_buffer("2.1.running_mean").fill_(9.0)
        made.get_buffer("2.1.num_batches_tracked").fill_(9)
        return made

    def learn(budget: int) -> Delta:
        result = Learner(model(), head="2", method=Halrp.budget(budget), recipe=STILL, base="given")
        return result.learn("a", tiny_task("mlp"), val=tiny_task("mlp", 1))

    with pytest.raises(BudgetTooSmall) as refusal:
        learn(10)
    least = int(str(refusal.value).split("at least ")[1].split(", use")[0].replace(",", ""))
    delta = learn(least)
    assert stored(delta) == {"plain/2.1.running_mean", "plain/2.1.num_batches_tracked"}  # a new head begins at 0
    assert not delta.owned["2.1.running_mean"].any()
    assert least - 40 < delta.bytes <= least  # what it reports of its training may take a few letters less


# ---- never worse than the probe -------------------------------------------------------------------------------------


DESTROYING = Recipe(epochs=3, batch=8, lr=2.0)
"""Steps that leave nothing of what a network has learned."""
STILL = Recipe(epochs=2, batch=8, lr=1e-30)


def noisy_task(kind: str, seed: int) -> dict[str, Any]:
    """A task that nobody can learn without error, and validation data."""
    generator = torch.Generator().manual_seed(seed)
    x, y = tiny_task(kind, seed, examples=60)
    if kind != "gru":
        x = x + 2.5 * torch.randn(x.shape, generator=generator)
    return {"train": (x[:30], y[:30]), "val": (x[30:], y[30:])}


def score(result: Learner, data: Mapping[str, Any]) -> float:
    x, y = data["val"]
    return float((result.predict(x, "a").argmax(1) == y).double().mean())


@pytest.mark.parametrize("recipe", [DESTROYING, Recipe(epochs=6, batch=8, lr=0.02)], ids=["destroying", "learning"])
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_with_validation_data_no_committed_task_scores_less_than_the_probe(kind: str, recipe: Recipe) -> None:
    epochs = set()
    for seed in range(4):
        data = noisy_task(kind, seed)
        result, still = (learner(kind, recipe=each, seed=seed) for each in (recipe, STILL))
        delta, at_probe = (each.learn("a", **data) for each in (result, still))
        outcome = outcome_of(delta.provenance)
        assert outcome is not None
        assert outcome.start is not None
        # The probe's own score is before its head is rounded to int8, which may change an example.
        assert score(result, data) >= min(outcome.start.score, score(still, data)) - 1e-4
        assert score(result, data) == pytest.approx(outcome.end.score, abs=1e-4)
        assert head_alone(at_probe)
        epochs.add(outcome.epoch)
    assert (0 in epochs) if recipe is DESTROYING else (epochs - {0})


def test_where_training_destroys_the_network_the_head_alone_is_committed_in_a_small_file() -> None:
    trusting = replace(ROOMY, start=FromProbe(held_out=0))
    committed, largest = 0, learner("conv", trusting).learn("a", tiny_task("conv")).bytes
    for seed in range(4):
        data = noisy_task("conv", seed)
        result = learner("conv", recipe=DESTROYING, seed=seed)
        delta = result.learn("a", **data)
        outcome = outcome_of(delta.provenance)
        assert outcome is not None
        if outcome.epoch == 0:
            committed += 1
            assert head_alone(delta)
            assert delta.bytes < 0.5 * largest
            assert {layer.share for layer in delta.recovered.values()} == {0.0}
            assert "no epoch was better" in str(outcome)
    assert committed


@pytest.mark.parametrize("patience", [None, 3])
def test_the_committed_epoch_is_reported(patience: int | None) -> None:
    recipe = replace(LONGER, patience=patience)
    for seed in range(3):
        delta = learner("conv", recipe=recipe, seed=seed).learn("a", **noisy_task("conv", seed))
        outcome = outcome_of(delta.provenance)
        assert outcome is not None
        assert (outcome.epoch == 0) == head_alone(delta)
        assert outcome.epoch in ((0, recipe.epochs) if patience is None else range(recipe.epochs + 1))


def test_without_validation_data_nothing_is_reported() -> None:
    delta = learner("mlp").learn("a", tiny_task("mlp"))
    assert outcome_of(delta.provenance) is None


# ---- a rehearsal without validation data ----------------------------------------------------------------------------


def stages(**settings: Any) -> list[str]:
    names: list[str] = []

    def progress(at: Progress) -> None:
        if at.step == 0 and at.stage not in names:
            names.append(at.stage)

    data = settings.pop("data", None) or {"train": tiny_task("mlp")}
    learner("mlp", progress=progress, **settings).learn("a", **data)
    return names


def test_without_validation_data_training_is_rehearsed_on_a_part_of_the_data() -> None:
    assert stages() == ["rehearsal of fine-tune: mean", "fine-tune: mean"]
    assert stages(data={"train": tiny_task("mlp"), "val": tiny_task("mlp")}) == ["fine-tune: mean"]
    assert stages(method=replace(ROOMY, start=FromProbe(held_out=0))) == ["fine-tune: mean"]
    assert stages(data={"train": tiny_task("mlp", examples=9)}) == ["fine-tune: mean"]


def test_where_the_rehearsal_destroys_the_network_the_head_alone_is_committed() -> None:
    x, y = tiny_task("mlp", examples=60)
    recipe = replace(DESTROYING, lr=20.0)
    assert head_alone(learner("mlp", replace(ROOMY, start=FromProbe(folds=0)), recipe).learn("a", (x, y)))
    trusting = replace(ROOMY, start=FromProbe(folds=0, held_out=0))
    assert not head_alone(learner("mlp", trusting, recipe).learn("a", (x, y)))
