"""Saving and loading: a store gives back exactly what was put in, and says no to what does not belong there."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Literal, cast

import pytest
import safetensors
import torch
from torch import Tensor, nn

from halrp import Delta, Halrp, Learner, Recipe, Store, __version__
from halrp.errors import (
    ConflictError,
    DamagedError,
    TaskError,
)
from halrp.model.copies import held
from halrp.store import task_file
from halrp.store.manifest import Manifest
from tests.helpers import FAST, address, drawn, net, tiny_task
from tests.store.stores import OFFICIAL, committed, learned, roomy, same_predictions, snapshot

KINDS = ("conv", "transformer", "gru")


# ---- what comes back ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["first", "given"])
@pytest.mark.parametrize("method", [roomy("float32"), roomy("bfloat16"), roomy("int8"), OFFICIAL])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_loaded_predicts_saves_and_learns_as_what_was_saved(
    kind: str, method: Halrp, base: Literal["first", "given"], tmp_path: Path
) -> None:
    learner = learned(kind, tasks=3, method=method, base=base)
    learner.save(tmp_path / "one")
    other = net(kind, seed=9)  # its weights must not matter
    loaded = Learner.load(tmp_path / "one", other, method=method, recipe=FAST)
    x = tiny_task(kind, 7)[0]
    assert same_predictions(learner, loaded, x)
    assert {n: dataclasses.asdict(b) for n, b in loaded.tasks["t2"].recovered.items()} == {
        n: dataclasses.asdict(b) for n, b in learner.tasks["t2"].recovered.items()
    }
    loaded.save(tmp_path / "two")
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")
    assert set(snapshot(tmp_path / "one")) == committed(tmp_path / "one")
    for each in (learner, loaded):
        each.learn("later", tiny_task(kind, 8))
        each.save(tmp_path / ("three" if each is learner else "four"))
    assert same_predictions(learner, loaded, x)
    assert snapshot(tmp_path / "three") == snapshot(tmp_path / "four")


def test_pruned_factors_are_written_sparsely(tmp_path: Path) -> None:
    """The case above with `official` would prove little if nothing were pruned."""
    wide = drawn(lambda: nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)))
    learner = Learner(wide, recipe=FAST, method=OFFICIAL, store=tmp_path)
    for number in range(3):
        learner.learn(f"t{number}", tiny_task("mlp", number))
    masks = [key for key, matrix in learner.tasks["t1"].coded.items() if "mask" in matrix.parts]
    assert masks
    loaded = Learner.load(tmp_path, wide, method=OFFICIAL)
    assert same_predictions(learner, loaded, tiny_task("mlp", 7)[0])
    assert {key for key, matrix in loaded.tasks["t1"].coded.items() if "mask" in matrix.parts} == set(masks)


class ConvHead(nn.Module):
    """A model whose head is a convolution, with buffers of every odd kind."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.fc = nn.Conv2d(16, 3, 4)
        self.to(dtype)
        table = torch.arange(12.0)
        self.register_buffer("low", table[:6])
        self.register_buffer("high", table[6:])
        self.register_buffer("placeholder", torch.full((2,), torch.nan))
        self.register_buffer("phases", torch.zeros(3, dtype=torch.complex64))
        self.register_buffer("nothing", torch.zeros(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.fc(self.norm(self.stem(x)).relu()).flatten(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unusual_models_come_back(dtype: torch.dtype, tmp_path: Path) -> None:
    learner = Learner(drawn(lambda: ConvHead(dtype)), head="fc", recipe=FAST, method=roomy("int8"), store=tmp_path)
    for number in range(3):
        x, y = tiny_task("conv", number)
        learner.learn(f"t{number}", (x.to(dtype), y))
    loaded = Learner.load(tmp_path, drawn(lambda: ConvHead(dtype), 3))
    for examples in (1, 7, 24):
        assert same_predictions(learner, loaded, tiny_task("conv", 7, examples=examples)[0].to(dtype))
    # Equal bits on every machine need equal layouts, not only equal values.
    for name, delta in learner.tasks.items():
        for key, tensor in held(delta.plain).items():  # not the copies that a delta gives
            again = held(loaded.tasks[name].plain)[key]
            assert again.stride() == tensor.stride(), key
            assert address(again) % 64 == 0, key
    assert all(address(t) % 64 == 0 for t in loaded._committed.ready.tensors.values())


class MixedTypes(nn.Module):
    """Float and double layers side by side, small ones among them that a task owns in full."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(10, 12)
        self.precise = nn.Linear(12, 12).double()
        self.narrow = nn.Linear(12, 2, bias=False)
        self.wide = nn.Linear(2, 12, bias=False).double()
        self.fc = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.precise(self.first(x).relu().double()).float()
        return cast(Tensor, self.fc(x + self.wide(self.narrow(x).double()).float()))


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_each_weight_comes_back_in_its_own_type(
    precision: Literal["float32", "bfloat16", "int8"], tmp_path: Path
) -> None:
    learner = Learner(drawn(MixedTypes), recipe=FAST, method=roomy(precision), store=tmp_path)
    for number in range(2):
        learner.learn(f"t{number}", tiny_task("mlp", number))
    loaded = Learner.load(tmp_path, MixedTypes())
    assert same_predictions(learner, loaded, tiny_task("mlp", 7)[0])
    owned = learner.tasks["t1"].owned
    assert owned["wide.weight"].dtype == torch.float64
    assert owned["narrow.weight"].dtype == torch.float32
    assert {n: t.dtype for n, t in loaded.tasks["t1"].owned.items()} == {n: t.dtype for n, t in owned.items()}


def test_only_the_architecture_of_the_given_model_matters(tmp_path: Path) -> None:
    learner = learned("mlp")
    learner.save(tmp_path)
    wider = drawn(lambda: nn.Sequential(*list(net("mlp").children())[:-1], nn.Linear(12, 50)), 4)
    state, before = torch.get_rng_state(), [p.clone() for p in wider.parameters()]
    loaded = Learner.load(tmp_path, wider)
    assert same_predictions(learner, loaded, tiny_task("mlp", 7)[0])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, q) for p, q in zip(wider.parameters(), before, strict=True))
    assert loaded.base_parameters == learner.base_parameters


def test_a_loaded_learner_shares_no_memory_with_the_model(tmp_path: Path) -> None:
    learned("mlp").save(tmp_path)
    model = net("mlp")
    loaded = Learner.load(tmp_path, model)
    x = tiny_task("mlp", 7)[0]
    before = loaded.predict(x, "t0")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    loaded._committed._predictor = None
    assert torch.equal(loaded.predict(x, "t0"), before)


# ---- a store that grows with its learner ------------------------------------------------------------------------


def test_a_learner_with_a_store_commits_each_task_as_it_is_learned(tmp_path: Path) -> None:
    learner = learned("mlp", tasks=0, store=tmp_path)
    assert not Store(tmp_path).exists()
    for number in range(3):
        learner.learn(f"t{number}", tiny_task("mlp", number))
        fresh = Learner.load(tmp_path, net("mlp", 5))
        assert same_predictions(learner, fresh, tiny_task("mlp", 7)[0])
        assert set(snapshot(tmp_path)) == committed(tmp_path)
    learner.save(tmp_path / "elsewhere")
    elsewhere = snapshot(tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "elsewhere")
    here = snapshot(tmp_path)
    assert elsewhere.pop("manifest.json") != here.pop("manifest.json")  # one commit there, several here
    assert elsewhere == here


def test_a_learner_that_opens_a_store_goes_on_where_it_ended(tmp_path: Path) -> None:
    whole = learned("mlp", tasks=4, store=tmp_path / "whole")
    learned("mlp", tasks=2, store=tmp_path / "parts")
    parts = learned("mlp", tasks=4, store=tmp_path / "parts")
    assert same_predictions(whole, parts, tiny_task("mlp", 7)[0])
    assert snapshot(tmp_path / "whole") == snapshot(tmp_path / "parts")
    with pytest.raises(TaskError, match="already learned"):
        parts.learn("t1", tiny_task("mlp", 1))


def test_saving_again_changes_no_file(tmp_path: Path) -> None:
    learner = learned("mlp")
    learner.save(tmp_path)
    times = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    learner.save(tmp_path)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == times


def test_two_learners_that_commit_in_turn_keep_each_others_tasks(tmp_path: Path) -> None:
    first, second = (learned("mlp", tasks=0, base="given", store=tmp_path) for _ in range(2))
    first.learn("a", tiny_task("mlp", 0))
    second.learn("b", tiny_task("mlp", 1))
    first.learn("c", tiny_task("mlp", 2))
    loaded = Learner.load(tmp_path, net("mlp"))
    assert list(loaded.tasks) == ["a", "b", "c"]
    x = tiny_task("mlp", 7)[0]
    for learner, names in ((first, "ac"), (second, "b")):
        assert all(torch.equal(learner.predict(x, name), loaded.predict(x, name)) for name in names)


def test_a_committed_task_is_replaced_only_by_who_names_it_and_knows_it(tmp_path: Path) -> None:
    first, second = (learned("mlp", tasks=0, base="given") for _ in range(2))
    store = Store(tmp_path)
    ours = first.learn("a", tiny_task("mlp", 0))
    store.commit(first._committed.ready, [ours])
    before = snapshot(tmp_path)
    other = second.learn("a", tiny_task("mlp", 1))
    with pytest.raises(ConflictError, match="already holds another task 'a'"):
        store.commit(second._committed.ready, [other])
    with pytest.raises(ConflictError, match="another version of 'a'"):
        store.commit(second._committed.ready, [other], pruned={"a": other})
    assert snapshot(tmp_path) == before
    store.commit(first._committed.ready, [ours])  # the same task again is no conflict
    assert snapshot(tmp_path) == before
    store.commit(second._committed.ready, [other], pruned={"a": ours})
    assert store.manifest().tasks["a"].bytes == len(task_file.write(other))


def test_saving_two_learners_into_one_folder_never_replaces_a_task(tmp_path: Path) -> None:
    first, second = (learned("mlp", tasks=0, base="given") for _ in range(2))
    for learner, seed in ((first, 0), (second, 5)):
        for name in "ab":
            learner.learn(name, tiny_task("mlp", seed + ord(name)))
    second.learn("c", tiny_task("mlp", 9))
    first.save(tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(ConflictError, match=r"another task 'a', 'b', and a committed task never changes"):
        second.save(tmp_path)
    assert snapshot(tmp_path) == before  # nothing of it, "c" neither
    assert same_predictions(first, Learner.load(tmp_path, net("mlp")), tiny_task("mlp", 7)[0])


@pytest.mark.parametrize("method", [OFFICIAL, dataclasses.replace(OFFICIAL, precision="int8")])
def test_pruning_committed_tasks_replaces_their_files_and_the_trash_holds_one_generation(
    method: Halrp, tmp_path: Path
) -> None:
    learner = learned("conv", tasks=2, method=method, store=tmp_path)
    for name in ("t2", "t3"):
        before, files = Store(tmp_path).manifest().tasks, snapshot(tmp_path)
        learner.learn(name, tiny_task("conv", int(name[1])))
        after = Store(tmp_path).manifest().tasks
        assert list(after) == [*before, name]
        assert after["t0"] == before["t0"]
        pruned = {entry.file for n, entry in before.items() if after[n] != entry}
        assert before["t1"].file in pruned
        assert set(snapshot(tmp_path)) == committed(tmp_path) | {f"trash/{file}" for file in pruned}
        assert all(snapshot(tmp_path)[f"trash/{file}"] == files[file] for file in pruned)
    assert same_predictions(learner, Learner.load(tmp_path, net("conv")), tiny_task("conv", 7)[0])


def test_the_next_commit_moves_what_no_commit_names_to_the_trash_and_leaves_foreign_files(tmp_path: Path) -> None:
    learner = learned("mlp", tasks=2, store=tmp_path)
    strays = [tmp_path / "base-0123456789abcdef.safetensors", tmp_path / "tasks" / "t9-0123456789abcdef.safetensors"]
    litter = [
        tmp_path / ".manifest.json-12-deadbeef.part",
        tmp_path / "tasks" / ".t1-0123-12-deadbeef.part",
        tmp_path / "work" / Store(tmp_path).work_folder("t1").name / "0.safetensors",
    ]
    foreign = [tmp_path / "notes.txt", tmp_path / "film.part", tmp_path / "tasks" / "mine.safetensors"]
    for path in (*strays, *litter, *foreign):
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(path.name.encode())
    learner.learn("t2", tiny_task("mlp", 2))
    assert not any(path.exists() for path in (*strays, *litter))
    files, names = snapshot(tmp_path), [p.relative_to(tmp_path).as_posix() for p in (*strays, *foreign)]
    assert set(files) == committed(tmp_path) | set(names[2:]) | {f"trash/{name}" for name in names[:2]}
    for path, name in zip(strays, names, strict=False):  # another file of that name overwrites nothing
        assert files[f"trash/{name}"] == path.name.encode()
        path.write_bytes(b"second")
    learner.learn("t3", tiny_task("mlp", 3))
    trash = {name: content for name, content in snapshot(tmp_path).items() if name.startswith("trash/")}
    assert trash == {f"trash/{n}": Path(n).name.encode() for n in names[:2]} | {
        f"trash/{n}.1": b"second" for n in names[:2]
    }


def test_a_damaged_file_is_written_anew_by_the_learner_that_knows_it(tmp_path: Path) -> None:
    learner = learned("mlp", store=tmp_path)
    before = snapshot(tmp_path)
    path = tmp_path / Store(tmp_path).manifest().tasks["t1"].file
    path.write_bytes(b"gone")
    with pytest.raises(DamagedError, match="is not the file that was committed"):
        Learner.load(tmp_path, net("mlp"))
    learner.save(tmp_path)
    assert snapshot(tmp_path) == before


# ---- what a task's file says ------------------------------------------------------------------------------------


def test_a_tasks_file_explains_itself_to_anybody_with_safetensors(tmp_path: Path) -> None:
    learner = learned("mlp", tasks=1, store=tmp_path)
    delta = learner.learn("birds", tiny_task("mlp", 1), class_names=["wren", "rook", "Elster"])
    manifest = Store(tmp_path).manifest()
    with safetensors.safe_open(tmp_path / manifest.tasks["birds"].file, "pt") as file:
        facts = json.loads(file.metadata()["halrp"])
        index, importance = file.get_tensor("index").tolist(), file.get_tensor("recovered")[::3].tolist()
    layout = json.loads((tmp_path / f"layout-{facts['layout']}.json").read_bytes())
    adapted = [name for name, kind, *_ in layout["slots"] if kind == "adapted"]
    assert facts["task"] == "birds"
    assert facts["class_names"] == ["wren", "rook", "Elster"]
    assert facts["classes"] == 3
    assert facts["base"] == manifest.fingerprint
    assert "precision" not in facts  # float32 is the default
    assert adapted
    assert {name: rank for name, rank in zip(adapted, index, strict=False) if rank >= 0} == delta.ranks
    assert dict(zip(adapted, importance, strict=True)) == delta.importance
    assert facts["provenance"]["halrp"] == __version__
    assert facts["provenance"]["seed"] == 0
    assert facts["provenance"]["recipe"]["lr"] == FAST.lr
    assert facts["provenance"]["method"]["allocate"]["type"] == "Budget"
    assert manifest.tasks["birds"].bytes == delta.bytes
    loaded = Learner.load(tmp_path, net("mlp"))
    assert loaded.tasks["birds"].class_names == ("wren", "rook", "Elster")
    assert loaded.recipe == Recipe(**{k: v for k, v in facts["provenance"]["recipe"].items() if k != "type"})


NAMES = [
    "Vögel 鳥 🐦",
    "a/b\\c",
    "../x",
    "../../../../etc/passwd",
    "/absolute",
    ".",
    "..",
    "...dots.and.dots...",
    "x" * 300,
    "鳥" * 300,
    "two\nlines\r\n",
    "nul\0byte",
    " ",
    "-",
    "CON",
    "A b",
    "a-b",
    "%s{}$HOME`ls`",
]


def test_any_name_stays_in_the_folder_and_comes_back_exactly(tmp_path: Path) -> None:
    folder = tmp_path / "outer" / "store"
    learner = Learner(net("mlp"), recipe=Recipe(epochs=2, batch=24), method=roomy("int8"), base="given", store=folder)
    for name in NAMES:
        learner.learn(name, tiny_task("mlp", 1))
    assert list(Learner.load(folder, net("mlp")).tasks) == NAMES
    assert [path.name for path in tmp_path.iterdir()] == ["outer"]
    assert [path.name for path in (tmp_path / "outer").iterdir()] == ["store"]
    files = set(snapshot(folder))
    assert files == committed(folder)
    assert all(len(Path(file).name) < 100 and file.isascii() for file in files)


def test_a_delta_is_the_same_in_bytes_after_it_is_read(tmp_path: Path) -> None:
    learner = learned("gru", store=tmp_path, method=OFFICIAL)
    for name, delta in learner.tasks.items():
        again: Delta = Store(tmp_path).read(name, learner._committed.ready)
        assert task_file.write(again) == task_file.write(delta)
        assert again.roles == delta.roles
        assert (again.parameters, again.paper_count()) == (delta.parameters, delta.paper_count())


def test_a_manifest_is_parsed_again_only_if_it_is_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learned(tasks=2, store=tmp_path)
    store, other, parsed = Store(tmp_path), Store(tmp_path), []
    parse = Manifest.parse

    def counted(content: bytes, source: str) -> Manifest:
        parsed.append(source)
        return parse(content, source)

    monkeypatch.setattr(Manifest, "parse", staticmethod(counted))
    assert store.manifest() == store.manifest()
    assert len(parsed) == 1
    store.commit(learner._committed.ready, [dataclasses.replace(learner.tasks["t1"], task="more")])
    assert "more" in store.manifest().tasks
    assert len(parsed) == 1
    other.remove("more")
    assert "more" not in store.manifest().tasks
    assert Store(tmp_path).manifest() == store.manifest()
