"""`python -m halrp.lab.document`: write the numbers of the documents from the raw records under `results/`.

A part stands between two comments that name it, `<!-- begin NAME -->` and `<!-- end NAME -->`. Everything between
them is written by this module and nothing by hand; `--check` says whether the documents are what the records say.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from halrp.lab.document_tables import (
    decoding_table,
    method_table,
    methods_table,
    orderings,
    orders_table,
    ratios_table,
    settings_table,
    sizes_table,
    times_table,
)  # fmt: skip

NINE = ("apd", "apdfix", "ibpwf", "gpm", "wsn", "bmkp", "clr", "prd", "iru")
"""Methods that have a page of their own."""
DOCUMENTS = ("docs/results.md", *(f"docs/methods/{name}.md" for name in NINE))


def parts(root: Path) -> dict[str, Callable[[], str]]:
    """Every generated part, by name."""
    found: dict[str, Callable[[], str]] = {
        "orders": lambda: orders_table(root / "cifar100-split-orders"),
        "sizes": lambda: sizes_table(root / "cifar100-split"),
        "batches": lambda: ratios_table(root / "benchmarks" / "batches.json", "batches of 128 images"),
        "overhead": lambda: ratios_table(root / "benchmarks" / "lab_overhead.json", "three tasks, LeNet"),
        "decoding": lambda: decoding_table(root / "benchmarks" / "decode.json"),
        "times": lambda: times_table(root / "benchmarks" / "time_per_task.json"),
        "settings": lambda: settings_table(root / "penalties-cifar100-split"),
    }
    for stream, fraction in (("cifar100-split", 0.05), ("cifar100-split", 0.25), ("cifar100-superclass", 0.05)):
        name = f"{stream}-{100 * fraction:g}"
        found[name] = partial(methods_table, root / name, stream, fraction)
        found[f"orderings-{name}"] = partial(orderings, root / name, stream, fraction)
    return found | {f"measured-{name}": partial(method_table, root, name) for name in NINE}


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
    if stale and options.check:
        sys.exit(f"stale: {', '.join(stale)}; run: python -m halrp.lab.document")
    print(f"wrote {', '.join(stale)}" if stale else "the documents are what the records say")


if __name__ == "__main__":
    main()
