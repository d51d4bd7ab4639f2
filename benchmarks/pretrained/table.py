"""Tables of the records: mean accuracy and bytes of each method, and paired differences with their errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.pretrained import records
from benchmarks.pretrained.records import Row
from halrp.lab.report.documents import filled

DOMAINS = ("vision", "text")
HEADER = "| method | file | fits | accuracy % | − probe | − best LoRA | bytes | seconds |"
RULE = "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"


class Estimate(NamedTuple):
    """A mean and its standard error, which one value alone does not have."""

    mean: float
    error: float

    def __str__(self) -> str:
        """With a sign only if the mean is negative."""
        return f"{self.mean:.1f}" + ("" if math.isnan(self.error) else f" ± {self.error:.1f}")

    @property
    def signed(self) -> str:
        """With a sign always, as differences are written."""
        return f"{round(self.mean, 1) + 0.0:+.1f}" + ("" if math.isnan(self.error) else f" ± {self.error:.1f}")


class Line(NamedTuple):
    """One method in one form of its files: accuracy by (task, seed), and what it costs on average."""

    method: str
    form: str
    accuracy: Mapping[tuple[str, int], float]
    bytes: float
    seconds: float
    last: Row
    """The newest of its records."""


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of independent values and its standard error."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Estimate(statistics.fmean(values), error)


def difference(first: Line, second: Line) -> Estimate | None:
    """The mean difference of two methods over the tasks and seeds that both have; None if there is none."""
    both = sorted(first.accuracy.keys() & second.accuracy.keys())
    return estimate([first.accuracy[fit] - second.accuracy[fit] for fit in both]) if both else None


def lines(rows: Iterable[Row], shots: int, tasks: Sequence[str]) -> list[Line]:
    """The methods of some tasks, each with the setting that was chosen for it, in the order of their accuracy."""
    rows = list(rows)
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in records.fits(rows):
        choice = records.choice(rows, row["network"], row["method"], shots)
        tuned = "lr" in row["setting"]
        if row["shots"] != shots or row["task"] not in tasks or (tuned and choice is None):
            continue
        if choice is not None and choice["setting"] != row["setting"]:
            continue
        variant = row["setting"].get("variant", "default")
        label = row["method"] if variant == "default" else f"{row['method']} ({variant})"
        for form in row["files"]:
            groups.setdefault((label, form), []).append(row)
    grouped = [_line(label, form, mine) for (label, form), mine in groups.items()]
    return sorted(grouped, key=lambda line: -statistics.fmean(line.accuracy.values()))


def _line(label: str, form: str, rows: Sequence[Row]) -> Line:
    files = {(row["task"], row["seed"]): row["files"][form] for row in rows}
    accuracy = {fit: file["accuracy"] for fit, file in files.items()}
    size = statistics.fmean(file["bytes"] for file in files.values())
    return Line(label, form, accuracy, size, statistics.fmean(row["seconds"] for row in rows), rows[-1])


def markdown(methods: Sequence[Line]) -> str:
    """A table of lines, with differences to the probe and to the LoRA of the highest accuracy, both in float32."""
    exact = [line for line in methods if line.form == "float32"]
    probe = next((line for line in exact if line.method == "probe"), None)
    lora = next((line for line in exact if line.method.startswith("lora")), None)
    shown = [HEADER, RULE]
    for line in methods:
        compared = []
        for rival in (probe, lora):
            paired = None if rival is None or rival is line else difference(line, rival)
            compared.append("" if paired is None else paired.signed)
        accuracy = estimate(list(line.accuracy.values()))
        label = f"**{line.method}**" if line.method.startswith("halrp") else line.method
        cells = (label, line.form, len(line.accuracy), accuracy, *compared, f"{line.bytes:,.0f}", f"{line.seconds:.0f}")
        shown.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(shown)


def section(rows: Sequence[Row], dev: Sequence[str]) -> str:
    """The tables of a domain: for each number of shots, the dev tasks and the held-out tasks."""
    listed = records.fits(rows)
    held_out = sorted({row["task"] for row in listed} - set(dev))
    parts = []
    for shots in sorted({row["shots"] for row in listed}):
        for title, tasks in (("dev tasks", dev), ("held-out tasks", held_out)):
            methods = lines(rows, shots, tasks)
            if methods:
                parts.append(f"**{shots} examples a class, {title}**\n\n{markdown(methods)}")
    return "\n\n".join(parts)


def choices(rows: Iterable[Row]) -> str:
    """The grids: mean validation accuracy of each setting, the chosen one in bold."""
    shown = [
        "| network | method | examples a class | settings, with their validation accuracy % |",
        "| --- | --- | ---: | --- |",
    ]
    rows = list(rows)
    for row in rows:
        if row["kind"] == "choice" and records.choice(rows, row["network"], row["method"], row["shots"]) is row:
            outcomes = []
            for outcome in row["grid"]:
                setting = ", ".join(
                    f"{value:g}" if isinstance(value, float) else value for value in outcome["setting"].values()
                )
                text = f"{setting}: {outcome['val_accuracy']:.1f}"
                outcomes.append(f"**{text}**" if outcome["setting"] == row["setting"] else text)
            shown.append(f"| {row['network']} | {row['method']} | {row['shots']} | {'; '.join(outcomes)} |")
    return "\n".join(shown)


def parts(results: Path) -> dict[str, Callable[[], str]]:
    """The writer of each generated part of the document, by its name."""
    from benchmarks.pretrained.text import Text
    from benchmarks.pretrained.vision import Vision

    rows = {name: records.read(results / f"{name}.jsonl") for name in DOMAINS}
    return {
        "pretrained-vision": partial(section, rows["vision"], Vision.dev),
        "pretrained-text": partial(section, rows["text"], Text.dev),
        "pretrained-choices": partial(choices, [row for name in DOMAINS for row in rows[name]]),
    }


def write(results: Path, document: Path) -> None:
    """Print the tables, and write them into the document."""
    made = parts(results)
    for name, part in made.items():
        print(f"{name}\n\n{part()}\n")
    document.write_text(filled(document.read_text("utf-8"), made), "utf-8")
