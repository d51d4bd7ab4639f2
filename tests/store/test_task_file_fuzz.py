"""Task files that were changed, by accident or by an enemy: one typed error, or a sound task.

The changes reach the deepest checks, as if every checksum had been put right: then the file may turn out to be a task
after all (another number in a factor), and what is read must be usable and write the same bytes again.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halrp import Learner
from halrp.errors import DamagedError, FormatError, StoreError, WrongBaseError
from halrp.model.codec import Coded
from halrp.model.delta import Recovered
from halrp.model.layout import Layout
from halrp.store import task_file
from halrp.store.manifest import Manifest
from tests.store.hostile import JSON, contents, fuzz_task_files, mutated, survives

Edit: TypeAlias = Callable[[dict[str, Any], dict[str, Any], bytearray], None]
"""A change to a task file's header, facts and data."""


# ---- changes of bytes -------------------------------------------------------------------------------------------


def test_a_task_file_with_changed_bytes_is_refused_or_sound(example: tuple[Path, Learner]) -> None:
    folder, learner = example
    assert all(survives(content, learner._committed.ready) for content in contents(folder))
    accepted = fuzz_task_files(contents(folder), learner._committed.ready, 300, seed=1)
    assert accepted < 150


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_very_many_changes_of_a_task_file_are_refused_or_sound(seed: int, example: tuple[Path, Learner]) -> None:
    folder, learner = example
    fuzz_task_files(contents(folder), learner._committed.ready, 3000, seed)


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=100)
def test_foreign_bytes_are_neither_a_task_nor_a_manifest(content: bytes) -> None:
    with pytest.raises(DamagedError):
        task_file.read(content, {}, "file")
    with pytest.raises(DamagedError):
        task_file.read(struct.pack("<Q", len(content)) + content, {}, "file")
    with pytest.raises(DamagedError):
        Manifest.parse(content, "file")


