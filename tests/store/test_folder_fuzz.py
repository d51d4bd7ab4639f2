"""Manifests, bases and folders that were changed: a change without new checksums is always noticed, others are refused.

Where every checksum is put right, as an enemy would, the deeper checks must notice the change.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halrp import Delta, Learner, Store
from halrp.errors import DamagedError, FormatError, StoreError, WrongBaseError
from halrp.store import atomic, task_file
from halrp.store.manifest import Manifest
from tests.helpers import net
from tests.store.hostile import JSON, contents, mutated, replaced
from tests.store.stores import snapshot
from tests.store.test_task_file_fuzz import edited

# ---- the manifest -------------------------------------------------------------------------------------------------


def resealed(content: bytes, edit: Callable[[dict[str, Any]], None]) -> bytes:
    """Change a manifest and put its own checksum right."""
    facts = json.loads(content)
    del facts["sha256"]
    edit(facts)
    before = "{\n" + "".join(f" {json.dumps(name)}: {_listed(name, value)},\n" for name, value in facts.items())
    return f'{before} "sha256": "{atomic.checksum(before.encode())}"\n}}\n'.encode()


def _listed(name: str, value: Any) -> str:
    """A fact as a manifest spells it: some lists have an item per line."""
    if name in ("layouts", "tasks", "pruned") and isinstance(value, list) and value:
        return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]"
    return json.dumps(value)


def test_a_manifest_with_any_changed_byte_is_refused(example: tuple[Path, Learner]) -> None:
    content = (example[0] / "manifest.json").read_bytes()
    random = Random(3)
    for _ in range(300):
        changed = mutated(content, random)
        if changed != content:
            with pytest.raises((DamagedError, FormatError)):
                Manifest.parse(changed, "manifest")
    assert Manifest.parse(content, "manifest").content == content
    assert Manifest.parse(resealed(content, lambda _: None), "manifest").content == content


@pytest.mark.slow
def test_a_manifest_with_very_many_changes_is_refused(example: tuple[Path, Learner]) -> None:
    content = (example[0] / "manifest.json").read_bytes()
    random = Random(4)
    for _ in range(5000):
        changed = mutated(content, random)
        if changed != content:
            with pytest.raises((DamagedError, FormatError)):
                Manifest.parse(changed, "manifest")


@pytest.mark.parametrize("version", [0, 5, True, 1.0, 2.0, "2", None])
def test_a_manifest_of_another_format_is_refused(version: object, example: tuple[Path, Learner]) -> None:
    content = (example[0] / "manifest.json").read_bytes()
    with pytest.raises(FormatError, match="reads formats 1 to 4"):
        Manifest.parse(resealed(content, lambda facts: facts.update(format=version)), "manifest")


PATHS = [
    "../outside-{sha}.safetensors",
    "tasks/../../outside-{sha}.safetensors",
    "tasks/../base-{sha}.safetensors",
    "/etc/passwd",
    "/tasks/t-{sha}.safetensors",
    "tasks/t-{sha}.safetensors\n",
    "tasks\\t-{sha}.safetensors",
    "tasks//t-{sha}.safetensors",
    "tasks/T-{sha}.safetensors",
    "tasks/t-{sha}.pt",
    "tasks/t-0123456789abcdef.safetensors",
    "tasks/t\0-{sha}.safetensors",
    "manifest.json",
    "lock",
    "",
    None,
    7,
    ["tasks"],
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("field", ["base", "tasks"])
def test_a_manifest_that_names_a_file_elsewhere_is_refused(
    path: object, field: str, example: tuple[Path, Learner]
) -> None:
    content = (example[0] / "manifest.json").read_bytes()

    def edit(facts: dict[str, Any]) -> None:
        entry = facts["base"] if field == "base" else facts["tasks"][1]
        entry["file"] = path.format(sha=entry["sha256"][:16]) if isinstance(path, str) else path

    with pytest.raises(DamagedError):
        Manifest.parse(resealed(content, edit), "manifest")


@given(
    st.sampled_from(
        ["format", "halrp", "identity", "generation", "history", "head", "channels_last", "fingerprint", "counts_head"]
    )
    | st.sampled_from(["base", "layouts", "tasks", "pruned"]),
    st.sampled_from([None, "file", "sha256", "bytes", "name", "versions", "extra"]),
    JSON,
)
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_manifest_with_a_fact_of_any_other_type_is_refused_or_sound(
    example: tuple[Path, Learner], key: str, inner: str | None, value: Any
) -> None:
    content = (example[0] / "manifest.json").read_bytes()

    def edit(facts: dict[str, Any]) -> None:
        if inner is None or key not in ("base", "tasks"):
            facts[key] = value
        elif key == "base":
            facts["base"][inner] = value
        else:
            facts["tasks"][1][inner] = value

    changed = resealed(content, edit)
    with suppress(DamagedError, FormatError):
        assert Manifest.parse(changed, "manifest").content == changed


# ---- through the folder ---------------------------------------------------------------------------------------------


@pytest.fixture
def copy(example: tuple[Path, Learner], tmp_path: Path) -> Iterator[Path]:
    """The example's store, to be spoilt; the learner that made it must not notice."""
    folder, learner = example
    for name, content in snapshot(folder).items():
        path = tmp_path / "store" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    tasks = {name: task_file.write(delta) for name, delta in learner.tasks.items()}
    yield tmp_path / "store"
    assert {name: task_file.write(delta) for name, delta in learner.tasks.items()} == tasks


