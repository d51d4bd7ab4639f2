"""`python -m halrp.lab.report.documents`: write the numbers of the documents from the raw records under `results/`.

A part stands between two comments that name it, `<!-- begin NAME -->` and `<!-- end NAME -->`. Everything between
them is written by this module and nothing by hand, and so are the figures under `docs/figures`; `--check` fails unless
all of them agree with the records. A figure ends with a checksum of its data, so that it does not become stale when it
is drawn with another version of a library.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from halrp.lab.records.loading import load
from halrp.lab.registry import METHODS
from halrp.lab.report.documents.identify import identify_table, shapes_table, unknown_table, worths_table
from halrp.lab.report.documents.methods import (
    BenchmarkStudy,
    demo_table,
    main_table,
    method_table,
    methods_table,
    orderings,
)
from halrp.lab.report.documents.nodes import computed_table, held_table, read_table
from halrp.lab.report.documents.speed import decoding_table, memory_table, ratios_table, starts_table, times_table
from halrp.lab.report.documents.studies import (
    grid_table,
    orders_table,
    progress_table,
    settings_table,
    sizes_table,
    statistics_table,
    strengths_table,
)
from halrp.lab.report.documents.worth import (
    ablations_table,
    bytes_chart,
    bytes_table,
    correlations_table,
    entropy_table,
    importance_table,
    worth_chart,
)
from halrp.lab.report.figure import Plot
from halrp.lab.report.figures_accuracy import final_accuracy
from halrp.lab.report.figures_size import frontier
from halrp.lab.report.image import render
from halrp.lab.report.study import Study
from halrp.store import atomic
from halrp.terminal import echo

WITH_PAGES = tuple(name for name, entry in METHODS.items() if entry.has_page)
"""Methods that have a page of their own."""
MAIN = BenchmarkStudy("cifar100-split-5", "cifar100-split", 0.05)
"""The benchmark of the README."""
STUDIES = (
    MAIN,
    BenchmarkStudy("cifar100-split-25", "cifar100-split", 0.25),
    BenchmarkStudy("cifar100-split", "cifar100-split"),
    BenchmarkStudy("cifar100-superclass-5", "cifar100-superclass", 0.05),
    BenchmarkStudy("cifar100-superclass-25", "cifar100-superclass", 0.25),
    BenchmarkStudy("pmnist-5", "pmnist", 0.05),
    BenchmarkStudy("omniglot-rotation", "omniglot-rotation", 1.0, "lenet-large"),
    BenchmarkStudy("five-alexnet", "five@subset", 1.0, "alexnet"),
    BenchmarkStudy("tinyimagenet-40-resnet18", "tinyimagenet-40@subset", 1.0, "resnet18"),
    BenchmarkStudy("iru", "pmnist-20", 1.0, "mlp"),
    BenchmarkStudy("iru", "cifar100-20", 1.0, "mlp"),
)
"""Benchmarks on which methods are compared. Those that have no records yet are left out."""
ORDERED = ("cifar100-split-5", "cifar100-split-25", "cifar100-superclass-5")
"""Folders with enough methods to compare their order with the paper's."""
TUNED = {name: METHODS[name].tuned for name in sorted(METHODS) if METHODS[name].tuned}
"""By method, the settings that were chosen on validation data."""
ABLATED = {
    "halrp-official": ("rate",),
    "lrp": ("rank",),
    "random-lrp": ("rate",),
    "scales": (),
    "halrp-budget": ("view",),
    "halrp-whitened": (),
}
WARMED = dict.fromkeys(("halrp-official", "halrp-budget"), ("warm_up",))
PENALTIES = {"l1": 1e-4, "l2": 1e-4}
"""The penalties with which the warm-up is varied."""
BY_SIZE = tuple(name for name, entry in METHODS.items() if entry.compared_by_size)
"""Methods whose accuracy is compared by their bytes."""
DOCUMENTS = (
    "README.md",
    "docs/identify.md",
    "docs/results.md",
    "docs/scaling.md",
    "docs/worth.md",
    *(f"docs/methods/{name}.md" for name in WITH_PAGES),
)


