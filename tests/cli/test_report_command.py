"""`halrp report`: what it writes, says and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from halrp.cli.report import named, report
from halrp.errors import HalrpError, SettingError, WriteError
from halrp.lab.report.chart import Chart
from halrp.lab.report.figure import Axis, Figure
from halrp.lab.report.page import Section
from tests.lab.made_records import put, stable, unfinished

app = typer.Typer(add_completion=False)
app.command()(report)


def run(*arguments: object) -> str:
    """What the command prints; errors of the library are raised, and the command's group prints them."""
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(done.exception, HalrpError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def records(tmp_path: Path) -> Path:
    folder = tmp_path / "records"
    for order, identities in (("A", [0, 1]), ("B", [1, 0])):
        for method in ("halrp-budget", "stl"):
            put(folder, f"{method}{order}.json", stable({0: 0.5, 1: 0.75}, identities, method, order=order))
    return folder


def test_a_page_of_all_records(records: Path, tmp_path: Path) -> None:
    page = tmp_path / "out" / "page.html"
    output = run(records, "-o", page, "--title", "Two tasks & more")
    assert f"wrote {page}: 4 records" in output
    assert " kB" in output
    text = page.read_text()
    assert "<title>Two tasks &amp; more</title>" in text
    assert "computed from 4 records, read from <code>records</code>" in text
    assert str(tmp_path) not in text
    assert "Left out" not in output


def test_the_same_records_give_the_same_page(records: Path, tmp_path: Path) -> None:
    pages = [tmp_path / name for name in ("a.html", "b.html")]
    for page in pages:
        run(records, "-o", page)
    assert pages[0].read_bytes() == pages[1].read_bytes()


def test_a_page_goes_without_what_cannot_be_used_and_says_so(records: Path, tmp_path: Path) -> None:
    put(records, "broken.json", '{"cell": ')
    put(records, "other.json", {"a": 1})
    put(records, "again.json", stable({0: 0.5, 1: 0.75}, [0, 1], "stl", order="A"), age=99)
    unfinished(records, "half.unfinished", stable({0: 0.5, 1: 0.5}, [0, 1]), 1)
    output = run(records, "-o", tmp_path / "page.html")
    assert "4 records" in output
    for line in ("damaged: 1", "unfinished: 1", "run again: 1", "not a record of a run: 1", "broken.json: not JSON"):
        assert line in output
    text = (tmp_path / "page.html").read_text()
    for line in ("records/broken.json", "records/half.unfinished", "records/again.json", "records/other.json"):
        assert f"<code>{line}</code>" in text
    assert str(tmp_path) not in text


def test_figures_as_files(records: Path, tmp_path: Path) -> None:
    output = run(records / "stlA.json", "-o", tmp_path / "page.html", "--figures", tmp_path / "f", "--format", "svg")
    saved = sorted(path.name for path in (tmp_path / "f").iterdir())
    assert f"wrote {len(saved)} figures" in output
    assert saved
    assert all(name.endswith(".svg") for name in saved)
    assert any(name.startswith("accuracy-matrix-digits-mlp-100") for name in saved)


def test_drawings_whose_names_are_alike_get_files_of_their_own() -> None:
    chart = Chart("lines", Axis("x"), Axis("y"), ())
    figure = Figure("f", "F", "", {"../a b": chart, "A: b": chart, "": chart})
    assert [name for name, _, _ in named([Section("s", "S", "", (figure,))])] == ["f-a-b", "f-a-b-2", "f"]


def test_no_record_at_all(tmp_path: Path) -> None:
    put(tmp_path / "r", "broken.json", "{")
    with pytest.raises(SettingError, match=r"no finished record in .*1 files were left out"):
        run(tmp_path / "r", "-o", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
    with pytest.raises(SettingError, match="does not exist"):
        run(tmp_path / "nowhere")


def test_places_that_cannot_be_written_to(records: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"name one: -o report\.html"):
        run(records, "-o", tmp_path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SettingError, match="is not a folder"):
        run(records, "-o", tmp_path / "page.html", "--figures", tmp_path / "file")
    with pytest.raises(WriteError):
        run(records, "-o", tmp_path / "file" / "page.html")
    assert (tmp_path / "file").read_text() == "mine"
