"""Whether a task fits a base: a delta that differs from it in one respect is refused for that, before it is used."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from halrp import Delta, Halrp, Learner, WarmUp
from halrp.errors import DamagedError, WrongBaseError
from halrp.model.base import Base
from halrp.model.codec import Coded
from halrp.model.copies import held
from halrp.model.description import Description
from halrp.model.layout import Slot
from halrp.store import task_file
from halrp.store.fitting import check
from tests.helpers import FAST, address, drawn, tiny_task
from tests.parts import Parts, recovered
from tests.store.test_store import ConvHead, MixedTypes

Change = Callable[[Delta], Delta]


@pytest.fixture
def base(example: tuple[Path, Learner]) -> Base:
    return example[1]._committed.ready


@pytest.fixture
def delta(example: tuple[Path, Learner]) -> Delta:
    """A task in float32 with factors everywhere, two of rank 3."""
    return example[1].tasks["float"]


def with_matrix(key: str, **changes: object) -> Change:
    """A change of one coded matrix: its sizes, or tensors of its parts."""

    def change(delta: Delta) -> Delta:
        matrix = delta.coded[key]
        sizes = {name: value for name, value in changes.items() if name in ("rows", "columns")}
        parts = {**matrix.parts, **{name: value for name, value in changes.items() if name not in sizes}}
        changed = dataclasses.replace(matrix, **sizes, parts=parts)  # type: ignore[arg-type]
        return dataclasses.replace(delta, coded={**delta.coded, key: changed})

    return change


def with_slot(name: str, **changes: object) -> Change:
    """A change of what the task's own layout says of a weight."""

    def change(delta: Delta) -> Delta:
        slots = tuple(slot._replace(**changes) if slot.name == name else slot for slot in delta.layout.slots)  # type: ignore[arg-type]
        return dataclasses.replace(delta, layout=dataclasses.replace(delta.layout, slots=slots))

    return change


def with_scale(name: str, r: torch.Tensor | None = None, s: torch.Tensor | None = None) -> Change:
    def change(delta: Delta) -> Delta:
        old = delta.scales[name]
        new = (old[0] if r is None else r, old[1] if s is None else s)
        return dataclasses.replace(delta, scales={**delta.scales, name: new})

    return change


def with_plain(name: str, tensor: torch.Tensor | None) -> Change:
    def change(delta: Delta) -> Delta:
        plain = {**delta.plain, name: tensor}
        return dataclasses.replace(delta, plain={n: t for n, t in plain.items() if t is not None})

    return change


def dense(weight: str, shape: tuple[int, int], dtype: torch.dtype = torch.float32) -> Change:
    """A weight stored densely in place of its factors."""

    def change(delta: Delta) -> Delta:
        coded = {key: matrix for key, matrix in delta.coded.items() if key.partition("/")[2] != weight}
        coded[f"dense/{weight}"] = Coded(*shape, {"values": torch.zeros(shape, dtype=dtype)})
        scales = {name: pair for name, pair in delta.scales.items() if name != weight}
        return dataclasses.replace(delta, coded=coded, scales=scales)

    return change


def both(first: Change, second: Change) -> Change:
    return lambda delta: second(first(delta))


def without_scales(delta: Delta) -> Delta:
    return dataclasses.replace(delta, scales={n: pair for n, pair in delta.scales.items() if n != "hidden.weight"})


