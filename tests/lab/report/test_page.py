"""The page as text: whole, the same each time, and safe whatever records say."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import vl_convert

from halrp.lab.report.chart import Chart, Series
from halrp.lab.report.figure import Axis, Figure
from halrp.lab.report.heat_map import HeatMap
from halrp.lab.report.page import LeftOut, MadeFrom, Section, page
from halrp.lab.report.script_library import script_library
from halrp.lab.report.table import Column, Table

HOSTILE = "</script></title></style><img src=x onerror=alert(1)>\"'`&<!--"
MADE_FROM = MadeFrom(2, ("results",), (("commit", "abc"),))


def parts(text: str) -> tuple[Section, ...]:
    """Every kind of part, with a text wherever there may be one."""
    chart = Chart("bars", Axis(text), Axis(text), (Series(text, (text,), (1.0,), (0.1,), (text,), text),))
    field = HeatMap(Axis(text), Axis(text), (text,), (text,), ((1.0,),), text)
    columns = (Column("a", text, about=text, filters=True), Column("b", text, 2, True))
    table = Table("t", text, text, columns, ({"a": text, "b": -1.5}, {"a": None, "b": float("nan")}), ("better", ""))
    return (Section("s", text, text, (table, Figure("f", text, text, {text: chart, f"{text} 2": field}))),)


class Read(HTMLParser):
    """The elements of a page, its data and what is shown of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.shown = ""
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag in ("script", "style"):
            self.inside = tag
            self.scripts += [""] if tag == "script" else []

    def handle_endtag(self, tag: str) -> None:
        self.inside = "" if tag == self.inside else self.inside

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        elif not self.inside:
            self.shown += data

    @property
    def data(self) -> dict[str, Any]:
        parts: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(self.scripts[0])))["parts"]
        return parts


def test_texts_of_strangers_make_no_elements() -> None:
    left_out = [LeftOut(HOSTILE, kind, HOSTILE) for kind in ("damaged", "other", HOSTILE)]
    plain = Read(page("words", parts("words"), [LeftOut("words", file.kind, "words") for file in left_out], MADE_FROM))
    read = Read(page(HOSTILE, parts(HOSTILE), left_out, MadeFrom(2, (HOSTILE,), ((HOSTILE, HOSTILE),))))
    assert read.tags == plain.tags
    assert "img" not in read.tags
    assert not [name for name, _ in read.attributes if name.startswith("on")]
    assert len(read.scripts) == 3
    table, figure = read.data["s"]
    assert table["rows"] == [[HOSTILE, -1.5], [None, None]]
    assert figure["labels"] == [HOSTILE, f"{HOSTILE} 2"]
    assert figure["plots"][0]["data"]["values"][0]["note"] == HOSTILE
    assert HOSTILE in read.shown


def test_data_has_no_character_that_could_end_it() -> None:
    text = page("t", parts(HOSTILE), [], MADE_FROM)
    data = re.search(r'<script type="application/octet-stream" id="data">(.*)', text)
    assert data
    assert not set("<>&") & set(data[1].removesuffix("</script>"))


def test_the_browser_may_run_these_scripts_and_fetch_nothing() -> None:
    text = page("t", parts("words"), [], MADE_FROM)
    rules = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert rules
    allowed = re.findall(r"'sha256-([^']*)'", rules[1])
    run = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in Read(text).scripts[1:]]
    assert allowed == run
    assert rules[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in rules[1]
    assert not [value for name, value in Read(text).attributes if name == "src"]


def test_the_same_parts_give_the_same_page() -> None:
    assert page("t", parts("a"), [], MADE_FROM) == page("t", parts("a"), [], MADE_FROM)


def test_what_was_read_and_what_was_left_out_is_said() -> None:
    kinds = ("damaged", "unfinished", "duplicate", "other")
    left_out = [LeftOut(f"results/{kind}.json", kind, f"because of {kind}") for kind in kinds]
    shown = Read(
        page("My title", parts("a"), left_out, MadeFrom(1234, ("one", "two", "three"), (("torch", "2.13"),)))
    ).shown
    assert "computed from 1,234 records, read from one, two and three." in shown
    assert "torch2.13" in shown
    for kind in kinds:
        assert f"results/{kind}.json because of {kind}" in shown
    assert "every file was used" not in shown
    assert "Nothing: every file was used." in Read(page("t", (), [], MADE_FROM)).shown


def test_names_in_prose_are_set_as_code() -> None:
    assert "<code>stl</code> and &lt;b&gt;" in page("t", (Section("s", "t", "`stl` and <b>"),), [], MADE_FROM)


def test_half_characters_can_be_saved() -> None:
    text = page("a\ud800b", parts("\udc00"), [LeftOut("\ud800", "other", "")], MADE_FROM)
    assert b"a?b" in text.encode()


@pytest.mark.parametrize("count", [1, 300])
def test_long_lists_of_files_are_cut(count: int) -> None:
    left_out = [LeftOut(f"file {number}", "damaged", "why") for number in range(count)]
    shown = Read(page("t", (), left_out, MADE_FROM)).shown
    assert ("And 100 more." in shown) == (count == 300)


def test_a_column_with_a_format_of_its_own_is_shown_as_it_formats() -> None:
    columns = (Column("a", "a", format="{:,}".format), Column("b", "b", 1, others=("c",)))
    rows = ({"a": 12345, "b": 1.0, "c": 2.0}, {"a": None, "b": None, "c": None})
    text = page("t", (Section("s", "s", parts=(Table("t", "t", "", columns, rows),)),), [], MADE_FROM)
    [table] = Read(text).data["s"]
    assert table["rows"] == [["12,345", "1.0/2.0"], ["–", "–"]]


def test_the_library_that_draws_is_cached_and_a_damaged_cache_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def bundle(program: str) -> str:
        made.append(program)
        return "library();"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(vl_convert, "javascript_bundle", bundle)
    assert (script_library(), script_library(), len(made)) == ("library();", "library();", 1)
    [path] = (tmp_path / "halrp" / "report").iterdir()
    assert version("vl-convert-python") in path.name
    for damaged in (b"", b"other();", path.read_bytes() + b"more();", b"\xff\n\xff"):
        path.write_bytes(damaged)
        assert script_library() == "library();"
    assert len(made) == 5
    assert (script_library(), len(made)) == ("library();", 5), "it was written again"
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))  # a file: nothing can be written below it
    assert (script_library(), len(made)) == ("library();", 6)


def test_a_page_is_little_more_than_the_library_that_draws() -> None:
    assert len(page("t", parts("a"), [], MADE_FROM)) < 1_200_000
