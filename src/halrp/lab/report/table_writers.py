"""A table as text, one writer per format: Markdown, CSV, LaTeX. The same table gives the same text.

A column `x_error` beside a column `x` is its ±: Markdown and LaTeX show both in one cell. CSV has every column by its
key, in full precision.
"""

from __future__ import annotations

import csv as writing
import io
import re
from collections.abc import Mapping

from halrp.lab.report.table import Column, Markdown, Table, Value
from halrp.text import as_json, printable

ERROR = "_error"
NOTHING = "–"
"""In place of a missing number."""
LONG = 45
"""The number of rows from which a LaTeX table may break across pages."""
GROUPS = ("benchmark", "backbone", "data")
"""Columns between whose values a LaTeX table leaves a little space."""
FORMULA = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
"""What the text of a formula begins with, in a spreadsheet."""
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", "[": "{[}", "*": "{*}", "±": r"$\pm$", "−": "$-$", "–": "--", "—": "---", "×": r"$\times$",
    "·": r"$\cdot$", "√": r"$\surd$", "²": "$^2$", "≤": r"$\leq$", "≥": r"$\geq$", "…": r"\ldots{}", "γ": r"$\gamma$",
    "λ": r"$\lambda$", "α": r"$\alpha$", "\n": " ", "\r": " ",
}  # fmt: skip


def number(value: Value, column: Column) -> str:
    """A value as the column shows it; a missing one is empty if it is text, and – if it is a number."""
    if value is None:
        return "" if column.digits is None and column.format is None else NOTHING
    if column.format is not None:
        return column.format(value)
    if isinstance(value, str) or column.digits is None:
        return f"{value:g}" if isinstance(value, float) else str(value)
    text = f"{value:{'+' if column.signed else ''}.{column.digits}f}"
    return text if re.search("[1-9a-z]", text) else text.lstrip("+-")


def shown(table: Table) -> tuple[list[Column], list[list[str]]]:
    """The columns that are shown, and the text of every cell, where numbers have their ± beside them."""
    keys = {column.key: column for column in table.columns}
    columns = [column for column in table.columns if not _is_error(column.key, keys)]
    return columns, [[cell(row, column, keys.get(column.key + ERROR)) for column in columns] for row in table.rows]


def markdown(table: Table) -> str:
    """The table in Markdown, with its title above and its description below."""
    return f"### {_markdown(table.title)}\n\n{markdown_rows(table)}\n\n{_markdown(table.about)}\n"


def markdown_rows(table: Table) -> str:
    """The head and the rows of the table in Markdown."""
    columns, rows = shown(table)
    head = [_shown_markdown(column.title, column.title) for column in columns]
    rule = ["---" if column.digits is None and column.format is None else "---:" for column in columns]
    cells = [
        [_shown_markdown(text, row.get(column.key)) for column, text in zip(columns, texts, strict=True)]
        for row, texts in zip(table.rows, rows, strict=True)
    ]
    if any(table.marks):
        head, rule = [*head, "ours is"], [*rule, "---"]
        cells = [[*row, mark] for row, mark in zip(cells, table.marks, strict=True)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *cells))


def csv(table: Table) -> str:
    """The table as CSV: columns by their keys, numbers in full precision, empty where a value is missing."""
    out = io.StringIO()
    writer = writing.writer(out, lineterminator="\n")
    marked = any(table.marks)
    writer.writerow(map(_csv_cell, [*(column.key for column in table.columns), *(["mark"] if marked else [])]))
    for index, row in enumerate(table.rows):
        values = [row.get(column.key) for column in table.columns]
        texts = [str(value).lower() if isinstance(value, bool) else value for value in values]
        writer.writerow(map(_csv_cell, [*texts, *(table.marks[index:][:marked])]))
    return out.getvalue()


def rows(table: Table) -> list[dict[str, Value]]:
    """The rows of the table as plain values, by the keys of columns."""
    keys = [column.key for column in table.columns]
    plain = [{key: row.get(key) for key in keys} for row in table.rows]
    if any(table.marks):
        return [row | {"mark": mark or None} for row, mark in zip(plain, table.marks, strict=True)]
    return plain


def json(table: Table) -> str:
    """The table as JSON: its rows, by the keys of columns."""
    return as_json(rows(table)) + "\n"


def _csv_cell(value: Value) -> Value:
    """A value; text that a spreadsheet would take for a formula begins with an apostrophe, which shows it as text."""
    if not isinstance(value, str) or NUMBER.fullmatch(value):
        return value
    text = printable(value, keep="\n")
    return f"'{text}" if value.lstrip().startswith(FORMULA) else text


def latex(table: Table) -> str:
    r"""The table for LaTeX with booktabs; one of many rows is a longtable, which needs \usepackage{longtable}."""
    columns, rows = shown(table)
    align = "".join("l" if column.digits is None else "r" for column in columns)
    head = [" & ".join(_latex(column.title) for column in columns) + r" \\", r"\midrule"]
    title = rf"\caption{{{_latex(table.title)}}}\label{{tab:{table.key}}}"
    body, before = [], None
    for row, cells in zip(table.rows, rows, strict=True):
        group = [row.get(key) for key in GROUPS]
        if before is not None and group != before:
            body.append(r"\addlinespace")
        before = group
        body.append(" & ".join(_latex_cell(cell, column) for cell, column in zip(cells, columns, strict=True)) + r" \\")
    about = f"% {' '.join(table.about.split())}"
    if len(rows) < LONG:
        begin = [r"\begin{table}", r"\centering", title, rf"\begin{{tabular}}{{{align}}}", r"\toprule", *head]
        end = [r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    else:
        begin = [rf"\begin{{longtable}}{{{align}}}", title + r" \\", r"\toprule", *head, r"\endfirsthead"]
        begin += [r"\toprule", *head, r"\endhead", r"\bottomrule", r"\endlastfoot"]
        end = [r"\end{longtable}"]
    return "\n".join([about, *begin, *body, *end]) + "\n"


def _is_error(key: str, keys: Mapping[str, Column]) -> bool:
    return key.endswith(ERROR) and key.removesuffix(ERROR) in keys


def cell(row: Mapping[str, Value], column: Column, error: Column | None = None) -> str:
    """The text of a cell: one value, several, or a value with its ±."""
    if column.others:
        texts = [number(row.get(key), column) for key in (column.key, *column.others)]
        return texts[0] if set(texts) == {NOTHING} else column.separator.join(texts)
    text = number(row.get(column.key), column)
    if error is None or row.get(column.key) is None or row.get(error.key) is None:
        return text
    return f"{text} ± {number(row.get(error.key), error)}"


def _shown_markdown(text: str, value: Value) -> str:
    return text if isinstance(value, Markdown) else _markdown(text)


def _markdown(text: str) -> str:
    """Text with what Markdown would interpret escaped; an underscore within a word needs no escape."""
    text = re.sub(r"([\\|`*<>\[\]~$&])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)


def _latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


def _latex_cell(text: str, column: Column) -> str:
    """A cell; a sign of a number is set in mathematics."""
    if column.digits is not None and text[:1] in ("-", "+"):
        return f"${text[0]}${_latex(text[1:])}"
    return _latex(text)
