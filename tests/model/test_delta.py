"""What a task owns, counted by hand on LeNet, the size of its file, and read-only."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from halrp.errors import ModelError
from halrp.lab.backbones import build
from halrp.model import file_size
from halrp.model.codec import PRECISIONS, Precision
from halrp.model.delta import Delta, Recovered
from halrp.model.description import Description
from halrp.model.factors import Factors
from halrp.model.file_size import TensorEntry
from halrp.model.layout import Layout, Slot, dtype_name
from halrp.model.plan import plan as plan_of
from halrp.store import task_file

RANKS = {"conv1.weight": 3, "conv2.weight": 20, "linear1.weight": 100, "linear2.weight": 100}
NON_PRUNABLE = 13_143
PRUNABLE = 531_469
BIASES = 20 + 50 + 800 + 500
STATISTICS = 2 * (20 + 50 + 800 + 500)
COUNTERS = 4


def factors(rows: int, columns: int, rank: int, dtype: torch.dtype = torch.float32) -> Factors:
    def ones(*shape: int) -> Tensor:
        return torch.ones(shape, dtype=dtype)

    return Factors(ones(rows), ones(columns), ones(rows, rank), ones(rank, columns))


def lenet_delta(precision: Precision = "float32") -> Delta:
    """A delta of LeNet at the ranks of the published runs, factors without any zero."""
    model = build("lenet", classes=10)
    plan = plan_of(model)
    adapted = plan.named("adapted")
    assert set(adapted) == set(RANKS)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return Delta.pack(
        Description(task="second", classes=10, view="mean", precision=precision),
        Layout.of("fingerprint", plan, tensors),
        factors={n: factors(t.shape[0], t.shape[1], RANKS[n]) for n, t in adapted.items()},
        owned={n: t.detach() for n, t in tensors.items() if n not in adapted},
        recovered={n: Recovered(1.0, 2.0, 0.5) for n in adapted},
    )


def slot(name: str, kind: Any, role: Any, tensor: Tensor) -> Slot:
    return Slot(name, kind, role, dtype_name(tensor.dtype), tuple(tensor.shape))


def small(p: Tensor, q: Tensor, owned: Mapping[str, Tensor] | None = None, precision: Precision = "float32") -> Delta:
    """A delta of one adapted weight and the given tensors."""
    layer = Factors(torch.ones(len(p), dtype=p.dtype), torch.ones(q.shape[1], dtype=p.dtype), p, q)
    owned = {"bias": torch.ones(2, dtype=p.dtype)} if owned is None else owned
    slots = [slot(name, "owned", "other", tensor) for name, tensor in owned.items()]
    layout = Layout("f", tuple(sorted([*slots, slot("w", "adapted", "weight", p[:, :1] @ q[:1])])))
    if not p.shape[1]:
        layout = Layout("f", tuple(sorted([*slots, slot("w", "adapted", "weight", p.new_zeros(len(p), q.shape[1]))])))
    return Delta.pack(Description(task="t", classes=2, precision=precision), layout, {"w": layer}, owned)


def contents(delta: Delta) -> int:
    """Bytes of a delta's own tensors in its file, without the index."""
    return (
        delta.bytes - delta.header - sum(delta.entries[n].bytes for n in ("index", "recovered") if n in delta.entries)
    )


def test_the_base_of_the_published_runs_has_2_995_620_parameters() -> None:
    assert sum(p.numel() for p in build("lenet", classes=10).parameters()) == 2_995_620


def test_the_papers_count_of_lenet_is_the_closed_form() -> None:
    delta = lenet_delta()
    assert delta.paper_count(dense=True) == NON_PRUNABLE + PRUNABLE
    assert delta.paper_count() == NON_PRUNABLE + PRUNABLE
    assert delta.ranks == RANKS
    assert delta.importance == dict.fromkeys(RANKS, 1.0)


