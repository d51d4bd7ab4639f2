"""Signed stores: nothing that the key did not sign is used, and commits sign what they write."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from halrp import Halrp, Learner, Store
from halrp.cli.app import app
from halrp.errors import CheckpointWarning, DamagedError, LinkError, SettingError, SignatureError
from halrp.store import atomic, signing
from halrp.store.folder import Folder
from halrp.store.signing import Key
from halrp.tools.verify import verify
from halrp.training.progress import Progress
from tests.commands import invoke
from tests.helpers import FAST, net, tiny_task
from tests.store.stores import learned, roomy, snapshot

PRIVATE = Key("ed25519-private", bytes(range(32)))
PUBLIC = PRIVATE.verifier()
SECRET = Key("hmac-sha256", bytes(range(32)))
OTHER = Key("ed25519-private", bytes(32))
METHOD = Halrp.budget(bytes_per_task=100_000)

model = partial(net, "mlp")
ran = partial(invoke, app)


def learner_at(store: Store) -> Learner:
    return Learner(model(), method=METHOD, recipe=FAST, store=store)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two tasks that was signed as it was written."""
    folder = tmp_path_factory.mktemp("signed") / "store"
    learner = learner_at(Store(folder, signing_key=PRIVATE))
    learner.learn("first", tiny_task("mlp"))
    learner.learn("second", tiny_task("mlp", 1))
    return folder


@pytest.fixture
def signed(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "store"))


def forge(folder: Path) -> None:
    """Add a task as somebody does who has no key: the library refuses that as long as it sees signatures."""
    hidden = (folder / "signatures").rename(folder.with_name("hidden"))
    learner_at(Store(folder)).learn("third", tiny_task("mlp", 2))
    hidden.rename(folder / "signatures")


def test_a_signed_store_is_changed_with_its_key_only(signed: Path) -> None:
    before = snapshot(signed)
    learner = learner_at(Store(signed))
    epochs: list[Progress] = []
    learner.progress = epochs.append
    with pytest.raises(SignatureError, match="is signed"):
        learner.learn("third", tiny_task("mlp", 2))
    with pytest.raises(SignatureError, match="is signed"):
        learner.remove("second")
    assert epochs == []
    assert {name: content for name, content in snapshot(signed).items() if name != "lock"} == {
        name: content for name, content in before.items() if name != "lock"
    }
    shutil.rmtree(signed / "signatures")
    learner.remove("second")
    assert list(Learner.load(signed, model()).tasks) == ["first"]


SIGNED = ("manifest.json", "base-*", "layout-*", "tasks/first-*", "tasks/second-*")


def test_every_file_is_signed_and_the_store_is_otherwise_the_same(made: Path, tmp_path: Path) -> None:
    unsigned = learner_at(Store(tmp_path / "unsigned"))
    unsigned.learn("first", tiny_task("mlp"))
    unsigned.learn("second", tiny_task("mlp", 1))
    files = snapshot(made)
    signatures = {name for name in files if name.startswith("signatures/")}
    assert {name: content for name, content in files.items() if name not in signatures} == snapshot(
        tmp_path / "unsigned"
    )
    stems = {name.rpartition(".")[0] for name in files if "-" in name and name not in signatures}
    digest = atomic.checksum(files["manifest.json"])[:16]
    assert signatures == {f"signatures/{stem}.sig" for stem in (*stems, f"manifest-{digest}")}


def test_it_loads_with_the_key_that_signed_it(signed: Path, tmp_path: Path) -> None:
    plain = Learner.load(signed, model())
    signing.write_key(tmp_path / "key.pub", PUBLIC)
    for key in (PUBLIC, PRIVATE, tmp_path / "key.pub", str(tmp_path / "key.pub")):
        loaded = Learner.load(signed, model(), verify_key=key)
        assert loaded.tasks.keys() == plain.tasks.keys() == {"first", "second"}


@pytest.mark.parametrize("key", [OTHER, SECRET], ids=["another pair", "another algorithm"])
def test_it_does_not_load_with_another_key(key: Key, signed: Path) -> None:
    with pytest.raises(SignatureError, match=rf"manifest\.json is signed with the ed25519 key {PUBLIC.id}"):
        Learner.load(signed, model(), verify_key=key)


