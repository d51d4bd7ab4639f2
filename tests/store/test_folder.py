"""The folder of a store, on files alone: names, links, checksums, signatures, and what is written twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from halrp.errors import DamagedError, LinkError, SettingError, SignatureError, StoreError
from halrp.store import atomic, signing
from halrp.store.folder import FOLDERS, Folder, purpose_of, signature_name, slug, work_name
from halrp.store.manifest import Entry, entry_of
from halrp.store.signing import Key
from tests.store.stores import manifest_of, snapshot

PRIVATE = Key("ed25519-private", bytes(range(32)))
OTHER = Key("ed25519-private", bytes(32))
MANIFEST = manifest_of(2)


def modified(path: Path) -> int:
    return path.stat().st_mtime_ns


# ---- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("Birds of Prey", "birds-of-prey"),
        ("--a--b--", "a-b"),
        ("鳥", "task"),
        ("", "task"),
        ("x" * 41, "x" * 40),
        ("x" * 39 + "/yz", "x" * 39),
    ],
)
def test_a_name_becomes_a_harmless_piece_of_a_file_name(name: str, short: str) -> None:
    assert slug(name) == short


def test_checkpoints_of_different_tasks_and_versions_lie_apart() -> None:
    digest = atomic.checksum(b"A b")[:16]
    assert work_name("A b") == work_name("A b", 0) == f"a-b-{digest}"
    assert work_name("A b", 3) == f"a-b-{digest}-3"
    names = {work_name(task, version) for task in ("A b", "a b", "a-b", "\ud800") for version in range(3)}
    assert len(names) == 12


def test_a_signature_is_named_after_its_file_and_that_of_a_manifest_after_its_content() -> None:
    assert signature_name("tasks/a.b-12.safetensors", b"any") == "signatures/tasks/a.b-12.sig"
    assert signature_name("layout-12.json") == "signatures/layout-12.sig"
    assert signature_name("manifest.json", b"x") == f"signatures/manifest-{atomic.checksum(b'x')[:16]}.sig"


def test_the_purpose_of_a_signature_is_the_kind_of_its_file() -> None:
    files = ("manifest.json", "base-12.safetensors", "layout-12.json", "tasks/base-12.safetensors")
    assert [purpose_of(file) for file in files] == ["manifest", "base", "layout", "task"]


# ---- paths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("linked", ["manifest.json", "lock", *FOLDERS])
def test_no_path_leads_through_a_link_at_any_depth(linked: str, tmp_path: Path) -> None:
    path = tmp_path / "store" / linked
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path)
    folder = Folder(tmp_path / "store")
    for act in (lambda: folder.path(linked), lambda: folder.path(f"{linked}/x/y"), folder.refuse_links):
        with pytest.raises(LinkError, match=f"{path} is a symbolic link"):
            act()
    path.unlink()
    folder.refuse_links()
    assert folder.path(f"{linked}/x") == path / "x"


def test_files_are_those_of_the_named_folders_alone(tmp_path: Path) -> None:
    for name in ("b", "a", "tasks/d", "tasks/c", "tasks/deep/e", "work/f"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    folder = Folder(tmp_path)
    assert folder.files(".", "tasks", "nowhere") == ["a", "b", "tasks/c", "tasks/d"]
    assert folder.files("tasks") == ["tasks/c", "tasks/d"]
    assert Folder(tmp_path / "nowhere").files(".") == []


# ---- reading and writing --------------------------------------------------------------------------------------------


def test_a_folder_without_a_manifest_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        folder = Folder(root)
        assert folder.exists() is False
        with pytest.raises(StoreError, match=f"{root} is not a store: it has no manifest.json"):
            folder.manifest()
    (tmp_path / "manifest.json").write_bytes(MANIFEST.content)
    assert Folder(tmp_path).exists() is True
    assert Folder(tmp_path).manifest() == MANIFEST


def test_a_file_comes_back_as_it_was_written_and_never_otherwise(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    entry = folder.put("tasks/t", b"content")
    assert entry == entry_of("tasks/t", b"content")
    assert entry.file.endswith(".safetensors")
    assert folder.put("layout", b"{}", ".json").file.endswith(".json")
    assert folder.content(entry) == folder.content(entry, 7) == folder.content(entry, 100) == b"content"
    with pytest.raises(DamagedError, match="7 bytes, more than the 6"):
        folder.content(entry, 6)
    for damaged in (b"c0ntent", b"conten", b"contents", b""):
        (tmp_path / entry.file).write_bytes(damaged)
        with pytest.raises(DamagedError, match=Path(entry.file).name):
            folder.content(entry)
    with pytest.raises(DamagedError, match="is not the file that was committed"):
        folder.content(Entry(entry.file, atomic.checksum(b""), 7))


def test_a_file_that_is_there_is_not_written_again_unless_it_is_damaged(tmp_path: Path) -> None:
    folder = Folder(tmp_path, PRIVATE)
    entry = folder.put("tasks/t", b"content")
    paths = [tmp_path / entry.file, tmp_path / signature_name(entry.file)]
    files, times = snapshot(tmp_path), [modified(path) for path in paths]
    assert folder.put("tasks/t", b"content") == entry
    assert [modified(path) for path in paths] == times
    for path in paths:
        good = path.read_bytes()
        for damaged in (good[:-1], good[:-1] + b"?", good + b"?", b""):
            path.write_bytes(damaged)
            assert folder.put("tasks/t", b"content") == entry
            assert snapshot(tmp_path) == files
        path.unlink()
        folder.put("tasks/t", b"content")
        assert snapshot(tmp_path) == files


# ---- keys -----------------------------------------------------------------------------------------------------------


def test_whoever_signs_verifies_with_the_same_key_unless_another_is_given(tmp_path: Path) -> None:
    assert Folder(tmp_path).verify_key is None
    assert Folder(tmp_path, PRIVATE).verify_key == PRIVATE.verifier()
    assert Folder(tmp_path, PRIVATE, OTHER.verifier()).verify_key == OTHER.verifier()
    assert Folder(tmp_path, None, OTHER.verifier()).verify_key == OTHER.verifier()


def test_only_a_key_that_verifies_forbids_writing(tmp_path: Path) -> None:
    for folder in (Folder(tmp_path), Folder(tmp_path, PRIVATE), Folder(tmp_path, PRIVATE, PRIVATE.verifier())):
        folder.check_writable()
    with pytest.raises(SettingError, match="cannot be changed without a key that signs"):
        Folder(tmp_path, None, PRIVATE.verifier()).check_writable()


def test_a_signed_manifest_is_not_followed_by_one_without_a_signature(tmp_path: Path) -> None:
    plain, signing_folder = Folder(tmp_path), Folder(tmp_path, PRIVATE)
    for folder in (plain, signing_folder):
        folder.refuse_unsigned(None)
        folder.refuse_unsigned(MANIFEST)
    signing_folder.sign("manifest.json", MANIFEST.content)
    signing_folder.refuse_unsigned(MANIFEST)
    plain.refuse_unsigned(None)
    plain.refuse_unsigned(manifest_of(3))  # the signature is of another one
    with pytest.raises(SignatureError, match="is signed, and a change without its key"):
        plain.refuse_unsigned(MANIFEST)


def test_a_file_is_verified_by_content_and_purpose_and_the_message_names_it(tmp_path: Path) -> None:
    Folder(tmp_path).verify("tasks/t-1.safetensors", b"anything")
    Folder(tmp_path).sign("tasks/t-1.safetensors", b"anything")
    assert snapshot(tmp_path) == {}
    folder, file = Folder(tmp_path, PRIVATE), "tasks/t-1.safetensors"
    with pytest.raises(
        SignatureError, match=rf"{tmp_path / file} has no signature \({tmp_path}/signatures/tasks/t-1.sig"
    ):
        folder.verify(file, b"content")
    folder.sign(file, b"content")
    folder.verify(file, b"content")
    with pytest.raises(SignatureError, match=str(tmp_path / file)):
        folder.verify(file, b"c0ntent")
    path = tmp_path / signature_name(file)
    path.write_bytes(signing.sign(PRIVATE, "base", b"content"))
    with pytest.raises(SignatureError, match=str(tmp_path / file)):
        folder.verify(file, b"content")
    path.write_bytes(bytes(signing.LARGEST + 1))
    with pytest.raises(SignatureError, match=f"{tmp_path / file} has a signature that cannot be read"):
        folder.verify(file, b"content")


def test_a_manifest_without_a_signature_is_read_again_only_if_it_was_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, path, later = Folder(tmp_path, PRIVATE), tmp_path / "manifest.json", manifest_of(3)
    path.write_bytes(MANIFEST.content)
    reads: list[Path] = []
    real = atomic.read

    def read(file: Path, limit: int = atomic.LARGEST) -> bytes:
        reads.append(file)
        if reads.count(path) > 3:
            raise AssertionError("it is read again and again")
        return real(file, limit)

    monkeypatch.setattr(atomic, "read", read)
    with pytest.raises(SignatureError, match="has no signature"):
        folder.manifest()
    assert reads == [path, path]
    reads.clear()
    folder.sign("manifest.json", later.content)
    verify = folder.verify

    def replaced(file: str, content: bytes) -> None:
        path.write_bytes(later.content)
        verify(file, content)

    monkeypatch.setattr(folder, "verify", replaced)
    assert folder.manifest() == later
