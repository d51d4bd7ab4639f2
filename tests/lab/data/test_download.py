"""Downloads: whole and verified, or an error after which the next try works."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from halrp.errors import HalrpError, SettingError
from halrp.lab.data import download
from halrp.lab.data.download import DiskFull, DownloadFailed, RetryPolicy, fetch, get
from halrp.lab.data.images import DataDamaged
from halrp.lab.data.sources import Source
from tests.lab.data.server import CONTENT, Site, check_next_try, only_the_file, part_of, published, serving
from tests.timing import PATIENCE


@pytest.fixture
def pauses() -> list[float]:
    """How long `policy` would have slept, each time."""
    return []


@pytest.fixture
def policy(pauses: list[float]) -> RetryPolicy:
    return RetryPolicy(timeout=PATIENCE, sleep=pauses.append)


def test_a_file_is_brought_into_place_with_progress_to_the_end(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = fetch(published(site.url), tmp_path, lambda *step: seen.append(step))
    assert path == tmp_path / "set" / "file.bin"
    assert path.read_bytes() == CONTENT
    assert only_the_file(tmp_path)
    assert seen[0] == ("set/file.bin", 0, len(CONTENT))
    assert seen[-1] == ("set/file.bin", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_a_verified_file_is_not_asked_for_again(site: Site, tmp_path: Path) -> None:
    for _ in range(2):
        fetch(published(site.url), tmp_path)
    assert len(site.asked) == 1


def test_a_damaged_file_in_place_is_replaced(site: Site, tmp_path: Path) -> None:
    path = fetch(published(site.url), tmp_path)
    path.write_bytes(CONTENT[:-1] + b"?")
    assert fetch(published(site.url), tmp_path).read_bytes() == CONTENT


def test_an_md5_is_enough(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    right = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
    assert fetch(published(site.url, sha256=None, md5=right), tmp_path, policy=policy).read_bytes() == CONTENT
    with pytest.raises(DataDamaged, match="md5"):
        fetch(published(site.url, sha256=None, md5="0" * 32), tmp_path, policy=policy)


def test_a_cut_connection_is_resumed_where_it_ended(
    site: Site, tmp_path: Path, policy: RetryPolicy, pauses: list[float]
) -> None:
    site.cut = [400_000]
    fetch(published(site.url), tmp_path, policy=policy)
    assert [asked.get("range") for asked in site.asked] == [None, "bytes=400000-"]
    assert site.asked[1]["if-range"] == '"one"'
    assert pauses == [1.0]
    assert only_the_file(tmp_path)


def test_a_cut_connection_without_a_length_is_noticed_by_the_published_size(
    site: Site, tmp_path: Path, policy: RetryPolicy
) -> None:
    site.cut, site.length = [400_000], False
    assert fetch(published(site.url), tmp_path, policy=policy).read_bytes() == CONTENT


def test_three_failures_in_a_row_are_enough_and_the_part_is_kept(
    site: Site, tmp_path: Path, policy: RetryPolicy, pauses: list[float]
) -> None:
    site.cut = [100, 100, 100]
    with pytest.raises(DownloadFailed, match=r"ended after 300 of 600,000 bytes \(3 tries\).*by hand at .*file\.bin"):
        fetch(published(site.url), tmp_path, policy=policy)
    assert pauses == [1.0, 2.0]
    assert part_of(tmp_path).read_bytes() == CONTENT[:300]
    check_next_try(site, tmp_path, policy)
    assert site.asked[-1]["range"] == "bytes=300-"


def test_failures_after_much_progress_are_not_counted_together(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    site.content = CONTENT * 10
    site.cut = [1_100_000] * 5
    path = fetch(published(site.url, content=site.content), tmp_path, policy=policy)
    assert path.read_bytes() == site.content


def test_a_server_that_ignores_ranges_gives_all_of_it(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    site.cut, site.ranges = [400_000], False
    fetch(published(site.url), tmp_path, policy=policy)
    assert only_the_file(tmp_path)


def test_a_server_with_another_range_than_asked_for_gives_all_of_it(
    site: Site, tmp_path: Path, policy: RetryPolicy
) -> None:
    site.cut, site.wrong_range = [400_000], True
    fetch(published(site.url), tmp_path, policy=policy)
    assert [asked.get("range") for asked in site.asked] == [None, "bytes=400000-", None]


def test_a_part_larger_than_the_file_is_started_over(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    part_of(tmp_path).parent.mkdir()
    part_of(tmp_path).write_bytes(CONTENT + b"more")
    check_next_try(site, tmp_path, policy)
    assert "range" not in site.asked[0]


def test_a_range_that_the_server_does_not_have_is_started_over(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    part_of(tmp_path).parent.mkdir()
    part_of(tmp_path).write_bytes(CONTENT + b"more")
    (tmp_path / "set" / "file.bin.part.json").write_text(json.dumps({"url": site.url, "version": site.etag}))
    with pytest.warns(UserWarning, match="could not be verified"):
        fetch(published(site.url, bytes=None, sha256=None), tmp_path, policy=policy)
    assert [asked.get("range") for asked in site.asked] == ["bytes=600004-", None]


def test_a_whole_part_is_verified_without_asking(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    part_of(tmp_path).parent.mkdir()
    part_of(tmp_path).write_bytes(CONTENT)
    check_next_try(site, tmp_path, policy)
    assert site.asked == []


def test_a_part_with_wrong_content_is_started_over_in_the_same_call(
    site: Site, tmp_path: Path, policy: RetryPolicy
) -> None:
    part_of(tmp_path).parent.mkdir()
    part_of(tmp_path).write_bytes(b"?" * 1000)
    check_next_try(site, tmp_path, policy)
    assert [asked.get("range") for asked in site.asked] == ["bytes=1000-", None]


@pytest.mark.parametrize("named", ["etag", "modified"])
def test_a_file_that_changed_meanwhile_is_not_spliced(
    site: Site, tmp_path: Path, policy: RetryPolicy, named: str
) -> None:
    site.etag = None
    setattr(site, named, '"old"' if named == "etag" else "Mon, 01 Jan 2024 00:00:00 GMT")
    changed, site.content = site.content, b"x" * len(CONTENT)
    site.cut = [1000, 1000, 1000]
    file = published(site.url, bytes=None, sha256=None)
    with pytest.raises(DownloadFailed):
        fetch(file, tmp_path, policy=policy)
    site.content = changed
    setattr(site, named, '"new"' if named == "etag" else "Tue, 02 Jan 2024 00:00:00 GMT")
    with pytest.warns(UserWarning, match="could not be verified"):
        assert fetch(file, tmp_path, policy=policy).read_bytes() == CONTENT
    assert "if-range" in site.asked[-1]


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_checksum_and_version_nothing_is_resumed(
    site: Site, tmp_path: Path, policy: RetryPolicy, etag: str | None
) -> None:
    site.etag, site.cut = etag, [1000]
    with pytest.warns(UserWarning, match="could not be verified"):
        fetch(published(site.url, bytes=None, sha256=None), tmp_path, policy=policy)
    assert [asked.get("range") for asked in site.asked] == [None, None]


def test_wrong_content_is_damage_and_is_removed(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    site.content = CONTENT[::-1]
    with pytest.raises(DataDamaged, match=r"sha256 \w{64}, where the published file has \w{64}"):
        fetch(published(site.url), tmp_path, policy=policy)
    assert list((tmp_path / "set").iterdir()) == []
    site.content = CONTENT
    check_next_try(site, tmp_path, policy)


def test_a_page_in_the_file_s_place_is_refused_and_costs_no_part(
    site: Site, tmp_path: Path, policy: RetryPolicy
) -> None:
    part_of(tmp_path).parent.mkdir()
    part_of(tmp_path).write_bytes(CONTENT[:1000])
    site.content, site.ranges = b"<html>please log in</html>", False
    with pytest.raises(DownloadFailed, match=r"a file of 26 bytes there, where the published one has 600,000"):
        fetch(published(site.url), tmp_path, policy=policy)
    assert part_of(tmp_path).read_bytes() == CONTENT[:1000]
    site.content, site.ranges = CONTENT, True
    check_next_try(site, tmp_path, policy)


def test_more_than_the_published_size_is_refused(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    site.content, site.length = CONTENT * 3, False
    with pytest.raises(DownloadFailed, match="more than the 600,000 bytes"):
        fetch(published(site.url), tmp_path, policy=policy)
    assert part_of(tmp_path).stat().st_size <= len(CONTENT)
    site.content = CONTENT
    check_next_try(site, tmp_path, policy)


def test_a_missing_file_is_not_tried_twice(
    site: Site, tmp_path: Path, policy: RetryPolicy, pauses: list[float]
) -> None:
    site.statuses = [404]
    with pytest.raises(DownloadFailed, match=r"http://127.*/file: the server answered 404 Not Found.*by hand at") as e:
        fetch(published(site.url), tmp_path, policy=policy)
    assert isinstance(e.value, HalrpError)
    assert isinstance(e.value, OSError)
    assert pauses == []
    check_next_try(site, tmp_path, policy)


def test_a_busy_server_is_asked_again(site: Site, tmp_path: Path, policy: RetryPolicy, pauses: list[float]) -> None:
    site.statuses = [503, 503]
    check_next_try(site, tmp_path, policy)
    assert pauses == [1.0, 2.0]


def test_a_silent_server_is_given_up_after_the_timeout(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    site.hang = True
    with pytest.raises(DownloadFailed, match=r"no answer for 0\.1 seconds"):
        fetch(published(site.url), tmp_path, policy=replace(policy, timeout=0.1))
    part = part_of(tmp_path)
    assert not part.exists() or CONTENT.startswith(part.read_bytes()), "what came is there"
    site.hang = False
    check_next_try(site, tmp_path, policy)


def test_a_refused_connection_is_named(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unused.getsockname()[1]}/file"
    with pytest.raises(DownloadFailed, match="connection was refused"):
        fetch(published(closed), tmp_path, policy=policy)
    check_next_try(site, tmp_path, policy)


def test_an_unknown_host_is_named(
    site: Site, tmp_path: Path, policy: RetryPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*args: object, **kwargs: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", unknown)
        with pytest.raises(DownloadFailed, match="host is not known"):
            fetch(published("http://data.invalid/file"), tmp_path, policy=policy)
    check_next_try(site, tmp_path, policy)


def test_a_redirect_is_followed_with_its_range(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    site.redirect = "/elsewhere"
    site.cut = [1000]
    fetch(published(site.url), tmp_path, policy=policy)
    assert site.asked[-1]["range"] == "bytes=1000-"


@pytest.mark.parametrize("target", ["file:///etc/hostname", "ftp://127.0.0.1/file"])
def test_a_redirect_out_of_http_is_refused(site: Site, tmp_path: Path, policy: RetryPolicy, target: str) -> None:
    site.redirect = target
    with pytest.raises(DownloadFailed, match=r"not an http or https address|not allowed"):
        fetch(published(site.url), tmp_path, policy=policy)
    site.redirect = None
    check_next_try(site, tmp_path, policy)


def test_only_http_addresses_are_read(tmp_path: Path, policy: RetryPolicy) -> None:
    with pytest.raises(DownloadFailed, match="not an http or https address"):
        fetch(published(f"file://{__file__}"), tmp_path, policy=policy)


def test_the_next_address_is_tried(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    with serving(Site(CONTENT[::-1])) as wrong, serving(Site(CONTENT, statuses=[404] * 9)) as gone:
        file = published(wrong.url, gone.url, site.url)
        assert fetch(file, tmp_path, policy=policy).read_bytes() == CONTENT
        (tmp_path / file.path).unlink()
        with pytest.raises(DownloadFailed, match=r"has the sha256.*; .*404 Not Found"):
            fetch(published(wrong.url, gone.url), tmp_path, policy=policy)


def test_a_file_without_published_checksum_is_recorded_and_checked_from_then_on(
    site: Site, tmp_path: Path, policy: RetryPolicy
) -> None:
    file = published(site.url, bytes=None, sha256=None)
    with pytest.warns(
        UserWarning, match=r"could not be verified.*600,000 bytes.*" + hashlib.sha256(CONTENT).hexdigest()
    ):
        path = fetch(file, tmp_path, policy=policy)
    fetch(file, tmp_path, policy=policy)
    assert len(site.asked) == 1
    path.write_bytes(b"?" + CONTENT[1:])
    with pytest.warns(UserWarning, match="could not be verified"):
        assert fetch(file, tmp_path, policy=policy).read_bytes() == CONTENT


@pytest.fixture
def known(site: Site, monkeypatch: pytest.MonkeyPatch) -> Source:
    files = tuple(replace(published(site.url), path=f"set/{name}.bin") for name in "ab")
    made = Source("set", "http://set.invalid/", files)
    monkeypatch.setattr(download, "source", {"set": made}.__getitem__)
    return made


def test_get_brings_every_file_and_asks_only_for_what_is_missing(
    known: Source, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALRP_DATA", str(tmp_path))
    assert get("set") == [tmp_path / "set" / "a.bin", tmp_path / "set" / "b.bin"]
    (tmp_path / "set" / "b.bin").unlink()
    assert get("set", tmp_path) == [tmp_path / file.path for file in known.files]
    assert len(site.asked) == 3


def test_get_asks_for_room_for_all_files_first(
    known: Source, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(free=900_000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage)
        with pytest.raises(DiskFull, match=r"needs 1,200,000 more bytes and .* has 900,000 free"):
            get("set", tmp_path / "new" / "folder")
    assert site.asked == []
    assert len(get("set", tmp_path / "new" / "folder")) == 2


def test_get_names_the_nearest_data_set(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="'cifar100'"):
        get("cifar-100", tmp_path)
