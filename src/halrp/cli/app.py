"""What the `halrp` command can do: models, stores, data sets, experiments and their results.

Each command calls one function of the library and prints what it returns. A command that needs a model takes the place
of a function that builds it, "package.module:callable", because a store never holds code.
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn
from typer.core import TyperGroup

from halrp._version import __version__
from halrp.cli import lab as lab_commands
from halrp.cli.data import app as data_app
from halrp.cli.report import report
from halrp.cli.results import results
from halrp.cli.tables import tables
from halrp.errors import HalrpError, SettingError
from halrp.learner import Learner
from halrp.model.codec import Precision
from halrp.seeding import generator
from halrp.tools import export
from halrp.tools.explain import explain
from halrp.tools.importing import import_object
from halrp.tools.inspect import summary
from halrp.tools.verify import verify

MISTAKE = 2
"""Exit code for an error that the library names; 1 is an answer of no, 130 is Ctrl-C."""


class _Named(TyperGroup):
    """Prints errors of the library as one line."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command, and turn what the library refuses into an exit code."""
        try:
            return super().invoke(ctx)
        except HalrpError as error:
            typer.echo(f"halrp: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(MISTAKE) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error


app = typer.Typer(
    cls=_Named,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""Continual learning with one frozen base network and one small low-rank delta per task.

    A MODEL is written as package.module:callable, where the callable builds and returns an nn.Module; it is imported
    with the current folder on the path. A STORE is the folder that learner.save(...) or Learner(..., store=...) wrote.

    Begin with: halrp explain my_models:build

    Experiments: halrp run learns a stream with one method, halrp sweep does so with many; halrp methods, streams and
    presets list what there is.""",
    epilog="Exit codes: 0 good, 1 the answer is no (refused model, damaged store), 2 a mistake, 130 interrupted.",
)
app.add_typer(data_app, name="data")
lab_commands.add_to(app)
app.command("results")(results)
app.command("report")(report)
app.command("tables")(tables)

Model: TypeAlias = Annotated[
    str, typer.Argument(metavar="MODEL", help="package.module:callable that returns an nn.Module", show_default=False)
]
ModelOption: TypeAlias = Annotated[str, typer.Option("--model", help="package.module:callable, the model of the store")]
Folder: TypeAlias = Annotated[
    Path, typer.Argument(metavar="STORE", help="the folder of a saved learner", show_default=False)
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="print JSON, for programs")]


class Batch(StrEnum):
    """How many rows an exported model takes."""

    dynamic = "dynamic"
    fixed = "fixed"


class Kept(StrEnum):
    """In which precision a task is kept."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    int8 = "int8"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="print the version and exit", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the command itself."""


@app.command("explain")
def explain_model(
    model: Model,
    head: Annotated[str | None, typer.Option(help="the classifier layer, if it is not the last one")] = None,
    precision: Annotated[Kept, typer.Option(help="in which a task would be kept")] = Kept.float32,
    as_json: Json = False,
) -> None:
    """Say what would be adapted, owned, shared or refused in a model, why, and what it costs.

    The last lines give the smallest budget that a task can have. Exits with 1 if the model is refused.

    Example: halrp explain my_models:resnet --head fc
    """
    kept: Precision = precision.value
    found = explain(load_model(model), head, kept)
    typer.echo(json.dumps(found.to_json(), indent=1) if as_json else str(found))
    if found.refused:
        raise typer.Exit(1)


@app.command("inspect")
def inspect_store(store: Folder, as_json: Json = False) -> None:
    """Show the tasks of a store: classes, ranks, view, precision, bytes, and what the ranks bought.

    "Bought" is the share of the predicted loss of having no ranks at all that the kept ranks buy back. No model is
    needed.

    Example: halrp inspect store/
    """
    found = summary(store)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, justify in (("task", "left"), ("classes", "right"), ("view", "left"), ("precision", "left")):
        table.add_column(title, justify=justify, no_wrap=title != "task")  # type: ignore[arg-type]
    for title in ("bytes", "bought"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("ranks", overflow="fold")
    for task in found["tasks"]:
        table.add_row(*map(escape, _cells(task)))
    console = Console(soft_wrap=False) if sys.stdout.isatty() else Console(width=160)
    console.print(table)
    separate, total = found["separate_bytes"], found["bytes"]
    typer.echo(f"\nBase {found['fingerprint']}, head {found['head']!r}, written by halrp {found['version']}.")
    typer.echo(f"Base {found['base_bytes']:,} bytes, with {len(found['tasks'])} tasks {total:,} bytes.")
    if found["tasks"]:
        typer.echo(f"As full networks, one for each task, {separate:,} bytes: {separate / total:.1f} times as many.")


def _cells(task: dict[str, Any]) -> tuple[str, ...]:
    share = f"{task['bought_loss'] / task['predicted_loss']:.1%}" if task["predicted_loss"] > 0 else ""
    ranks = [f"{weight} {rank}" for weight, rank in task["ranks"].items()]
    ranks += [f"{weight} owned" for weight in task["owned_outright"]]
    text = "the base itself" if task["base"] else ", ".join(ranks)
    return task["name"], str(task["classes"]), task["view"], task["precision"], f"{task['bytes']:,}", share, text


@app.command("verify")
def verify_store(
    store: Folder,
    model: Annotated[str | None, typer.Option(help="package.module:callable; also hold shapes against it")] = None,
) -> None:
    """Read every file of a store and say of each whether it is what was committed.

    Checks checksums, the manifest, that each file can be parsed, NaN, and that tasks belong to the base. Files that no
    commit names are listed; they are harmless and do not count as a problem. Nothing is changed.

    Example: halrp verify store/ --model my_models:resnet
    """
    findings = verify(store, None if model is None else load_model(model))
    for found in findings:
        typer.echo(f"{found.status:<10}  {found.file}: {found.note}")
    bad = sum(found.status == "bad" for found in findings)
    typer.echo(f"{bad} of {len(findings)} files are bad" if bad else f"all good: {len(findings)} files")
    if bad:
        raise typer.Exit(1)


@app.command("export")
def export_task(
    store: Folder,
    task: Annotated[str, typer.Argument(metavar="TASK", help="the name of a task", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="model.onnx or model.pt2", show_default=False)],
    model: ModelOption,
    shape: Annotated[str, typer.Option("--input", help="shape of the inputs, rows first: 1,3,32,32")],
    tokens: Annotated[int | None, typer.Option(help="inputs are whole numbers below this, such as token ids")] = None,
    batch: Annotated[Batch, typer.Option(help="take any number of rows, or as many as --input says")] = Batch.dynamic,
    force: Annotated[bool, typer.Option("--force", help="replace the output if it exists")] = False,
) -> None:
    """Write a task as a model of its own, with merged weights, for ONNX runtimes or for torch.export.load.

    The file is run and held against the library's own predictions before it is written.

    Example: halrp export store/ birds -o birds.onnx --model my_models:resnet --input 1,3,32,32
    """
    export.refuse_path(output, force)
    sizes = parse_shape(shape)
    learner = Learner.load(store, load_model(model))
    module = learner.export(task)
    written = export.write(
        module,
        lambda x: learner.predict(x, task),
        random_input(sizes, tokens, next(module.parameters()).dtype),
        output,
        dynamic=batch is Batch.dynamic,
        force=force,
    )
    rows = ", ".join(map(str, written.rows))
    typer.echo(f"wrote {output}: {written.bytes:,} bytes")
    typer.echo(f"largest difference from predict, on batches of {rows} rows: {written.difference:.1e}")


def load_model(reference: str) -> nn.Module:
    """Import "package.module:callable" with the current folder on the path, and call it."""
    value = import_object("model", reference)
    model = value if isinstance(value, nn.Module) else value() if callable(value) else value
    if not isinstance(model, nn.Module):
        raise SettingError(f"the model {reference!r} gives a {type(model).__name__}; it must return an nn.Module")
    return model


def parse_shape(text: str) -> tuple[int, ...]:
    """Read "1,3,32,32"."""
    sizes = tuple(int(part) for part in text.split(",") if part.strip().isdecimal())
    if len(sizes) != text.count(",") + 1 or min(sizes) < 1:
        raise SettingError(f"--input {text} is not a shape: give whole numbers above 0, rows first, such as 1,3,32,32")
    return sizes


def random_input(sizes: tuple[int, ...], tokens: int | None, dtype: torch.dtype) -> Tensor:
    """An input to compare logits on, the same every time."""
    source = generator("export", sizes)
    if tokens is None:
        return torch.randn(sizes, generator=source).to(dtype)
    if tokens < 1:
        raise SettingError(f"--tokens {tokens} must be at least 1")
    return torch.randint(tokens, sizes, generator=source)