def parts(root: Path) -> dict[str, Callable[[], str]]:
    """The writer of every generated part that has records, by name."""
    split, quarter = root / "cifar100-split-5", root / "cifar100-split-25"
    benchmarks = root / "benchmarks"
    studies = [study for study in STUDIES if (root / study.folder).exists()]
    writers: dict[str, Callable[[], str]] = {
        "main": partial(main_table, MAIN, root),
        "demo": partial(demo_table, root / "demo"),
        "orders": partial(orders_table, root / "cifar100-split-orders"),
        "train-step": partial(ratios_table, benchmarks / "train_step.json", "training step"),
        "learn-time": partial(ratios_table, benchmarks / "learn_time.json", "learning a task"),
        "memory": partial(memory_table, benchmarks / "memory.json"),
        "predict-one": partial(ratios_table, benchmarks / "predict_one.json", "prediction"),
        "mixed-batch": partial(ratios_table, benchmarks / "mixed_batch.json", "mixed batch"),
        "many-tasks": partial(ratios_table, benchmarks / "many_tasks.json", "last five of 50 tasks to tasks 2 – 6"),
        "batches": partial(ratios_table, benchmarks / "batches.json", "batches of 128 images"),
        "checkpoints": partial(ratios_table, benchmarks / "checkpoints.json", "ten epochs, LeNet"),
        "overhead": partial(ratios_table, benchmarks / "lab_overhead.json", "three tasks, LeNet"),
        "starts": partial(starts_table, benchmarks / "starts.json"),
        "start-ablations": partial(ablations_table, benchmarks / "ablations.json"),
        "importance": partial(importance_table, benchmarks / "importance.json"),
        "worth": partial(correlations_table, benchmarks / "worth.json"),
        "bytes": partial(bytes_table, benchmarks / "bytes.json"),
        "entropy": partial(entropy_table, benchmarks / "entropy.json"),
        "identify": partial(identify_table, benchmarks / "identify.json"),
        "identify-unknown": partial(unknown_table, benchmarks / "identify.json"),
        "identify-shapes": partial(shapes_table, benchmarks / "identify.json"),
        "identify-worths": partial(worths_table, benchmarks / "identify.json"),
        "node-tasks": partial(held_table, benchmarks / "scale.json"),
        "node-rows": partial(computed_table, benchmarks / "serve_store.json"),
        "node-reads": partial(read_table, benchmarks / "scale.json", benchmarks / "serve_store.json"),
        "decoding": partial(decoding_table, benchmarks / "decode.json"),
        "times": partial(times_table, benchmarks / "time_per_task.json"),
        "statistics": partial(statistics_table, root / "statistics", split, root / "cifar100-superclass-5"),
        "settings": partial(settings_table, root / "penalties-cifar100-split", split, varied=TUNED),
    }
    if (folder := root / "penalties-cifar100-superclass").exists():
        superclass = root / "cifar100-superclass-5"
        writers["settings-superclass"] = partial(settings_table, folder, superclass, varied={"l2": ("strength",)})
    if (folder := root / "penalties-cifar100-20").exists():
        writers["settings-iru"] = partial(settings_table, folder, root / "iru", varied={"iru": TUNED["iru"]})
    if (folder := root / "frontier-cifar100-split").exists():
        writers["sizes"] = partial(sizes_table, folder, quarter, methods=BY_SIZE)
    if (folder := root / "frontier-cifar100-superclass").exists():
        writers["sizes-superclass"] = partial(sizes_table, folder, root / "cifar100-superclass-5", methods=BY_SIZE)
    if (folder := root / "ablations-cifar100-split").exists():
        writers["ablations"] = partial(settings_table, folder, quarter, varied=ABLATED)
    if (folder := root / "ablations-cifar100-split-5").exists():
        writers["warm-up"] = partial(settings_table, folder, split, varied=WARMED, fixed=PENALTIES)
        writers["penalties"] = partial(
            grid_table, folder, split, method="halrp-official", down="l1", across="l2", fixed={"warm_up": 1}
        )
    if (folder := root / "strengths").exists():
        others = [*(root / study.folder for study in studies), root / "ablations-cifar100-split-5"]
        writers["strengths"] = partial(
            strengths_table, folder, *others, method="halrp-official", setting="l1", fixed={"l2": 1e-4, "warm_up": 1}
        )
    if (folder := root / "omniglot-rotation").exists():
        writers["course"] = partial(progress_table, folder)
    for study in studies:
        name = study.folder if study.folder != "iru" else f"iru-{study.stream}"
        writers[name] = partial(methods_table, study, root)
        if study.folder in ORDERED:
            writers[f"orderings-{name}"] = partial(orderings, study, root)
    return writers | {f"measured-{name}": partial(method_table, studies, root, name) for name in WITH_PAGES}