def restored(folder: Path, learner: Learner) -> bool:
    """Whether a learner can take over a store; if not, it is as it was."""
    base, tasks = learner._committed.base, dict(learner.tasks)
    try:
        learner._committed.restore(Store(folder))
    except StoreError:
        assert learner._committed.base is base
        assert dict(learner.tasks) == tasks
        return False
    return True


def test_changes_without_new_checksums_are_always_noticed(copy: Path) -> None:
    learner = Learner(net("conv"))
    random = Random(5)
    for name, content in snapshot(copy).items():
        if name == "lock":
            continue
        for _ in range(8):
            changed = mutated(content, random)
            (copy / name).write_bytes(changed)
            assert changed == content or not restored(copy, learner)
        for changed in (b"", content[:-1], content + b"\0", bytes(len(content))):
            (copy / name).write_bytes(changed)
            assert not restored(copy, learner)
        (copy / name).unlink()
        assert name == "manifest.json" or not restored(copy, learner)
        (copy / name).mkdir()
        assert not restored(copy, learner)
        (copy / name).rmdir()
        (copy / name).write_bytes(content)
    assert restored(copy, learner)


def test_swapped_files_are_noticed(copy: Path) -> None:
    manifest = Store(copy).manifest()
    t1, other = (copy / manifest.tasks[name].file for name in ("t1", "float"))
    first, second = t1.read_bytes(), other.read_bytes()
    t1.write_bytes(second)
    other.write_bytes(first)
    assert not restored(copy, Learner(net("conv")))
    t1.write_bytes(first)
    other.write_bytes(second)
    replaced(copy, "t1", second)
    with pytest.raises(DamagedError, match="holds the task 'float', not 't1'"):
        Learner.load(copy, net("conv"))


def fuzz_base(folder: Path, mutations: int, seed: int) -> None:
    content = Store(folder).content(Store(folder).manifest().base)
    random, learner = Random(seed), Learner(net("conv"))
    for _ in range(mutations):
        changed = mutated(content, random)
        replaced(folder, None, changed)
        # The header's padding may change without changing a weight; then, and only then, the store is sound.
        if restored(folder, learner):
            learner = Learner(net("conv"))


def test_a_changed_base_is_noticed_by_its_fingerprint(copy: Path) -> None:
    fuzz_base(copy, 60, seed=6)


@pytest.mark.slow
def test_very_many_changes_of_a_base_are_noticed(copy: Path) -> None:
    fuzz_base(copy, 2000, seed=7)


def _without(tensors: dict[str, Any], *names: str) -> None:
    for name in names:
        del tensors[name]


def _tensors(content: bytes, edit: Callable[[dict[str, Any]], None]) -> bytes:
    tensors = safetensors.torch.load(content)
    edit(tensors)
    return safetensors.torch.save(tensors)


BASES: dict[str, Callable[[dict[str, Any]], None]] = {
    "head of integers": lambda t: t.update({"fc.weight": t["fc.weight"].int()}),
    "head of halves": lambda t: t.update({"fc.weight": t["fc.weight"].half()}),
    "head without rows": lambda t: t.update({"fc.weight": t["fc.weight"][:0], "fc.bias": t["fc.bias"][:0]}),
    "head without dimensions": lambda t: t.update({"fc.weight": torch.tensor(1.0)}),
    "bias of another width": lambda t: t.update({"fc.bias": torch.zeros(7)}),
    "bias without dimensions": lambda t: t.update({"fc.bias": torch.tensor(1.0)}),
    "no head": lambda t: _without(t, "fc.weight", "fc.bias"),
    "no weight": lambda t: _without(t, "conv.weight"),
    "one more": lambda t: t.update({"other": torch.zeros(1)}),
    "another shape": lambda t: t.update({"conv.weight": t["conv.weight"].reshape(-1)}),
    "another type": lambda t: t.update({"conv.weight": t["conv.weight"].double()}),
    "another number": lambda t: t.update({"conv.weight": t["conv.weight"] + 1}),
    "nothing": lambda t: t.clear(),
}


@pytest.mark.parametrize("case", BASES)
def test_a_base_that_lies_is_refused(case: str, copy: Path) -> None:
    content = Store(copy).content(Store(copy).manifest().base)
    replaced(copy, None, _tensors(content, BASES[case]))
    with pytest.raises((DamagedError, WrongBaseError)):
        Learner.load(copy, net("conv"))
    assert not restored(copy, Learner(net("conv")))


@pytest.mark.parametrize(
    ("case", "kind"), [("another base", WrongBaseError), ("rank above all", DamagedError), ("no index", DamagedError)]
)
def test_a_task_that_lies_is_refused_through_the_folder(case: str, kind: type[StoreError], copy: Path) -> None:
    replaced(copy, "float", edited(contents(copy)[-1], case))
    with pytest.raises(kind):
        Learner.load(copy, net("conv"))
    assert not restored(copy, Learner(net("conv")))


def test_a_base_task_with_other_classes_is_refused(example: tuple[Path, Learner]) -> None:
    _, learner = example
    delta: Delta = learner.tasks["t0"]
    with pytest.raises(DamagedError, match="not those of the base's head"):
        task_file.check(dataclasses.replace(delta, classes=delta.classes + 1), learner._committed.ready, "file")
