"""Commands about models and stores: explain, inspect, verify and export.

A store never holds code, so a command that needs a model takes a reference to a function that builds it,
"package.module:callable".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from halrp.cli import completion
from halrp.cli.options import Json
from halrp.cli.screen import print_table
from halrp.errors import SettingError
from halrp.terminal import columns, echo, echo_block, echo_json
from halrp.tools.importing import build_model, call_options

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from halrp.learner import Learner
    from halrp.model.codec import Precision

Model: TypeAlias = Annotated[
    str, typer.Argument(metavar="MODEL", help="package.module:callable that returns an nn.Module", show_default=False)
]
ModelOption: TypeAlias = Annotated[str, typer.Option("--model", help="package.module:callable, the model of the store")]
HeadOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--head", help="package.module:callable, a head of yours on top of the model, if it has one"),
]
OutputsOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--outputs", help="what of the model's results tasks were learned on, as in Learner(output=…)"),
]
TransformOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--transform", help="package.module:function that tasks were learned with, Learner(transform=…)"),
]
Folder: TypeAlias = Annotated[
    Path, typer.Argument(metavar="STORE", help="the folder of a saved learner", show_default=False)
]

MANY = 100
"""Tasks of a store beyond which `halrp inspect` reads only those that are named."""


class Batch(StrEnum):
    """The batch size of an exported model."""

    dynamic = "dynamic"
    fixed = "fixed"


class StoredPrecision(StrEnum):
    """The precision in which a task is stored."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    int8 = "int8"


class BaseOption(StrEnum):
    """The base of tasks."""

    given = "given"
    first = "first"


def explain_model(
    model: Model,
    head: Annotated[str | None, typer.Option(help="the classifier layer, if it is not the last one")] = None,
    classes: Annotated[
        int | None, typer.Option(help="the classes of a task; default: the model's outputs", show_default=False)
    ] = None,
    base: Annotated[
        BaseOption, typer.Option(help="the model as it is given (pretrained), or as the first task trains it")
    ] = BaseOption.given,
    precision: Annotated[
        StoredPrecision, typer.Option(help="the precision in which components are stored")
    ] = StoredPrecision.int8,
    as_json: Json = False,
) -> None:
    """Show which parameters of a model would be adapted, owned, shared or refused, why, and what they cost.

    The last lines give the smallest budget that a task can have, and on a given base what some budgets pay for. Exits
    with 1 if the model is refused.

    Example: halrp explain my_models:resnet --head fc --classes 5
    """
    from halrp.tools.explain import explain

    stored: Precision = precision.value
    explanation = explain(build_model(model), head, stored, classes=classes, base=base.value)
    if as_json:
        echo_json(explanation.to_json())
    else:
        echo_block(explanation.text(columns()))
    if explanation.refused:
        raise typer.Exit(1)


def inspect_store(
    store: Folder,
    tasks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TASK]...",
            help="show these tasks only",
            show_default=False,
            autocompletion=completion.tasks,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the tasks of a store: classes, ranks, view, precision, bytes, and the loss that the ranks recover.

    "Recovered" is a share of the predicted loss of a task without any ranks. Below, where the bytes of each task's file
    go, and what training gained over the probe on validation data. Of more than 100 tasks only the bytes are listed,
    which needs none of their files, unless some are named or JSON is wanted. No model is needed.

    Example: halrp inspect store/
    """
    from halrp.tools.listing import listing

    content = listing(store)
    if as_json or tasks or len(content["tasks"]) <= MANY:
        from halrp.tools.inspect import summary

        content = summary(store, tasks or ())
        if as_json:
            echo_json(content)
            return
        _print_tasks(content["tasks"])
        if tasks:
            return
    else:
        echo(f"{'bytes':>15}  task")
        for task in content["tasks"]:
            echo(f"{task['bytes']:>15,}  {task['name']}")
        echo(f"\nDetails of a task: halrp inspect {store} TASK")
    separate, total = content["separate_bytes"], content["bytes"]
    echo(f"\nBase {content['fingerprint']}, head {content['head']!r}, written by halrp {content['version']}.")
    echo(f"Base {content['base_bytes']:,} bytes, with {len(content['tasks'])} tasks {total:,} bytes.")
    old = sum(len(task["versions"]) for task in content["tasks"])
    if old:
        echo(f"Old versions of tasks: {old}, see halrp versions.")
    if content["trash_bytes"]:
        echo(f"Trash: {content['trash_bytes']:,} bytes; halrp repair --empty-trash deletes it.")
    if content["tasks"]:
        echo(f"As separate networks, one per task: {separate:,} bytes, {separate / total:.1f} times as many.")


def _print_tasks(tasks: Sequence[Mapping[str, Any]]) -> None:
    titles = ("task", "kind", "classes", "view", "precision", "bytes", "recovered", "ranks")
    right, wrap, spare = ("classes", "bytes", "recovered"), ("task", "ranks"), ("view", "precision", "classes")
    print_table(titles, map(_row, tasks), right, wrap, spare)
    _print_files(tasks)


def _row(task: Mapping[str, Any]) -> tuple[str, ...]:
    share = f"{task['recovered_loss'] / task['predicted_loss']:.1%}" if task["predicted_loss"] > 0 else ""
    ranks = [f"{weight} {rank}" for weight, rank in task["ranks"].items()]
    ranks += [f"{weight} dense" for weight in task["dense"]]
    text = "the base itself" if task["base"] else ", ".join(ranks)
    numbers = task["view"], task["precision"], f"{task['bytes']:,}", share
    return task["name"], task["objective"]["name"], str(task["classes"]), *numbers, text


def _print_files(tasks: Sequence[Mapping[str, Any]]) -> None:
    """Print where the bytes of tasks' files go, a column for each group of parts, and what training gained."""
    from halrp.tools.file_parts import GROUPS

    stored = [task for task in tasks if task["groups"]]
    if stored:
        present = [group for group in GROUPS if any(group in task["groups"] for task in stored)]
        rows = [(task["name"], *(_bytes(task["groups"].get(group)) for group in present)) for task in stored]
        echo("\nWhere the bytes go:")
        print_table(("task", *present), rows, right=present, wrap=("task",))
    outcomes = [f"{task['name']}: {task['outcome']['text']}" for task in tasks if task["outcome"]]
    if outcomes:
        echo("\nWhat training gained:")
    for line in outcomes:
        echo(line)


