"""Tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from halrp.lab.report import table_writers as writers
from halrp.lab.report.comparison import comparison
from halrp.lab.report.table import Column, Markdown, Table, Value
from tests.lab.made_records import groups_of

COLUMNS = (
    Column("benchmark", "bench|mark"),
    Column("ours", "ours %", 2),
    Column("ours_error", "±", 1),
    Column("gap", "gap", 2, signed=True),
    Column("runs", "runs"),
    Column("lone_error", "lone", 1),
)
ROWS: tuple[dict[str, Value], ...] = (
    {"benchmark": "a_b", "ours": 1.005, "ours_error": 0.25, "gap": 1.0, "runs": 5, "lone_error": 2.0},
    {"benchmark": "a_b", "ours": -1.0, "ours_error": None, "gap": -0.001, "runs": None, "lone_error": None},
    {"benchmark": "c|d\n*e*", "ours": None, "ours_error": 0.5, "gap": -2.5, "runs": 0, "lone_error": 0.0},
)


def table(rows: tuple[dict[str, Value], ...] = ROWS, marks: tuple[str, ...] = ("better", "", "worse")) -> Table:
    return Table("some-table", "50 % & more_", "About √x ± 1\nand <b>.", COLUMNS, rows, marks)


def test_markdown() -> None:
    assert writers.markdown(table()).splitlines() == [
        "### 50 % \\& more\\_",
        "",
        "| bench\\|mark | ours % | gap | runs | lone | ours is |",
        "| --- | ---: | ---: | --- | ---: | --- |",
        "| a_b | 1.00 ± 0.2 | +1.00 | 5 | 2.0 | better |",
        "| a_b | -1.00 | 0.00 |  | – |  |",
        "| c\\|d \\*e\\* | – | -2.50 | 0 | 0.0 | worse |",
        "",
        "About √x ± 1 and \\<b\\>.",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("growth_per_task=0.026", "growth_per_task=0.026"),
        ("__init__", "\\_\\_init\\_\\_"),
        ("a\\b `c` [d](e) $f$ ~g~", "a\\\\b \\`c\\` \\[d\\](e) \\$f\\$ \\~g\\~"),
    ],
)
def test_markdown_shows_text_as_it_is(text: str, shown: str) -> None:
    made = Table("k", text, "", (Column("a", "a"),), ({"a": text},))
    assert writers.markdown(made) == f"### {shown}\n\n| a |\n| --- |\n| {shown} |\n\n\n"


def test_markdown_that_we_write_is_shown_as_it_is() -> None:
    made = Table("k", "", "", (Column("a", Markdown("`x`")), Column("b", "b")), ({"a": Markdown("**1**"), "b": "*"},))
    assert writers.markdown_rows(made) == "| `x` | b |\n| --- | --- |\n| **1** | \\* |"


def test_a_column_may_show_several_values_and_format_them() -> None:
    columns = (Column("x", "x", 1, others=("y",), separator=" / "), Column("z", "z", format=lambda v: f"{v} B"))
    rows: tuple[dict[str, Value], ...] = ({"x": 1.0, "y": None, "z": 3}, {"x": None, "y": None, "z": None})
    made = Table("k", "", "", columns, rows)
    assert writers.shown(made)[1] == [["1.0 / –", "3 B"], ["–", "–"]]
    assert writers.csv(made) == "x,z\n1.0,3\n,\n"


def test_csv_has_all_values_in_full() -> None:
    rows = list(csv.reader(io.StringIO(writers.csv(table()))))
    assert rows == [
        ["benchmark", "ours", "ours_error", "gap", "runs", "lone_error", "mark"],
        ["a_b", "1.005", "0.25", "1.0", "5", "2.0", "better"],
        ["a_b", "-1.0", "", "-0.001", "", "", ""],
        ["c|d\n*e*", "", "0.5", "-2.5", "0", "0.0", "worse"],
    ]
    third = 1 / 3
    exact = writers.csv(table(({"ours": third},), ()))
    assert float(exact.splitlines()[1].split(",")[1]) == third
    assert "mark" not in exact.splitlines()[0].split(",")


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd", "-cmd", "@SUM(A1)", "\t=1", "\r=1", " =1", "＝1+1", "-1.5x", "+", "-"]
)
def test_csv_shows_a_formula_as_text(text: str) -> None:
    made = Table("k", "", "", (Column("a", "a"), Column(text, text)), ({"a": text, text: 1},), (text,))
    head, row = csv.reader(io.StringIO(writers.csv(made)))
    for cell in (head[1], row[0], row[2]):
        assert cell.startswith("'")
        assert not cell[1:].startswith(("\t", "\r"))


@pytest.mark.parametrize("value", [-1.5, -3, 1e-30, "-1.5", "+2", "-.5", "1e-3", "-1E+5", "a=b", "", "mean - 1"])
def test_csv_leaves_numbers_and_other_text_as_they_are(value: Value) -> None:
    made = Table("k", "", "", (Column("a", "a"), Column("b", "b")), ({"a": value, "b": 0},))
    assert list(csv.reader(io.StringIO(writers.csv(made))))[1][0] == str(value)


def test_the_page_guards_the_same_cells_as_the_csv_files() -> None:
    script = (Path(writers.__file__).parent / "page.js").read_text("utf-8")
    formula, number = re.findall(r"const formula = .*?/(.+?)/\.test\(value\) && !/(.+?)/i\.test", script)[0]
    assert re.search(formula, "=1")
    for first in map(chr, range(32, 0x10000)):
        assert bool(re.search(formula, first)) == first.startswith(writers.FORMULA), hex(ord(first))
    for text in ("-1.5", "+2", "-.5", "1e-3", "-1E+5", "-1.5x", "+", "-", "=1", "5."):
        assert bool(re.search(number, text, re.IGNORECASE)) == bool(writers.NUMBER.fullmatch(text)), text


def test_csv_has_no_control_characters() -> None:
    made = Table("k", "", "", (Column("a", "a"),), ({"a": "x\x1b[2J\u202e\ud83d"},))
    assert writers.csv(made) == "a\nx\\x1b[2J\\u202e\\ud83d\n"


def test_latex() -> None:
    assert writers.latex(table()).splitlines() == [
        "% About √x ± 1 and <b>.",
        r"\begin{table}",
        r"\centering",
        r"\caption{50 \% \& more\_}\label{tab:some-table}",
        r"\begin{tabular}{lrrlr}",
        r"\toprule",
        r"bench\textbar{}mark & ours \% & gap & runs & lone \\",
        r"\midrule",
        r"a\_b & 1.00 $\pm$ 0.2 & $+$1.00 & 5 & 2.0 \\",
        r"a\_b & $-$1.00 & 0.00 &  & -- \\",
        r"\addlinespace",
        r"c\textbar{}d {*}e{*} & -- & $-$2.50 & 0 & 0.0 \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def test_latex_escapes_everything_that_it_would_interpret() -> None:
    text = r"[x] \end{table} $1 & 2% #3 _4 ^5 ~6 <7> |8|"
    made = Table("k", text, text, (Column("a", text),), ({"a": text},))
    lines = writers.latex(made).splitlines()
    shown = (
        r"{[}x] \textbackslash{}end\{table\} \$1 \& 2\% \#3 \_4 \textasciicircum{}5 \textasciitilde{}6 "
        r"\textless{}7\textgreater{} \textbar{}8\textbar{}"
    )
    assert lines[3] == rf"\caption{{{shown}}}\label{{tab:k}}"
    assert lines[8] == shown + r" \\"
    assert lines[0] == "% " + text, "a comment is what it is"


def test_a_table_of_many_rows_goes_over_pages() -> None:
    rows: tuple[dict[str, Value], ...] = tuple({"benchmark": "a", "ours": float(i)} for i in range(writers.LONG))
    long = writers.latex(table(rows, ()))
    assert r"\begin{longtable}{lrrlr}" in long
    assert r"\endhead" in long
    assert r"\begin{tabular}" not in long
    assert r"\begin{tabular}" in writers.latex(table(rows[1:], ()))


def test_a_table_without_rows() -> None:
    empty = table((), ())
    assert writers.csv(empty) == "benchmark,ours,ours_error,gap,runs,lone_error\n"
    assert writers.markdown(empty).splitlines()[2].startswith("| bench")
    assert r"\bottomrule" in writers.latex(empty)


def test_the_same_table_gives_the_same_text() -> None:
    nothing = groups_of([])
    for made, again in zip(comparison(nothing), comparison(nothing), strict=True):
        for write in (writers.markdown, writers.csv, writers.latex):
            assert write(made) == write(again)


def test_tables_are_rectangular() -> None:
    for made in comparison(groups_of([])):
        lines = [line for line in writers.markdown(made).splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
        assert len(lines) == len(made.rows) + 2
        rows = [line for line in writers.latex(made).splitlines() if line.endswith(r"\\") and " & " in line]
        assert len({line.count(" & ") for line in rows}) == 1


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_can_be_typeset(tmp_path: Path) -> None:
    tables: Any = "\n".join(writers.latex(made) for made in (table(), *comparison(groups_of([]))))
    head = r"\documentclass{article}\usepackage{booktabs,longtable}\begin{document}"
    (tmp_path / "t.tex").write_text(f"{head}\n{tables}\n\\end{{document}}\n", "utf-8")
    subprocess.run(["pdflatex", "-interaction=batchmode", "-halt-on-error", "t.tex"], cwd=tmp_path, check=True)
