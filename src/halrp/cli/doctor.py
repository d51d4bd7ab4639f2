"""`halrp doctor`: versions, devices, threads, speed, extras and the health of a store, with advice in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from halrp.cli.extras import PACKAGES
from halrp.cli.options import Json
from halrp.cli.store import HeadOption, OutputsOption, TransformOption
from halrp.errors import SettingError
from halrp.terminal import echo, echo_json, print_table
from halrp.text_table import TextTable
from halrp.tools.importing import build_model, call_options

if TYPE_CHECKING:
    from halrp.tools.doctor import Remark

COLOURS = {"good": "green", "note": "cyan", "advice": "yellow", "problem": "red"}


def doctor(
    store: Annotated[
        Path | None, typer.Argument(metavar="[STORE]", help="also examine this store", show_default=False)
    ] = None,
    model: Annotated[str | None, typer.Option(help="package.module:callable; also whether the store fits it")] = None,
    head: HeadOption = None,
    outputs: OutputsOption = None,
    transform: TransformOption = None,
    speed: Annotated[bool, typer.Option("--speed/--no-speed", help="measure a small training step")] = True,
    as_json: Json = False,
) -> None:
    """Look at this machine, at what is installed and at a store, and say in plain words what could be better.

    Nothing is changed. Exits with 1 if there is a problem, such as a damaged file; advice and notes are none.

    Examples: halrp doctor, or halrp doctor store/ --model my_models:resnet
    """
    from halrp.tools import doctor as look

    if model is not None and store is None:
        raise SettingError(f"--model {model} is compared with a store; name the store: halrp doctor STORE --model ...")
    remarks = [*look.machine(measure=speed), *extras()]
    if store is not None:
        options = call_options(head, outputs, transform)
        remarks += look.store(store, None if model is None else build_model(model), **options)
    if as_json:
        echo_json([asdict(remark) for remark in remarks])
    else:
        _print(remarks)
    if any(remark.state == "problem" for remark in remarks):
        raise typer.Exit(1)


def extras() -> Iterator[Remark]:
    """Which extras are complete, and which packages the others lack."""
    from halrp.tools.doctor import Remark

    lacking: dict[str, list[str]] = {}
    for module, (package, extra) in PACKAGES.items():
        lacking.setdefault(extra, []).extend([] if find_spec(module) else [package])
    here = [extra for extra, packages in lacking.items() if not packages]
    yield Remark("extras", "good", f"here: {', '.join(sorted(here)) or 'none'}")
    missing = {extra: packages for extra, packages in lacking.items() if packages}
    if missing:
        text = "; ".join(f"{extra} lacks {', '.join(packages)}" for extra, packages in sorted(missing.items()))
        yield Remark("extras", "note", text, f"if you need one: pip install 'halrp[{min(missing)}]'")


def _print(remarks: list[Remark]) -> None:
    rows = [(remark.state, remark.topic, remark.text) for remark in remarks]
    details = [[f"→ {remark.advice}"] if remark.advice else [] for remark in remarks]
    print_table(TextTable(("", "about", "what there is"), rows, wrap={2}, details=details), COLOURS)
    counts = {state: sum(remark.state == state for remark in remarks) for state in ("problem", "advice")}
    echo()
    if not any(counts.values()):
        echo("All is well.")
    else:
        echo(f"Problems: {counts['problem']}. Advice: {counts['advice']}.")
