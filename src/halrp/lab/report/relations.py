"""Which method is more accurate than which: the orderings that the paper's tables show, and whether ours agree."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from itertools import combinations, product

from halrp.lab.records.schema import Record
from halrp.lab.report import paper
from halrp.lab.report.lines import PLACE, Line, lines, percent
from halrp.lab.report.paper import Place, Printed
from halrp.lab.report.table import Column, Table, Value
from halrp.lab.report.usual import chosen

COLUMNS = (
    *PLACE,
    Column("better", "more accurate", about="in the paper", filters=True),
    Column("worse", "less accurate", about="in the paper", filters=True),
    Column("paper", "paper", 2, signed=True, about="the difference of the paper's accuracies"),
    Column("paper_error", "paper ±", 2, about="the sum of the paper's two ±"),
    Column("ours", "ours", 2, signed=True, about="the difference of our accuracies"),
    Column("ours_error", "±", 2, about="√(±² + ±²) of our two standard errors"),
    Column("holds", "holds", about="whether our difference has the paper's sign", filters=True),
)
ABOUT = (
    "Pairs of methods whose accuracies differ by more than the sum of their ± in the paper, and our difference of the "
    "same pair, in points. Of several settings of a method, those of the preset count, or else those with the most "
    "runs, and only if tasks, epochs and network are the paper's. Each of our methods that stands for HALRP has rows."
)


def relations(records: Iterable[Record], stream: str, backbone: str, fraction: float) -> Table:
    """The clear orderings that the paper shows at a place, and whether they hold in our runs."""
    place = paper.place_of(stream, backbone, fraction)
    here = [record for record in records if _place(record) == place]
    share = f"{percent(fraction)}".replace(".", "-")
    key = "-".join(("relations", stream.replace("@", "-"), backbone, share))
    return _table(
        key, f"Orderings of methods: {stream}, {backbone}, {percent(fraction)} %", _rows(lines(here, [place]))
    )


def all_relations(records: Iterable[Record], only: Collection[Place] | None = None) -> Table:
    """The clear orderings that the paper shows anywhere, or at the places that are wanted, beside ours."""
    return _table("relations", "Orderings of methods", _rows(lines(records, only)))


def _table(key: str, title: str, rows: list[dict[str, Value]]) -> Table:
    kept, judged = sum(row["holds"] == "yes" for row in rows), sum(row["holds"] is not None for row in rows)
    count = f"{kept} of {judged} clear orderings of the paper hold here."
    if judged < len(rows):
        count += f" {len(rows) - judged} more cannot be judged, as one of the methods was not run like the paper's."
    return Table(key, title, f"{count} {ABOUT}", COLUMNS, tuple(rows))


def _rows(found: Iterable[Line]) -> list[dict[str, Value]]:
    standing = _chosen(found)
    rows = []
    for place in paper.places():
        for pair in combinations(paper.at(place), 2):
            better, worse = sorted(pair, key=lambda one: -one.accuracy)
            if place not in standing or not _clear(better, worse):
                continue
            stream, backbone, fraction = place
            shared: dict[str, Value] = {"benchmark": stream, "backbone": backbone, "data": percent(fraction)}
            shared |= {"paper": better.accuracy - worse.accuracy, "paper_error": _sum(better, worse)}
            ours = [[line for one in side.ours if (line := standing[place].get(one))] for side in (better, worse)]
            if not ours[0] or not ours[1]:
                rows.append(shared | _names(better, worse) | {"ours": None, "ours_error": None, "holds": None})
            rows += [shared | _held(*two) for two in product(*ours)]
    return rows


def _chosen(found: Iterable[Line]) -> dict[Place, dict[str, Line]]:
    """For each method at each place, the run that counts; places without any are there, too."""
    groups: dict[Place, dict[str, list[Line]]] = {}
    for line in found:
        here = groups.setdefault(line.place, {})
        if line.number("accuracy") is not None and not line.obstacles:
            here.setdefault(line.method, []).append(line)
    return {
        place: {method: chosen(some, lambda line: line.row or {}) for method, some in here.items()}
        for place, here in groups.items()
    }


def _sum(one: Printed, other: Printed) -> float:
    return (one.std or 0) + (other.std or 0)


def _clear(better: Printed, worse: Printed) -> bool:
    if better.std is None or worse.std is None:
        return False
    return better.accuracy - worse.accuracy > _sum(better, worse) + 1e-9


def _names(better: Printed, worse: Printed) -> dict[str, Value]:
    return {"better": better.ours[0], "worse": worse.ours[0]}


def _held(better: Line, worse: Line) -> dict[str, Value]:
    """Our difference between two methods, of which the first is the better one in the paper."""
    first, second = (line.number("accuracy") or 0.0 for line in (better, worse))
    errors = [error for line in (better, worse) if (error := line.number("error_usual")) is not None]
    return {
        "better": better.method,
        "worse": worse.method,
        "ours": first - second,
        "ours_error": math.hypot(*errors) if len(errors) == 2 else None,
        "holds": "yes" if first > second else "no",
    }


def _place(record: Record) -> Place:
    cell = record["cell"]
    return paper.place_of(cell["stream"], cell["backbone"], float(cell.get("fraction", 1.0)))