HIDDEN = (12, 32)
"""The shape of hidden.weight."""
MISFITS: dict[str, tuple[Change, str]] = {
    "r of another length": (with_scale("hidden.weight", r=torch.ones(13)), "r of hidden.weight has shape (13,)"),
    "s of another length": (with_scale("hidden.weight", s=torch.ones(31)), "s of hidden.weight has shape (31,)"),
    "r of another type": (with_scale("hidden.weight", r=torch.ones(12).double()), "r of hidden.weight has type"),
    "r that is not finite": (
        with_scale("hidden.weight", r=torch.full((12,), torch.nan)),
        "r of hidden.weight holds NaN or infinity",
    ),
    "another width": (
        with_matrix("q/hidden.weight", columns=31, values=torch.zeros(3, 31)),
        "hidden.weight has 31 columns, expected 32",
    ),
    "a rank above all": (
        with_matrix("q/hidden.weight", rows=13, values=torch.zeros(13, 32)),
        "hidden.weight has rank 13, above 12",
    ),
    "values of another shape": (with_matrix("p/hidden.weight", values=torch.zeros(3, 11)), "p/hidden.weight has shape"),
    "values of another type": (
        with_matrix("p/hidden.weight", values=torch.zeros(3, 12).bfloat16()),
        "p/hidden.weight has type torch.bfloat16",
    ),
    "a mask for other values": (
        with_matrix(
            "p/hidden.weight", mask=torch.tensor([255, 255, 0, 0, 0], dtype=torch.uint8), values=torch.zeros(15)
        ),
        "p/hidden.weight has shape (15,), expected (16,)",
    ),
    "a mask of two dimensions": (
        with_matrix("p/hidden.weight", mask=torch.zeros(1, 5, dtype=torch.uint8), values=torch.zeros(0)),
        "p/hidden.weight has a mask of shape (1, 5)",
    ),
    "scales of another precision": (
        with_matrix("p/hidden.weight", scale=torch.ones(3)),
        "p/hidden.weight has scales that do not fit float32",
    ),
    "a dense weight of another shape": (
        both(dense("hidden.weight", HIDDEN), with_slot("hidden.weight", shape=(32, 12))),
        "hidden.weight has shape (32, 12)",
    ),
    "a dense weight of another type": (
        both(dense("hidden.weight", HIDDEN), with_slot("hidden.weight", dtype="F64")),
        "hidden.weight has type torch.float64",
    ),
    "dense values of another type": (
        dense("hidden.weight", HIDDEN, torch.float64),
        "dense/hidden.weight has type torch.float64",
    ),
    "a weight that is neither": (without_scales, "neither adapted nor dense"),
    "no bias": (with_plain("hidden.bias", None), "it lacks hidden.bias"),
    "a bias of another shape": (with_plain("hidden.bias", torch.zeros(13)), "hidden.bias has shape (13,)"),
    "a bias that is not finite": (with_plain("hidden.bias", torch.full((12,), torch.inf)), "hidden.bias holds NaN"),
    "a head of other classes": (with_plain("fc.bias", torch.zeros(4)), "fc.bias has shape (4,), expected (3,)"),
    "what no task can own": (with_plain("hidden.weight", torch.zeros(HIDDEN)), "it holds hidden.weight"),
    "a prediction for half of the weights": (
        lambda delta: dataclasses.replace(delta, recovered=dict(list(delta.recovered.items())[:1])),
        "what it recovered is not that of the adapted weights",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_delta_that_does_not_fit_is_refused_for_what_does_not(case: str, delta: Delta, base: Base) -> None:
    change, words = MISFITS[case]
    with pytest.raises(DamagedError) as caught:
        check(change(delta), base, "the file")
    assert str(caught.value).startswith(f"the file: {words}" if not words.startswith("neither") else "the file: ")
    assert words in str(caught.value)


# ---- tasks whose parts have precisions of their own -----------------------------------------------------------------


@pytest.fixture
def parts(base: Base) -> Delta:
    """A head, and components of one weight in four bits."""
    generator = torch.Generator().manual_seed(0)

    def drawn_tensor(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    stored: Parts = {
        "plain/fc.weight": (drawn_tensor(3, 12), "int8"),
        "plain/fc.bias": (drawn_tensor(3), "float32"),
        "r/hidden.weight": (1 + 0.1 * drawn_tensor(12), "int8"),
        "p/hidden.weight": (0.1 * drawn_tensor(12, 3), "int4"),
        "q/hidden.weight": (0.1 * drawn_tensor(3, 32), "int4"),
    }
    description = Description(task="parts", classes=3, view="full")
    return Delta.of_parts(description, base.layout, base.tensors, stored, recovered(base))


def with_part(key: str, like: str) -> Change:
    """Another part with the numbers of one that is there."""

    def change(delta: Delta) -> Delta:
        coded = {**delta.coded, key: delta.coded[like]}
        return dataclasses.replace(delta, coded=coded, precisions={**delta.precisions, key: delta.precisions[like]})

    return change


MISFITTING_PARTS: dict[str, tuple[Change, str]] = {
    "packed values of another shape": (
        with_matrix("q/hidden.weight", values=torch.zeros(3, 15, dtype=torch.uint8)),
        "q/hidden.weight has shape (3, 15), expected (3, 16)",
    ),
    "packed values of another type": (
        with_matrix("q/hidden.weight", values=torch.zeros(3, 16)),
        "q/hidden.weight has type torch.float32",
    ),
    "scales of groups of another type": (
        with_matrix("q/hidden.weight", scale=torch.ones(3, 1)),
        "scale of q/hidden.weight has type torch.float32",
    ),
    "four bits with a mask": (
        with_matrix("q/hidden.weight", mask=torch.zeros(12, dtype=torch.uint8)),
        "q/hidden.weight has parts that do not fit int4",
    ),
    "values of eight bits of another type": (
        with_matrix("r/hidden.weight", values=torch.zeros(1, 12)),
        "r/hidden.weight has type torch.float32",
    ),
    "row scales of what is not adapted": (
        with_part("r/hidden.bias", like="r/hidden.weight"),
        "it holds r/hidden.bias, which a task cannot own",
    ),
    "a part of what is not there": (
        with_part("plain/nowhere", like="plain/fc.bias"),
        "it holds plain/nowhere, which a task cannot own",
    ),
}


@pytest.mark.parametrize("case", MISFITTING_PARTS)
def test_parts_that_do_not_fit_are_refused_for_what_does_not(case: str, parts: Delta, base: Base) -> None:
    assert check(parts, base, "the file").precisions == parts.precisions
    change, words = MISFITTING_PARTS[case]
    with pytest.raises(DamagedError) as caught:
        check(change(parts), base, "the file")
    assert str(caught.value).startswith(f"the file: {words}")


def test_a_small_weight_that_an_earlier_version_wrote_as_it_is_fits() -> None:
    method = dataclasses.replace(Halrp.budget(growth_per_task=0.9, rest="float32"), start=WarmUp())
    learner = Learner(drawn(MixedTypes), recipe=FAST, method=method, base="given")
    task, base = learner.learn("t", tiny_task("mlp", 1)), learner._committed.ready
    assert "narrow.weight" in task.dense
    coded = {key: matrix for key, matrix in task.coded.items() if key != "dense/narrow.weight"}
    earlier = with_plain("narrow.weight", task.owned["narrow.weight"])(dataclasses.replace(task, coded=coded))
    fitted = check(earlier, base, "the file")
    assert torch.equal(fitted.owned["narrow.weight"], task.owned["narrow.weight"])


def test_a_dense_weight_of_the_right_shape_and_type_fits(delta: Delta, base: Base) -> None:
    changed = dense("hidden.weight", HIDDEN)(delta)
    assert set(check(changed, base, "the file").dense) == {"hidden.weight"}


def test_a_dense_weight_that_is_not_finite_is_refused(delta: Delta, base: Base) -> None:
    changed = with_matrix("dense/hidden.weight", values=torch.full(HIDDEN, torch.nan))(
        dense("hidden.weight", HIDDEN)(delta)
    )
    with pytest.raises(DamagedError, match=r"dense/hidden.weight holds NaN or infinity"):
        check(changed, base, "the file")


def test_a_delta_of_another_base_is_refused_by_its_fingerprint(delta: Delta, base: Base) -> None:
    layout = dataclasses.replace(delta.layout, fingerprint="0123456789abcdef" * 4)
    with pytest.raises(WrongBaseError, match="fingerprint 0123456789ab…, not to"):
        check(dataclasses.replace(delta, layout=layout), base, "the file")


def test_the_task_of_the_base_has_the_classes_of_its_head(base: Base) -> None:
    classes = base.task.classes
    first = Delta(task="first", classes=classes, layout=base.layout)
    assert check(first, base, "the file").classes == classes
    with pytest.raises(DamagedError, match="not those of the base's head"):
        check(dataclasses.replace(first, classes=classes + 1), base, "the file")


def test_tasks_share_the_layout_of_the_base_and_another_one_stays(delta: Delta, base: Base) -> None:
    copy = dataclasses.replace(delta.layout, slots=tuple(Slot(*slot) for slot in delta.layout.slots))
    assert copy is not base.layout
    assert check(dataclasses.replace(delta, layout=copy), base, "the file").layout is base.layout
    more = dataclasses.replace(copy, slots=(*copy.slots, Slot("zzz", "buffer", "other", "F32", (1,))))
    assert check(dataclasses.replace(delta, layout=more), base, "the file").layout is more


def test_what_fits_is_a_copy_in_memory_of_its_own(delta: Delta, base: Base) -> None:
    fitted = check(delta, base, "the file")
    for name, tensor in held(delta.plain).items():
        assert torch.equal(held(fitted.plain)[name], tensor)
        assert address(held(fitted.plain)[name]) != address(tensor)


def test_a_kernel_has_its_channels_last_where_the_base_has() -> None:
    method = dataclasses.replace(Halrp.budget(growth_per_task=0.9, rest="float32"), start=WarmUp())
    learner = Learner(drawn(lambda: ConvHead(torch.float32)), head="fc", recipe=FAST, method=method, base="given")
    task, base = learner.learn("t", tiny_task("conv", 1)), learner._committed.ready
    assert task.plain["fc.weight"].dim() == 4
    for last in (True, False):
        fitted = task_file.load(
            task_file.write(task), Base(base.module, base.plan, last, counts_head=base.counts_head), "the file"
        )
        assert fitted.plain["fc.weight"].is_contiguous(memory_format=torch.channels_last) == last
