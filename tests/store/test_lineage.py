"""A store that vanished, was rolled back or was replaced is noticed before anything is trained, written or deleted."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from halrp import Learner, Store
from halrp.errors import StoreChangedError
from halrp.store import lineage
from halrp.store.manifest import FORMAT, HISTORY, Manifest
from tests.helpers import net, tiny_task
from tests.store.corpus.make import CORPORA, HERE
from tests.store.stores import learned, manifest_of, same_predictions, snapshot


def lose(folder: Path, _: Path) -> None:
    shutil.rmtree(folder)


def lose_manifest(folder: Path, _: Path) -> None:
    (folder / "manifest.json").unlink()


def roll_back(folder: Path, earlier: Path) -> None:
    shutil.copy(earlier / "manifest.json", folder / "manifest.json")


def roll_back_everything(folder: Path, earlier: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(earlier, folder)


def put_another(folder: Path, _: Path) -> None:
    shutil.rmtree(folder)
    other = Learner(net("mlp", seed=4), method=learned("mlp", tasks=0).method, base="given", store=folder)
    other.learn("x", tiny_task("mlp", 1))


def put_another_of_the_same_base(folder: Path, _: Path) -> None:
    shutil.rmtree(folder)
    learner = learned("mlp", tasks=1)
    learner.learn("x", tiny_task("mlp", 5))
    learner.save(folder)


def continue_from_a_rolled_back_one(folder: Path, earlier: Path) -> None:
    roll_back_everything(folder, earlier)
    other = Learner(net("mlp"), method=learned("mlp", tasks=0).method, store=folder)
    for number in (7, 8, 9):
        other.learn(f"t{number}", tiny_task("mlp", number))


CHANGES = {
    lose: "has vanished: it held a store with 3 tasks",
    lose_manifest: "has vanished",
    roll_back: "was rolled back: it is at generation 2 with 2 tasks, and was at generation 3 with 3",
    roll_back_everything: "was rolled back",
    put_another: "holds another store than before",
    put_another_of_the_same_base: "holds another store than before",
    continue_from_a_rolled_back_one: "has another history than before",
}


@pytest.mark.parametrize("when", ["before training", "at the commit"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_learner_refuses_a_store_that_is_not_the_one_it_knows_and_loses_nothing(
    change: object, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, earlier = tmp_path / "store", tmp_path / "earlier"
    learned("mlp", tasks=2, store=folder)
    shutil.copytree(folder, earlier)
    learner = learned("mlp", tasks=3, store=Store(folder, checkpoint_every=0))
    trained: list[object] = []
    learner.progress = trained.append
    change(folder, earlier)  # type: ignore[operator]
    before = snapshot(folder) if folder.exists() else None
    with monkeypatch.context() as patch:
        if when == "at the commit":
            patch.setattr(Store, "check_known", lambda _: None)
        with pytest.raises(StoreChangedError, match=CHANGES[change]):  # type: ignore[index]
            learner.learn("t3", tiny_task("mlp", 3))
    if when == "before training":
        assert not trained
        assert (snapshot(folder) if folder.exists() else None) == before
    else:
        after = snapshot(folder)
        checkpoints = {name for name in after if name.startswith("work/")}
        assert checkpoints  # so that learning the task again is cheap
        assert {name: content for name, content in after.items() if name not in checkpoints} == (before or {})
    assert list(learner.tasks) == ["t0", "t1", "t2"]
    learner.save(tmp_path / "saved")  # the way out that the message names
    assert same_predictions(learner, Learner.load(tmp_path / "saved", net("mlp")), tiny_task("mlp", 7)[0])


def test_a_store_that_comes_back_is_continued(tmp_path: Path) -> None:
    learner = learned("mlp", tasks=2, store=tmp_path / "store")
    (tmp_path / "store").rename(tmp_path / "unmounted")
    with pytest.raises(StoreChangedError, match="moved, deleted or unmounted"):
        learner.learn("t2", tiny_task("mlp", 2))
    (tmp_path / "unmounted").rename(tmp_path / "store")
    learner.learn("t2", tiny_task("mlp", 2))
    assert list(Store(tmp_path / "store").manifest().tasks) == ["t0", "t1", "t2"]


def test_a_new_learner_that_commits_to_a_rolled_back_store_deletes_none_of_its_newer_files(tmp_path: Path) -> None:
    learned("mlp", tasks=2, store=tmp_path)
    manifest = (tmp_path / "manifest.json").read_bytes()
    learner = learned("mlp", tasks=4, store=tmp_path)
    newest = {n: c for n, c in snapshot(tmp_path).items() if n.startswith("tasks/")}
    (tmp_path / "manifest.json").write_bytes(manifest)
    learned("mlp", tasks=2, store=tmp_path).learn("other", tiny_task("mlp", 8))
    files = snapshot(tmp_path)
    present = {name: files.get(name, files.get(f"trash/{name}")) for name in newest}
    assert present == newest
    assert len([name for name in files if name.startswith("trash/")]) == 2
    assert list(learner.tasks) == ["t0", "t1", "t2", "t3"]


def test_identity_stays_and_generations_count_commits_that_changed_something(tmp_path: Path) -> None:
    learner, seen = learned("mlp", tasks=0, store=tmp_path), list[Manifest]()
    for number in range(4):
        learner.learn(f"t{number}", tiny_task("mlp", number))
        learner.save(tmp_path)  # changes nothing
        seen.append(Store(tmp_path).manifest())
    assert [manifest.generation for manifest in seen] == [1, 2, 3, 4]
    assert len({manifest.identity for manifest in seen}) == 1
    assert seen[3].history == tuple(manifest.digest[:16] for manifest in seen[:3])


def test_the_same_commits_make_the_same_store_and_others_another(tmp_path: Path) -> None:
    for name in ("one", "two"):
        learned("mlp", tasks=2, store=tmp_path / name)
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")
    learned("mlp", tasks=2, base="given", store=tmp_path / "three")
    assert Store(tmp_path / "one").manifest().identity != Store(tmp_path / "three").manifest().identity


def test_a_history_is_bounded_and_still_names_the_newest() -> None:
    manifest: Manifest | None = None
    seen = []
    base = Store(HERE / "v2" / "store").manifest()
    for number in range(HISTORY + 5):
        manifest = base.edited(head=f"head {number}").following(manifest)
        seen.append(manifest.digest[:16])
    assert manifest is not None
    assert manifest.generation == HISTORY + 5
    assert list(manifest.history) == seen[4:-1]


@pytest.mark.parametrize("name", [name for name in CORPORA if name.startswith(("v1", "v2"))])
def test_a_store_of_an_earlier_format_gets_an_identity_at_its_next_commit(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    shutil.copytree(HERE / name / "store", folder)
    first, second = (Learner.load(folder, CORPORA[name].model(classes=3)) for _ in range(2))
    store, late = Store(folder), Store(folder)
    for opened in (store, late):
        opened.read_all(first._committed.ready)
    old = store.manifest()
    assert (old.identity, old.generation) == ("", 0)
    delta = first.tasks["base"]
    store.commit(first._committed.ready, [dataclasses.replace(delta, task="new")])
    new = store.manifest()
    assert (new.format, new.generation, new.history) == (FORMAT, 1, (old.digest[:16],))
    assert new.identity
    late.check_known()  # a later generation of what it saw
    (folder / "manifest.json").write_bytes(old.content)
    with pytest.raises(StoreChangedError, match="rolled back"):
        store.check_known()
    assert list(second.tasks) == list(old.tasks)


# ---- the rule itself, on manifests alone --------------------------------------------------------------------------


def refusal(known: Manifest | None, present: Manifest | None) -> str:
    """What is wrong with a manifest for somebody who has seen another; empty if nothing is."""
    try:
        lineage.check(Path("store"), known, present)
    except StoreChangedError as error:
        return str(error)
    return ""


def generations(count: int, head: str = "fc") -> list[Manifest]:
    """The first generations of a store; each adds a task."""
    made: list[Manifest] = []
    for number in range(count):
        made.append(dataclasses.replace(manifest_of(number + 1), head=head).following(made[-1] if made else None))
    return made


def test_every_later_generation_is_accepted_and_every_earlier_one_is_not() -> None:
    made = generations(HISTORY + 3)
    for number, known in enumerate(made):
        assert all(refusal(known, present) == "" for present in made[number:])
        assert all("was rolled back" in refusal(known, present) for present in made[:number])


def test_a_generation_that_was_written_by_somebody_else_is_a_fork_as_far_as_the_history_reaches() -> None:
    seen = generations(HISTORY + 4)
    forked = [*seen[:2]]
    while len(forked) < len(seen):
        forked.append(dataclasses.replace(manifest_of(50 + len(forked)), identity="").following(forked[-1]))
    known = seen[2]
    assert [("another history" in refusal(known, present)) for present in forked[2:]] == [True] * (HISTORY + 1) + [
        False
    ]


def test_another_store_is_named() -> None:
    known, present = generations(1)[0], generations(1, head="classifier")[0]
    reason = refusal(known, present)
    assert f"another store than before: {present.identity[:12]}… on the base {present.fingerprint[:12]}…" in reason
    assert f"not {known.identity[:12]}… on the base" in reason


def test_a_store_without_generations_may_grow_and_change_but_loses_no_task() -> None:
    two, three = manifest_of(2, version=2), manifest_of(3, version=2)
    other = dataclasses.replace(two, tasks={**two.tasks, "task 1": three.tasks["task 2"]})
    assert refusal(two, three) == refusal(two, other) == refusal(None, two) == ""
    assert "was rolled back" in refusal(three, two)
    assert "has vanished" in refusal(two, None)
    assert refusal(two, dataclasses.replace(three, format=3).following(two)) == ""
