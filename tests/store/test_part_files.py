"""Files of tasks whose parts have precisions of their own: planned to the byte, read back bit by bit, or refused."""

from __future__ import annotations

import dataclasses
import struct
import tracemalloc
from collections.abc import Callable
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from halrp.errors import DamagedError, StoreError, WrongBaseError
from halrp.model.base import Base
from halrp.model.codec import Coded, Precision
from halrp.model.delta import Delta
from halrp.model.description import Description
from halrp.model.file_size import TensorEntry, planned_part_bytes
from halrp.model.layout import Layout, Slot
from halrp.model.plan import plan
from halrp.model.usable import task_problem
from halrp.store import task_file
from tests.helpers import net, tiny_task
from tests.parts import Parts, drawn_parts, parts_task, planned
from tests.store.hostile import mutated
from tests.store.test_task_file_fuzz import apart, joined

KINDS = ("conv", "mlp", "transformer", "grouped", "gru")
BASES = {kind: Base(net(kind), plan(net(kind)), channels_last=kind == "grouped") for kind in KINDS}
CONV = BASES["conv"]
LAYOUTS = {CONV.layout.digest: CONV.layout}


def outputs(base: Base, delta: Delta, kind: str) -> torch.Tensor:
    with torch.no_grad():
        return base.call(base.serving_view(delta), base.prepare_inputs(tiny_task(kind, 1)[0]))


@given(st.sampled_from(KINDS), st.integers(0, 10_000), st.sampled_from(["mean", "full"]), st.integers(1, 40))
@settings(deadline=None, max_examples=80)
def test_a_file_has_the_planned_size_and_gives_the_same_bits(kind: str, seed: int, view: str, classes: int) -> None:
    base = BASES[kind]
    delta = parts_task(base, seed, classes, view)
    content = task_file.write(delta)
    assert planned(delta) == len(content) == delta.bytes
    loaded = task_file.load(content, base, "file")
    assert task_file.write(loaded) == content == task_file.write(delta)
    assert dict(loaded.precisions) == dict(delta.precisions)
    for name, factors in delta.held_factors.items():
        pairs = zip(factors.tensors(), loaded.held_factors[name].tensors(), strict=True)
        assert all(torch.equal(tensor, other) for tensor, other in pairs)
    assert loaded.held_owned.keys() == delta.held_owned.keys()
    assert all(torch.equal(tensor, loaded.held_owned[name]) for name, tensor in delta.held_owned.items())
    assert torch.equal(outputs(base, loaded, kind), outputs(base, delta, kind))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["conv", "mlp"])
def test_a_base_of_any_floating_type_keeps_it(kind: str, dtype: torch.dtype) -> None:
    model = net(kind).to(dtype)
    base = Base(model, plan(model), channels_last=False)
    for seed in range(10):
        delta = parts_task(base, seed)
        content = task_file.write(delta)
        assert planned(delta) == len(content)
        loaded = task_file.load(content, base, "file")
        assert task_file.write(loaded) == content
        for name, tensor in delta.held_owned.items():
            assert tensor.dtype == base.tensors[name].dtype
            assert torch.equal(loaded.held_owned[name], tensor)


