"""A task without its base: a store of one task, whose base is in another folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from halrp import Learner, Store, StorePredictor
from halrp.errors import ConflictError, DamagedError, SignatureError, UnknownTaskError, WrongBaseError
from halrp.serve.follow import Generation
from halrp.serve.opening import as_base, base_elsewhere
from halrp.store import task_file
from halrp.store.signing import new_key
from tests.helpers import net, tiny_task
from tests.store.corpus.make import CORPORA, HERE
from tests.store.stores import X, learned, snapshot


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    """Three tasks, of which one has an old version; tests never change it."""
    learner = learned("mlp", tasks=3, store=tmp_path_factory.mktemp("extract") / "store")
    learner.learn("t2", tiny_task("mlp", 5, classes=4), replace=True)
    return learner


@pytest.fixture
def store(learner: Learner) -> Store:
    assert learner._committed.store is not None
    return Store(learner._committed.store.folder)


def test_a_copy_holds_the_task_and_its_layout_and_names_the_base(
    store: Store, learner: Learner, tmp_path: Path
) -> None:
    before = snapshot(store.folder)
    alone = store.extract("t2", tmp_path / "alone")
    manifest, theirs = alone.manifest(), store.manifest()
    [layout] = theirs.layouts.values()
    assert snapshot(alone.folder).keys() == {"manifest.json", layout.file, theirs.tasks["t2"].file}
    assert manifest.tasks == {"t2": theirs.tasks["t2"]}
    assert (manifest.base, manifest.fingerprint) == (theirs.base, theirs.fingerprint)
    assert not manifest.versions
    assert manifest.identity != theirs.identity
    assert task_file.write(alone.read("t2", learner._committed.ready)) == task_file.write(learner.tasks["t2"])
    assert snapshot(store.folder) == before
    with pytest.raises(DamagedError, match=r"base-.+ is missing"):
        StorePredictor.open(alone.folder, net("mlp"))


def test_it_is_merged_into_another_store_of_the_base(store: Store, learner: Learner, tmp_path: Path) -> None:
    alone = store.extract("t1", tmp_path / "alone")
    other = Store(tmp_path / "other")
    other.commit(learner._committed.ready, [learner.tasks["t0"]])
    assert other.merge(alone) == ("t1",)
    predictor = StorePredictor.open(other.folder, net("mlp"), check=True)
    assert torch.equal(predictor.predict(X, "t1"), learner.predict(X, "t1"))
    foreign = Store(tmp_path / "foreign")
    learned("mlp", tasks=1, base="given", store=foreign)
    with pytest.raises(WrongBaseError, match="has another base"):
        foreign.merge(alone)


def test_only_an_empty_folder_is_written_to(store: Store, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").touch()
    (tmp_path / "file").touch()
    for name in ("notes", "file"):
        with pytest.raises(ConflictError, match="not an empty folder"):
            store.extract("t1", tmp_path / name)
    (tmp_path / "empty").mkdir()
    store.extract("t1", tmp_path / "empty")
    with pytest.raises(ConflictError):
        store.extract("t2", tmp_path / "empty")


def test_a_task_that_is_not_there_or_damaged_is_not_copied(store: Store, learner: Learner, tmp_path: Path) -> None:
    with pytest.raises(UnknownTaskError, match="it has: 't0', 't1', 't2'"):
        store.extract("cars", tmp_path / "alone")
    other = Store(tmp_path / "other")
    entry = other.commit(learner._committed.ready, [learner.tasks["t1"]]).tasks["t1"]
    (other.folder / entry.file).write_bytes(b"x" * entry.bytes)
    with pytest.raises(DamagedError):
        other.extract("t1", tmp_path / "alone")
    assert not (tmp_path / "alone").exists()


def test_a_copy_of_a_signed_store_is_signed(learner: Learner, tmp_path: Path) -> None:
    key = new_key("hmac-sha256")
    signed = Store(tmp_path / "signed", signing_key=key)
    signed.commit(learner._committed.ready, [learner.tasks["t1"]])
    signed.extract("t1", tmp_path / "alone")
    Store(tmp_path / "alone", verify_key=key).read("t1", learner._committed.ready)
    Store(tmp_path / "signed").extract("t1", tmp_path / "plain")
    with pytest.raises(SignatureError):
        Store(tmp_path / "plain", verify_key=key).manifest()


@pytest.mark.parametrize("name", CORPORA)
def test_tasks_of_old_stores_are_copied_too(name: str, tmp_path: Path) -> None:
    folder = HERE / name / "store"
    old = Store(folder)
    for number, task in enumerate(old.manifest().tasks):
        alone = old.extract(task, tmp_path / str(number))
        manifest = alone.manifest()
        generation = Generation(manifest, alone.layouts(manifest))
        like = as_base(alone, generation, CORPORA[name].model(classes=7), None, None, None)
        base = base_elsewhere(like, generation, folder)
        assert task_file.write(alone.read(task, base)) == task_file.write(old.read(task, old.read_base(like)))


def test_a_base_elsewhere_is_the_right_one_or_refused(store: Store, tmp_path: Path) -> None:
    alone = store.extract("t1", tmp_path / "alone")
    generation = Generation(alone.manifest(), alone.layouts(alone.manifest()))
    like = as_base(alone, generation, net("mlp"), None, None, None)
    for path in (store.folder, store.folder / store.manifest().base.file):
        assert base_elsewhere(like, generation, path).fingerprint == store.manifest().fingerprint
    other = tmp_path / "other"
    learned("mlp", tasks=1, base="given", store=other)
    for wrong in (None, other, other / Store(other).manifest().base.file):
        with pytest.raises(WrongBaseError, match=r"has the fingerprint .+ that 't1' was learned on"):
            base_elsewhere(like, generation, wrong)
    with pytest.raises(DamagedError, match="missing"):
        base_elsewhere(like, generation, tmp_path / "nowhere")