def test_the_honest_count_adds_biases_statistics_and_counters() -> None:
    delta = lenet_delta()
    assert delta.parameters == NON_PRUNABLE + PRUNABLE + BIASES + STATISTICS + COUNTERS
    # Counters of batch norm are 8-byte integers.
    assert contents(delta) == 4 * (NON_PRUNABLE + PRUNABLE + BIASES + STATISTICS) + 8 * COUNTERS


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_size_of_a_delta_is_the_size_of_its_file(precision: Precision) -> None:
    delta = lenet_delta(precision)
    content = task_file.write(delta)
    assert delta.bytes == len(content)
    # The format: 8 bytes that give the length of a JSON header, the header, the tensors.
    assert delta.header == 8 + int.from_bytes(content[:8], "little")
    tensors = {n: t for n, t in json.loads(content[8 : delta.header]).items() if n != "__metadata__"}
    assert {n: t["data_offsets"][1] - t["data_offsets"][0] for n, t in tensors.items()} == {
        n: entry.bytes for n, entry in delta.entries.items()
    }
    size = {"float32": 4, "bfloat16": 2, "int8": 1}[precision]
    scales = 4 * 2 * sum(RANKS.values()) if precision == "int8" else 0
    rest = NON_PRUNABLE + BIASES + STATISTICS
    assert contents(delta) == size * PRUNABLE + scales + 4 * rest + 8 * COUNTERS


def test_the_index_has_a_word_for_each_32_flags() -> None:
    for weights in (1, 15, 16, 17, 31, 32, 33, 48, 49):
        layout = Layout("f", tuple(Slot(f"w{n}", "adapted", "weight", "F32", (2, 2)) for n in range(weights)))
        # A rank for each weight, and two flags.
        assert file_size.index_length(layout) == weights + -(-2 * weights // 32)
        assert file_size.flag_count(layout) == 2 * weights


def test_tensors_of_one_width_stand_in_the_order_of_their_names_and_wider_ones_first() -> None:
    layout = Layout("f", (Slot("w", "adapted", "weight", "F32", (2, 2)),))
    extra = {"a": TensorEntry("F64", (1,)), "probe/x": TensorEntry("F32", (2,)), "zebra": TensorEntry("BF16", (3,))}
    entries = file_size.entries(layout, {"U8": 5, "F32": 6, "I64": 7, "BF16": 0}, True, extra)
    assert list(entries) == ["I64", "a", "F32", "index", "probe/x", "recovered", "zebra", "U8"]
    assert entries["probe/x"] == TensorEntry("F32", (2,))
    assert entries["recovered"] == TensorEntry("F32", (3,))


def test_a_probe_and_statistics_count_with_their_names() -> None:
    plain = lenet_delta()
    probe = {"inputs": torch.ones(2, 3), "outputs": torch.zeros(2, 4, dtype=torch.float64)}
    delta = dataclasses.replace(plain, probe=probe, statistics={"mean": torch.zeros(5)})
    assert len(task_file.write(delta)) == delta.bytes
    assert contents(delta) - contents(plain) == 4 * 6 + 8 * 8 + 4 * 5


def test_a_delta_that_owns_nothing_has_no_size_of_its_own() -> None:
    base = Delta(task="first", classes=3, layout=Layout("f"))
    assert base.bytes == base.parameters == base.paper_count() == 0
    assert base.ranks == {}


def test_pruned_entries_leave_both_counts_but_not_the_dense_one() -> None:
    delta = lenet_delta()
    layers = dict(delta.factors)
    p = layers["linear1.weight"].p.clone()
    p[:, 10:] = 0
    pruned = delta.with_factors(layers | {"linear1.weight": dataclasses.replace(layers["linear1.weight"], p=p)})
    gone = 800 * 90
    assert pruned.paper_count() == NON_PRUNABLE + PRUNABLE - gone
    assert pruned.paper_count(dense=True) == NON_PRUNABLE + PRUNABLE
    assert pruned.parameters == delta.parameters - gone
    # A tenth of 800 × 100 entries is left, and a bit for each entry.
    assert contents(pruned) == contents(delta) - 4 * 800 * 100 + 4 * 800 * 10 + 800 * 100 // 8
    assert pruned.bytes == len(task_file.write(pruned)) < delta.bytes
    assert delta.paper_count() == NON_PRUNABLE + PRUNABLE
    assert torch.equal(pruned.factors["linear1.weight"].p, p)


def test_a_factor_is_stored_sparse_only_if_the_file_is_smaller() -> None:
    dense = small(torch.ones(1000, 2), torch.ones(2, 3))
    for zeros in range(40, 2000, 20):
        p = torch.ones(1000, 2)
        p.view(-1)[:zeros] = 0
        delta = small(p, torch.ones(2, 3))
        assert delta.bytes <= dense.bytes
        sparse = "mask" in delta.coded["p/w"].parts
        assert contents(delta) == contents(dense) - (4 * zeros - 2000 // 8 if sparse else 0)
        # A mask of 250 bytes must be saved first, and what the first mask costs in the header.
        assert sparse == (4 * zeros > 250 + 96)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 8), (torch.float32, 4), (torch.bfloat16, 2)])