def figures(root: Path) -> dict[str, tuple[Plot, str]]:
    """Every generated figure, by its file: what is drawn, and its title."""
    main = load([root / MAIN.folder]).records
    sized = load([root / "cifar100-split-25", root / "frontier-cifar100-split"]).records
    sized = [record for record in sized if record.order == "A" and record.method != "finetune"]
    drawn: dict[str, tuple[Plot, str]] = {}
    for path, build, records in (
        ("docs/figures/accuracy.svg", final_accuracy, main),
        ("docs/figures/frontier.svg", frontier, sized),
    ):
        figure = build(Study.of(records))
        assert figure is not None, f"{path}: the records have nothing to draw"
        label, plot = next(iter(figure.plots.items()))
        drawn[path] = plot, f"{figure.title}: {label}"
    drawn["docs/figures/bytes.svg"] = bytes_chart(root / "benchmarks" / "bytes.json")
    drawn["docs/figures/worth.svg"] = worth_chart(root / "benchmarks" / "worth.json")
    return drawn


def checksum(plot: Plot, title: str) -> str:
    """The last line of a figure's file."""
    return f"<!-- shows {hashlib.sha256(repr((plot, title)).encode()).hexdigest()} -->\n"


def filled(text: str, parts: dict[str, Callable[[], str]]) -> str:
    """A document with every one of these parts written again between its comments; others stay as they are."""

    def write(match: re.Match[str]) -> str:
        return f"{match[1]}\n{parts[match[2]]()}\n{match[3]}" if match[2] in parts else match[0]

    return re.sub(r"(<!-- begin ([\w-]+) -->)\n.*?(<!-- end \2 -->)", write, text, flags=re.DOTALL)


def main(arguments: list[str] | None = None) -> None:
    """Write the documents, or check them."""
    parser = argparse.ArgumentParser(
        prog="python -m halrp.lab.report.documents", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--root", type=Path, default=Path(), help="the folder of the project")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a document is stale")
    options = parser.parse_args(arguments)
    made, stale = parts(options.root / "results"), []
    for path in (options.root / name for name in DOCUMENTS):
        old = path.read_text("utf-8")
        new = filled(old, made)
        if new != old:
            stale.append(str(path))
            if not options.check:
                path.write_text(new, "utf-8")
    for name, (plot, title) in figures(options.root / "results").items():
        path = options.root / name
        mark = checksum(plot, title)
        if path.exists() and path.read_text("utf-8").endswith(mark):
            continue
        stale.append(str(path))
        if not options.check:
            atomic.write(path, render(plot, ".svg", title) + mark.encode())
    if stale and options.check:
        sys.exit(f"stale: {', '.join(stale)}; run: python -m halrp.lab.report.documents")
    echo(f"wrote {', '.join(stale)}" if stale else "the documents agree with the records")