@pytest.mark.parametrize("pattern", SIGNED)
@pytest.mark.parametrize("damage", ["missing", "changed", "of another file", "empty", "large"])
def test_a_file_whose_signature_is_missing_or_wrong_is_refused_by_name(pattern: str, damage: str, signed: Path) -> None:
    (path,) = signed.glob(pattern)
    stem = path.relative_to(signed).as_posix().rpartition(".")[0]
    (signature,) = (signed / "signatures").glob(f"{stem}*.sig")
    others = {"base-*": "layout-*"}.get(pattern, "base-*")
    if damage == "missing":
        signature.unlink()
    elif damage == "changed":
        content = bytearray(signature.read_bytes())
        content[-5] ^= 1
        signature.write_bytes(content)
    elif damage == "of another file":
        (other,) = (signed / "signatures").glob(f"{others}.sig")
        shutil.copy(other, signature)
    else:
        signature.write_bytes(bytes(0 if damage == "empty" else 10_000))
    before = snapshot(signed)
    with pytest.raises(SignatureError, match=path.name):
        Learner.load(signed, model(), verify_key=PUBLIC)
    Learner.load(signed, model())
    findings = {finding.file: finding for finding in verify(signed, verify_key=PUBLIC)}
    assert findings[path.relative_to(signed).as_posix()].status == "bad"
    bad = {file for file, finding in findings.items() if finding.status == "bad"}
    assert len(bad) == 1 or pattern == "layout-*", "tasks cannot be read without their layout"
    assert {finding.status for finding in verify(signed)} == {"good"}
    assert snapshot(signed) == before


def test_what_was_changed_with_its_checksums_is_refused(signed: Path) -> None:
    """Whoever writes to the folder can make a store that is whole, and cannot sign it."""
    forge(signed)
    assert {finding.status for finding in verify(signed)} == {"good"}
    with pytest.raises(SignatureError, match=r"manifest\.json has no signature.*halrp sign"):
        Learner.load(signed, model(), verify_key=PUBLIC)


def test_a_signing_store_never_signs_what_somebody_else_wrote(signed: Path) -> None:
    forge(signed)
    before = snapshot(signed)
    with pytest.raises(SignatureError):
        learner_at(Store(signed, signing_key=PRIVATE))
    store = Store(signed, signing_key=PRIVATE)
    elsewhere = Learner(model(), method=METHOD, recipe=FAST)
    elsewhere.learn("first", tiny_task("mlp"))
    with pytest.raises(SignatureError):
        store.commit(elsewhere._committed.ready, list(elsewhere.tasks.values()))
    assert snapshot(signed) == before


def test_a_loaded_learner_commits_signed_tasks(signed: Path) -> None:
    learner_at(Store(signed, signing_key=PRIVATE)).learn("third", tiny_task("mlp", 2))
    assert list(Learner.load(signed, model(), verify_key=PUBLIC).tasks) == ["first", "second", "third"]
    assert len(list((signed / "signatures").glob("manifest-*.sig"))) == 1


@pytest.mark.parametrize("key", [PRIVATE, SECRET], ids=lambda key: key.algorithm)
def test_a_store_is_signed_later(key: Key, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    learner_at(Store(folder)).learn("first", tiny_task("mlp"))
    with pytest.raises(SignatureError, match=r"manifest\.json has no signature"):
        Learner.load(folder, model(), verify_key=key)
    with pytest.raises(SettingError, match="no key that signs"):
        Store(folder).sign()
    with pytest.raises(SettingError, match="only verifies"):
        Store(folder).sign(PUBLIC)
    assert not (folder / "signatures").exists()
    assert Store(folder).sign(key) == 4
    content = snapshot(folder)
    assert Store(folder, signing_key=key).sign() == 4
    assert snapshot(folder) == content
    assert list(Learner.load(folder, model(), verify_key=key.verifier()).tasks) == ["first"]


def test_a_damaged_store_is_not_signed(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    learner_at(Store(folder)).learn("first", tiny_task("mlp"))
    (path,) = folder.glob("tasks/*")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedError, match=path.name):
        Store(folder).sign(PRIVATE)
    assert not (folder / "signatures").exists()


def test_signatures_never_lead_out_of_the_store(signed: Path, tmp_path: Path) -> None:
    (signed / "signatures").rename(tmp_path / "elsewhere")
    (signed / "signatures").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LinkError, match="signatures"):
        Learner.load(signed, model(), verify_key=PUBLIC)
    with pytest.raises(LinkError, match="signatures"):
        Store(signed).sign(PRIVATE)


def test_the_same_commits_give_the_same_bytes(made: Path, tmp_path: Path) -> None:
    learner = learner_at(Store(tmp_path / "again", signing_key=PRIVATE))
    learner.learn("first", tiny_task("mlp"))
    learner.learn("second", tiny_task("mlp", 1))
    assert snapshot(tmp_path / "again") == snapshot(made)


