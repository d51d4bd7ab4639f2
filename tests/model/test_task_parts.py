"""Tasks of parts, each with a precision of its own: what is stored, what it means on the base, and what is refused."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from halrp.errors import ModelError, SettingError
from halrp.model import codec
from halrp.model.base import Base
from halrp.model.codec import PART_PRECISIONS, Precision
from halrp.model.delta import Delta
from halrp.model.description import Description
from halrp.model.factors import Factors
from halrp.model.file_size import planned_part_bytes
from halrp.model.layout import Slot
from halrp.model.plan import plan
from halrp.model.usable import task_problem
from tests.helpers import net
from tests.parts import Parts, drawn_parts, parts_task

BASES = {kind: Base(net(kind), plan(net(kind)), channels_last=False) for kind in ("conv", "mlp", "transformer")}
CONV = BASES["conv"]
HEAD: Parts = {
    "plain/fc.weight": (torch.linspace(-1, 1, 36).reshape(3, 12), "float32"),
    "plain/fc.bias": (torch.zeros(3), "float32"),
}


def task(parts: Parts, base: Base = CONV, view: str = "full") -> Delta:
    return Delta.of_parts(Description(task="t", classes=3, view=view), base.layout, base.tensors, HEAD | parts)


def half_a_step(part: Tensor, precision: Precision) -> Tensor:
    """The largest error of each entry of a vector or matrix that is stored in a precision."""
    rows = part.reshape(part.shape[0], -1) if part.dim() > 1 else part.reshape(1, -1)
    if precision == "float32":
        bound = torch.zeros_like(rows)
    elif precision == "bfloat16":
        bound = rows.abs() * 2**-8
    elif precision == "int8":
        bound = (rows.abs().amax(1, keepdim=True) / 127 / 2).expand_as(rows)
    else:
        scale = codec.encode(rows, "int4").parts["scale"].to(rows.dtype)
        bound = scale.repeat_interleave(32, dim=1)[:, : rows.shape[1]] / 2
    return bound.reshape(part.shape)


def value(delta: Delta, key: str) -> Tensor:
    kind, _, name = key.partition("/")
    factors = delta.held_factors.get(name)
    return delta.held_owned[name] if factors is None else factors.tensors()["rspq".index(kind)]


def stored_of(key: str, given: Tensor, slot: Slot, base: Tensor, precision: Precision) -> Tensor:
    """What is stored of a part: the difference to the base or to ones, unless it is a value."""
    if precision == "float32" or key[:2] in ("p/", "q/") or slot.kind == "buffer" or slot.is_head:
        return given
    return given - (1 if key[:2] in ("r/", "s/") else base)


@given(st.sampled_from(sorted(BASES)), st.integers(0, 10_000), st.sampled_from(["mean", "full"]))
@settings(deadline=None, max_examples=60)
def test_every_part_is_within_half_a_step_of_what_was_given(kind: str, seed: int, view: str) -> None:
    base = BASES[kind]
    parts = drawn_parts(base, seed, view=view)
    delta = Delta.of_parts(Description(task="t", classes=3, view=view), base.layout, base.tensors, parts)
    assert delta.stored.keys() == parts.keys()
    for key, (given_value, precision) in parts.items():
        slot = base.layout.by_name[key.partition("/")[2]]
        read, tensor = value(delta, key), base.tensors[slot.name]
        assert (read.shape, read.dtype) == (given_value.shape, given_value.dtype)
        if precision == "float32":
            assert torch.equal(read, given_value)
            continue
        part = stored_of(key, given_value, slot, tensor, precision)
        bound = half_a_step(part.mT, precision).mT if key.startswith("p/") else half_a_step(part, precision)
        # Besides half a step: the sum with the base and the product with a scale round in float32.
        slack = 4 * torch.finfo(part.dtype).eps * (given_value.abs() + tensor.abs().max() + 1)
        assert bool(((read - given_value).abs() <= bound + slack).all()), key


@given(st.sampled_from(sorted(BASES)), st.integers(0, 10_000))
@settings(deadline=None, max_examples=40)
def test_what_a_task_does_not_store_is_the_bases_own(kind: str, seed: int) -> None:
    base, delta = BASES[kind], parts_task(BASES[kind], seed)
    names = {key.partition("/")[2] for key in delta.stored}
    assert {*delta.held_factors, *delta.held_owned} == names
    view, module = dict(base.view(delta).named_parameters()), dict(base.module.named_parameters())
    for name in module.keys() - names:
        assert view[name] is module[name]
    for name, factors in delta.held_factors.items():
        shared = [k for k in "rspq" if f"{k}/{name}" not in delta.stored]
        for kind_, tensor in zip("rspq", factors.tensors(), strict=True):
            assert kind_ not in shared or (tensor == 1).all() if kind_ in "rs" else True
        assert factors.rank == delta.ranks[name]
        assert factors.merged(base.tensors[name]).shape == base.tensors[name].shape


def test_scales_of_one_side_alone_multiply_that_side_alone() -> None:
    weight = CONV.tensors["hidden.weight"]
    r = torch.linspace(0.5, 1.5, 12)
    delta = task({"r/hidden.weight": (r, "float32")})
    assert delta.ranks == {"hidden.weight": 0}
    assert torch.equal(delta.held_factors["hidden.weight"].merged(weight), r.unsqueeze(1) * weight)
    assert delta.held_factors["hidden.weight"].q.shape == (0, 32)
    s = torch.linspace(0.5, 1.5, 8)
    merged = task({"s/conv.weight": (s, "float32")}, view="mean").held_factors["conv.weight"]
    assert torch.equal(merged.merged(CONV.tensors["conv.weight"]), CONV.tensors["conv.weight"] * s.view(1, 8, 1, 1))


def test_components_of_rank_zero_are_no_part() -> None:
    empty: Parts = {
        "p/hidden.weight": (torch.zeros(12, 0), "int4"),
        "q/hidden.weight": (torch.zeros(0, 32), "int4"),
    }
    delta = task(empty)
    assert delta.stored.keys() == HEAD.keys()
    assert not delta.held_factors


@pytest.mark.parametrize("precision", PART_PRECISIONS)
def test_a_tensor_that_did_not_change_costs_no_accuracy_in_any_precision(precision: Precision) -> None:
    same: Parts = {
        "dense/conv.weight": (CONV.tensors["conv.weight"], precision),
        "plain/norm.weight": (CONV.tensors["norm.weight"], precision),
        "r/hidden.weight": (torch.ones(12), precision),
    }
    delta = task(same)
    assert torch.equal(delta.held_owned["conv.weight"], CONV.tensors["conv.weight"])
    assert torch.equal(delta.held_owned["norm.weight"], CONV.tensors["norm.weight"])
    assert torch.equal(delta.held_factors["hidden.weight"].r, torch.ones(12))


def test_a_variance_in_bfloat16_stays_positive() -> None:
    tiny = torch.full((8,), 1e-30)
    delta = task({"plain/norm.running_var": (tiny, "bfloat16")})
    assert bool((delta.held_owned["norm.running_var"] > 0).all())


W, P, Q = torch.zeros(12, 32), torch.ones(12, 2), torch.ones(2, 32)
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "unknown tensor": ({"plain/nothing": (W, "float32")}, ModelError, "plain/nothing is no part"),
    "unknown kind": ({"t/hidden.weight": (W, "float32")}, ModelError, "t/hidden.weight is no part"),
    "plain of an adapted weight": ({"plain/hidden.weight": (W, "float32")}, ModelError, "is no part"),
    "scales of a norm": ({"r/norm.weight": (torch.ones(8), "float32")}, ModelError, "is no part"),
    "unknown precision": ({"dense/hidden.weight": (W, "int2")}, SettingError, "'int2'.*'int4'"),
    "p alone": ({"p/hidden.weight": (P, "int8")}, ModelError, "p in 'int8' and q in None"),
    "two precisions": (
        {"p/hidden.weight": (P, "int8"), "q/hidden.weight": (Q, "int4")},
        ModelError,
        "one precision",
    ),
    "dense and scales": (
        {"dense/hidden.weight": (W, "int8"), "r/hidden.weight": (torch.ones(12), "int8")},
        ModelError,
        "stored in full",
    ),
    "other shape": ({"dense/hidden.weight": (W.T, "int8")}, ModelError, r"\(32, 12\)"),
    "other type": ({"dense/hidden.weight": (W.double(), "int8")}, ModelError, "float64"),
    "rank above all": (
        {"p/hidden.weight": (torch.ones(12, 13), "int8"), "q/hidden.weight": (torch.ones(13, 32), "int8")},
        ModelError,
        "rank 13, above 12",
    ),
    "ranks that differ": ({"p/hidden.weight": (P[:, :1], "int8"), "q/hidden.weight": (Q, "int8")}, ModelError, "p/"),
    "buffer in int8": ({"plain/norm.running_var": (torch.ones(8), "int8")}, SettingError, "'float32' or 'bfloat16'"),
    "counter in bfloat16": (
        {"plain/norm.num_batches_tracked": (torch.tensor(3), "bfloat16")},
        SettingError,
        "int64 has no precision but 'float32'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_parts_that_no_file_could_hold_are_refused(case: str) -> None:
    parts, error, match = REFUSED[case]
    with pytest.raises(error, match=match):
        task(parts)


def test_a_task_without_its_head_is_refused_also_when_it_is_planned() -> None:
    description = Description(task="t", classes=3)
    bias: Parts = {"plain/fc.bias": HEAD["plain/fc.bias"]}
    with pytest.raises(ModelError, match=r"plain/fc\.weight"):
        Delta.of_parts(description, CONV.layout, CONV.tensors, bias)
    with pytest.raises(ModelError, match=r"plain/fc\.weight"):
        planned_part_bytes(description, CONV.layout, {}, (), {"plain/fc.bias": "float32"}, "int8")


def test_matrices_of_one_precision_are_not_packed_in_int4() -> None:
    description = Description(task="t", classes=3, precision="int4")
    with pytest.raises(SettingError, match=r"'int4'.*of_parts"):
        Delta.pack(description, CONV.layout, {}, {})


# ---- knowing the base ---------------------------------------------------------------------------------------------


def test_a_delta_from_another_process_needs_its_base_for_differences_and_says_so() -> None:
    delta = parts_task(CONV, 3)
    assert delta.differences
    sent = pickle.loads(pickle.dumps(delta))
    assert not sent.origin
    assert sent.bytes == delta.bytes
    assert sent.parameters == delta.parameters
    assert task_problem(sent, None) == ""
    with pytest.raises(ModelError, match=r"difference to the base's.*delta\.on"):
        _ = sent.held_owned
    bound = sent.on(CONV.tensors)
    assert bound.on(CONV.tensors) is bound
    assert all(torch.equal(bound.held_owned[name], tensor) for name, tensor in delta.held_owned.items())


def test_values_are_copied_so_that_training_may_go_on() -> None:
    weight, bias = torch.ones(3, 12), torch.zeros(3)
    given: Parts = {"plain/fc.weight": (weight, "float32"), "plain/fc.bias": (bias, "bfloat16")}
    delta = task(given)
    weight += 1
    bias += 1
    assert torch.equal(delta.held_owned["fc.weight"], torch.ones(3, 12))
    assert torch.equal(delta.held_owned["fc.bias"], torch.zeros(3))
    assert torch.equal(delta.owned["fc.weight"].add_(1), torch.full((3, 12), 2.0))
    assert torch.equal(delta.held_owned["fc.weight"], torch.ones(3, 12))


def test_the_base_is_referred_to_and_neither_copied_nor_sent() -> None:
    delta = parts_task(CONV, 3)
    for name, tensor in delta.origin._held.items():  # type: ignore[attr-defined]
        assert tensor.data_ptr() == CONV.tensors[name].data_ptr()
    assert copy.copy(delta) is copy.deepcopy(delta) is delta
    assert delta.on({}) is delta


def test_numbers_that_cannot_be_computed_with_are_found_with_and_without_the_base() -> None:
    good = CONV.tensors["norm.weight"]
    for number, word in ((float("nan"), "NaN"), (1e30, "too large")):
        bad = good.clone()
        bad[2] = number
        for precision in ("float32", "bfloat16", "int8"):
            delta = task({"plain/norm.weight": (bad, precision)})
            assert "norm.weight" in task_problem(delta, CONV.numbers)
            problem = task_problem(delta, None)
            assert "norm.weight" in problem
            assert word in problem or precision == "int8"  # NaN spoils the scale of a row


# ---- sizes ----------------------------------------------------------------------------------------------------------


@given(st.sampled_from(sorted(BASES)), st.integers(0, 10_000))
@settings(deadline=None, max_examples=30)
def test_the_stored_parts_are_all_of_a_file_but_its_header_and_index(kind: str, seed: int) -> None:
    delta = parts_task(BASES[kind], seed)
    names = [n for n in delta.entries if n in ("index", "codes", "recovered")]
    rest = delta.header + sum(delta.entries[name].bytes for name in names)
    assert sum(part.bytes for part in delta.stored.values()) + rest == delta.bytes
    assert sum(part.entries for part in delta.stored.values()) == delta.parameters
    assert {key: part.precision for key, part in delta.stored.items()} == dict(delta.precisions)


def test_the_stored_parts_of_a_task_in_one_precision() -> None:
    layout, tensors = CONV.layout, CONV.tensors
    names = [slot.name for slot in layout.slots if slot.kind == "owned"]
    owned = {name: tensors[name] for name in names}
    factors = {}
    for slot in layout.adapted[1:]:
        shapes = ((slot.shape[0],), slot.shape[1:2], (slot.shape[0], 1), (1, slot.columns("full")))
        factors[slot.name] = Factors(*(torch.ones(shape) for shape in shapes))
    dense = {layout.adapted[0].name: tensors[layout.adapted[0].name]}
    delta = Delta.pack(Description(task="t", classes=3, view="full", precision="int8"), layout, factors, owned | dense)
    stored = delta.stored
    assert stored[f"dense/{layout.adapted[0].name}"].precision == "int8"
    assert stored["r/hidden.weight"] == ("float32", 12, 48)
    assert stored["p/hidden.weight"] == ("int8", 12, 16)
    assert stored["plain/fc.bias"] == ("float32", 3, 12)
    assert sum(part.entries for part in stored.values()) == delta.parameters
    rest = delta.header + delta.entries["index"].bytes
    assert sum(part.bytes for part in stored.values()) + rest == delta.bytes


def test_other_factors_are_stored_in_the_same_precisions() -> None:
    delta = parts_task(CONV, 5, share=1.0)
    ranked = [name for name, rank in delta.ranks.items() if rank]
    assert ranked
    same = delta.with_factors(delta.factors)
    assert dict(same.precisions) == dict(delta.precisions)
    # Decoded numbers are whole multiples of their scales, so encoding them again may move them by a rounding only.
    for name in ranked:
        torch.testing.assert_close(same.held_factors[name].p, delta.held_factors[name].p, rtol=1e-2, atol=1e-6)
    halved = delta.with_factors({n: Factors(f.r, f.s, f.p[:, :1], f.q[:1]) for n, f in delta.factors.items()})
    assert halved.ranks == {name: min(rank, 1) for name, rank in delta.ranks.items()}
    assert halved.bytes < delta.bytes
    none = delta.with_factors({n: Factors(f.r, f.s, f.p[:, :0], f.q[:0]) for n, f in delta.factors.items()})
    assert not any(none.ranks.values())
    assert all(torch.equal(none.held_factors[n].r, f.r) for n, f in delta.held_factors.items() if n in none.ranks)


def test_the_papers_count_needs_no_base() -> None:
    delta = parts_task(CONV, 3)
    sent = pickle.loads(pickle.dumps(delta))
    assert sent.paper_count() == delta.paper_count() <= delta.parameters
    assert sent.paper_count(dense=True) == delta.paper_count(dense=True) >= delta.paper_count()
