"""Tables as lines of plain text, in as many characters as a line has.

A table that is too wide loses nothing silently: columns of prose wrap at words, then columns that matter least are left
out and named, and in the end every row becomes a block with a line for each value.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

GAPS = (2, 1)
"""Spaces between columns, and where there is less room."""
LEAST = 16
"""Characters to which a column of prose may shrink."""
MARGIN = "  "
"""Before what belongs to the line above."""

Kind = Literal["titles", "rule", "row", "detail", "note"]


class Line(NamedTuple):
    """One line: its texts are padded to the widths of their columns."""

    kind: Kind
    texts: tuple[str, ...]
    gap: int = GAPS[0]

    def __str__(self) -> str:
        """The line, as it is printed."""
        return (" " * self.gap).join(self.texts).rstrip()


@dataclass(frozen=True)
class TextTable:
    """Titles and rows of text, and what may happen to columns that do not fit."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Collection[int] = ()
    """Columns that are aligned at the right."""
    wrap: Collection[int] = ()
    """Columns whose texts may take several lines."""
    spare: Collection[int] = ()
    """Columns that are left out where there is no room, the last one first."""
    details: Sequence[Sequence[str]] = ()
    """Lines below each row, or nothing."""
    rule: bool = False
    """Whether there is a line below the titles."""

    def lines(self, width: int | None = None, strict: bool = True) -> list[Line]:
        """The table in lines of at most `width` characters; without `strict`, columns may wrap and no more."""
        shown = [*range(len(self.titles))]
        gap, widths = self._fitting(shown, width)
        while widths is None and strict and (spare := [column for column in shown if column in self.spare]):
            shown.remove(spare[-1])
            gap, widths = self._fitting(shown, width)
        if widths is None and strict and width is not None:
            return [*self._blocks(width)]
        grid = self._grid(shown, widths or self._least(shown), width)
        lines = [line._replace(gap=gap) for line in grid]
        if len(shown) < len(self.titles):
            left_out = [title for column, title in enumerate(self.titles) if column not in shown]
            text = f"{width} columns have no room for: {', '.join(left_out)}"
            lines += [Line("note", (part,)) for part in wrapped(text, width or len(text))]
        return lines

    def _fitting(self, shown: Sequence[int], width: int | None) -> tuple[int, list[int] | None]:
        """The gap between columns and their widths, or None if they do not fit."""
        for gap in GAPS:
            if (widths := self._widths(shown, None if width is None else width - gap * (len(shown) - 1))) is not None:
                return gap, widths
        return GAPS[0], None

    def _widths(self, shown: Sequence[int], room: int | None) -> list[int] | None:
        """The widths of columns that fit, or None; what is left over goes to the narrowest column of prose."""
        widest, widths = self._widest(shown), self._least(shown)
        if room is None or sum(widest) <= room:
            return widest
        if sum(widths) > room:
            return None
        for _ in range(room - sum(widths)):
            growing = [i for i, most in enumerate(widest) if widths[i] < most]
            widths[min(growing, key=lambda i: widths[i])] += 1
        return widths

    def _widest(self, shown: Sequence[int]) -> list[int]:
        """What columns take on one line."""
        return [max(map(width_of, self._texts(column))) for column in shown]

    def _least(self, shown: Sequence[int]) -> list[int]:
        """What columns take at least: those of prose may have several lines."""
        prose = [max(LEAST, width_of(self.titles[column])) for column in shown]
        every = zip(shown, self._widest(shown), prose, strict=True)
        return [min(most, least) if column in self.wrap else most for column, most, least in every]

    def _texts(self, column: int) -> list[str]:
        return [self.titles[column], *(row[column] for row in self.rows)]

    def _grid(self, shown: Sequence[int], widths: Sequence[int], width: int | None) -> Iterator[Line]:
        right = [column in self.right for column in shown]
        yield Line("titles", _padded([self.titles[column] for column in shown], widths, right))
        if self.rule:
            yield Line("rule", tuple("─" * width for width in widths))
        for number, row in enumerate(self.rows):
            cells = [wrapped(row[column], width) for column, width in zip(shown, widths, strict=True)]
            for texts in itertools.zip_longest(*cells, fillvalue=""):
                yield Line("row", _padded(texts, widths, right))
            yield from self._details(number, width)

    def _blocks(self, width: int) -> Iterator[Line]:
        """A block for each row: its first text, then a line for each other value that there is."""
        titles = self.titles[1:]
        margin = min(max(map(width_of, titles), default=0), width // 2)
        for number, row in enumerate(self.rows):
            yield from (Line("titles", (part,)) for part in wrapped(row[0], width))
            for title, text in zip(titles, row[1:], strict=True):
                parts = wrapped(text, width - margin - len(MARGIN) - GAPS[0]) if text else []
                for part, label in zip(parts, itertools.chain([title], itertools.repeat("")), strict=False):
                    yield Line("row", (f"{MARGIN}{_pad(label, margin, False)}", part))
            yield from self._details(number, width)

    def _details(self, number: int, width: int | None) -> Iterator[Line]:
        for text in self.details[number] if self.details else ():
            parts = [text] if width is None else wrapped(text, width - len(MARGIN))
            yield from (Line("detail", (f"{MARGIN}{part}",)) for part in parts)


def lines_of(
    titles: Sequence[str],
    cells: Sequence[Sequence[str]],
    right: Collection[int],
    width: int | None = None,
    wrap: Collection[int] = (),
    spare: Collection[int] = (),
) -> list[str]:
    """The lines of a table with a rule below its titles."""
    return [str(line) for line in TextTable(titles, cells, right, wrap, spare, rule=True).lines(width)]


def width_of(text: str) -> int:
    """The columns of a terminal that a text takes: two for a wide character, none for an accent on its own."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def wrapped(text: str, width: int) -> list[str]:
    """A text in lines of at most this width, broken at spaces, and within words that are longer."""
    width = max(width, 2)
    lines, line = [], ""
    for word in [text] if width_of(text) <= width else text.split(" "):
        longer = f"{line} {word}" if line else word
        while width_of(longer) > width:
            if not line:  # the word alone is too long
                line = next(word[:end] for end in range(len(word), 0, -1) if width_of(word[:end]) <= width)
                word = word[len(line) :]
            lines.append(line)
            line, longer = "", word
        line = longer
    return [*lines, line]


def _padded(texts: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> tuple[str, ...]:
    return tuple(itertools.starmap(_pad, zip(texts, widths, right, strict=True)))


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - width_of(text))
    return space + text if right else text + space
