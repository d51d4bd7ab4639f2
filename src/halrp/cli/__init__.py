"""The `halrp` command.

Its commands are in `halrp.cli.app` and need typer, which the library does not. So they are imported only when the
command runs, and a missing typer is an error in one line.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from types import TracebackType

from halrp.text import printable


def main() -> None:
    """Run the command and exit with its code."""
    try:
        from halrp.cli.app import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("typer", "rich"):
            raise
        print(f"halrp: the command needs {missing}; run: pip install 'halrp[lab]'", file=sys.stderr)
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
