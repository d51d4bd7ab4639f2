"""Options of commands, by what they name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from halrp.cli import completion

Json: TypeAlias = Annotated[bool, typer.Option("--json", help="print JSON, for programs")]
Method: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--method",
        "-m",
        help="see: halrp methods; or my_module:Mine",
        show_default=False,
        autocompletion=completion.methods,
    ),
]
Stream: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--stream",
        "-s",
        help="see: halrp streams; or my_module:load",
        show_default=False,
        autocompletion=completion.streams,
    ),
]
Backbone: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--backbone",
        "-b",
        help="see: halrp backbones; or my_module:build",
        show_default=False,
        autocompletion=completion.backbones,
    ),
]
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
TlsCa: TypeAlias = Annotated[
    Path | None,
    typer.Option("--tls-ca", metavar="PEM", help="certificate of the cluster's authority", show_default=False),
]
TlsCert: TypeAlias = Annotated[
    Path | None, typer.Option("--tls-cert", metavar="PEM", help="certificate of this client", show_default=False)
]
TlsKey: TypeAlias = Annotated[
    Path | None, typer.Option("--tls-key", metavar="PEM", help="private key of this client", show_default=False)
]
Untrusted: TypeAlias = Annotated[
    bool,
    typer.Option("--untrusted", help="workers send records and never use the results folder; see docs/security.md"),
]
