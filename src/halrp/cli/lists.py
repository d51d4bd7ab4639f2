"""Commands that list what experiments can use: methods, streams, backbones and presets."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable
from typing import Annotated

import typer

from halrp.cli import completion
from halrp.cli.options import Data, Json
from halrp.cli.screen import print_table
from halrp.terminal import echo, echo_block, echo_json


def show_methods(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="show one method", show_default=False, autocompletion=completion.methods),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the methods, or one method's settings and their defaults.

    Examples: halrp methods, or halrp methods ewc
    """
    from halrp.lab import registry

    if name is None:
        rows = [(key, registry.method(key).description) for key in registry.method_names()]
        _list("method", rows, as_json)
        if not as_json:
            echo("\nSettings of one: halrp methods NAME. A method of your own: --method my_module:Mine")
        return
    from halrp.lab.run.cell import describe_all

    entry = registry.method(name)
    build = entry.load()
    about = inspect.getdoc(build.__init__ if inspect.isclass(build) else build) or ""
    settings = describe_all(entry.settings())
    if as_json:
        echo_json({"method": name, "description": entry.description, "about": about, "settings": settings})
        return
    echo(f"{name}: {entry.description}")
    echo_block(f"\n{about}\n\n")
    print_table(("setting", "default"), [(key, repr(value)) for key, value in settings.items()], wrap=("default",))
    echo(f"\nExample: halrp run cifar100-split --method {name} --set key=value")


def _list(kind: str, rows: list[tuple[str, str]], as_json: bool) -> None:
    """Names and what they are."""
    if as_json:
        echo_json([{kind: name, "description": description} for name, description in rows])
    else:
        print_table((kind, "description"), rows, wrap=("description",))


def show_streams(data: Data = None, as_json: Json = False) -> None:
    """List the streams, their numbers of tasks and classes, and whether their data are here.

    Example: halrp streams --data ~/datasets
    """
    from halrp.lab import registry
    from halrp.lab.data import status

    rows, listed = [], []
    for name in registry.stream_names():
        entry = registry.stream(name)
        missing = [data_set for data_set in entry.data_sets if not status(data_set, data).present]
        tasks = f"{entry.tasks} × {entry.classes}" if entry.tasks else "?"
        here = f"no: {', '.join(missing)}" if missing else "yes"
        rows.append((name, tasks, ", ".join(entry.data_sets) or "none", here))
        counts = {"tasks": entry.tasks or None, "classes": entry.classes or None}
        listed.append({"stream": name, **counts, "data_sets": list(entry.data_sets), "missing": missing})
    if as_json:
        echo_json(listed)
        return
    print_table(("stream", "tasks × classes", "data sets", "here"), rows, wrap=("data sets", "here"))
    echo("\nTo get data sets: halrp data get NAME. To see images of a stream: halrp data show STREAM -o sheet.png")


def show_backbones(as_json: Json = False) -> None:
    """List the backbones.

    Example: halrp backbones
    """
    from halrp.lab import registry

    rows = [(name, registry.backbone(name).description) for name in registry.backbone_names()]
    _list("backbone", rows, as_json)


def show_presets(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="print this preset", show_default=False, autocompletion=completion.presets),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the presets, or print one, to copy and change.

    Examples: halrp presets, or halrp presets cifar100-split > mine.toml
    """
    from halrp.lab import presets

    if name is not None:
        if as_json:
            echo_json(tomllib.loads(presets.text(name)))
        else:
            echo_block(presets.text(name))
        return
    from halrp.lab.run import sweep

    cells = {preset: len(sweep.expand(sweep.read(preset)[1], name=preset)) for preset in presets.names()}
    if as_json:
        echo_json([{"preset": p, "cells": count, "description": presets.about(p)} for p, count in cells.items()])
        return
    rows = [(preset, str(count), presets.about(preset)) for preset, count in cells.items()]
    print_table(("preset", "cells", "description"), rows, right=("cells",), wrap=("description",))
    echo("\nTo run one: halrp sweep NAME. To see one: halrp presets NAME")


COMMANDS: dict[str, Callable[..., None]] = {
    "methods": show_methods,
    "streams": show_streams,
    "backbones": show_backbones,
    "presets": show_presets,
}
