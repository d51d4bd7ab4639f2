"""What commands show: tables, with columns by their titles, and what was done, in words or as JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from halrp import terminal
from halrp.text_table import TextTable


def print_table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Collection[str] = (),
    wrap: Collection[str] = (),
    spare: Collection[str] = (),
    colours: Mapping[str, str] | None = None,
) -> None:
    """Print rows under titles; columns of `right` are aligned there.

    Those of `wrap` may need several lines, and those of `spare` are left out where there is no room.
    """
    at = [{number for number, title in enumerate(titles) if title in names} for names in (right, wrap, spare)]
    terminal.print_table(TextTable(titles, [*rows], right=at[0], wrap=at[1], spare=at[2]), colours)


def show(facts: Mapping[str, Any], text: str, as_json: bool) -> None:
    """Show what was done: the facts for programs, or one line for people."""
    if as_json:
        terminal.echo_json(facts)
    else:
        terminal.echo(text)
