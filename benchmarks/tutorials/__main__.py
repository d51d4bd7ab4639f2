"""Runs tutorials, and writes what follows from them."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.networks import declare_image_operations
from benchmarks.tutorials import __doc__ as about
from benchmarks.tutorials.cells import checksum
from benchmarks.tutorials.documents import RECORD, ROOT, cells, documents, names
from benchmarks.tutorials.execution import run
from benchmarks.tutorials.figures import FIGURES
from halrp.store import atomic


def measure(name: str) -> dict[str, Any]:
    """Run a tutorial in an empty folder; return its entry of the record."""
    with tempfile.TemporaryDirectory() as folder:
        finished = run(cells(name), name, folder)
    figure = FIGURES[name].numbers(finished.names)
    versions = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    return {"code": checksum(cells(name)), **versions, "printed": finished.printed, "figure": figure}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is named, or all; then write pages, notebooks, figures and tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.tutorials", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*names(), "write"], metavar="NAME", help=", ".join(names()))
    chosen = parser.parse_args(arguments).names
    torch.set_num_threads(1)
    declare_image_operations()
    for name in [] if chosen == ["write"] else chosen or names():
        entry = measure(name)
        record = (json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}) | {name: entry}
        atomic.write(RECORD, (json.dumps(dict(sorted(record.items())), indent=1) + "\n").encode())
        print(f"ran {name}")
    for path, content in documents(json.loads(RECORD.read_text("utf-8"))).items():
        if not path.exists() or path.read_text("utf-8") != content:
            atomic.write(path, content.encode())
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
