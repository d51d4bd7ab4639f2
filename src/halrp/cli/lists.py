"""Commands that list what experiments can use: methods, streams, backbones and presets."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated

import typer

from halrp.cli.options import Data
from halrp.cli.screen import print_table
from halrp.terminal import echo, echo_block


def show_methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="show one method", show_default=False)] = None,
) -> None:
    """List the methods, or one method's settings and their defaults.

    Examples: halrp methods, or halrp methods ewc
    """
    from halrp.lab import registry

    if name is None:
        rows = [(key, registry.method(key).description) for key in registry.method_names()]
        print_table(("method", "description"), rows, wrap=("description",))
        echo("\nSettings of one: halrp methods NAME. A method of your own: --method my_module:Mine")
        return
    from halrp.lab.run.cell import describe_all

    entry = registry.method(name)
    build = entry.load()
    echo(f"{name}: {entry.description}")
    echo_block(f"\n{inspect.getdoc(build.__init__ if inspect.isclass(build) else build) or ''}\n\n")
    settings = describe_all(entry.settings())
    print_table(("setting", "default"), [(key, repr(value)) for key, value in settings.items()], wrap=("default",))
    echo(f"\nExample: halrp run cifar100-split --method {name} --set key=value")


def show_streams(data: Data = None) -> None:
    """List the streams, their numbers of tasks and classes, and whether their data are here.

    Example: halrp streams --data ~/datasets
    """
    from halrp.lab import registry
    from halrp.lab.data import status

    rows = []
    for name in registry.stream_names():
        entry = registry.stream(name)
        missing = [data_set for data_set in entry.data_sets if not status(data_set, data).present]
        tasks = f"{entry.tasks} × {entry.classes}" if entry.tasks else "?"
        here = f"no: {', '.join(missing)}" if missing else "yes"
        rows.append((name, tasks, ", ".join(entry.data_sets) or "none", here))
    print_table(("stream", "tasks × classes", "data sets", "here"), rows, wrap=("here",))
    echo("\nTo get data sets: halrp data get NAME. To see images of a stream: halrp data show STREAM -o sheet.png")


def show_backbones() -> None:
    """List the backbones.

    Example: halrp backbones
    """
    from halrp.lab import registry

    rows = [(name, registry.backbone(name).description) for name in registry.backbone_names()]
    print_table(("backbone", "description"), rows, wrap=("description",))


def show_presets(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="print this preset", show_default=False)] = None,
) -> None:
    """List the presets, or print one, to copy and change.

    Examples: halrp presets, or halrp presets cifar100-split > mine.toml
    """
    from halrp.lab import presets

    if name is not None:
        echo_block(presets.text(name))
        return
    from halrp.lab.run import sweep

    rows = [
        (preset, str(len(sweep.expand(sweep.read(preset)[1], name=preset))), presets.about(preset))
        for preset in presets.names()
    ]
    print_table(("preset", "cells", "description"), rows, wrap=("description",))
    echo("\nTo run one: halrp sweep NAME. To see one: halrp presets NAME")


COMMANDS: dict[str, Callable[..., None]] = {
    "methods": show_methods,
    "streams": show_streams,
    "backbones": show_backbones,
    "presets": show_presets,
}
