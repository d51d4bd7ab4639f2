"""`halrp data`: what it lists, gets and shows, and its exit codes."""

from __future__ import annotations

import ast
import builtins
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from halrp.cli.app import app
from halrp.lab.data import SETS, cache, download, sources
from halrp.lab.data.download import RetryPolicy
from halrp.lab.reference import load_reference
from halrp.lab.registry import STREAMS
from tests.lab.data.server import Site, serving
from tests.timing import PATIENCE

REAL = Path(__file__).parents[2].parent / "shared" / "data"


def archive(per_class: int = 1) -> bytes:
    """The official archive of CIFAR-100, with fewer images."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name in ("train.bin", "test.bin"):
            records = b"".join(bytes((0, label)) + bytes([label]) * 3072 for label in range(100)) * per_class
            member = tarfile.TarInfo(f"cifar-100-binary/{name}")
            member.size = len(records)
            tar.addfile(member, io.BytesIO(records))
    return content.getvalue()


class Run:
    """What a run of the command left behind."""

    def __init__(self, *arguments: object) -> None:
        result = CliRunner().invoke(app, ["data", *map(str, arguments)])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        self.code, self.out, self.error = result.exit_code, result.stdout, result.stderr


@pytest.fixture(autouse=True)
def _private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HALRP_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server of the archive, and facts that name it for CIFAR-100 and, with wrong checksums, for MNIST."""
    with serving(Site(archive())) as running:
        reported = load_reference("downloads")
        sha256 = hashlib.sha256(running.content).hexdigest()
        changes = {"urls": [running.url], "bytes": len(running.content), "sha256": sha256, "md5": None}
        reported["sets"]["cifar100"]["files"][0] |= changes
        for file in reported["sets"]["mnist"]["files"]:
            file["urls"] = [running.url]
        with monkeypatch.context() as patch:
            patch.setattr(sources, "load_reference", lambda name: reported)
            patch.setattr(
                download.get, "__defaults__", (None, None, RetryPolicy(timeout=PATIENCE, sleep=lambda _: None))
            )
            sources.sources.cache_clear()
            yield running
        sources.sources.cache_clear()


def entries(*arguments: object) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in json.loads(Run("list", "--json", *arguments).out)["sets"]}


def test_the_list_of_an_empty_directory_says_how_to_get_everything(tmp_path: Path) -> None:
    run = Run("list", "--data", tmp_path / "none")
    assert run.code == 0
    assert str(tmp_path / "none") in run.out
    assert "cifar100-split, cifar100-superclass" in run.out
    assert "(168.5 MB)" in run.out
    assert "halrp data get cifar100 cifar10" in run.out
    assert set(entries("--data", tmp_path / "none")) == set(SETS)


