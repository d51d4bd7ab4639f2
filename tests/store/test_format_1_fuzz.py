"""Task files of format 1 that were changed, by accident or by an enemy: one typed error, or a sound task.

The files are those that the last version which wrote format 1 left in the corpus `v1-rich`.
"""

from __future__ import annotations

import json
import resource
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halrp import Learner, Store
from halrp.errors import DamagedError, FormatError, StoreError, WrongBaseError
from halrp.model.base import Base
from halrp.store import format_1, task_file
from halrp.store.format_1 import PREDICTED
from tests.store.corpus.make import HERE, ConvNet
from tests.store.hostile import JSON, fuzz_task_files, replaced, survives

STORE = HERE / "v1-rich" / "store"
FLOAT = "float32, kernel means"
"""A task with float32 factors everywhere."""
Edit: TypeAlias = Callable[[dict[str, Any], dict[str, Any]], None]
"""A change to a task file's header and facts."""


def contents() -> dict[str, bytes]:
    """The files of the tasks that own something, by name."""
    store = Store(STORE)
    return {name: store.content(entry) for name, entry in store.manifest().tasks.items() if name != "base"}


FILES = contents()


@pytest.fixture(scope="module")
def base() -> Base:
    """The base of the files."""
    return Learner.load(STORE, ConvNet())._committed.ready