class Buffers(nn.Module):
    """A layer, a head, and buffers of types and shapes that models have."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(10, 12), nn.Linear(12, 3)
        self.register_buffer("bytes", torch.arange(200, dtype=torch.uint8))
        self.register_buffer("zeros", torch.zeros(300, dtype=torch.int8))
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("waves", torch.ones(3, dtype=torch.complex64))
        self.register_buffer("unknown", torch.full((4,), float("nan")))
        self.register_buffer("nothing", torch.zeros(0, 3))


def test_buffers_of_every_type_come_back_as_they_are() -> None:
    model = Buffers()
    base = Base(model, plan(model), channels_last=False)
    parts = drawn_parts(base, 0, share=0.0)
    buffers = dict(model.named_buffers())
    parts |= {f"plain/{name}": (buffer.clone(), "float32") for name, buffer in buffers.items()}
    delta = Delta.of_parts(Description(task="t", classes=3), base.layout, base.tensors, parts)
    assert {key for key, part in delta.coded.items() if "mask" in part.parts} == {"plain/zeros"}
    loaded = task_file.load(task_file.write(delta), base, "file")
    for name, buffer in buffers.items():
        read = loaded.held_owned[name]
        torch.testing.assert_close(read, buffer, rtol=0, atol=0, equal_nan=True)


def test_the_plan_counts_a_probe_and_leaves_out_what_was_not_predicted() -> None:
    delta = parts_task(CONV, 4)
    bare = Delta.of_parts(delta, CONV.layout, CONV.tensors, drawn_parts(CONV, 4))
    assert planned(delta, recovered=False) == len(task_file.write(bare))
    assert bare.bytes < delta.bytes
    extra = {"probe/outputs": TensorEntry("F32", (4, 3))}
    probed = dataclasses.replace(delta, probe={"outputs": torch.ones(4, 3)})
    assert planned(delta, extra) == len(task_file.write(probed)) > delta.bytes + 48


def test_one_precision_for_all_matrices_is_the_same_plan() -> None:
    head: dict[str, Precision] = {"plain/fc.weight": "float32", "plain/fc.bias": "bfloat16"}
    ranks, dense = {"hidden.weight": 3, "conv.weight": 0}, ["features.0.weight"]
    description = Description(task="t", classes=3, view="full")
    size = planned_part_bytes(description, CONV.layout, ranks, dense, head, "int4")
    each: dict[str, Precision] = {"hidden.weight": "int4", "features.0.weight": "int4"}
    assert planned_part_bytes(description, CONV.layout, ranks, dense, head, matrices=each) == size


def test_zeros_only_make_a_file_smaller() -> None:
    base = Base(net("mlp"), plan(net("mlp")), channels_last=False)
    description = Description(task="t", classes=200)
    head = torch.zeros(200, 12)
    head[0] = 1
    parts: Parts = {"plain/4.weight": (head, "float32"), "plain/4.bias": (torch.ones(200), "int8")}
    delta = Delta.of_parts(description, base.layout, base.tensors, parts)
    assert "mask" in delta.coded["plain/4.weight"].parts
    content = task_file.write(delta)
    assert len(content) < planned(delta, recovered=False)
    loaded = task_file.load(content, base, "file")
    assert torch.equal(loaded.held_owned["4.weight"], head)
    assert task_file.write(loaded) == content


def test_a_file_that_is_read_without_its_base_can_be_checked_and_written_but_not_computed_with() -> None:
    content = task_file.write(parts_task(CONV, 3))
    delta = task_file.read(content, LAYOUTS, "file")
    assert task_problem(delta, None) == ""
    assert task_file.write(delta) == content
    assert delta.differences
    with pytest.raises(ValueError, match="does not know its base"):
        _ = delta.held_owned
    assert task_problem(delta, CONV.numbers) == ""


def test_the_bases_own_task_has_no_parts() -> None:
    layout = Layout(CONV.fingerprint, tuple(slot for slot in CONV.layout.slots if not slot.is_head))
    delta = Delta.of_parts(Description(task="t", classes=3), layout, CONV.tensors, {})
    assert delta.is_base
    assert delta.bytes == 0
    assert task_file.read(task_file.write(delta), {layout.digest: layout}, "file").is_base


# ---- damaged files --------------------------------------------------------------------------------------------------


def position(key: str) -> int:
    """The place of a part's code."""
    kind, _, name = key.partition("/")
    at = 0
    for slot in CONV.layout.slots:
        if slot.name == name:
            return at + ("r", "s", "matrix").index(kind) if slot.kind == "adapted" else at
        at += 3 if slot.kind == "adapted" else 1
    raise KeyError(key)


def with_code(content: bytes, key: str, byte: int) -> bytes:
    header, facts, data = apart(content)
    changed = bytearray(data)
    changed[header["codes"]["data_offsets"][0] + position(key)] = byte
    return joined(header, facts, bytes(changed))


def with_rank(content: bytes, name: str, rank: int) -> bytes:
    header, facts, data = apart(content)
    changed = bytearray(data)
    at = header["index"]["data_offsets"][0] + 4 * [slot.name for slot in CONV.layout.adapted].index(name)
    changed[at : at + 4] = struct.pack("<i", rank)
    return joined(header, facts, bytes(changed))


