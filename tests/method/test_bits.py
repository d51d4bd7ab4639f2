"""Components in four bits, in eight, or each weight's in those that are worth more."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from halrp import FromProbe, Halrp, Learner, Recipe, learner
from halrp.errors import SettingError
from halrp.method.bits import BITS, LOST, Choice, choose
from halrp.method.budget import Budget
from halrp.method.fine_tune import FineTuned
from halrp.method.pack import packed
from halrp.method.protocols import LayerOptions, TaskCosts
from halrp.model import codec
from halrp.model.codec import Precision
from halrp.model.delta import Delta
from halrp.model.size import Size
from halrp.model.task_parts import kind_of
from halrp.store import task_file
from tests.helpers import CLASSES, drawn, net, tiny_task

RECIPE = Recipe(epochs=12, batch=8, lr=0.01)


def rounded(matrix: Tensor, precision: Precision) -> Tensor:
    return codec.decode(codec.encode(matrix, precision), matrix.dtype)


@pytest.mark.parametrize("shape", [(64, 64), (320, 1280), (1280, 96)])
def test_what_rounding_loses_is_its_share_of_the_squared_norm_of_a_component(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.randn(200, size, generator=generator, dtype=torch.float64) for size in shape)  # a row per component

    def lost(precision: Precision) -> float:
        p_stored, q_stored = rounded(p, precision), rounded(q, precision)
        # ‖p qᵀ − p' q'ᵀ‖² of each component, from the products of its vectors.
        squares = p.square().sum(1) * q.square().sum(1) + p_stored.square().sum(1) * q_stored.square().sum(1)
        errors = squares - 2 * (p * p_stored).sum(1) * (q * q_stored).sum(1)
        return float((errors / (p.square().sum(1) * q.square().sum(1))).mean())

    assert lost("int4") == pytest.approx(LOST["int4"], rel=0.15)
    assert lost("int8") < LOST["int4"] / 50


# ---- which bits a weight has ----------------------------------------------------------------------------------------


def allocated(
    scores: Mapping[str, Tensor], precisions: Mapping[str, Precision], sizes: Mapping[str, int], budget: int
) -> Choice:
    """The allocation of components of some scores and sizes under a bound on bytes."""
    options = {
        name: LayerOptions(
            (1 - LOST.get(precisions[name], 0.0)) * values,
            component=codec.row_bytes(sizes[name], precisions[name]),
            scales=0,
            weight=0,
            rest=torch.zeros(()),
            may_be_dense=False,
        )
        for name, values in scores.items()
    }
    return Choice(Budget(bytes=budget).allocate(options, TaskCosts([]), Size(1, 1)), options, precisions)


def cases() -> dict[str, tuple[dict[str, Tensor], dict[str, int], int]]:
    generator = torch.Generator().manual_seed(1)
    made = {}
    for number in range(6):
        names = ("a", "b", "c")
        steepness = 4 * torch.rand(3, generator=generator)
        scores = {n: (i + 1) * torch.arange(1, 17).double() ** -float(steepness[i]) for i, n in enumerate(names)}
        made[f"case {number}"] = scores, {"a": 100, "b": 300, "c": 64}, 300 * (number + 1)
    uneven = {"steep": 1000 * torch.tensor([1.0, 1e-6]), "flat": torch.full((16,), 1e-3)}
    made["one large component"] = uneven, {"steep": 50, "flat": 50}, 300
    return made


@pytest.mark.parametrize("case", cases())
def test_mixed_bits_are_worth_no_less_than_one_kind_and_little_less_than_the_best_of_all(case: str) -> None:
    scores, sizes, budget = cases()[case]

    def tried(precisions: Mapping[str, Precision]) -> Choice:
        return allocated(scores, precisions, sizes, budget)

    pairs: list[tuple[Precision, ...]] = list(itertools.product(("int4", "int8"), repeat=len(scores)))
    worth = [tried(dict(zip(scores, each, strict=True))).worth for each in pairs]
    mixed = choose("mixed", "float32", scores, tried)
    assert mixed.worth >= max(worth[0], worth[-1])
    assert mixed.worth >= 0.94 * max(worth)  # of few components the last ones may or may not fit
    for bits, expected in (("int4", worth[0]), ("int8", worth[-1])):
        assert choose(bits, "float32", scores, tried).worth == expected  # type: ignore[arg-type]


def test_a_weight_of_great_worth_has_eight_bits_and_others_have_four() -> None:
    scores, sizes, budget = cases()["one large component"]
    chosen = choose("mixed", "float32", scores, lambda precisions: allocated(scores, precisions, sizes, budget))
    assert chosen.precisions == {"steep": "int8", "flat": "int4"}


def test_where_all_fits_in_eight_bits_nothing_is_lost() -> None:
    scores, sizes, _ = cases()["case 0"]
    chosen = choose("mixed", "float32", scores, lambda precisions: allocated(scores, precisions, sizes, 10**6))
    assert set(chosen.precisions.values()) == {"int8"}


# ---- tasks ----------------------------------------------------------------------------------------------------------


def wide() -> nn.Module:
    """Layers that are too large for a small budget."""
    return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def learned(kind: str, start: FromProbe, budget: int, model: nn.Module | None = None) -> tuple[Learner, Delta]:
    method = replace(Halrp.budget(budget), start=start)
    result = Learner(model or net(kind), method=method, recipe=RECIPE, base="given")
    data = tiny_task(kind, examples=48)
    return result, result.learn("a", data, val=data)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", ["conv", "transformer"])
def test_a_task_with_these_bits_keeps_its_bound_and_is_read_again(bits: Any, kind: str, tmp_path: Path) -> None:
    result, delta = learned(kind, FromProbe(bits=bits), 2_500)
    assert delta.bytes == len(task_file.write(delta)) <= 2_500
    stored = {precision for key, precision in delta.precisions.items() if kind_of(key) in ("p", "q", "dense")}
    assert stored
    assert stored <= {"int4", "int8"} if bits == "mixed" else stored == {bits}
    result.save(tmp_path)
    x = tiny_task(kind)[0]
    loaded = Learner.load(tmp_path, net(kind))
    assert torch.equal(loaded.predict(x, "a"), result.predict(x, "a"))
    assert loaded.method == result.method


def test_four_bits_have_room_for_more_entries() -> None:
    entries = {}
    for bits in BITS:
        stored = learned("mlp", FromProbe(bits=bits), 3_230, drawn(wide))[1].stored
        entries[bits] = sum(part.entries for key, part in stored.items() if kind_of(key) in ("p", "q", "dense"))
    assert entries["int4"] > 1.2 * entries["int8"] > 0


def test_four_bits_change_what_was_trained_by_no_more_than_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    caught: list[FineTuned] = []

    def catching(description: Any, base: Any, method: Any, tuned: FineTuned, run: Any, rows: Any) -> Delta:
        caught.append(tuned)
        return packed(description, base, method, tuned, run, rows)

    monkeypatch.setattr(learner, "packed", catching)
    _, delta = learned("mlp", FromProbe(bits="int4"), 3_230, drawn(wide))
    assert sum(delta.ranks.values()) >= 3
    for name, rank in delta.ranks.items():
        trained, stored = (
            layer.p.double() @ layer.q.double() for layer in (caught[0].factors[name], delta.factors[name])
        )
        # Entries of p are not gaussian: a large one takes the digits of its 31 neighbours.
        assert rank == 0 or 0 < float((stored - trained).norm() / trained.norm()) < 2 * LOST["int4"] ** 0.5


@pytest.mark.parametrize("precision", codec.PART_PRECISIONS)
def test_small_parts_have_any_precision(precision: Precision) -> None:
    _, delta = learned("conv", FromProbe(precision=precision), 9_000)
    small = {p for key, p in delta.precisions.items() if kind_of(key) in ("r", "s", "plain")}
    assert small == {precision}
    assert delta.bytes <= 9_000


def test_unknown_bits_are_refused() -> None:
    with pytest.raises(SettingError, match=r"FromProbe\(bits='int2'\) is unknown; choose one of None, 'int8'"):
        FromProbe(bits="int2")  # type: ignore[arg-type]