def split(content: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """A task file's header, facts and data."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    return header, json.loads(header["__metadata__"]["halrp"]), content[8 + length :]


def joined(header: dict[str, Any], facts: Any, data: bytes) -> bytes:
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return file_with({**header, "__metadata__": {"halrp": text}}, data)


def file_with(header: dict[str, Any], data: bytes) -> bytes:
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def load(content: bytes, base: Base) -> None:
    task_file.load(content, base, "the file")


# ---- changes of bytes -------------------------------------------------------------------------------------------


def test_a_file_with_changed_bytes_is_refused_or_sound(base: Base) -> None:
    files = list(FILES.values())
    assert all(survives(content, base) for content in files)
    assert fuzz_task_files(files, base, 200, seed=8) < 100


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_very_many_changes_of_a_file_are_refused_or_sound(seed: int, base: Base) -> None:
    fuzz_task_files(list(FILES.values()), base, 3000, seed)


FACTS = [
    "base",
    PREDICTED,
    "class_names",
    "classes",
    "columns",
    "format",
    "how",
    "precision",
    "ranks",
    "shapes",
    "task",
]
FACTS += ["view", "types", "types.conv.weight", "how.recipe", "ranks.conv.weight", "columns.conv.weight"]
FACTS += [f"{PREDICTED}.conv.weight", "shapes.conv.weight"]


@given(st.sampled_from(FACTS), JSON, st.sampled_from(sorted(FILES)))
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_fact_of_any_other_type_is_refused_or_sound(base: Base, key: str, value: Any, name: str) -> None:
    header, facts, data = split(FILES[name])
    first, _, rest = key.partition(".")
    facts[first] = {**facts[first], rest: value} if rest else value
    survives(joined(header, facts, data), base)


# ---- changes of meaning -------------------------------------------------------------------------------------------


def _set(*keys: str, to: Any) -> Edit:
    """Set a fact, or with the first key "header" an entry of the header."""

    def edit(header: dict[str, Any], facts: dict[str, Any]) -> None:
        values, names = _values(header, facts, keys)
        values[names[-1]] = to

    return edit


def _drop(*keys: str) -> Edit:
    def edit(header: dict[str, Any], facts: dict[str, Any]) -> None:
        values, names = _values(header, facts, keys)
        del values[names[-1]]

    return edit


def _values(
    header: dict[str, Any], facts: dict[str, Any], keys: tuple[str, ...]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    values, names = (header, keys[1:]) if keys[0] == "header" else (facts, keys)
    for name in names[:-1]:
        values = values[name]
    return values, names


def _rename(old: str, new: str) -> Edit:
    def edit(header: dict[str, Any], facts: dict[str, Any]) -> None:
        header[new] = header.pop(old)

    return edit


HOSTILE: dict[str, tuple[Edit, type[StoreError], str]] = {
    "format of the future": (_set("format", to=4), FormatError, "format 4"),
    "format 2 in the layout of format 1": (_set("format", to=2), FormatError, "unknown fields"),
    "format as truth": (_set("format", to=True), DamagedError, "not written as"),
    "format as a float": (_set("format", to=1.0), DamagedError, "not written as"),
    "another base": (_set("base", to="0" * 64), WrongBaseError, "fingerprint"),
    "no base": (_set("base", to=None), DamagedError, "fingerprint"),
    "no task": (_set("task", to=""), DamagedError, "no name"),
    "task is a list": (_set("task", to=["t"]), DamagedError, "no name"),
    "no classes": (_set("classes", to=0), DamagedError, "classes"),
    "too many classes": (_set("classes", to=2**39), DamagedError, "fc"),
    "too few class names": (_set("class_names", to=["a"]), DamagedError, "class names"),
    "unknown precision": (_set("precision", to="int4"), DamagedError, "precision"),
    "another precision": (_set("precision", to="bfloat16"), DamagedError, "expected torch.bfloat16"),
    "unknown view": (_set("view", to="sum"), DamagedError, "view"),
    "another view": (_set("view", to="full"), DamagedError, "columns"),
    "how is a text": (_set("how", to="well"), DamagedError, "how it was learned"),
    "how holds NaN": (_set("how", "seed", to=float("nan")), DamagedError, "not JSON compliant"),
    "an unknown fact": (_set("extra", to=1), DamagedError, "not written as"),
    "a fact less": (_drop("how"), DamagedError, "KeyError"),
    "recovered infinity": (_set(PREDICTED, "hidden.weight", to=[1e999, 0.0, 0.0]), DamagedError, "recovered"),
    "recovered beyond floats": (_set(PREDICTED, "hidden.weight", to=[10**400, 0.0, 0.0]), DamagedError, "recovered"),
    "recovered in whole numbers": (_set(PREDICTED, "hidden.weight", to=[1, 0.0, 0.0]), DamagedError, "recovered"),
    "recovered as truth": (_set(PREDICTED, "hidden.weight", to=[0.0, 0.0, True]), DamagedError, "recovered"),
    "recovered two numbers": (_set(PREDICTED, "hidden.weight", to=[0.0, 0.0]), DamagedError, "recovered"),
    "recovered a text": (_set(PREDICTED, "hidden.weight", to="abc"), DamagedError, "recovered"),
    "recovered of no weight": (_set(PREDICTED, "other", to=[0.0, 0.0, 0.0]), DamagedError, "adapted weights"),
    "recovered of one weight less": (_drop(PREDICTED, "hidden.weight"), DamagedError, "adapted weights"),
    "rank below zero": (_set("ranks", "hidden.weight", to=-1), DamagedError, "whole number"),
    "rank above all": (_set("ranks", "hidden.weight", to=33), DamagedError, "rank 33, above 32"),
    "rank of an enemy": (_set("ranks", "hidden.weight", to=2**39), DamagedError, "rank"),
    "rank not whole": (_set("ranks", "hidden.weight", to=1.0), DamagedError, "whole number"),
    "rank beyond any": (_set("ranks", "hidden.weight", to=2**70), DamagedError, "whole number"),
    "columns of an enemy": (_set("columns", "hidden.weight", to=2**39), DamagedError, "columns"),
    "unknown weight": (_set("ranks", "other.weight", to=1), DamagedError, "different weights"),
    "shape of an enemy": (_set("shapes", "hidden.weight", to=[2**39, 2**39]), DamagedError, "different weights"),
    "shape with a zero": (_set("shapes", "hidden.weight", to=[0, 4]), DamagedError, "positive whole numbers"),
    "shape as a text": (_set("shapes", "hidden.weight", to="44"), DamagedError, "positive whole numbers"),
    "unknown autocast": (_set("how", "recipe", to={"autocast": "torch.int8"}), DamagedError, "forward passes"),
    "shape of nothing": (_set("shapes", "hidden.weight", to=[]), DamagedError, "shape"),
    "types of no weight": (_set("types", "hidden.weight", to="torch.float32"), DamagedError, "different weights"),
    "a type that is a list": (_set("types", to=[]), DamagedError, "keys"),
    "lacks r": (_drop("header", "r/hidden.weight"), DamagedError, ""),
    "lacks a factor": (_rename("p/hidden.weight.values", "p/hidden.weight.value"), DamagedError, "no values"),
    "lacks the head": (_rename("plain/fc.bias", "plain/fc.other"), DamagedError, "lacks fc.bias"),
    "an unknown tensor": (_rename("plain/fc.bias", "fc.bias"), DamagedError, "unknown tensors: fc.bias"),
    "a tensor of another name": (_rename("plain/fc.bias", "plain/hidden.weight"), DamagedError, "lacks"),
    "traversal in a key": (_rename("plain/fc.bias", "plain/../../fc.bias"), DamagedError, "lacks fc.bias"),
    "scales without int8": (_rename("plain/hidden.bias", "p/hidden.weight.scale"), DamagedError, "do not fit"),
    "another type": (_set("header", "plain/fc.bias", "dtype", to="I32"), DamagedError, "type torch.int32"),
    "a type we do not have": (_set("header", "plain/fc.bias", "dtype", to="F4"), DamagedError, ""),
    "another shape": (_set("header", "plain/fc.bias", "shape", to=[5, 1]), DamagedError, "shape (5, 1)"),
    "a shape of zeros": (_set("header", "plain/fc.bias", "shape", to=[0, 2**62, 2**62]), DamagedError, ""),
    "offsets that overlap": (_set("header", "plain/fc.bias", "data_offsets", to=[0, 20]), DamagedError, ""),
    "offsets beyond the end": (_set("header", "plain/fc.bias", "data_offsets", to=[0, 2**63]), DamagedError, ""),
}


def edited(case: str) -> bytes:
    header, facts, data = split(FILES[FLOAT])
    HOSTILE[case][0](header, facts)
    return joined(header, facts, data)


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_that_lies_is_refused_for_what_it_holds(case: str, base: Base) -> None:
    _, kind, words = HOSTILE[case]
    with pytest.raises(StoreError) as caught:
        load(edited(case), base)
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert str(caught.value).startswith("the file")


@pytest.mark.parametrize("case", ["another base", "rank above all", "lacks r"])
def test_a_file_that_lies_is_refused_through_the_folder(case: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(STORE, tmp_path / "store"))
    replaced(folder, FLOAT, edited(case))
    with pytest.raises(HOSTILE[case][1]):
        Learner.load(folder, ConvNet())


def test_a_dense_weight_of_another_shape_or_type_is_refused(base: Base) -> None:
    for key, value, words in (
        ("shapes", [16, 16, 9], "has shape"),
        ("shapes", [2**39, 2**39], "has shape"),
        ("types", "torch.float64", "has type torch.float64"),
        ("types", "torch.int8", "floating"),
    ):
        header, facts, data = split(FILES["bfloat16, dense"])
        facts[key]["conv.weight"] = value
        with pytest.raises(DamagedError, match=words):
            load(joined(header, facts, data), base)


@pytest.mark.parametrize("part", ["r/", "p/", "own/", "plain/fc", ".scale"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite_are_refused(part: str, value: float, base: Base) -> None:
    tried = 0
    for content in FILES.values():
        header, _, _ = split(content)
        start = 8 + int.from_bytes(content[:8], "little")
        for key, entry in header.items():
            first, end = entry.get("data_offsets", (0, 0))
            if part in key and entry["dtype"] in ("F32", "BF16") and end > first:
                tried += 1
                dtype = torch.float32 if entry["dtype"] == "F32" else torch.bfloat16
                raw = torch.tensor([value], dtype=dtype).view(torch.uint8).numpy().tobytes()
                changed = bytearray(content)
                changed[start + first : start + first + len(raw)] = raw
                with pytest.raises(DamagedError, match="NaN or infinity"):
                    load(bytes(changed), base)
    assert tried


def test_a_mask_must_mark_as_many_entries_as_there_are(base: Base) -> None:
    content = FILES["bfloat16, pruned"]
    header, _, _ = split(content)
    start = 8 + int.from_bytes(content[:8], "little")
    masks = [entry["data_offsets"][0] for key, entry in header.items() if key.endswith(".mask")]
    assert masks
    for offset in masks:
        changed = bytearray(content)
        changed[start + offset] ^= 1
        with pytest.raises(DamagedError, match="has shape"):
            load(bytes(changed), base)


@pytest.mark.parametrize("length", [0, 1, 2**16, 2**31, 2**40, 2**63, 2**64 - 1])
def test_a_header_of_any_claimed_length_is_refused(length: int) -> None:
    with pytest.raises(DamagedError):
        task_file.read(struct.pack("<Q", length) + FILES[FLOAT][8:], {}, "file")


def test_facts_nested_without_end_are_refused() -> None:
    header, facts, data = split(FILES[FLOAT])
    text = json.dumps(facts)[:-1] + ', "deep": ' + "[" * 200_000 + "]" * 200_000 + "}"
    with pytest.raises(DamagedError, match="RecursionError"):
        task_file.read(file_with({**header, "__metadata__": {"halrp": text}}, data), {}, "file")


def test_a_file_that_names_a_tensor_twice_is_refused_or_sound(base: Base) -> None:
    content = FILES[FLOAT]
    length = int.from_bytes(content[:8], "little")
    head, data = content[8 : 8 + length].rstrip(), content[8 + length :]
    same = head[:-1] + f',"plain/fc.bias":{json.dumps(json.loads(head)["plain/fc.bias"])}}}'.encode()
    survives(struct.pack("<Q", len(same)) + same + data, base)
    other = head[:-1] + b',"plain/fc.bias":{"dtype":"F32","shape":[5],"data_offsets":[0,20]}}'
    with pytest.raises(DamagedError):
        load(struct.pack("<Q", len(other)) + other + data, base)


# ---- memory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["rank of an enemy", "columns of an enemy", "shape of an enemy", "too many classes"])
def test_a_claim_of_2_to_the_39_entries_costs_no_memory(case: str, base: Base) -> None:
    content = edited(case)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        with pytest.raises(StoreError):
            load(content, base)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(content) + 2**20
    # Tensors are not traced, but would show in the peak of the process (in KiB here).
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**14


@pytest.mark.parametrize("task", ["bfloat16, pruned", "int8, pruned"])
def test_a_mask_that_claims_2_to_the_39_entries_costs_no_memory(task: str, base: Base) -> None:
    header, facts, data = split(FILES[task])
    name = next(key for key in header if key.startswith("q/") and key.endswith(".mask"))[2:-5]
    facts["ranks"][name] = facts["columns"][name] = 2**39
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DamagedError):
        load(joined(header, facts, data), base)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**14


@pytest.mark.parametrize(
    ("recipe", "precision"),
    [({"autocast": "torch.bfloat16"}, "bfloat16"), ({"autocast": None}, None), ({}, None), ("well", None)],
)
def test_the_precision_of_passes_is_that_of_the_recipe(recipe: object, precision: str | None, base: Base) -> None:
    header, facts, data = split(next(iter(FILES.values())))
    facts["how"] = {"recipe": recipe}
    assert task_file.load(joined(header, facts, data), base, "the file").autocast == precision


def test_facts_in_another_order_are_refused(base: Base) -> None:
    header, facts, data = split(next(iter(FILES.values())))
    text = json.dumps(dict(sorted(facts.items(), reverse=True)), separators=(",", ":"))
    with pytest.raises(DamagedError, match="not written as"):
        load(file_with({**header, "__metadata__": {"halrp": text}}, data), base)


def test_a_task_may_have_one_class_and_not_none() -> None:
    _, facts, _ = split(next(iter(FILES.values())))
    format_1._check(facts | {"classes": 1, "class_names": ["wren"]})
    with pytest.raises(DamagedError, match="it has 0 classes"):
        format_1._check(facts | {"classes": 0, "class_names": []})
