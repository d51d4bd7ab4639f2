"""The command line: fits of a domain that are not in the records yet, or the tables of all that are."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import benchmarks.pretrained as package
from benchmarks.pretrained import commits, leaderboard, picture, records, table
from benchmarks.pretrained.domain import Domain
from benchmarks.pretrained.measure import Run
from benchmarks.pretrained.methods import methods
from benchmarks.pretrained.records import Row
from halrp.errors import DamagedError, MissingPackageError

SHOTS = {"vision": 30, "text": 60}


def main(arguments: list[str] | None = None) -> None:
    """Measure what is asked for, or write the tables."""
    options = _parser().parse_args(arguments)
    if options.command == "table":
        table.write(options.results, options.document)
        picture.write(options.results, options.document.parent.parent)
        leaderboard.write(options.results, options.document.parent.parent)
        return
    if options.command == "commits":
        domains = {name: records.read(options.results / f"{name}.jsonl") for name in SHOTS}
        print(f"{commits.write(options.results, domains)} records without a commit of their own have one now")
        return
    torch.set_num_threads(1)
    domain = _domain(options)
    tasks = {"dev": domain.dev, "held-out": domain.held_out, "all": domain.dev + domain.held_out}[options.tasks]
    run = Run(domain, methods(options.variant), options.results / f"{domain.name}.jsonl")
    try:
        for shots in options.shots or [SHOTS[domain.name]]:
            for row in run.all(options.methods, tasks, shots, options.seeds):
                print(line(row), flush=True)
    except (MissingPackageError, DamagedError) as error:
        raise SystemExit(str(error)) from None


def line(row: Row) -> str:
    """A row as a person follows it."""
    label = f"{row['network']} {row['method']} {row['setting']} shots {row['shots']}"
    if row["kind"] == "choice":
        grid = ", ".join(f"{outcome['setting']} {outcome['val_accuracy']:.2f}" for outcome in row["grid"])
        return f"{label} chosen from {grid}"
    if row["kind"] == "refused":
        return f"{label} {row['task']} seed {row['seed']} refused: {row['reason']}"
    files = ", ".join(f"{form} {file['accuracy']:.2f} in {file['bytes']:,}" for form, file in row["files"].items())
    return f"{label} {row['task']} seed {row['seed']}: {files}; {row['seconds']:.1f} s"


def _domain(options: argparse.Namespace) -> Domain:
    if options.command == "vision":
        from benchmarks.pretrained.vision import Vision

        return Vision(options.data, options.weights)
    from benchmarks.pretrained.text import Text

    return Text(options.weights)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pretrained",
        description=package.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    names = list(methods())
    for name in SHOTS:
        command = commands.add_parser(name, help=f"measure methods on {name}")
        command.add_argument(
            "--methods", nargs="+", choices=names, default=["probe"], metavar="METHOD", help=", ".join(names)
        )
        command.add_argument("--tasks", choices=("dev", "held-out", "all"), default="dev")
        command.add_argument("--shots", type=int, nargs="+", help=f"examples a class; by default {SHOTS[name]}")
        command.add_argument("--seeds", type=int, nargs="+", default=[0])
        command.add_argument(
            "--variant", default="default", help="marks the records of halrp, whose defaults may change"
        )
        command.add_argument("--weights", type=Path, help="the network's file or folder; by default the package's")
        command.add_argument("--data", type=Path, help="the folder of the data sets")
        command.add_argument("--results", type=Path, default=Path("results/pretrained"))
    command = commands.add_parser("commits", help="look up the commits of records that name none, in the history")
    command.add_argument("--results", type=Path, default=Path("results/pretrained"))
    command = commands.add_parser("table", help="write the tables of the records")
    command.add_argument("--results", type=Path, default=Path("results/pretrained"))
    command.add_argument("--document", type=Path, default=Path("docs/pretrained.md"))
    return parser


if __name__ == "__main__":
    main()
