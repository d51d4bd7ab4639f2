"""Running a command as its user would."""

from __future__ import annotations

from dataclasses import dataclass

import typer
from typer.testing import CliRunner


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