def test_what_was_got_is_listed_and_verified(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SETTLED", -(10**18))  # the file is new, but nobody changes it
    assert entries("--data", tmp_path)["cifar100"]["state"] == "missing"
    run = Run("get", "cifar100", "--data", tmp_path)
    assert run.code == 0
    assert f"{site.url} → {tmp_path / 'cifar-100-binary.tar.gz'}" in run.out
    assert "cifar100: downloaded and verified. 100 train + 100 test images, 100 classes, a subset" in run.out
    assert run.error == ""
    entry = entries("--data", tmp_path)["cifar100"]
    assert (entry["state"], entry["verified"], entry["layout"]) == ("subset", "not asked", "official archive")
    assert entry["directory"] == str(tmp_path)
    assert entry["bytes"] == len(site.content)
    assert entry["streams"] == ["cifar100-split", "cifar100-superclass", "cifar100-20"]
    assert entries("--verify", "--data", tmp_path)["cifar100"]["verified"] == "yes"


def test_a_terminal_shows_bars(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    run = Run("get", "cifar100", "--data", tmp_path)
    assert "cifar-100-binary.tar.gz" in run.error
    assert "kB" in run.error
    assert "downloaded and verified" in run.out


def test_getting_twice_asks_once(site: Site, tmp_path: Path) -> None:
    for _ in range(2):
        run = Run("get", "cifar100", "cifar100", "--data", tmp_path)
    assert "already here, verified" in run.out
    assert len(site.asked) == 1


def test_a_whole_set_in_another_layout_is_not_downloaded_unless_asked_for(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive())) as tar:
        tar.extractall(tmp_path, filter="data")
    monkeypatch.setitem(vars(SETS["cifar100"]), "counts", {"train": 100, "test": 100})
    run = Run("get", "cifar100", "--data", tmp_path)
    assert "already here. 100 train + 100 test images, 100 classes, complete, from official binary files" in run.out
    assert site.asked == []
    assert Run("get", "cifar100", "--official", "--data", tmp_path).code == 0
    assert len(site.asked) == 1


def test_a_damaged_copy_is_listed_as_damaged_and_got_again(site: Site, tmp_path: Path) -> None:
    Run("get", "cifar100", "--data", tmp_path)
    (tmp_path / "cifar-100-binary.tar.gz").write_bytes(site.content[: len(site.content) // 2])
    run = Run("list", "--verify", "--data", tmp_path)
    assert run.code == 1
    assert "damaged" in run.out
    assert Run("get", "cifar100", "--data", tmp_path).code == 0
    assert Run("list", "--verify", "--data", tmp_path).code == 0


def test_a_failed_download_is_one_line_and_the_others_go_on(site: Site, tmp_path: Path) -> None:
    first = sources.source("mnist").files[0].path
    run = Run("get", "mnist", "cifar100", "--data", tmp_path)
    assert run.code == 2
    assert run.error.startswith(f"halrp: mnist: {first} could not be downloaded: {site.url}")
    assert str(tmp_path / first) in run.error
    assert run.error.count("\n") == 1
    assert "cifar100: downloaded and verified" in run.out


def test_an_interrupted_download_is_listed_and_resumed(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.cut = [1000]
    with monkeypatch.context() as patch:
        patch.setattr(download, "_with_retries", _interrupted_after(download._with_retries))
        run = Run("get", "cifar100", "--data", tmp_path)
    assert run.code == 130
    assert "the same command resumes the download" in run.error
    entry = entries("--data", tmp_path)["cifar100"]
    assert (entry["state"], entry["begun_bytes"]) == ("begun", 1000)
    assert "resume it: halrp data get cifar100" in Run("list", "--data", tmp_path).out
    assert Run("get", "cifar100", "--data", tmp_path).code == 0
    assert site.asked[-1]["range"] == "bytes=1000-"


def _interrupted_after(patiently: Any) -> Any:
    def run(url: str, file: Any, part: Path, report: Any, policy: RetryPolicy, deadline: float) -> None:
        def sleep(_: float) -> None:
            raise KeyboardInterrupt

        patiently(url, file, part, report, RetryPolicy(policy.timeout, sleep=sleep), deadline)

    return run


def test_all_names_every_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[str] = []
    monkeypatch.setattr("halrp.cli.data._get", lambda name, data, again, tell: got.append(name))
    assert Run("get", "all", "--data", tmp_path).code == 0
    assert set(got) == set(SETS)


def test_a_wrong_name_downloads_nothing(site: Site, tmp_path: Path) -> None:
    run = Run("get", "cifar100", "mnits", "--data", tmp_path)
    assert run.code == 2
    assert "'mnist'" in run.error
    assert site.asked == []


def test_show_draws_a_sheet(tmp_path: Path) -> None:
    run = Run("show", "digits", "-o", tmp_path / "sheet.png", "--tasks", 2, "--per-class", 3, "--order", "B")
    assert run.code == 0
    assert "2 of 10 tasks of digits, order B, seed 0" in run.out
    with Image.open(tmp_path / "sheet.png") as picture:
        assert picture.format == "PNG"
    assert set(os.listdir(tmp_path)) <= {"sheet.png", "cache"}


def test_show_refuses_what_cannot_be_shown(tmp_path: Path) -> None:
    for arguments, reported in (
        (("digits", "-o", "sheet.txt"), "must end in one of .png"),
        (("digit", "-o", "sheet.png"), "'digits'"),
        (("cifar100-split", "-o", "sheet.png", "--data", tmp_path), "halrp data get cifar100"),
        (("digits", "-o", "sheet.png", "--tasks", 0), "tasks=0"),
    ):
        run = Run("show", *arguments)
        assert run.code == 2
        assert reported in run.error


def test_a_missing_package_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name.partition(".")[0] == "PIL":
            raise ModuleNotFoundError("No module named 'PIL'", name="PIL")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    run = Run("show", "digits", "-o", tmp_path / "sheet.png")
    assert run.code == 2
    assert run.error == "halrp: this command needs pillow; run: pip install 'halrp[lab]'\n"


def test_every_stream_says_which_data_it_needs() -> None:
    assert {name for entry in STREAMS.values() for name in entry.data_sets} == set(SETS)
    assert [name for name, entry in STREAMS.items() if not entry.data_sets] == [
        "digits",
        "tenants",
        "corpora",
        "tabular",
        "sensors",
    ]


@pytest.mark.parametrize("stream", [name for name, entry in STREAMS.items() if entry.data_sets])
def test_a_stream_without_data_asks_for_one_of_its_sets(stream: str, tmp_path: Path) -> None:
    run = Run("show", stream, "-o", tmp_path / "sheet.png", "--data", tmp_path / "none")
    assert run.code == 2
    assert any(f"halrp data get {name}`" in run.error for name in STREAMS[stream].data_sets)


@pytest.mark.parametrize("command", ["list", "get", "show"])
def test_help_has_examples(command: str) -> None:
    run = Run(command, "--help")
    assert run.code == 0
    assert f"halrp data {command}" in " ".join(run.out.split())


def test_the_command_starts_without_the_laboratory() -> None:
    code = "import sys, halrp.cli.app; print([n for n in sys.modules if n.startswith('halrp.lab.')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(ast.literal_eval(out)) == {"halrp.lab.names"}


@pytest.mark.skipif(not REAL.is_dir(), reason="the real data are not beside the repository")
def test_real_data_are_listed(tmp_path: Path) -> None:
    result = entries("--data", REAL)
    assert all(result[name]["present"] for name in ("cifar100", "mnist", "omniglot", "notmnist", "tinyimagenet"))
    assert result["cifar100"]["bytes"] > 50_000_000