def test_bytes_follow_the_type_of_the_numbers(dtype: torch.dtype, size: int) -> None:
    delta = small(torch.ones(5, 2, dtype=dtype), torch.ones(2, 3, dtype=dtype), {"bias": torch.ones(5, dtype=dtype)})
    assert delta.parameters == 5 + 3 + 10 + 6 + 5
    assert contents(delta) == size * delta.parameters
    assert {t.dtype for f in delta.factors.values() for t in f.tensors()} == {dtype}


@pytest.mark.parametrize(("precision", "factor_bytes"), [("bfloat16", 2 * 16), ("int8", 16 + 4 * 4)])
def test_only_factors_and_dense_weights_are_kept_in_a_lower_precision(precision: Precision, factor_bytes: int) -> None:
    delta = small(torch.ones(5, 2), torch.ones(2, 3), {"bias": torch.ones(5)}, precision)
    assert contents(delta) == 4 * (5 + 3 + 5) + factor_bytes
    assert {t.dtype for f in delta.factors.values() for t in f.tensors()} == {torch.float32}


def test_a_tiny_entry_is_stored_because_the_task_must_come_back_exactly_but_the_paper_ignores_it() -> None:
    delta = small(torch.tensor([[1e-9], [1.0]]), torch.ones(1, 3), {"bias": torch.ones(1)})
    assert delta.parameters == 2 + 3 + 2 + 3 + 1
    assert contents(delta) == 4 * 11
    assert delta.paper_count() == 2 + 3 + 1 + 3


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rank_zero_costs_its_scales(precision: Precision) -> None:
    delta = small(torch.zeros(4, 0), torch.zeros(0, 3), {"bias": torch.ones(1)}, precision)
    assert delta.ranks == {"w": 0}
    assert delta.paper_count() == 7
    assert delta.parameters == 8
    assert contents(delta) == 4 * 8
    assert delta.factors["w"].p.shape == (4, 0)
    assert delta.factors["w"].q.shape == (0, 3)


