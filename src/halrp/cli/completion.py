"""What the shell offers after TAB, besides commands and options: names of methods, streams, presets, tasks and so on.

Shells put an answer into the command line as it is, and some evaluate it first. So only names are offered that mean
nothing to a shell; others, such as tasks with spaces, must be typed in quotes. An error is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import typer

_HARMLESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@/+-]*")


def offered(names: Iterable[str], incomplete: str) -> list[str]:
    """Those names that begin so and mean nothing to a shell."""
    return [name for name in names if name.startswith(incomplete) and _HARMLESS.fullmatch(name)]


def methods(incomplete: str) -> list[str]:
    """Methods of the laboratory."""
    from halrp.lab import registry

    return offered(registry.method_names(), incomplete)


def streams(incomplete: str) -> list[str]:
    """Streams of the laboratory."""
    from halrp.lab import registry

    return offered(registry.stream_names(), incomplete)


def backbones(incomplete: str) -> list[str]:
    """Backbones of the laboratory."""
    from halrp.lab import registry

    return offered(registry.backbone_names(), incomplete)


def presets(incomplete: str) -> list[str]:
    """Presets of sweeps."""
    from halrp.lab import presets as package

    return offered(package.names(), incomplete)


def data_sets(incomplete: str) -> list[str]:
    """Data sets that can be downloaded, or all of them."""
    from halrp.lab.data.sources import sources

    return offered(["all", *sources()], incomplete)


def tasks(ctx: typer.Context, incomplete: str) -> list[str]:
    """Tasks of the store that the command line names."""
    from halrp.errors import HalrpError
    from halrp.store.folder import Folder

    folder = ctx.params.get("store")
    with suppress(HalrpError, OSError):
        return offered(Folder(Path(folder)).manifest().tasks, incomplete) if folder else []
    return []


def among(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Names that are known beforehand."""
    known = tuple(names)

    def complete(incomplete: str) -> list[str]:
        return offered(known, incomplete)

    return complete