def apart(content: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """A task file's header, facts and data."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    return header, json.loads(header.pop("__metadata__")["halrp"]), content[8 + length :]


def joined(header: dict[str, Any], facts: Any, data: bytes) -> bytes:
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    head = json.dumps({"__metadata__": {"halrp": text}, **header}, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + data


FACTS = ["base", "class_names", "classes", "format", "layout", "precision", "task", "view"]
FACTS += ["objective", "autocast", "parents", "provenance", "provenance.recipe", "objective.name"]


@given(st.sampled_from(FACTS), JSON, st.integers(0, 2))
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_fact_of_any_other_type_is_refused_or_sound(
    example: tuple[Path, Learner], key: str, value: Any, number: int
) -> None:
    folder, learner = example
    header, facts, data = apart(contents(folder)[number])
    first, _, rest = key.partition(".")
    if rest:
        facts[first] = {**facts.get(first, {}), rest: value}
    else:
        facts[first] = value
    survives(joined(header, facts, data), learner._committed.ready)


# ---- changes of meaning -------------------------------------------------------------------------------------------


def _set(*keys: str, to: Any) -> Edit:
    """Set a fact, or with the first key "header" an entry of the header."""

    def edit(header: dict[str, Any], facts: dict[str, Any], data: bytearray) -> None:
        values = header if keys[0] == "header" else facts
        names = keys[1:] if keys[0] == "header" else keys
        for name in names[:-1]:
            values = values.setdefault(name, {})
        values[names[-1]] = to

    return edit


def _rename(old: str, new: str) -> Edit:
    def edit(header: dict[str, Any], facts: dict[str, Any], data: bytearray) -> None:
        renamed = {new if name == old else name: entry for name, entry in header.items()}
        header.clear()
        header.update(renamed)

    return edit


def _index(position: int, value: int) -> Edit:
    """Set an entry of the index: ranks first, then flags."""

    def edit(header: dict[str, Any], facts: dict[str, Any], data: bytearray) -> None:
        start, end = header["index"]["data_offsets"]
        at = range(start, end, 4)[position]
        data[at : at + 4] = struct.pack("<i", value)

    return edit


def _cut(name: str) -> Edit:
    """Leave out the last number of a tensor."""

    def edit(header: dict[str, Any], facts: dict[str, Any], data: bytearray) -> None:
        start, end = header[name]["data_offsets"]
        width = (end - start) // header[name]["shape"][0]
        del data[end - width : end]
        header[name]["shape"] = [header[name]["shape"][0] - 1]
        for entry in header.values():
            entry["data_offsets"] = [offset - width if offset >= end else offset for offset in entry["data_offsets"]]

    return edit


HIDDEN = 2
"""The position of hidden.weight among the adapted weights: conv, features.0, hidden."""
HOSTILE: dict[str, tuple[Edit, type[StoreError], str]] = {
    "format of the future": (_set("format", to=4), FormatError, "format 4"),
    "format 3 with the index of format 2": (_set("format", to=3), DamagedError, "its index is too short"),
    "format as text": (_set("format", to="2"), FormatError, "format '2'"),
    "format as a float": (_set("format", to=2.0), DamagedError, "not written as"),
    "another base": (_set("base", to="0" * 64), WrongBaseError, "fingerprint"),
    "no base": (_set("base", to=None), DamagedError, "fingerprint"),
    "another layout": (_set("layout", to="0" * 16), WrongBaseError, "layout"),
    "no layout": (_set("layout", to=None), DamagedError, "layout"),
    "no task": (_set("task", to=""), DamagedError, "no name"),
    "task is a list": (_set("task", to=["t"]), DamagedError, "no name"),
    "no classes": (_set("classes", to=0), DamagedError, "classes"),
    "too many classes": (_set("classes", to=2**39), DamagedError, "fc"),
    "one class more": (_set("classes", to=4), DamagedError, ""),
    "too few class names": (_set("class_names", to=["a"]), DamagedError, "class names"),
    "unknown precision": (_set("precision", to="int4"), DamagedError, "precision"),
    "another precision": (_set("precision", to="bfloat16"), DamagedError, ""),
    "a default that is written": (_set("precision", to="float32"), DamagedError, "not written as"),
    "unknown view": (_set("view", to="sum"), DamagedError, "view"),
    "another view": (_set("view", to="full"), DamagedError, ""),
    "unknown autocast": (_set("autocast", to="int8"), DamagedError, "forward passes"),
    "objective without a name": (_set("objective", to={}), DamagedError, "objective"),
    "parents that are not hashes": (_set("parents", to=["mother"]), DamagedError, "content hashes"),
    "provenance is a text": (_set("provenance", to="well"), DamagedError, "provenance"),
    "provenance holds NaN": (_set("provenance", "seed", to=float("nan")), DamagedError, ""),
    "an unknown field": (_set("extra", to=1), FormatError, "unknown fields: extra"),
    "rank below zero": (_index(HIDDEN, -2), DamagedError, "rank -2, below 0"),
    "rank above all": (_index(HIDDEN, 13), DamagedError, "rank 13, above 12"),
    "rank of an enemy": (_index(HIDDEN, 2**31 - 1), DamagedError, "rank"),
    "one rank more": (_index(HIDDEN, 4), DamagedError, "more numbers of type F32"),
    "one rank less": (_index(HIDDEN, 2), DamagedError, "too many"),
    "dense without its numbers": (_index(HIDDEN, -1), DamagedError, ""),
    "flags without a meaning": (_index(-1, -1), DamagedError, ""),
    "the last flag": (_index(-1, -(2**31)), DamagedError, "without a meaning"),
    "a short index": (_cut("index"), DamagedError, "index is too short"),
    "a short prediction": (_cut("recovered"), DamagedError, "three numbers"),
    "too few numbers": (_cut("F32"), DamagedError, "more numbers of type F32"),
    "too few counters": (_cut("I64"), DamagedError, "more numbers of type I64"),
    "no index": (_rename("index", "indices"), DamagedError, "no tensor 'index'"),
    "an unknown tensor": (_rename("recovered", "predicted"), DamagedError, "unknown tensor"),
    "traversal in a key": (_rename("recovered", "probe/../../x"), DamagedError, "strange name"),
    "a probe without outputs": (_rename("recovered", "probe/x"), DamagedError, "no outputs"),
    "another type": (_set("header", "recovered", "dtype", to="I32"), DamagedError, "not float32"),
    "a type we do not have": (_set("header", "recovered", "dtype", to="F4"), DamagedError, "unknown type"),
    "another shape": (_set("header", "recovered", "shape", to=[3, 3]), DamagedError, "not written as"),
    "a shape of zeros": (_set("header", "recovered", "shape", to=[0, 2**39]), DamagedError, "offsets"),
    "a shape beyond any": (_set("header", "recovered", "shape", to=[2**62, 2**62]), DamagedError, "bad shape"),
    "a negative shape": (_set("header", "recovered", "shape", to=[-3, -3]), DamagedError, "bad shape"),
    "offsets that overlap": (_set("header", "recovered", "data_offsets", to=[0, 36]), DamagedError, "offsets"),
    "offsets beyond the end": (_set("header", "recovered", "data_offsets", to=[0, 2**63]), DamagedError, "offsets"),
}


def edited(content: bytes, case: str) -> bytes:
    header, facts, data = apart(content)
    changed = bytearray(data)
    HOSTILE[case][0](header, facts, changed)
    return joined(header, facts, bytes(changed))


@pytest.mark.parametrize("case", HOSTILE)
def test_a_task_file_that_lies_is_refused_for_what_it_holds(case: str, example: tuple[Path, Learner]) -> None:
    folder, learner = example
    _, kind, words = HOSTILE[case]
    with pytest.raises(StoreError) as caught:
        task_file.load(edited(contents(folder)[-1], case), learner._committed.ready, "the file")
    assert type(caught.value) is kind
    assert words in str(caught.value)
    assert str(caught.value).startswith("the file")


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("part", ["r", "p", "scale", "fc.bias", "recovered", "probe", "statistics"])
def test_numbers_that_are_not_finite_are_refused(part: str, value: float, example: tuple[Path, Learner]) -> None:
    _, learner = example

    def spoilt(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone()
        changed.view(-1)[0] = value
        return changed

    def spoilt_matrix(matrix: Coded, name: str) -> Coded:
        return dataclasses.replace(matrix, parts={**matrix.parts, name: spoilt(matrix.parts[name])})

    tried = 0
    for delta in list(learner.tasks.values())[1:]:
        changes: dict[str, Any] = {}
        keys = [k for k, m in delta.coded.items() if k.startswith(f"{part}/") and m.parts["values"].is_floating_point()]
        scaled = [key for key, matrix in delta.coded.items() if "scale" in matrix.parts and matrix.rows]
        if part == "r" and delta.scales:
            name, (r, s) = next(iter(delta.scales.items()))
            changes["scales"] = {**delta.scales, name: (spoilt(r), s)}
        elif part == "scale" and scaled:
            changes["coded"] = {**delta.coded, scaled[0]: spoilt_matrix(delta.coded[scaled[0]], "scale")}
        elif keys and delta.coded[keys[0]].parts["values"].numel():
            changes["coded"] = {**delta.coded, keys[0]: spoilt_matrix(delta.coded[keys[0]], "values")}
        elif part == "fc.bias":
            changes["plain"] = {**delta.plain, part: spoilt(delta.plain[part])}
        elif part == "recovered":
            changes["recovered"] = dict.fromkeys(delta.recovered, Recovered(value, 0.0, 0.0))
        elif part in ("probe", "statistics"):
            changes[part] = {"outputs": spoilt(torch.zeros(2, 3))}
        if changes:
            tried += 1
            content = task_file.write(dataclasses.replace(delta, **changes))
            with pytest.raises(DamagedError, match=r"NaN or infinity|not finite"):
                task_file.load(content, learner._committed.ready, "file")
    assert tried


def test_a_mask_must_mark_as_many_entries_as_there_are(example: tuple[Path, Learner]) -> None:
    _, learner = example
    delta = learner.tasks["sparse"]
    masked = [key for key, matrix in delta.coded.items() if "mask" in matrix.parts]
    assert masked
    for key in masked:
        mask = delta.coded[key].parts["mask"].clone()
        mask[0] ^= 1
        matrix = dataclasses.replace(delta.coded[key], parts={**delta.coded[key].parts, "mask": mask})
        content = task_file.write(dataclasses.replace(delta, coded={**delta.coded, key: matrix}))
        with pytest.raises(DamagedError, match="numbers of type BF16"):
            task_file.load(content, learner._committed.ready, "file")


def test_a_probe_and_statistics_come_back(example: tuple[Path, Learner]) -> None:
    _, learner = example
    delta = dataclasses.replace(
        learner.tasks["float"],
        probe={"x": torch.ones(2, 3, 8, 8), "outputs": torch.zeros(2, 3)},
        statistics={"mean": torch.arange(5.0), "count": torch.tensor(7)},
        objective={"name": "regression", "settings": {"outputs": 3}},
        autocast="bfloat16",
        parents=("0" * 64,),
    )
    content = task_file.write(delta)
    assert delta.bytes == len(content)
    read = task_file.load(content, learner._committed.ready, "file")
    assert task_file.write(read) == content
    assert torch.equal(read.statistics["mean"], torch.arange(5.0))
    assert read.statistics["count"].item() == 7
    assert read.probe["x"].shape == (2, 3, 8, 8)
    assert (read.objective["name"], read.autocast, read.parents) == ("regression", "bfloat16", ("0" * 64,))
    assert len(safetensors.torch.load(content)) == len(delta.entries)


@pytest.mark.parametrize("length", [0, 1, 2**16, 2**31, 2**40, 2**63, 2**64 - 1])
def test_a_header_of_any_claimed_length_is_refused(length: int, example: tuple[Path, Learner]) -> None:
    for content in (contents(example[0])[0], b"\0" * 8, b"{" * 100):
        with pytest.raises(DamagedError):
            task_file.read(struct.pack("<Q", length) + content[8:], {}, "file")


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"\x01" + bytes(7), struct.pack("<Q", 3) + b"{}"])
def test_a_header_that_is_longer_than_the_file_is_named(content: bytes) -> None:
    with pytest.raises(DamagedError, match="its header is longer than the file"):
        task_file.read(content, {}, "file")


def test_a_file_without_the_numbers_of_a_type_is_refused_even_for_one_number(example: tuple[Path, Learner]) -> None:
    folder, learner = example
    header, facts, data = apart(contents(folder)[-1])
    start, end = header.pop("I64")["data_offsets"]
    for entry in header.values():
        entry["data_offsets"] = [at - (end - start) if at >= end else at for at in entry["data_offsets"]]
    content = joined(header, facts, data[:start] + data[end:])
    with pytest.raises(DamagedError, match="needs 1 more numbers of type I64, the file has 0"):
        task_file.load(content, learner._committed.ready, "file")


def test_a_second_flag_of_a_dense_weight_is_refused(example: tuple[Path, Learner]) -> None:
    _, learner = example
    delta = learner.tasks["float"]
    coded = {key: matrix for key, matrix in delta.coded.items() if not key.endswith("/hidden.weight")}
    coded["dense/hidden.weight"] = Coded(12, 32, {"values": torch.ones(12, 32)})
    scales = {name: pair for name, pair in delta.scales.items() if name != "hidden.weight"}
    content = task_file.write(dataclasses.replace(delta, coded=coded, scales=scales))
    assert task_file.load(content, learner._committed.ready, "file").dense == ("hidden.weight",)
    header, facts, data = apart(content)
    changed = bytearray(data)
    _index(-1, -1)(header, facts, changed)
    with pytest.raises(DamagedError, match=r"hidden.weight has a flag without a matrix"):
        task_file.load(joined(header, facts, bytes(changed)), learner._committed.ready, "file")


def test_a_task_without_predictions_comes_back_without(example: tuple[Path, Learner]) -> None:
    _, learner = example
    delta = dataclasses.replace(learner.tasks["float"], recovered={})
    assert task_file.load(task_file.write(delta), learner._committed.ready, "file").recovered == {}


def test_a_truth_value_is_zero_or_one(example: tuple[Path, Learner]) -> None:
    _, learner = example
    probe = {"outputs": torch.zeros(1, 3), "mask": torch.tensor([True, False])}
    content = task_file.write(dataclasses.replace(learner.tasks["float"], probe=probe))
    read = task_file.load(content, learner._committed.ready, "file")
    assert read.probe["mask"].tolist() == [True, False]
    header, facts, data = apart(content)
    at = header["probe/mask"]["data_offsets"][0]
    with pytest.raises(DamagedError, match="neither 0 nor 1"):
        task_file.load(joined(header, facts, data[:at] + b"\x02" + data[at + 1 :]), learner._committed.ready, "file")


def test_facts_nested_without_end_are_refused(example: tuple[Path, Learner]) -> None:
    header, facts, data = apart(contents(example[0])[0])
    text = json.dumps(facts)[:-1] + ', "deep": ' + "[" * 200_000 + "]" * 200_000 + "}"
    head = json.dumps({"__metadata__": {"halrp": text}, **header}).encode()
    with pytest.raises(DamagedError, match="RecursionError"):
        task_file.read(struct.pack("<Q", len(head)) + head + data, {}, "file")
    with pytest.raises(DamagedError, match="RecursionError"):
        Manifest.parse(b"[" * 200_000, "manifest")


def test_a_file_that_names_a_tensor_twice_is_refused(example: tuple[Path, Learner]) -> None:
    content = contents(example[0])[-1]
    length = int.from_bytes(content[:8], "little")
    head = content[8 : 8 + length].rstrip()
    entry = json.dumps(json.loads(head)["recovered"], separators=(",", ":"))
    for other in (entry, '{"dtype":"F32","shape":[3],"data_offsets":[0,12]}'):
        twice = head[:-1] + f',"recovered":{other}}}'.encode()
        with pytest.raises(DamagedError):
            task_file.load(
                struct.pack("<Q", len(twice)) + twice + content[8 + length :], example[1]._committed.ready, "file"
            )


# ---- memory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["rank of an enemy", "a shape beyond any", "a shape of zeros", "too many classes"])
def test_a_claim_of_2_to_the_39_entries_costs_no_memory(case: str, example: tuple[Path, Learner]) -> None:
    folder, learner = example
    content = edited(contents(folder)[-1], case)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        with pytest.raises(StoreError):
            task_file.load(content, learner._committed.ready, "file")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(content) + 2**20
    # Tensors are not traced, but would show in the peak of the process (in KiB here).
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**14


def test_a_layout_that_claims_2_to_the_39_entries_costs_no_memory(example: tuple[Path, Learner]) -> None:
    _, learner = example
    for name in ("sparse", "t1", "float"):
        delta = learner.tasks[name]
        slots = tuple(
            slot._replace(shape=(2**39, 2**39)) if slot.kind == "adapted" else slot for slot in delta.layout.slots
        )
        layout = dataclasses.replace(delta.layout, slots=slots)
        content = task_file.write(dataclasses.replace(delta, layout=layout))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(StoreError):
            task_file.read(content, {layout.digest: layout}, "file")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**14


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
@settings(deadline=None, max_examples=100)
def test_foreign_bytes_are_no_layout(content: bytes) -> None:
    with pytest.raises((DamagedError, FormatError)):
        Layout.parse(content, "file")


def test_a_layout_with_any_changed_byte_is_refused_or_another_layout(example: tuple[Path, Learner]) -> None:
    layout = example[1]._committed.ready.layout
    assert Layout.parse(layout.content, "file") == layout
    random = Random(9)
    for _ in range(300):
        changed = mutated(layout.content, random)
        with suppress(DamagedError, FormatError):
            assert Layout.parse(changed, "file").content == changed
