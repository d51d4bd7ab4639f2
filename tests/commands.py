"""Running a command as its user would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer
from typer.testing import CliRunner

EVIL = "x\x1b]0;owned\x07\x9b2J\u202elive\u2066\rall good\nhalrp: [bold red]fine[/]\x7f"
"""A title of the window, a bell, an erased screen, reversed text, a line over the line, a line of its own, markup."""


def every_command(app: typer.Typer) -> dict[tuple[str, ...], Any]:
    """Every command by its words."""
    return dict(_commands(typer.main.get_command(app)))


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name), command


@dataclass(frozen=True)
class Result:
    """What a run of a command left behind."""

    code: int
    out: str
    error: str

    @property
    def flat(self) -> str:
        """What was printed, without line breaks and alignment."""
        return " ".join(self.out.split())

    @property
    def lines(self) -> list[list[str]]:
        """What was printed, as the words of each line."""
        return [line.split() for line in self.out.splitlines()]


def invoke(app: typer.Typer, *arguments: object) -> Result:
    """Run a command; whatever it raises comes through, as its user would see the traceback or the printed error."""
    run = CliRunner().invoke(app, [str(a) for a in arguments])
    if run.exception is not None and not isinstance(run.exception, SystemExit):
        raise run.exception
    return Result(run.exit_code, run.stdout, run.stderr)
