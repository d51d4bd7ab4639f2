"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

Results: TypeAlias = Annotated[Path, typer.Option("--results", metavar="DIR", help="folder of the records")]
Data: TypeAlias = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="the data directory, if not HALRP_DATA", show_default=False),
]
Device: TypeAlias = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")]
Jobs: TypeAlias = Annotated[
    int | None,
    typer.Option("--jobs", "-j", help="number of cells at once; default: the number of cores", show_default=False),
]