def test_weights_owned_dense_count_in_full() -> None:
    weight, bias = torch.arange(30.0).reshape(6, 5), torch.ones(6)
    for shape in ((6, 5), (6, 5, 1, 1), (2, 3, 5)):
        owned = {"w": weight.reshape(shape), "b": bias}
        layout = Layout("f", (slot("b", "owned", "bias", bias), slot("w", "adapted", "weight", owned["w"])))
        delta = Delta.pack(Description(task="t", classes=2), layout, {}, owned)
        assert delta.ranks == {}
        assert delta.paper_count() == delta.paper_count(dense=True) == 30
        assert delta.parameters == 36
        assert contents(delta) == 4 * 36
        assert torch.equal(delta.owned["w"], weight.reshape(shape))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_packing_what_a_delta_holds_gives_the_same_file_in_the_same_precision(precision: Precision) -> None:
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(7, 3, generator=generator), torch.randn(3, 9, generator=generator)
    weight = torch.randn(6, 5, generator=generator)
    layout = Layout(
        "f",
        (
            slot("b", "owned", "bias", torch.ones(6)),
            slot("dense", "adapted", "weight", weight),
            slot("w", "adapted", "weight", p @ q),
        ),
    )
    parts = {"w": Factors(torch.ones(7), torch.ones(9), p, q)}
    description = Description(task="t", classes=2, precision=precision)
    once = Delta.pack(description, layout, parts, {"dense": weight, "b": torch.ones(6)})
    again = Delta.pack(description, layout, once.factors, once.owned)
    if precision == "int8":  # a scale times 127 over 127 may be rounded
        for a, b in ((once.factors["w"].p, again.factors["w"].p), (once.owned["dense"], again.owned["dense"])):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=0)
    else:
        assert task_file.write(once) == task_file.write(again)
    read = task_file.read(task_file.write(once), {layout.digest: layout}, "file")
    assert task_file.write(read) == task_file.write(once)


MAPPINGS = ["scales", "coded", "plain", "recovered", "provenance", "objective", "probe", "statistics"]


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_mappings_are_read_only_and_apart_from_what_was_passed(mapping: str) -> None:
    passed: dict[str, Any] = {n: {} for n in MAPPINGS}
    delta = Delta(task="t", classes=2, layout=Layout("f"), **passed)
    passed[mapping]["late"] = None
    assert dict(getattr(delta, mapping)) == {}
    with pytest.raises(TypeError):
        getattr(delta, mapping)["late"] = None


@pytest.mark.parametrize("mapping", ["factors", "owned", "recovered"])
def test_what_is_packed_is_read_only_and_apart_from_what_was_passed(mapping: str) -> None:
    passed: dict[str, Any] = {name: {} for name in ("factors", "owned", "recovered")}
    delta = Delta.pack(Description(task="t", classes=2), Layout("f"), **passed)
    passed[mapping]["late"] = None
    assert dict(getattr(delta, mapping)) == {}
    with pytest.raises(TypeError):
        cast(Any, getattr(delta, mapping))["late"] = None


@pytest.mark.parametrize("bad", [torch.ones(3), torch.ones(2, dtype=torch.float64)])
def test_a_tensor_whose_shape_or_type_training_changed_is_refused_by_name(bad: Tensor) -> None:
    layout = Layout("f", (slot("bias", "owned", "bias", torch.ones(2)),))
    with pytest.raises(ModelError, match="bias: training changed it"):
        Delta.pack(Description(task="t", classes=2), layout, {}, {"bias": bad})
    with pytest.raises(ModelError, match="other: a task cannot own it"):
        Delta.pack(Description(task="t", classes=2), layout, {}, {"other": bad})


def test_what_was_recovered_is_rounded_as_files_hold_it() -> None:
    exact = Recovered(0.1, 1e300, 1 / 3)
    stored = exact.stored()
    assert stored.stored() == stored != exact
    assert stored.importance == torch.tensor(0.1).item()
    assert stored.predicted == torch.finfo(torch.float32).max


def test_a_delta_is_frozen_and_says_what_matters() -> None:
    delta = lenet_delta()
    with pytest.raises(dataclasses.FrozenInstanceError):
        delta.task = "other"  # type: ignore[misc]
    text = repr(delta)
    assert "'second'" in text
    assert "conv2.weight: 20" in text
    assert f"{delta.bytes:,}" in text


def test_other_factors_make_another_delta() -> None:
    delta = small(torch.ones(4, 2), torch.ones(2, 3), {"bias": torch.ones(4)})
    other = delta.with_factors({"w": factors(4, 3, 1)})
    assert other.ranks == {"w": 1}
    assert delta.ranks == {"w": 2}
    assert other.held_owned["bias"] is delta.held_owned["bias"]
    assert delta.bytes - other.bytes == 4 * 7
