"""`python -m halrp.lab.document`: write the numbers of the documents from the raw records under `results/`.

A part stands between two comments that name it, `<!-- begin NAME -->` and `<!-- end NAME -->`. Everything between
them is written by this module and nothing by hand, and so are the figures under `docs/figures`; `--check` says whether
all of them are what the records say. A figure ends with a checksum of what it shows, so that it is not stale for being
drawn with another version of a library.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from halrp import files
from halrp.lab import results
from halrp.lab.document_tables import (
    decoding_table,
    demo_table,
    main_table,
    method_table,
    methods_table,
    orderings,
    orders_table,
    ratios_table,
    settings_table,
    sizes_table,
    statistics_table,
    times_table,
)
from halrp.lab.report.figures_accuracy import final_accuracy
from halrp.lab.report.figures_size import frontier
from halrp.lab.report.files import drawn
from halrp.lab.report.grouped import Grouped
from halrp.lab.report.parts import Drawing

NINE = ("apd", "apdfix", "ibpwf", "gpm", "wsn", "bmkp", "clr", "prd", "iru")
"""Methods that have a page of their own."""
MAIN = "cifar100-split-5"
"""The records that the README shows."""
FIGURES = {"docs/figures/accuracy.svg": final_accuracy, "docs/figures/frontier.svg": frontier}
DOCUMENTS = ("README.md", "docs/results.md", *(f"docs/methods/{name}.md" for name in NINE))


def parts(root: Path) -> dict[str, Callable[[], str]]:
    """Every generated part, by name."""
    found: dict[str, Callable[[], str]] = {
        "main": lambda: main_table(root / MAIN),
        "demo": lambda: demo_table(root / "demo"),
        "orders": lambda: orders_table(root / "cifar100-split-orders"),
        "sizes": lambda: sizes_table(root / "cifar100-split"),
        "batches": lambda: ratios_table(root / "benchmarks" / "batches.json", "batches of 128 images"),
        "overhead": lambda: ratios_table(root / "benchmarks" / "lab_overhead.json", "three tasks, LeNet"),
        "decoding": lambda: decoding_table(root / "benchmarks" / "decode.json"),
        "times": lambda: times_table(root / "benchmarks" / "time_per_task.json"),
        "statistics": lambda: statistics_table(root),
        "settings": lambda: settings_table(root / "penalties-cifar100-split", root / "cifar100-split-5"),
    }
    for stream, fraction in (("cifar100-split", 0.05), ("cifar100-split", 0.25), ("cifar100-superclass", 0.05)):
        name = f"{stream}-{100 * fraction:g}"
        found[name] = partial(methods_table, root / name, stream, fraction)
        found[f"orderings-{name}"] = partial(orderings, root / name, stream, fraction)
    return found | {f"measured-{name}": partial(method_table, root, name) for name in NINE}


def drawings(root: Path) -> dict[str, tuple[Drawing, str]]:
    """Every generated figure, by its file: what is drawn, and its title."""
    grouped = Grouped.of(results.load([root / MAIN]).records)
    found = {}
    for path, build in FIGURES.items():
        figure = build(grouped)
        assert figure is not None, f"{path}: the records have nothing to draw"
        label, drawing = next(iter(figure.drawings.items()))
        found[path] = drawing, f"{figure.title}: {label}"
    return found


def checksum(drawing: Drawing, title: str) -> str:
    """The last line of a figure's file."""
    return f"<!-- shows {hashlib.sha256(repr((drawing, title)).encode()).hexdigest()} -->\n"


def filled(text: str, parts: dict[str, Callable[[], str]]) -> str:
    """A document with every part between its comments written anew."""

    def write(found: re.Match[str]) -> str:
        return f"{found[1]}\n{parts[found[2]]()}\n{found[3]}"

    return re.sub(r"(<!-- begin ([\w-]+) -->)\n.*?(<!-- end \2 -->)", write, text, flags=re.DOTALL)


def main(arguments: list[str] | None = None) -> None:
    """Write the documents, or check them."""
    parser = argparse.ArgumentParser(prog="python -m halrp.lab.document", description=__doc__.partition("\n")[0])
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
    for name, (drawing, title) in drawings(options.root / "results").items():
        path = options.root / name
        mark = checksum(drawing, title)
        if path.exists() and path.read_text("utf-8").endswith(mark):
            continue
        stale.append(str(path))
        if not options.check:
            files.write(path, drawn(drawing, ".svg", title) + mark.encode())
    if stale and options.check:
        sys.exit(f"stale: {', '.join(stale)}; run: python -m halrp.lab.document")
    print(f"wrote {', '.join(stale)}" if stale else "the documents are what the records say")


if __name__ == "__main__":
    main()