HEAD: Parts = {"plain/fc.weight": (torch.ones(3, 12), "float32"), "plain/fc.bias": (torch.ones(3), "float32")}
EXAMPLE = task_file.write(
    Delta.of_parts(
        Description(task="t", classes=3, view="full"),
        CONV.layout,
        CONV.tensors,
        HEAD
        | {
            "r/hidden.weight": (torch.full((12,), 1.5), "int8"),
            "p/hidden.weight": (torch.ones(12, 1), "int4"),
            "q/hidden.weight": (torch.ones(1, 32), "int4"),
            "dense/conv.weight": (CONV.tensors["conv.weight"] + 1, "bfloat16"),
            "plain/norm.weight": (torch.full((8,), 2.0), "bfloat16"),
            "plain/norm.running_var": (torch.ones(8), "bfloat16"),
        },
    )
)
NO_HEAD = r"store plain/fc\.bias"
DAMAGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "unknown precision": (lambda c: with_code(c, "r/hidden.weight", 5), "code 0x05"),
    "stray bit": (lambda c: with_code(c, "r/hidden.weight", 0b1011), "code 0x0b"),
    "mask of what is absent": (lambda c: with_code(c, "s/hidden.weight", 0x40), "does not hold"),
    "second mask of one part": (lambda c: with_code(c, "r/hidden.weight", 0x83), "two masks"),
    "mask in int4": (lambda c: with_code(c, "matrix/hidden.weight", 0x44), "mask, which its type cannot have"),
    "no head": (lambda c: with_code(c, "plain/fc.bias", 0), NO_HEAD),
    "difference of a counter": (lambda c: with_code(c, "plain/norm.num_batches_tracked", 2), "int64"),
    "buffer in int8": (lambda c: with_code(c, "plain/norm.running_var", 3), "a buffer in 'int8'"),
    "dense with scales": (lambda c: with_code(c, "r/conv.weight", 1), "stored in full"),
    "components without a rank": (lambda c: with_rank(c, "hidden.weight", 0), "weight without one"),
    "rank without components": (lambda c: with_rank(c, "features.0.weight", 2), "has no precision"),
    "rank above all": (lambda c: with_rank(c, "hidden.weight", 13), "rank 13, above 12"),
    "rank below −1": (lambda c: with_rank(c, "hidden.weight", -2), "below 0"),
    "one part less": (lambda c: with_code(c, "plain/norm.weight", 0), "too many"),
    "one part more": (lambda c: with_code(c, "plain/norm.bias", 1), "needs 8 more numbers"),
    "another precision": (lambda c: with_code(c, "plain/norm.weight", 4), "numbers"),
    "precision of the task": (
        lambda c: joined(apart(c)[0], {**apart(c)[1], "precision": "int8"}, apart(c)[2]),
        "its precision is 'int8'",
    ),
    "format 2": (lambda c: joined(apart(c)[0], {**apart(c)[1], "format": 2}, apart(c)[2]), "index"),
    "format as a float": (lambda c: joined(apart(c)[0], {**apart(c)[1], "format": 3.0}, apart(c)[2]), "not written as"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_file_that_lies_about_its_parts_is_refused_for_what_it_holds(case: str) -> None:
    change, match = DAMAGED[case]
    task_file.load(EXAMPLE, CONV, "file")
    with pytest.raises(DamagedError, match=match):
        task_file.load(change(EXAMPLE), CONV, "file")


@pytest.mark.parametrize(("byte", "match"), [(0x80, "entry of −8"), (0x88, "entry of −8")])
def test_four_bits_that_are_never_written_are_refused(byte: int, match: str) -> None:
    header, facts, data = apart(EXAMPLE)
    changed = bytearray(data)
    changed[header["U8"]["data_offsets"][0]] = byte
    with pytest.raises(DamagedError, match=match):
        task_file.load(joined(header, facts, bytes(changed)), CONV, "file")


@pytest.mark.parametrize("bits", [0x7F80, 0x7FC0], ids=["infinity", "NaN"])
def test_scales_that_are_not_finite_are_refused_also_without_the_base(bits: int) -> None:
    header, facts, data = apart(EXAMPLE)
    changed = bytearray(data)
    at = header["BF16"]["data_offsets"][0] + 2 * CONV.tensors["conv.weight"].numel()  # after the dense weight
    changed[at : at + 2] = struct.pack("<H", bits)
    content = joined(header, facts, bytes(changed))
    assert "hidden.weight" in task_problem(task_file.read(content, LAYOUTS, "file"), None)
    with pytest.raises(DamagedError, match=r"hidden\.weight"):
        task_file.load(content, CONV, "file")


def test_a_difference_that_makes_a_number_too_large_is_refused_with_its_base() -> None:
    base = Base(net("conv"), plan(net("conv")), channels_last=False)
    limit = torch.finfo(torch.float32).max ** 0.5
    with torch.no_grad():
        base.module.get_parameter("norm.weight").fill_(0.9 * limit)
    parts: Parts = HEAD | {"plain/norm.weight": (torch.full((8,), 1.5 * limit), "bfloat16")}
    tensors = base.tensors
    delta = Delta.of_parts(Description(task="t", classes=3), base.layout, tensors, parts)
    assert task_problem(delta, None) == ""
    assert "too large" in task_problem(delta, base.numbers)


def test_parts_of_another_base_are_refused() -> None:
    other = Base(net("conv", seed=1), plan(net("conv")), channels_last=False)
    with pytest.raises(WrongBaseError):
        task_file.load(EXAMPLE, other, "file")


def test_a_delta_made_by_hand_is_compared_with_the_base() -> None:
    delta = parts_task(CONV, 3)
    name = "plain/fc.bias"
    wrong = Coded(1, 4, {"values": torch.ones(1, 4)})
    lacking = {key: part for key, part in delta.coded.items() if key != name}
    for coded, precisions, match in (
        (lacking, delta.precisions, "without a precision"),
        (lacking, {k: p for k, p in delta.precisions.items() if k != name}, r"lacks fc\.bias"),
        ({**delta.coded, name: wrong}, delta.precisions, r"plain/fc\.bias is 1 × 4"),
    ):
        made = Delta(task="t", classes=3, format=3, layout=CONV.layout, coded=coded, precisions=precisions)
        with pytest.raises(DamagedError, match=match):
            task_file.check(made, CONV, "delta")


def test_a_layout_of_absurd_size_needs_no_memory_where_a_task_stores_nothing() -> None:
    huge = Slot("body.weight", "adapted", "weight", "F32", (4, 2**39))
    head = Slot("head.weight", "owned", "head", "F32", (3, 4))
    layout = Layout("0" * 64, (huge, head))
    parts: Parts = {"r/body.weight": (torch.full((4,), 2.0), "int8"), "plain/head.weight": (torch.ones(3, 4), "int4")}
    content = task_file.write(Delta.of_parts(Description(task="t", classes=3), layout, {}, parts))
    tracemalloc.start()
    try:
        delta = task_file.read(content, {layout.digest: layout}, "file")
        assert task_problem(delta, None) == ""
        assert delta.parameters == 16
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(DamagedError, match=r"needs|code"):
        task_file.read(with_first_code(content, 0x04), {layout.digest: layout}, "file")


def with_first_code(content: bytes, byte: int) -> bytes:
    """A file whose second part, s of the first weight, gets a code."""
    header, facts, data = apart(content)
    changed = bytearray(data)
    changed[header["codes"]["data_offsets"][0] + 1] = byte
    return joined(header, facts, bytes(changed))


@pytest.mark.parametrize("seed", range(4))
def test_a_changed_file_is_refused_or_a_sound_task(seed: int) -> None:
    random, accepted = Random(seed), 0
    originals = [EXAMPLE, *(task_file.write(parts_task(CONV, number)) for number in range(6))]
    for number in range(150):
        content = originals[number % len(originals)]
        for _ in range(random.choice((1, 1, 1, 3))):
            content = mutated(content or b"\0", random)
        try:
            delta = task_file.load(content, CONV, "file")
        except StoreError:
            continue
        accepted += 1
        assert task_file.write(delta) == content
        assert bool(outputs(CONV, delta, "conv").isfinite().all())
    assert 0 < accepted < 110
