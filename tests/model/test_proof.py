"""A loaded delta is proven active: its file says what it gives for inputs that can be drawn again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from halrp import Halrp, Learner, StorePredictor
from halrp.errors import DamagedError, InactiveError
from halrp.model import proof
from halrp.model.base import Base
from halrp.model.file_size import PROOF_INPUTS, PROOF_NUMBERS
from halrp.objectives import Classification
from halrp.tools.verify import verify
from tests.helpers import CLASSES, FAST, drawn, net, tiny_task

KINDS = ("mlp", "conv", "transformer", "gru", "grouped")
METHOD = Halrp.budget(growth_per_task=0.9, precision="int8", rest="int8")


def learned(kind: str, folder: Path | None = None, **given: Any) -> Learner:
    settings: dict[str, Any] = {"base": "given", "recipe": FAST, "method": METHOD, "progress": None} | given
    learner = Learner(net(kind), store=folder, **settings)
    learner.learn("a", tiny_task(kind), val=tiny_task(kind, 1))
    return learner


@pytest.mark.parametrize("base", ["given", "first"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_task_has_one_and_gives_the_outputs_in_it(kind: str, base: str) -> None:
    learner = learned(kind, base=base)
    learner.learn("b", tiny_task(kind, 2), val=tiny_task(kind, 3))
    delta, body = learner.tasks["b"], learner._committed.ready
    assert proof.has_proof(delta)
    assert delta.probe["inputs"].shape == (PROOF_INPUTS,)
    assert delta.probe["outputs"].shape == (PROOF_NUMBERS,)
    assert proof.problem(delta, body) is None
    x = proof.drawn(bytes(delta.probe["inputs"].tolist()), body.device, body.fingerprint)
    ours = tiny_task(kind, 2)[0][:2]
    assert x.shape == ours.shape
    assert x.dtype == ours.dtype
    assert ours.min() - 1e-2 <= x.min() <= x.max() <= ours.max() + 1e-2
    torch.testing.assert_close(proof.summary(learner.predict(x, "b")), delta.probe["outputs"], rtol=1e-3, atol=1e-3)


def test_the_numbers_change_with_every_single_output() -> None:
    outputs = torch.randn(2, 29, dtype=torch.float64)
    before = proof.summary(outputs)
    flat, count = outputs.reshape(-1), -(-58 // PROOF_NUMBERS)
    for number in range(58):
        changed = flat.clone()
        changed[number] += 2.0
        difference = (proof.summary(changed.view(2, 29)) - before).abs()
        assert difference.nonzero().flatten().tolist() == [number % PROOF_NUMBERS]
        assert float(difference.max()) == pytest.approx(2.0 / count**0.5, rel=1e-5)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(3, 4, 5),
        torch.randint(7, 90, (2, 6)),
        torch.tensor([[True, False, True, False, True, True, False, True]]).repeat(2, 1),
        torch.randint(256, (2, 3, 4), dtype=torch.uint8),
        torch.randn(2, 3).bfloat16(),
        (torch.randn(2, 3), torch.randint(5, (2, 4))),
        {"ids": torch.randint(9, (2, 6)), "mask": torch.ones(2, 6, dtype=torch.int64)},
        torch.randn(2),
    ],
    ids=["float", "int", "bool", "bytes", "bfloat16", "tuple", "dict", "number"],
)
def test_inputs_are_drawn_like_those_that_were_described(x: Any) -> None:
    text = proof.described(x)
    assert text is not None
    assert len(text) == PROOF_INPUTS
    first, again, other = (proof.drawn(text, torch.device("cpu"), seed) for seed in ("a", "a", "b"))
    pairs = (
        [(x, first, again)]
        if isinstance(x, Tensor)
        else [(x[key], first[key], again[key]) for key in (x if isinstance(x, dict) else range(len(x)))]
    )
    assert type(first) is type(x)
    for tensor, ours, same in pairs:
        assert ours.dtype == tensor.dtype
        assert ours.shape == (proof.ROWS, *tensor.shape[1:])
        assert torch.equal(ours, same)
        slack = 0.01 * float(tensor.double().abs().max())
        assert float(tensor.double().min()) - slack <= float(ours.double().min())
        assert float(ours.double().max()) <= float(tensor.double().max()) + slack
    assert not isinstance(x, Tensor) or not torch.equal(first, other)


@pytest.mark.parametrize(
    "x",
    [torch.randn(2, 3, dtype=torch.complex64), {f"a long name of an input {n}": torch.ones(2, 3) for n in range(5)}],
)
def test_inputs_that_cannot_be_described_in_few_letters_have_none(x: Any) -> None:
    assert proof.described(x) is None


def test_infinite_inputs_are_not_described() -> None:
    assert proof.described(torch.tensor([[1.0, torch.inf]])) is None


@pytest.mark.parametrize(
    "facts",
    [
        '["F32",[3],0.5]',
        '["F99",[3],0.5,1.5]',
        '["F32",[-3],0.5,1.5]',
        '["F32",[99999999999],0.5,1.5]',
        '["F32",[3],2.5,1.5]',
        '["F32",[3],0,1]',
        '["I64",[3],0.5,1.5]',
        '["U8",[3],0,256]',
        '["F32", [3],0.5,1.5]',
        '["F32",[3],0.5,NaN]',
        '["C64",[3],0.5,1.5]',
        "{}",
        '{"":3}',
        "[",
        '"\xff"',
    ],
)
def test_a_text_that_nobody_would_have_written_is_refused(facts: str) -> None:
    with pytest.raises(DamagedError, match="probe"):
        proof.drawn(facts.encode("latin-1").ljust(PROOF_INPUTS), torch.device("cpu"), "")


def with_probe(learner: Learner, change: Callable[[dict[str, Tensor]], None]) -> None:
    """Commit a task with another probe, as a faulty program would."""
    probe = dict(learner.tasks["a"].probe)
    change(probe)
    delta = replace(learner.tasks["a"], probe=probe)
    store = learner._committed.store
    assert store is not None
    store.remove("a", None)
    store.commit(learner._committed.ready, [delta])


def larger(probe: dict[str, Tensor]) -> None:
    probe["outputs"] = 1.01 * probe["outputs"]


def test_a_store_whose_task_gives_other_outputs_is_found_by_verify_load_and_the_predictor(tmp_path: Path) -> None:
    with_probe(learned("conv", tmp_path), larger)
    x, _ = tiny_task("conv")
    findings = {finding.file.partition("-")[0]: finding for finding in verify(tmp_path, net("conv"))}
    assert findings["tasks/a"].status == "bad"
    assert "off by" in findings["tasks/a"].note
    with pytest.raises(InactiveError, match="a: its outputs for the inputs of its probe are off by"):
        Learner.load(tmp_path, net("conv"), check=True)
    with pytest.raises(InactiveError, match="off by"):
        StorePredictor.open(tmp_path, net("conv"), check=True).predict(x, "a")
    assert Learner.load(tmp_path, net("conv")).predict(x, "a").shape == (len(x), CLASSES)


def test_a_good_store_passes_and_verify_says_that_its_tasks_are_active(tmp_path: Path) -> None:
    expected = learned("conv", tmp_path)
    x, _ = tiny_task("conv")
    again = Learner.load(tmp_path, net("conv"), check=True)
    assert torch.equal(again.predict(x, "a"), expected.predict(x, "a"))
    assert torch.equal(StorePredictor.open(tmp_path, net("conv"), check=True).predict(x, "a"), expected.predict(x, "a"))
    (note,) = (f.note for f in verify(tmp_path, net("conv")) if f.file.startswith("tasks/"))
    assert note.endswith("fits the model, active")


def test_a_layer_that_computes_something_else_than_before_is_found(tmp_path: Path) -> None:
    learned("conv", tmp_path)
    changed = net("conv")
    for module in changed.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 0.5  # no part of the weights
    with pytest.raises(InactiveError, match="off by"):
        Learner.load(tmp_path, changed, check=True)


def test_a_delta_that_is_not_applied_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    learner = Learner(drawn(build), head=False, base="given", recipe=FAST, method=METHOD, progress=None)
    x, y = tiny_task("mlp")
    learner.learn("a", (x[:, :6], y), objective=Classification(CLASSES))
    delta, base = learner.tasks["a"], learner._committed.ready
    assert proof.problem(delta, base) is None
    monkeypatch.setattr(Base, "serving_view", lambda self, delta: self.module)
    assert "its delta is not applied" in str(proof.problem(delta, base))


def test_what_is_learned_and_changes_no_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    learner = Learner(drawn(build), head=False, base="given", recipe=FAST, method=METHOD, progress=None)
    x, y = tiny_task("mlp")
    monkeypatch.setattr(Base, "serving_view", lambda self, delta: self.module)
    with pytest.raises(InactiveError, match="changes no output of the base"):
        learner.learn("a", (x[:, :6], y), objective=Classification(CLASSES))
    assert not learner.tasks


def test_a_model_that_refuses_drawn_inputs_has_tasks_without_one() -> None:
    class Picky(nn.Module):
        """Takes nothing but rows that begin with one."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.fc = nn.Linear(8, 32), nn.Linear(32, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            if bool((x[:, 0] != 1).any()):
                raise ValueError("these rows are not mine")
            logits: Tensor = self.fc(torch.relu(self.body(x)))
            return logits

    x = torch.randn(24, 8)
    x[:, 0] = 1.0
    learner = Learner(drawn(Picky), head="fc", base="given", recipe=FAST, method=METHOD, progress=None)
    delta = learner.learn("a", (x, torch.arange(24) % CLASSES))
    assert not proof.has_proof(delta)
    assert proof.problem(delta, learner._committed.ready) is None


def test_it_says_nothing_of_the_data_but_types_shapes_and_a_range() -> None:
    delta = learned("mlp").tasks["a"]
    kind, shape, low, high = json.loads(bytes(delta.probe["inputs"].tolist()))
    x, _ = tiny_task("mlp")
    assert (kind, shape) == ("F32", list(x.shape[1:]))
    assert (low, high) == (pytest.approx(float(x[:2].min()), rel=1e-3), pytest.approx(float(x[:2].max()), rel=1e-3))


def test_a_task_in_one_precision_has_none() -> None:
    delta = learned("mlp").tasks["a"]
    paper = learned("mlp", base="first", method=Halrp.paper())
    paper.learn("b", tiny_task("mlp", 2))
    assert proof.has_proof(delta)
    assert not proof.has_proof(paper.tasks["b"])
