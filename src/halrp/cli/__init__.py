"""The `halrp` command.

Its commands are in `halrp.cli.app` and need typer, which the library does not. So they are imported only when the
command runs, and a missing typer is an error in one line. The version needs nothing.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from types import TracebackType

from halrp._version import __version__
from halrp.cli.extras import remedy
from halrp.text import printable


def main() -> None:
    """Run the command and exit with its code."""
    if sys.argv[1:] == ["--version"]:
        print(__version__)
        return
    try:
        from halrp.cli.app import app
    except ModuleNotFoundError as error:
        text = remedy(error)
        if text is None:
            raise
        print(f"halrp: {text}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.excepthook = _print_traceback
    warnings.formatwarning = _format_warning
    app(prog_name="halrp")


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of an error that is not the library's own; it may quote names from files."""
    text = "".join(traceback.format_exception(kind, error, trace))
    sys.stderr.write(printable(text, keep="\n\t"))


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    return printable(f"{filename}:{lineno}: {category.__name__}: {message}") + "\n"
