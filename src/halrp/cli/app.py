"""The `halrp` command: its groups of commands, and how errors become exit codes.

Each command calls one function of the library or the laboratory and prints what it returns. Modules that take long to
import are imported by the commands that need them.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from halrp._version import __version__
from halrp.cli import lists, manage, run, serve, signing, store
from halrp.cli.compare import compare
from halrp.cli.data import app as data_app
from halrp.cli.doctor import doctor
from halrp.cli.extras import remedy
from halrp.cli.report import report
from halrp.cli.results import results
from halrp.cli.tables import tables
from halrp.errors import HalrpError
from halrp.terminal import echo
from halrp.text import printable

_USAGE: Any = typer.BadParameter.__mro__[2]
"""The root of errors about arguments, wherever typer has its copy of click."""
MISTAKE = 2
"""Exit code of an error that the library raises on purpose; 1 is a negative answer, 130 is Ctrl-C."""


class _ErrorsAsExitCodes(TyperGroup):
    """Prints errors of the library as one line."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command, and turn an error of the library into an exit code."""
        try:
            return super().invoke(ctx)
        except _USAGE as error:  # it quotes what was typed, or what the shell put there
            error.message = printable(error.message)
            raise
        except HalrpError as error:
            echo(f"halrp: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(MISTAKE) from error
        except ModuleNotFoundError as error:
            text = remedy(error)
            if text is None:
                raise
            echo(f"halrp: {text}", err=True)
            raise typer.Exit(MISTAKE) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error


app = typer.Typer(
    cls=_ErrorsAsExitCodes,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""Continual learning with one frozen base network and one small low-rank delta per task.

    A MODEL is written as package.module:callable, where the callable builds and returns an nn.Module; it is imported
    with the current folder on the path. A STORE is the folder that learner.save(...) or Learner(..., store=...) wrote.

    Begin with: halrp explain my_models:build

    Names after TAB, in your shell: halrp --install-completion

    Experiments: halrp run learns a stream with one method, halrp sweep does so with many; halrp methods, streams and
    presets list what is available.""",
    epilog="Exit codes: 0 success, 1 a negative answer (refused model, damaged store), 2 a mistake, 130 interrupted.",
)
app.add_typer(data_app, name="data")
for commands in (store.COMMANDS, manage.COMMANDS, signing.COMMANDS, serve.COMMANDS, run.COMMANDS, lists.COMMANDS):
    for name, command in commands.items():
        app.command(name)(command)
app.command("results")(results)
app.command("report")(report)
app.command("compare")(compare)
app.command("doctor")(doctor)
app.command("tables")(tables)


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="print the version and exit", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the command itself."""