def _bytes(group: Mapping[str, Any] | None) -> str:
    return "" if group is None else f"{group['bytes']:,}"


def verify_store(
    store: Folder,
    model: Annotated[
        str | None, typer.Option(help="package.module:callable; also compare shapes with it, and run tasks")
    ] = None,
    head: HeadOption = None,
    outputs: OutputsOption = None,
    transform: TransformOption = None,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", help="also check that this key signed every file")
    ] = None,
    as_json: Json = False,
) -> None:
    """Read every file of a store and check that it is what was committed.

    Checks checksums, the manifest, that each file can be parsed, NaN, and that tasks belong to the base. Files that no
    commit names are listed; they are harmless and do not count as a problem. Nothing is changed.

    Example: halrp verify store/ --model my_models:resnet
    """
    from halrp.tools.verify import verify

    options = call_options(head, outputs, transform)
    findings = verify(store, None if model is None else build_model(model), verify_key=key, **options)
    bad = sum(finding.status == "bad" for finding in findings)
    if as_json:
        echo_json({"good": not bad, "files": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            echo(f"{finding.status:<10}  {finding.file}: {finding.note}")
        echo(f"{bad} of {len(findings)} files are bad" if bad else f"all good: {len(findings)} files")
    if bad:
        raise typer.Exit(1)


def export_task(
    store: Folder,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="model.onnx or model.pt2; a folder for --family", show_default=False)
    ],
    model: ModelOption,
    shapes: Annotated[
        list[str],
        typer.Option("--input", help="shape of the inputs, rows first: 1,3,32,32; NAME=1,16 for each of several"),
    ],
    tokens: Annotated[
        list[str] | None,
        typer.Option(help="inputs are integers below this number, such as token ids; NAME=N for one of several"),
    ] = None,
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="[TASK]",
            help="the name of a task",
            show_default=False,
            autocompletion=completion.tasks,
        ),
    ] = None,
    head: HeadOption = None,
    outputs: OutputsOption = None,
    transform: TransformOption = None,
    family: Annotated[
        bool, typer.Option("--family", help="every task: one ONNX graph, and an adapter of ONNX Runtime for each")
    ] = False,
    batch: Annotated[Batch, typer.Option(help="accept any number of rows, or only that of --input")] = Batch.dynamic,
    force: Annotated[bool, typer.Option("--force", help="replace the output if it exists")] = False,
    as_json: Json = False,
) -> None:
    """Export a task as a plain model with merged weights, for ONNX runtimes or for torch.export.load.

    With --family, every task for ONNX Runtime: family.onnx, and an adapter for each task. Run it again for new tasks.

    Files are run and compared with the library's predictions before they are written.

    Example: halrp export store/ birds -o birds.onnx --model my_models:resnet --input 1,3,32,32

    Example: halrp export store/ --family -o edge/ --model my_models:resnet --input 1,3,32,32

    Example: halrp export store/ tickets -o tickets.onnx --model my_models:bert --input input_ids=1,16 --tokens 30522
    """
    from halrp.learner import Learner
    from halrp.tools import export

    if family == (task is not None):
        raise SettingError("name one task, or pass --family for all of them")
    if not family:
        export.refuse_path(output, force)
    sizes, limits = parse_inputs(shapes), parse_tokens(tokens or [])
    options = call_options(head, outputs, transform)
    learner = Learner.load(store, build_model(model), attach=False, **options)
    module = learner.export(task)
    example = random_inputs(sizes, limits, next(module.parameters()).dtype)
    if family:
        files, difference = export_family(learner, module, example, output, force)
        _show_export(files, difference, (), as_json)
        return
    written = export.write(
        module,
        lambda x: learner.predict(x, task),
        example,
        output,
        dynamic=batch is Batch.dynamic,
        force=force,
        call=learner._committed.ready.call,
    )
    _show_export({str(output): written.bytes}, written.difference, written.rows, as_json)


