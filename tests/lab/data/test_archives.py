"""Archives are read in place and not trusted: hostile, damaged and truncated ones raise one typed error."""

import bz2
import io
import lzma
import stat
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halrp.lab.data import DataDamaged, archives
from halrp.lab.data.archives import members
from halrp.lab.data.cache import fingerprint
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


def one_member(path: Path, packed: bytes, method: int, size: int, crc: int) -> Path:
    """A zip with one member `a`, of which the headers state the method, the size and the checksum."""
    fields = struct.pack("<HHHHHIIIHH", 20, 0, method, 0, 33, crc, len(packed), size, 1, 0)
    local = b"PK\3\4" + fields + b"a" + packed
    central = b"PK\1\2" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, 0) + b"a"
    path.write_bytes(local + central + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0))
    return path


def packed_zeros(compressor: Any, megabytes: int) -> bytes:
    parts: list[bytes] = [compressor.compress(bytes(1 << 20)) for _ in range(megabytes)]
    return b"".join([*parts, compressor.flush()])


@pytest.mark.parametrize(
    ("method", "make"),
    [(8, lambda: zlib.compressobj(9, zlib.DEFLATED, -15)), (12, lambda: bz2.BZ2Compressor(9))],
    ids=["deflate", "bzip2"],
)
def test_a_zip_that_grows_beyond_what_its_header_states_is_refused_within_the_limit(
    method: int, make: Callable[[], Any], tmp_path: Path
) -> None:
    path = one_member(tmp_path / "a.zip", packed_zeros(make(), 64), method, 100, 0)
    assert path.stat().st_size < 70_000
    tracemalloc.start()
    try:
        with pytest.raises(DataDamaged, match=r"a\.zip"):
            listed(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20, "64 MB were decompressed"
    finally:
        tracemalloc.stop()


def test_a_zip_with_a_list_of_members_beyond_the_limit_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = makers.archive(tmp_path / "a.zip", FILES)
    assert listed(path) == FILES
    monkeypatch.setattr(archives, "LARGEST_DIRECTORY", 100)
    with pytest.raises(DataDamaged, match="list of members"):
        listed(path)
    large = path.read_bytes()
    at = large.rindex(b"PK\5\6")
    record = b"PK\6\6" + bytes(36) + (1 << 40).to_bytes(8, "little") + bytes(8)
    path.write_bytes(large[:at] + record + b"PK\6\7" + bytes(16) + large[at:])
    with pytest.raises(DataDamaged, match="list of members of 1,099,511,627,776 bytes"):
        listed(path)


def test_an_xz_that_asks_for_gigabytes_of_dictionary_is_refused(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 20}]
    content = bytearray(lzma.compress(b"content", filters=filters))
    at = content.index(b"\x21\x01", 12) + 2  # the filter's id and the length of its settings, in the block's header
    content[at] = 40  # a dictionary of 4 GB
    length = (content[12] + 1) * 4
    content[12 + length - 4 : 12 + length] = zlib.crc32(content[12 : 12 + length - 4]).to_bytes(4, "little")
    (tmp_path / "file.xz").write_bytes(content)
    with pytest.raises(DataDamaged, match=r"(?i)memory usage limit"):
        listed(tmp_path / "file.xz")


def test_xz_streams_that_follow_each_other_are_one_file(tmp_path: Path) -> None:
    (tmp_path / "file.xz").write_bytes(lzma.compress(b"first") + bytes(8) + lzma.compress(b"") + lzma.compress(b"last"))
    assert listed(tmp_path / "file.xz") == {"file": b"firstlast"}


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "file", "file.gz", "file.xz"])
def test_a_sparse_file_larger_than_any_data_set_is_refused_before_it_is_read(name: str, tmp_path: Path) -> None:
    with open(tmp_path / name, "wb") as file:
        file.truncate(8 << 30)
    with pytest.raises(DataDamaged, match=r"8,589,934,592 bytes, more than any known data set"):
        listed(tmp_path / name)
    with pytest.raises(DataDamaged, match=r"8,589,934,592 bytes, more than any known data set"):
        fingerprint(tmp_path, [tmp_path / name])
