"""Archives are read in place and not trusted: hostile, damaged and truncated ones raise one typed error."""

import io
import lzma
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest

from halrp.lab.data import DataDamaged, archives
from halrp.lab.data.archives import members
from tests.lab.data import makers

FILES = {"folder/one.txt": b"first", "folder/deep/two.txt": bytes(range(256)) * 40, "other.bin": b""}
KINDS = ("a.zip", "a.tar", "a.tar.gz", "a.tgz", "a.tar.xz")


def listed(path: Path) -> dict[str, bytes]:
    return {member.name: member.content for member in members(path.parent, [path])}


def tar_of(path: Path, *infos: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info in infos:
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    return path


def info_of(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_archive_gives_its_files(kind: str, tmp_path: Path) -> None:
    path = tmp_path / kind
    if kind == "a.tgz":
        makers.archive(tmp_path / "a.tar.gz", FILES).rename(path)
    else:
        makers.archive(path, FILES)
    assert listed(path) == FILES
    assert list(tmp_path.iterdir()) == [path], "nothing is unpacked"


def test_plain_and_compressed_files_are_named_by_their_path(tmp_path: Path) -> None:
    paths = [makers.put(tmp_path / "folder" / name, b"content") for name in ("one", "two.gz", "three.xz")]
    assert [member.name for member in members(tmp_path, paths)] == ["folder/one", "folder/two", "folder/three"]
    assert {member.content for member in members(tmp_path, paths)} == {b"content"}


def test_only_wanted_members_are_given(tmp_path: Path) -> None:
    for kind in KINDS[:2]:
        path = makers.archive(tmp_path / kind, FILES)
        names = [member.name for member in members(tmp_path, [path], lambda name: name.endswith("two.txt"))]
        assert names == ["folder/deep/two.txt"]


HOSTILE = ("/etc/passwd", "../outside", "a/../../outside", "..\\outside", "C:\\outside", "\\\\host\\share")


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_leads_out_of_the_archive_is_refused(name: str, tmp_path: Path) -> None:
    for kind in ("a.zip", "a.tar.gz"):
        with pytest.raises(DataDamaged, match="leads out of the archive"):
            listed(makers.archive(tmp_path / kind, {name: b"x"}))


@pytest.mark.parametrize(
    "info",
    [
        info_of("link", tarfile.SYMTYPE, "/etc/passwd"),
        info_of("link", tarfile.LNKTYPE, "other"),
        info_of("device", tarfile.CHRTYPE),
        info_of("pipe", tarfile.FIFOTYPE),
    ],
    ids=["symbolic link", "hard link", "device", "pipe"],
)
def test_a_member_that_is_no_file_is_refused(info: tarfile.TarInfo, tmp_path: Path) -> None:
    with pytest.raises(DataDamaged, match="neither a file nor a folder"):
        listed(tar_of(tmp_path / "a.tar.gz", info))


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(DataDamaged, match="neither a file nor a folder"):
        listed(tmp_path / "a.zip")


def test_a_member_of_absurd_size_is_refused_before_it_is_read(tmp_path: Path) -> None:
    info = info_of("bomb.png")
    info.size = 1 << 40
    (tmp_path / "a.tar").write_bytes(info.tobuf() + bytes(2048))
    with pytest.raises(DataDamaged, match=r"1,099,511,627,776 bytes"):
        listed(tmp_path / "a.tar")


def test_a_header_that_asks_for_absurd_memory_is_refused(tmp_path: Path) -> None:
    info = info_of("long name", tarfile.GNUTYPE_LONGNAME)
    info.size = 1 << 36
    (tmp_path / "a.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    with pytest.raises(DataDamaged, match="a header asks for"):
        listed(tmp_path / "a.tar")


@pytest.mark.parametrize("kind", ["a.zip", "a.tar.xz"])
def test_too_many_bytes_together_are_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = makers.archive(tmp_path / kind, {f"{number}": bytes(1000) for number in range(20)})
    assert len(listed(path)) == 20
    monkeypatch.setattr(archives, "LARGEST_TOTAL", 15_000)
    with pytest.raises(DataDamaged, match="more than any known data set"):
        listed(path)


@pytest.mark.parametrize("kind", ["a.zip", "a.tar.xz"])
def test_too_many_members_are_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = makers.archive(tmp_path / kind, {f"{number}": b"" for number in range(20)})
    monkeypatch.setattr(archives, "MOST_MEMBERS", 10)
    with pytest.raises(DataDamaged, match="more than any known data set"):
        listed(path)


def test_a_compressed_file_that_grows_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "LARGEST_MEMBER", 100_000)
    for ending in (".gz", ".xz"):
        with pytest.raises(DataDamaged, match="holds more than 100,000 bytes"):
            listed(makers.put(tmp_path / f"file{ending}", bytes(100_001)))


@pytest.mark.parametrize("kind", [*KINDS, "file.gz", "file.xz"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_a_truncated_archive_is_damaged(kind: str, share: float, tmp_path: Path) -> None:
    if kind.startswith("file"):
        path = makers.put(tmp_path / kind, FILES["folder/deep/two.txt"])
    else:
        path = makers.archive(tmp_path / kind.replace("tgz", "tar.gz"), FILES).rename(tmp_path / kind)
        if kind == "a.tar":  # it ends with empty blocks, of which the last are padding
            path.write_bytes(path.read_bytes().rstrip(b"\0"))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DataDamaged, match=path.name):
        listed(path)


@pytest.mark.parametrize("kind", ["a.zip", "a.tar.gz", "a.tar.xz"])
def test_a_changed_byte_of_content_is_noticed_by_the_checksum_of_the_archive(kind: str, tmp_path: Path) -> None:
    path = makers.archive(tmp_path / kind, {"one": bytes(range(256)) * 40})
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(DataDamaged, match=path.name):
        listed(path)


def test_a_damaged_tar_header_is_not_taken_for_the_end(tmp_path: Path) -> None:
    path = makers.archive(tmp_path / "a.tar", FILES, folders=False)
    content = bytearray(path.read_bytes())
    content[1024] ^= 0xFF  # the first byte of the second header: the first is 512 bytes and so is its file
    path.write_bytes(content)
    with pytest.raises(DataDamaged, match="damaged header"):
        listed(path)


def test_a_wrong_end_of_a_compressed_stream_is_noticed_after_the_last_member(tmp_path: Path) -> None:
    path = makers.archive(tmp_path / "a.tar.gz", FILES)
    content = bytearray(path.read_bytes())
    content[-6] ^= 0xFF  # in gzip's checksum
    path.write_bytes(content)
    with pytest.raises(DataDamaged, match="CRC"):
        listed(path)


def test_a_member_without_a_name_is_refused(tmp_path: Path) -> None:
    path = makers.archive(tmp_path / "a.zip", {"one": b"content"})
    content = bytearray(path.read_bytes())
    central = content.index(b"PK\x01\x02")
    content[central + 46] = 0  # the name ends at a zero byte
    path.write_bytes(content)
    with pytest.raises(DataDamaged, match="has no name"):
        listed(path)


def test_a_zip_with_a_password_or_of_an_unknown_kind_is_damaged(tmp_path: Path) -> None:
    path = makers.archive(tmp_path / "a.zip", {"one": b"content"})
    content = bytearray(path.read_bytes())
    central = content.index(b"PK\x01\x02")
    content[6] |= 1
    content[central + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(DataDamaged, match="password"):
        listed(path)


@pytest.mark.parametrize("kind", KINDS)
def test_random_bytes_are_damaged(kind: str, tmp_path: Path) -> None:
    (tmp_path / kind).write_bytes(bytes(range(256)) * 8)
    with pytest.raises(DataDamaged, match=kind):
        listed(tmp_path / kind)


def test_an_xz_archive_of_something_else_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "a.tar.xz").write_bytes(lzma.compress(b"no archive at all" * 100))
    with pytest.raises(DataDamaged, match=r"a\.tar\.xz"):
        listed(tmp_path / "a.tar.xz")