def _show_export(files: Mapping[str, int], difference: float, rows: Sequence[int], as_json: bool) -> None:
    """Show what was written, with its bytes, and how far its outputs are from the library's."""
    if as_json:
        listed = [{"path": path, "bytes": size} for path, size in files.items()]
        echo_json({"files": listed, "largest_difference": difference, "rows": list(rows)})
        return
    for path, size in files.items():
        echo(f"wrote {path}: {size:,} bytes")
    on = f", on batches of {', '.join(map(str, rows))} rows" if rows else ""
    echo(f"largest difference from predict{on}: {difference:.1e}")


def export_family(
    learner: Learner, base: nn.Module, example: Any, folder: Path, force: bool
) -> tuple[dict[str, int], float]:
    """Write every task for ONNX Runtime; return the bytes of each file, and the largest difference of outputs."""
    from halrp.tools import onnx_family

    call = learner._committed.ready.call
    written = onnx_family.write(base, learner.tasks, learner.predict, example, folder, force=force, call=call)
    every = (written.graph, *written.tasks.values())
    return {str(exported.path): exported.bytes for exported in every}, max(e.difference for e in every)


def parse_shape(text: str) -> tuple[int, ...]:
    """Parse "1,3,32,32"."""
    sizes = tuple(int(part) for part in text.split(",") if part.strip().isdecimal())
    if len(sizes) != text.count(",") + 1 or min(sizes) < 1:
        raise SettingError(f"--input {text} is not a shape: give whole numbers above 0, rows first, such as 1,3,32,32")
    return sizes


def parse_inputs(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Shapes by the names of inputs; "" for a single one without a name."""
    pairs = [(name, parse_shape(shape)) for name, _, shape in (text.rpartition("=") for text in texts)]
    shapes = dict(pairs)
    if len(shapes) < len(pairs) or ("" in shapes and len(shapes) > 1):
        raise SettingError(f"--input {' '.join(texts)}: give one shape, or NAME=SHAPE with another name for each")
    if len({shape[0] for shape in shapes.values()}) > 1:
        raise SettingError(f"--input {' '.join(texts)}: all inputs must have the same number of rows")
    return shapes


def parse_tokens(texts: Sequence[str]) -> dict[str, int]:
    """Limits of integers by the names of inputs; "" for all."""
    limits = {}
    for name, _, number in (text.rpartition("=") for text in texts):
        if not number.isdecimal() or int(number) < 1:
            raise SettingError(f"--tokens {number} must be at least 1")
        limits[name] = int(number)
    return limits


def random_inputs(shapes: Mapping[str, tuple[int, ...]], limits: Mapping[str, int], dtype: torch.dtype) -> Any:
    """Inputs on which logits are compared, the same every time: a tensor, or a dict of tensors."""
    if unknown := sorted(limits.keys() - shapes.keys() - {""}):
        raise SettingError(f"--tokens {unknown[0]}=...: no --input has this name; there are {', '.join(shapes)}")
    drawn = {name: _drawn(name, sizes, limits.get(name, limits.get("")), dtype) for name, sizes in shapes.items()}
    return drawn.get("", drawn)


def _drawn(name: str, sizes: tuple[int, ...], limit: int | None, dtype: torch.dtype) -> Tensor:
    import torch

    from halrp.seeding import generator

    source = generator("export", sizes, *([name] if name else []))
    if limit is None:
        return torch.randn(sizes, generator=source).to(dtype)
    return torch.randint(limit, sizes, generator=source)


COMMANDS: dict[str, Callable[..., None]] = {
    "explain": explain_model,
    "inspect": inspect_store,
    "verify": verify_store,
    "export": export_task,
}
