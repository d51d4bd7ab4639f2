"""The `halrp` command.

Its commands are in `halrp.cli.app` and need typer, which the library does not. So they are imported only when the
command runs, and a missing typer is an error in one line.
"""

from __future__ import annotations

import sys


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
    app(prog_name="halrp")
