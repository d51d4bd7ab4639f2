"""What the paper prints and what we ran, brought together row by row."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from halrp import Recipe
from halrp.lab.records.aggregate import Row, Undefined, summary
from halrp.lab.records.schema import Record
from halrp.lab.registry import STREAMS
from halrp.lab.report import paper
from halrp.lab.report.paper import Place, Printed
from halrp.lab.report.table import Column, Value

ORDERS = 5
"""Under how many orders the paper measures disparity."""

PLACE = (
    Column("benchmark", "benchmark", filters=True),
    Column("backbone", "backbone", filters=True),
    Column("data", "data %", about="share of the training and validation data", filters=True),
)


class Line(NamedTuple):
    """A row of the tables: what the paper prints, what we ran, or both."""

    place: Place
    method: str
    """Ours; where nothing was run, the first of those that are held against the paper's."""
    printed: Printed | None
    row: Row | None

    @property
    def obstacles(self) -> list[str]:
        """How the run differs from the paper's so that they cannot be compared."""
        if self.row is None:
            return ["not run"]
        stream, backbone, _ = self.place
        tasks, epochs, wanted = STREAMS[stream].tasks, self.row["epochs"], paper.schedule(stream, backbone)
        found = [] if self.row["tasks"] == tasks else [f"{self.row['tasks']} of {tasks} tasks"]
        if isinstance(epochs, Undefined):
            found.append("epochs unknown")
        elif wanted is not None and epochs != wanted.epochs:
            found.append(f"{epochs} epochs, not {wanted.epochs}")
        return [*found, *([f"network {self.row['network']}"] if self.row["network"] else [])]

    @property
    def remarks(self) -> list[str]:
        """What else a reader should know of the comparison."""
        stream, backbone, _ = self.place
        wanted = paper.schedule(stream, backbone)
        said = [self.printed.note] if self.printed is not None and self.printed.note else []
        if self.row is None:
            return said
        if wanted is None:
            return [*said, "the paper does not say how it trains here"]
        recipe = dict(part.partition("=")[::2] for part in _parts(self.row["recipe"]))
        for name in ("lr", "batch"):
            used, theirs = recipe.get(name, f"{getattr(Recipe(), name):.6g}"), f"{getattr(wanted, name):.6g}"
            if used != theirs:
                said.append(f"{name} {used}, not {theirs}")
        return said

    @property
    def settings(self) -> str | None:
        """What of the method and the recipe is not the default."""
        return None if self.row is None else ", ".join(_parts(self.row["settings"]) + _parts(self.row["recipe"]))

    def number(self, name: str) -> float | None:
        """A value of ours; None if there is none."""
        value = None if self.row is None else self.row[name]
        return None if value is None or isinstance(value, Undefined) else float(value)

    def identity(self) -> dict[str, Value]:
        """The columns that say what the row is."""
        stream, backbone, fraction = self.place
        share = {"benchmark": stream, "backbone": backbone, "data": percent(fraction)}
        return share | {"method": self.method, "settings": self.settings}

    def runs(self) -> dict[str, Value]:
        """The columns that say how often it was run."""
        return {"runs": None, "orders": None} if self.row is None else _runs(self.row)


def lines(records: Iterable[Record], only: Collection[Place] | None = None) -> list[Line]:
    """What the paper prints and what we ran there, place by place, in the paper's order."""
    ours: dict[Place, list[Row]] = {}
    for row in summary(records):
        place = paper.place_of(str(row["stream"]), str(row["backbone"]), float(row["fraction"]))  # type: ignore[arg-type]
        ours.setdefault(place, []).append(row)
    found = []
    for place in paper.places():
        if only is not None and place not in only:
            continue
        here = [(str(row["method"]), row) for row in ours.get(place, [])]
        for one in paper.at(place):
            own = [Line(place, method, one, row) for method, row in here if method in one.ours]
            found += own or [Line(place, one.ours[0], one, None)]
        known = {method for one in paper.at(place) for method in one.ours}
        found += [Line(place, method, None, row) for method, row in here if method not in known]
    return found


def percent(fraction: float) -> Value:
    """A share of the data in %, as a whole number where it is one."""
    share = round(100 * fraction, 4)
    return int(share) if share == int(share) else share


def _runs(row: Row) -> dict[str, Value]:
    names = str(row["orders"])
    short = names if row["every_order"] or len(names.split()) <= ORDERS else f"{len(names.split())} orders"
    return {"runs": int(row["runs"]), "orders": short}  # type: ignore[arg-type]


def _parts(settings: object) -> list[str]:
    return [part for part in str(settings).split(", ") if part]