@pytest.mark.parametrize("last", ["manifest.json", "manifest-", "third-"])
def test_a_commit_that_dies_at_any_file_leaves_a_store_that_verifies(
    last: str, signed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = atomic.write

    def dies(path: Path, content: bytes, durable: bool = True) -> None:
        if path.name.startswith(last):
            raise KeyboardInterrupt
        real(path, content, durable)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "write", dies)
        with pytest.raises(KeyboardInterrupt):
            learner_at(Store(signed, signing_key=PRIVATE)).learn("third", tiny_task("mlp", 2))
    assert list(Learner.load(signed, model(), verify_key=PUBLIC).tasks) == ["first", "second"]
    learner_at(Store(signed, signing_key=PRIVATE)).learn("third", tiny_task("mlp", 2))
    assert list(Learner.load(signed, model(), verify_key=PUBLIC).tasks) == ["first", "second", "third"]


def test_a_reader_beside_a_commit_sees_the_manifest_before_or_the_one_after(
    signed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signature of the manifest that was just read is removed by the commit that replaces both."""
    real, commits = Folder.verify, iter(["third"])

    def slow(folder: Folder, file: str, content: bytes) -> None:
        if file == "manifest.json" and (name := next(commits, None)) is not None:
            learner_at(Store(signed, signing_key=PRIVATE)).learn(name, tiny_task("mlp", 2))
        real(folder, file, content)

    monkeypatch.setattr(Folder, "verify", slow)
    assert list(Store(signed, verify_key=PUBLIC).manifest().tasks) == ["first", "second", "third"]


def made_with(folder: Path, key: Key | None, *names: str) -> Learner:
    learner = Learner(net("mlp"), method=METHOD, recipe=FAST, base="given", store=Store(folder, signing_key=key))
    for number, name in enumerate(names):
        learner.learn(name, tiny_task("mlp", number))
    return learner


def verified(folder: Path) -> list[str]:
    return sorted(Learner.load(folder, model(), verify_key=PUBLIC, attach=False).tasks)


def test_renamed_removed_and_replaced_tasks_are_signed(tmp_path: Path) -> None:
    learner = made_with(tmp_path, PRIVATE, "x", "y", "z")
    learner.rename("x", "w")
    assert verified(tmp_path) == ["w", "y", "z"]
    learner.remove("y")
    assert verified(tmp_path) == ["w", "z"]
    learner.learn("z", tiny_task("mlp", 5), replace=True)
    assert verified(tmp_path) == ["w", "z"]


def test_merging_verifies_the_other_store_if_asked_and_signs_what_comes(tmp_path: Path) -> None:
    made_with(tmp_path / "ours", PRIVATE, "x")
    made_with(tmp_path / "theirs", None, "y")
    store = Store(tmp_path / "ours", signing_key=PRIVATE)
    with pytest.raises(SignatureError):
        store.merge(Store(tmp_path / "theirs", verify_key=PUBLIC))
    assert verified(tmp_path / "ours") == ["x"]
    store.merge(tmp_path / "theirs")
    assert verified(tmp_path / "ours") == ["x", "y"]


def test_a_rebuilt_manifest_names_only_what_the_key_signed(tmp_path: Path) -> None:
    made_with(tmp_path, PRIVATE, "x", "y")
    (tmp_path / "manifest.json").unlink()
    (signature,) = (tmp_path / "signatures" / "tasks").glob("y-*.sig")
    signature.unlink()
    Store(tmp_path, signing_key=PRIVATE).repair()
    assert verified(tmp_path) == ["x"]


def test_every_change_of_a_signed_store_is_signed(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", signing_key=SECRET)
    learner = Learner(net("mlp"), recipe=FAST, method=roomy(), base="given", store=store)
    for number in range(3):
        learner.learn(f"t{number}", tiny_task("mlp", number))
    other = learned("mlp", tasks=0, base="given", store=tmp_path / "other")
    other.learn("other", tiny_task("mlp", 4))
    steps: list[Callable[[], object]] = [
        lambda: learner.rename("t0", "renamed"),
        lambda: learner.learn("t1", tiny_task("mlp", 5), replace=True),
        lambda: learner.revert("t1"),
        lambda: learner.drop_versions("t1"),
        lambda: learner.remove("t2"),
        lambda: store.merge(tmp_path / "other"),
        lambda: store.repair(empty_trash=True),
        store.repair,
    ]
    for step in steps:
        if step == steps[-1]:
            (tmp_path / "store" / "manifest.json").unlink()
        step()
        Learner.load(tmp_path / "store", net("mlp"), verify_key=SECRET)
    signed = {name.removeprefix("signatures/") for name in snapshot(tmp_path / "store") if name.endswith(".sig")}
    named = {entry.file.rpartition(".")[0] + ".sig" for entry in store.manifest().entries}
    assert named <= signed
    assert not {name for name in signed - named if not name.startswith("manifest-")}  # the trash was emptied


def test_a_store_that_is_only_verified_is_not_written_to(tmp_path: Path) -> None:
    learned("mlp", tasks=2, store=tmp_path)
    Store(tmp_path).sign(SECRET)
    before = snapshot(tmp_path)
    learner = Learner.load(tmp_path, net("mlp"), verify_key=SECRET)
    trained: list[object] = []
    learner.progress = trained.append
    for act in (lambda: learner.learn("t2", tiny_task("mlp", 2)), lambda: learner.remove("t1")):
        with pytest.raises(SettingError, match=r"without a key that signs.*attach=False"):
            act()
    assert not trained
    assert snapshot(tmp_path) == before
    Learner.load(tmp_path, net("mlp"), verify_key=SECRET, attach=False).learn("t2", tiny_task("mlp", 2))


def test_a_repair_with_a_key_takes_in_nothing_that_is_not_signed(tmp_path: Path) -> None:
    learner = learned("mlp", tasks=2, store=tmp_path)
    Store(tmp_path).sign(SECRET)
    hidden = (tmp_path / "signatures").rename(tmp_path / "hidden")
    learner.learn("foreign", tiny_task("mlp", 5))  # without the key
    hidden.rename(tmp_path / "signatures")
    store = Store(tmp_path, signing_key=SECRET)
    with pytest.raises(SignatureError, match=r"manifest\.json"):
        store.repair()
    (tmp_path / "manifest.json").unlink()
    report = store.repair()
    assert [step.kind for step in report.steps] == ["rebuild", "unreadable"]
    assert list(Learner.load(tmp_path, net("mlp"), verify_key=SECRET).tasks) == ["t0", "t1"]


def stopped_at(epochs: int) -> Callable[[Progress], None]:
    left = iter(range(epochs))

    def stop(event: Progress) -> None:
        if event.loss is not None and next(left, None) is None:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize(("key", "fits"), [(PRIVATE, True), (OTHER, False), (SECRET, False), (None, False)])
def test_a_checkpoint_that_another_key_or_nobody_signed_is_not_resumed(
    key: Key | None, fits: bool, tmp_path: Path
) -> None:
    """What is learned from a forged checkpoint would be committed and signed."""
    recipe = dataclasses.replace(FAST, epochs=4)
    forging = Store(tmp_path, checkpoint_every=0, signing_key=key)
    with pytest.raises(KeyboardInterrupt):
        Learner(model(), recipe=recipe, store=forging, progress=stopped_at(2)).learn("first", tiny_task("mlp"))
    seen: list[int] = []
    learner = Learner(
        model(),
        recipe=recipe,
        store=Store(tmp_path, checkpoint_every=0, signing_key=PRIVATE),
        progress=lambda event: seen.append(event.epoch) if event.loss is not None else None,
    )
    with nullcontext() if fits else pytest.warns(CheckpointWarning, match="its checksum is wrong"):
        learner.learn("first", tiny_task("mlp"))
    assert seen == ([4] if fits else [1, 2, 3, 4])
    assert list(Learner.load(tmp_path, model(), verify_key=PUBLIC).tasks) == ["first"]


@pytest.mark.parametrize("kind", ["ed25519", "hmac-sha256"])
def test_the_commands_make_a_key_sign_and_verify(kind: str, tmp_path: Path) -> None:
    folder, key = tmp_path / "store", tmp_path / "team.key"
    learner_at(Store(folder)).learn("first", tiny_task("mlp"))
    assert ran("keygen", key, "--kind", kind).code == 0
    again = ran("keygen", key)
    assert (again.code, "never replaced" in again.error) == (2, True)
    public = tmp_path / "team.key.pub" if kind == "ed25519" else key
    unsigned = ran("verify", folder, "--key", public)
    assert unsigned.code == 1
    assert "has no signature" in unsigned.out
    assert "signed 4 files" in ran("sign", folder, "--key", key).out
    assert ran("verify", folder, "--key", public).code == 0
    assert ran("verify", folder).code == 0
    (path,) = folder.glob("tasks/*")
    path.unlink()
    assert ran("verify", folder, "--key", public).code == 1
