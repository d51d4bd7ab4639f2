"""Running a tutorial cell by cell, as a notebook does, in a folder of its own."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.tutorials.cells import Cell


class Finished(NamedTuple):
    """What a run left behind."""

    printed: dict[str, str]
    """What cells printed, by their number."""
    names: dict[str, Any]
    """All that the program named."""


def run(cells: Sequence[Cell], title: str, folder: str | os.PathLike[str]) -> Finished:
    """Run all cells of code in one namespace, in a folder; the global random numbers are afterwards as they were."""
    printed, names = {}, {"__name__": title}
    with chdir(Path(folder)), torch.random.fork_rng([]):
        for number, cell in enumerate(cells):
            if cell.is_code:
                shown = io.StringIO()
                with redirect_stdout(shown):
                    exec(compile(cell.text, f"{title}, cell {number}", "exec", dont_inherit=True), names)
                if text := shown.getvalue():
                    printed[str(number)] = text
    return Finished(printed, names)
