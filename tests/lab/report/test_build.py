"""Records → sections: what is there, what numbers say, and how large a page of many records is."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from halrp.lab.records.loading import Problem, load
from halrp.lab.records.schema import Record
from halrp.lab.report.build import build, left_out, made_from
from halrp.lab.report.figure import Figure
from halrp.lab.report.page import Section, page
from halrp.lab.report.table import Table
from tests.lab.made_records import made, older, parsed, stable
from tests.lab.report.many_records import many
from tests.timing import calls_of

RESULTS = Path(__file__).parents[3] / "results"


def table(sections: tuple[Section, ...], key: str) -> Table:
    (part,) = [part for section in sections for part in section.parts if part.key == key]
    assert isinstance(part, Table)
    return part


@pytest.fixture(scope="module")
def study() -> tuple[Section, ...]:
    return build(parsed(many((0.05,), 2)))


def test_sections_and_parts(study: tuple[Section, ...]) -> None:
    keys = [section.key for section in study]
    assert keys[:2] == ["setups", "paper"]
    assert keys[-1] == "runs"
    assert {"accuracy", "size", "time"} < set(keys)
    names = [part.key for section in study for part in section.parts]
    assert len(set(names)) == len(names)
    assert all(part.plots for section in study for part in section.parts if isinstance(part, Figure))


def test_what_was_run_where(study: tuple[Section, ...]) -> None:
    (row,) = table(study, "setups").rows
    assert row["stream"] == "CIFAR100-Split"
    assert [row[key] for key in ("fraction", "tasks", "epochs")] == [5, 10, 20]
    assert [row[key] for key in ("methods", "orders", "seeds", "runs")] == [10, 5, 2, 100]
    assert "network" not in [column.key for column in table(study, "setups").columns]


def test_all_runs(study: tuple[Section, ...]) -> None:
    records = many((0.05,), 2)
    runs = table(study, "runs")
    assert len(runs.rows) == len(records)
    for record in records:
        cell = record["cell"]
        (row,) = [
            r
            for r in runs.rows
            if [r[k] for k in ("method", "order", "seed")] == [cell[k] for k in ("method", "order", "seed")]
        ]
        final = record["rows"][-1]["test"]
        assert row["accuracy"] == pytest.approx(100 * sum(final) / len(final))
        assert row["peak_bytes"] == pytest.approx(700.000009)
    shown = {column.key for column in runs.columns}
    assert "network" not in shown
    assert "accuracy" in shown


def test_a_value_that_is_missing_says_why() -> None:
    runs = table(build(parsed([older(made([[0.5], [0.5, 0.6]], method="finetune"))])), "runs")
    (row,) = runs.rows
    assert row["peak_bytes"] is None
    assert "peak MB: the record lacks the peak memory" in str(row["missing"])
    assert runs.columns[-1].key == "missing"


def test_rows_of_the_paper_begin_with_what_was_run() -> None:
    accuracies = table(build(parsed(many((0.25,), 1))), "paper-accuracy")
    benchmarks = [(row["benchmark"], row["backbone"], row["data"]) for row in accuracies.rows]
    assert benchmarks[0] == ("cifar100-split", "lenet", 25)
    assert len(set(benchmarks)) > 1
    assert accuracies.columns[0].key == "method"
    assert len(accuracies.marks) == len(accuracies.rows)
    ours = {mark for row, mark in zip(accuracies.rows, accuracies.marks, strict=True) if row["runs"] is None}
    assert ours == {""}


def test_orderings_of_the_paper_are_those_of_benchmarks_that_were_run(study: tuple[Section, ...]) -> None:
    rows = table(study, "relations").rows
    assert {(row["benchmark"], row["data"]) for row in rows} == {("cifar100-split", 5)}
    assert any(row["holds"] is not None for row in rows)
    elsewhere = build(parsed([made([[0.5]], stream="mine", backbone="mine")]))
    assert "relations" not in [part.key for section in elsewhere for part in section.parts]


@pytest.mark.parametrize(
    "record", parsed([made([[0.5]], method="of my own", stream="mine", backbone="mine"), stable({0: 0.5}, [0])])
)
def test_one_small_record_is_enough(record: Record) -> None:
    sections = build([record])
    assert page("t", sections, [], made_from([record], [Path("results")]))


def test_the_order_of_records_makes_no_difference() -> None:
    records = parsed(many((0.05,), 1))
    other = records[:]
    random.Random(0).shuffle(other)
    paths = [Path("results")]
    assert page("t", build(records), [], made_from(records, paths)) == page(
        "t", build(other), [], made_from(other, paths)
    )


def test_the_source_of_records_is_named_without_the_paths_of_folders(tmp_path: Path) -> None:
    raw = many((0.05,), 1)
    raw[0]["environment"] = {"commit": "other"}
    raw[1]["environment"] = None
    source = made_from(parsed(raw), [tmp_path / "results", Path("results"), tmp_path / "more"])
    assert source.records == 50
    assert source.folders == ("results", "more")
    assert ("commit (records)", "558233dee820 (48), other (1), unknown (1)") in source.facts
    assert made_from(parsed([older(made([[0.5]]))]), [tmp_path]).facts == (("machine", "x86_64"),)


def test_files_left_out_are_named_below_the_folder_that_was_given(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    problems = [
        Problem(folder / "a" / "b.json", "duplicate", f"{folder}/c.json is a newer record"),
        Problem(Path("results/d.json"), "damaged", "not JSON"),
    ]
    first, second = left_out(problems, [folder, Path("results")])
    assert (first.path, first.reason) == ("results/a/b.json", "results/c.json is a newer record")
    assert (second.path, second.kind, second.reason) == ("results/d.json", "damaged", "not JSON")


def test_a_thousand_records_make_a_page_of_bounded_size_with_work_in_proportion() -> None:
    records = parsed(many())
    assert len(records) == 1000

    def whole(step: int) -> str:
        some = records[::step]
        return page("Many", build(some), [], made_from(some, [Path("results")]))

    assert len(whole(1).encode()) < 15_000_000
    few, more, most = (calls_of(lambda step=step: whole(step)) for step in (20, 10, 5))  # type: ignore[misc]
    assert most - more < 3 * (more - few), "twice as many records more; the square of that is four"


@pytest.mark.skipif(not RESULTS.is_dir(), reason="the committed records are not beside the tests")
def test_the_committed_records() -> None:
    records = load([RESULTS]).records
    sections = build(records)
    assert len(table(sections, "runs").rows) == len(records)
    for section in sections:
        json.dumps([part.key for part in section.parts])
        for part in section.parts:
            if isinstance(part, Figure):
                assert all(part.plots.values())
