"""Tables as lines of plain text."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def lines_of(titles: Sequence[str], cells: Sequence[Sequence[str]], right: Collection[int]) -> list[str]:
    """Lines of a table whose columns are as wide as they must be; the columns `right` are aligned there."""
    widths = [max(len(line[column]) for line in (titles, *cells)) for column in range(len(titles))]

    def line(texts: Sequence[str]) -> str:
        placed = [
            text.rjust(width) if column in right else text.ljust(width)
            for column, (text, width) in enumerate(zip(texts, widths, strict=True))
        ]
        return "  ".join(placed).rstrip()

    return [line(titles), line(["─" * width for width in widths]), *map(line, cells)]
