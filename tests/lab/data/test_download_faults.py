"""Downloads that are interrupted, crowded or out of room: no harm is done, and the next try works."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from halrp.lab.data import download, transfer
from halrp.lab.data.download import DiskFull, DownloadFailed, RetryPolicy, fetch
from tests.lab.data.server import CONTENT, Site, check_next_try, only_the_file, part_of, published
from tests.timing import PATIENCE

CHILD = """
import sys
from pathlib import Path
from halrp.lab.data.download import fetch
from halrp.lab.data.sources import File
print(fetch(File("set/file.bin", (sys.argv[1],), int(sys.argv[2]), sys.argv[3], None), Path(sys.argv[4])))
"""


@pytest.fixture
def policy() -> RetryPolicy:
    return RetryPolicy(timeout=PATIENCE, sleep=lambda _: None)


def child(site: Site, root: Path) -> subprocess.Popen[bytes]:
    """Another process that downloads the same file."""
    file = published(site.url)
    arguments = [site.url, str(file.bytes), str(file.sha256), str(root)]
    return subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE)


def wait_for_part(root: Path) -> None:
    """Wait until a part of the file has come; the server waits for its gate in the middle."""
    deadline = time.monotonic() + PATIENCE
    while not part_of(root).exists() or not part_of(root).stat().st_size:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_full_disk_keeps_the_part_and_names_the_bytes(
    site: Site, tmp_path: Path, policy: RetryPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, room = os.write, [350_000]

    def write(handle: int, content: Any) -> int:
        if room[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(handle, content[: room[0]])
        room[0] -= written
        return written

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(DiskFull, match=r"needs [\d,]+ more bytes and .* has [\d,]+ free"):
            fetch(published(site.url), tmp_path, policy=policy)
    assert part_of(tmp_path).stat().st_size == 350_000
    check_next_try(site, tmp_path, policy)
    assert site.asked[-1]["range"] == "bytes=350000-"


def test_a_folder_that_cannot_be_made_is_named(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    (tmp_path / "set").write_text("in the way")
    with pytest.raises(DownloadFailed, match="set"):
        fetch(published(site.url), tmp_path, policy=policy)
    (tmp_path / "set").unlink()
    check_next_try(site, tmp_path, policy)


def test_an_interrupt_keeps_the_part(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    def interrupt(file: str, done: int, total: int | None) -> None:
        if done > 200_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(published(site.url), tmp_path, interrupt, policy)
    size = part_of(tmp_path).stat().st_size
    assert 200_000 < size < len(CONTENT) + 1
    assert not list((tmp_path / "set").glob(".*lock"))
    check_next_try(site, tmp_path, policy)
    assert len(site.asked) == (1 if size == len(CONTENT) else 2)


def test_two_at_once_download_one_file_once(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    site.gate = threading.Event()
    waiting = threading.Event()
    results: list[Path] = []

    def first() -> None:
        results.append(fetch(published(site.url), tmp_path, policy=policy))

    def second() -> None:
        results.append(fetch(published(site.url), tmp_path, lambda *_: waiting.set(), policy))

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    wait_for_part(tmp_path)
    threads[1].start()
    assert waiting.wait(PATIENCE)
    site.gate.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert results == [tmp_path / "set" / "file.bin"] * 2
    assert len(site.asked) == 1
    assert only_the_file(tmp_path)


def test_whoever_makes_no_progress_is_not_waited_for_for_ever(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    with download._file_lock(tmp_path / "file", lambda *_: None, policy):
        impatient = replace(policy, wait=0.05)
        with (
            pytest.raises(DownloadFailed, match=r"no progress for 0\.05 seconds"),
            download._file_lock(tmp_path / "file", lambda *_: None, impatient),
        ):
            pass
    with download._file_lock(tmp_path / "file", lambda *_: None, impatient):
        pass


def test_another_process_is_waited_for_and_its_file_used(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    site.gate = threading.Event()
    other = child(site, tmp_path)
    wait_for_part(tmp_path)
    opened = site.gate.set  # whoever waits reports how the part grows
    assert fetch(published(site.url), tmp_path, lambda *_: opened(), policy).read_bytes() == CONTENT
    out, _ = other.communicate(timeout=PATIENCE)
    assert out.decode().strip() == str(tmp_path / "set" / "file.bin")
    assert len(site.asked) == 1
    assert only_the_file(tmp_path)


def test_a_killed_process_leaves_a_part_to_resume_and_no_lock(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    site.gate = threading.Event()
    other = child(site, tmp_path)
    wait_for_part(tmp_path)
    other.kill()
    other.communicate()
    site.gate.set()
    size = part_of(tmp_path).stat().st_size
    check_next_try(site, tmp_path, policy)
    assert site.asked[-1]["range"] == f"bytes={size}-"


def test_a_download_that_drips_is_given_up_by_its_rate(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    site.drip = threading.Event()
    impatient = replace(policy, slowest=1e9, window=0.2, tries=2)
    with pytest.raises(DownloadFailed, match=r"bytes came in 0\.2 seconds, fewer than 1,000,000,000 per second"):
        fetch(published(site.url), tmp_path, policy=impatient)
    site.drip = None
    check_next_try(site, tmp_path, policy)


def test_a_download_without_a_length_that_drips_is_not_taken_for_complete(
    site: Site, tmp_path: Path, policy: RetryPolicy
) -> None:
    site.drip, site.length = threading.Event(), False
    impatient = replace(policy, slowest=1e9, window=0.2, tries=1)
    with pytest.raises(DownloadFailed, match="bytes came in"):
        fetch(published(site.url, bytes=None, sha256=None), tmp_path, policy=impatient)
    assert not (tmp_path / "set" / "file.bin").exists()


def test_headers_that_drip_are_given_up(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    site.drip_headers = True
    impatient = replace(policy, window=0.2, tries=1)
    with pytest.raises(DownloadFailed, match=r"only 0 bytes came in 0\.2 seconds"):
        fetch(published(site.url), tmp_path, policy=impatient)


def test_a_download_ends_at_its_deadline(site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    site.drip = threading.Event()
    with pytest.raises(DownloadFailed, match="not finished before the deadline"):
        fetch(published(site.url), tmp_path, policy=replace(policy, slowest=0.0, deadline=0.2, tries=1000))
    site.drip = None
    check_next_try(site, tmp_path, policy)


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "1e9", "0x10"])
def test_a_length_that_is_none_is_refused(length: str, site: Site, tmp_path: Path, policy: RetryPolicy) -> None:
    site.stated_length = length
    with pytest.raises(DownloadFailed, match="gives a length that is none"):
        fetch(published(site.url, bytes=None, sha256=None), tmp_path, policy=policy)
    assert not part_of(tmp_path).exists()


def test_a_file_larger_than_any_data_set_is_refused_before_it_comes(
    site: Site, tmp_path: Path, policy: RetryPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "LARGEST_TOTAL", 500_000)
    for site.length, problem in ((True, "file of 600,000 bytes there"), (False, "sent more than any known data set")):
        with pytest.raises(DownloadFailed, match=problem):
            fetch(published(site.url, bytes=None, sha256=None), tmp_path, policy=policy)


@pytest.mark.parametrize("address", ["http://[", "http://[::1", "ftp://[::1"])
def test_a_redirect_to_an_address_that_cannot_be_parsed_is_refused(
    address: str, site: Site, tmp_path: Path, policy: RetryPolicy
) -> None:
    site.redirect = address
    with pytest.raises(DownloadFailed):
        fetch(published(site.url), tmp_path, policy=policy)
