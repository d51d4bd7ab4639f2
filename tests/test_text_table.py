"""Tables as lines of text: nothing is cut, and what has no room is named."""

from __future__ import annotations

import pytest

from halrp.text_table import MARGIN, TextTable, lines_of, width_of, wrapped

TITLES = ("task", "kind", "bytes", "ranks")
ROWS = (
    ("birds of the lower Rhine", "classification", "3,950", "first.weight 8, second.weight 6"),
    ("鳥と車", "regression", "1,234,567", "a.weight.of.a.very.long.name.indeed 11"),
)
TABLE = TextTable(TITLES, ROWS, right={2}, wrap={0, 3}, spare={1}, details=[["growth=0.2"], []])


def text(table: TextTable, width: int | None, strict: bool = True) -> str:
    return "\n".join(map(str, table.lines(width, strict)))


def letters(shown: str) -> str:
    return "".join(shown.split())


def test_a_table_with_room_has_a_line_for_each_row() -> None:
    lines = text(TABLE, None).splitlines()
    assert lines[1] == "birds of the lower Rhine  classification      3,950  first.weight 8, second.weight 6"
    assert lines[2] == f"{MARGIN}growth=0.2"
    assert len(lines) == 4
    assert lines[0].index("ranks") == lines[1].index("first")


@pytest.mark.parametrize("width", range(24, 130))
def test_no_line_is_longer_than_the_screen_and_nothing_is_lost(width: int) -> None:
    shown = text(TABLE, width)
    assert max(map(width_of, shown.splitlines())) <= width
    shown_cells = [cell for row in ROWS for column, cell in enumerate(row) if column != 1 or "no room" not in shown]
    whole = sorted(letters(shown))
    for cell in shown_cells:
        for character in letters(cell):
            whole.remove(character)


def test_prose_wraps_before_anything_is_left_out() -> None:
    lines = text(TABLE, 80).splitlines()
    assert "kind" in lines[0]
    assert "no room" not in "".join(lines)
    assert len(lines) > 4


def test_what_matters_least_is_left_out_and_named() -> None:
    shown = text(TABLE, 45)
    assert shown.endswith("45 columns have no room for: kind")
    assert "classification" not in shown


def test_a_very_narrow_screen_has_a_line_for_each_value() -> None:
    lines = text(TABLE, 36).splitlines()
    assert lines[0] == "birds of the lower Rhine"
    assert f"{MARGIN}kind   classification" in lines
    assert f"{MARGIN}bytes  3,950" in lines
    assert f"{MARGIN}growth=0.2" in lines


def test_without_a_terminal_columns_wrap_and_no_more() -> None:
    lines = text(TABLE, 30, strict=False).splitlines()
    assert "kind" in lines[0]
    assert max(map(width_of, lines)) > 30


def test_wide_characters_count_twice_and_accents_not_at_all() -> None:
    assert width_of("鳥") == 2
    assert width_of("e\u0301") == 1
    lines = text(TABLE, None).splitlines()
    assert width_of(lines[3][: lines[3].index("regression")]) == lines[1].index("classification")


@pytest.mark.parametrize(
    ("given", "width", "lines"),
    [
        ("", 5, [""]),
        ("one two", 20, ["one two"]),
        ("one  two", 20, ["one  two"]),
        ("one two three", 7, ["one two", "three"]),
        ("abcdefghij k", 4, ["abcd", "efgh", "ij k"]),
        ("ab cdefghij", 4, ["ab", "cdef", "ghij"]),
        ("鳥鳥鳥", 4, ["鳥鳥", "鳥"]),
    ],
)
def test_texts_break_at_spaces_and_long_words_anywhere(given: str, width: int, lines: list[str]) -> None:
    assert wrapped(given, width) == lines


def test_a_rule_is_as_wide_as_its_columns() -> None:
    assert lines_of(("a", "long"), [("bcd", "e")], right={1}) == ["a    long", "───  ────", "bcd     e"]
