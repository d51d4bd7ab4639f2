"""The paper's tables beside ours, compared with numbers computed from raw rows by hand."""

from __future__ import annotations

import itertools
import json
import math
from importlib import resources
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from halrp.lab.records import frames
from halrp.lab.records.loading import load
from halrp.lab.records.summary import summarise
from halrp.lab.report import comparison as built
from halrp.lab.report import paper
from halrp.lab.report import relations as ordered
from halrp.lab.report.comparison import ALONE, judged
from halrp.lab.report.paper import Benchmark
from halrp.lab.report.table import Table, Value
from tests.lab.made_records import groups_of, made, stable

RESULTS = Path(__file__).parents[3] / "results"
RAW: dict[str, Any] = json.loads((resources.files("halrp.lab") / "reference" / "paper_results.json").read_text("utf-8"))
SPLIT: dict[str, Any] = {"stream": "cifar100-split", "backbone": "lenet", "fraction": 0.05, "recipe": {"epochs": 20}}
ORDERS = "ABCDE"


def comparison(records: list[dict[str, Any]]) -> tuple[Table, Table, Table]:
    return built.comparison(groups_of(records))


def relations(records: list[dict[str, Any]], stream: str, backbone: str, fraction: float) -> Table:
    return ordered.relations(groups_of(records), [Benchmark(stream, backbone, fraction)])


def run(accuracy: float | dict[int, float], method: str = "stl", tasks: int = 10, **more: Any) -> dict[str, Any]:
    """A run of CIFAR100-Split, 5 % of the data, in which every task ends with an accuracy in %."""
    final = accuracy if isinstance(accuracy, dict) else dict.fromkeys(range(tasks), accuracy)
    shares = {identity: value / 100 for identity, value in final.items()}
    return stable(shares, range(tasks), method, **(SPLIT | more))


def rows_of(table: Table, **wanted: Value) -> list[dict[str, Any]]:
    return [dict(row) for row in table.rows if all(row[name] == value for name, value in wanted.items())]


def mark_of(table: Table, **wanted: Value) -> list[str]:
    pairs = zip(table.rows, table.marks, strict=True)
    return [mark for row, mark in pairs if all(row[name] == value for name, value in wanted.items())]


HERE: dict[str, Value] = {"benchmark": "cifar100-split", "backbone": "lenet", "data": 5}


def test_without_records_every_row_of_the_paper_is_there_with_the_note_that_it_was_not_run() -> None:
    accuracy, orders, others = comparison([])
    assert (accuracy.key, orders.key, others.key) == ("paper-accuracy", "paper-orders", "paper-settings")
    assert others.rows == ()
    assert [row["paper"] for row in rows_of(accuracy, **HERE)] == [row["accuracy"] for row in RAW["records"][:15]], (
        "in the paper's order"
    )
    assert len(accuracy.rows) == 234 + 9
    assert len(orders.rows) == 234, "disparities are not printed beside IRU"
    for table in (accuracy, orders):
        assert {row["note"] for row in table.rows} >= {"not run"}
        assert all(str(row["note"]).startswith("not run") for row in table.rows)
        assert set(table.marks) == {""}
        assert all(set(row) == {column.key for column in table.columns} for row in table.rows)
    assert all(row["ours"] is row["difference"] is row["runs"] is None for row in accuracy.rows)


def test_accuracies_errors_and_differences() -> None:
    values = {("A", 0): 44.0, ("A", 1): 46.0, ("B", 0): 43.0, ("B", 1): 44.0}
    records = [run(value, order=order, seed=seed) for (order, seed), value in values.items()]
    row = rows_of(comparison(records)[0], **HERE, method="stl")[0]
    by_seed = [mean(value for (_, seed), value in values.items() if seed == wanted) for wanted in (0, 1)]
    assert row["ours"] == pytest.approx(mean(values.values()))
    assert row["ours_error"] == pytest.approx(stdev(by_seed) / math.sqrt(2))
    assert (row["over"], row["runs"], row["orders"], row["note"]) == ("seeds", 4, "A B", None)
    assert row["difference"] == pytest.approx(mean(values.values()) - 45.13)


def test_one_row_stands_for_a_method_and_methods_that_the_paper_lacks_stand_at_the_end() -> None:
    records = [
        run(45.0, "halrp-budget", settings={"growth_per_task": 0.026}),
        run(44.0, "halrp-budget", settings={"growth_per_task": 0.013}),
        run(43.0, "halrp-official", recipe={"epochs": 20, "gradient_scale": 10.0}),
        run(20.0, "finetune"),
    ]
    table = comparison(records)[0]
    halrp = rows_of(table, **HERE, paper=45.09)
    assert [(row["method"], row["settings"], row["ours"]) for row in halrp] == [
        ("halrp-budget", "growth_per_task=0.026", pytest.approx(45.0)),
        ("halrp-official", "gradient_scale=10", pytest.approx(43.0)),
    ], "of one run each, that with the preset's settings"
    others = comparison(records)[2]
    assert [row["settings"] for row in others.rows] == ["growth_per_task=0.013"]
    assert [row["ours"] for row in others.rows] == pytest.approx([44.0])
    more = [*records, run(46.0, "halrp-budget", settings={"growth_per_task": 0.013}, order="B")]
    assert rows_of(comparison(more)[0], **HERE, method="halrp-budget")[0]["settings"] == "growth_per_task=0.026"
    without = comparison(more[1:])[0]
    assert rows_of(without, **HERE, method="halrp-budget")[0]["settings"] == "growth_per_task=0.013"
    short = [*more, *(run(9.0, "finetune", tasks=3, order=order) for order in "ABC")]
    assert rows_of(comparison(short)[0], **HERE, method="finetune")[0]["ours"] == pytest.approx(20.0), "a whole stream"
    last = rows_of(table, **HERE)[-1]
    assert (last["method"], last["paper"], last["difference"], last["note"]) == ("finetune", None, None, None)
    assert last["ours"] == pytest.approx(20.0)
    assert mark_of(table, **HERE, method="finetune") == [""]


@pytest.mark.parametrize(
    ("record", "note"),
    [
        (run(45.0, tasks=3), "3 of 10 tasks"),
        (run(45.0, recipe={"epochs": 2}), "2 epochs, not 20"),
        (run(45.0, recipe={"epochs": 40}), "40 epochs, not 20"),
        (run(45.0, network={"bias": False}), "network bias=false"),
        (run(45.0, tasks=3, recipe={"epochs": 2}), "3 of 10 tasks; 2 epochs, not 20"),
    ],
)
def test_runs_unlike_the_papers_are_labelled_and_not_compared(record: dict[str, Any], note: str) -> None:
    table = comparison([record])[0]
    (row,) = rows_of(table, **HERE, method="stl")
    assert row["ours"] == pytest.approx(45.0)
    assert (row["paper"], row["difference"], row["note"]) == (45.13, None, note)
    assert mark_of(table, **HERE, method="stl") == [""]
    assert ordered.relations(groups_of([record])).about.startswith("0 of 0 ")


def test_a_record_without_epochs_is_not_compared() -> None:
    record = run(45.0)
    for part in ("cell", "resolved"):
        record[part] = record[part] | {"recipe": {}}
    (row,) = rows_of(comparison([record])[0], **HERE, method="stl")
    assert (row["difference"], row["note"]) == (None, "epochs unknown")


def test_another_rate_or_batch_is_noted() -> None:
    noted = comparison([run(45.0, recipe={"epochs": 20, "lr": 0.002, "batch": 32})])[0]
    (row,) = rows_of(noted, **HERE, method="stl")
    assert row["note"] == "lr 0.002, not 0.001; batch 32, not 128"
    assert row["difference"] == pytest.approx(45.0 - 45.13)
    odd = comparison([run(45.0, recipe={"epochs": 20, "lr": "fast, or slow"})])[0]
    assert str(rows_of(odd, **HERE, method="stl")[0]["note"]).startswith("lr fast, not 0.001")


def test_an_undefined_accuracy_has_its_reason_as_a_note() -> None:
    record = made([[0.5]] + [[0.5] * i + [None] for i in range(1, 10)], method="stl", **SPLIT)
    (row,) = rows_of(comparison([record])[0], **HERE, method="stl")
    assert row["ours"] is row["difference"] is None
    assert row["note"]


def test_variants_of_a_benchmark_are_in_no_table() -> None:
    record = run(45.0, stream="cifar100-split@subset")
    assert comparison([record]) == comparison([])


def test_the_paper_does_not_document_its_training_beside_iru() -> None:
    final = dict.fromkeys(range(20), 0.7)
    more: dict[str, Any] = {"stream": "cifar100-20", "backbone": "mlp", "recipe": {"epochs": 7}}
    (row,) = rows_of(comparison([stable(final, range(20), "iru", **more)])[0], benchmark="cifar100-20", method="iru")[
        1:
    ]
    assert row["difference"] == pytest.approx(70 - 65.9)
    assert row["note"] == "quoted from the IRU paper; the paper does not document its training here"


def test_omniglots_accuracies_are_those_of_one_order() -> None:
    final = dict.fromkeys(range(100), 0.8)
    more: dict[str, Any] = {"stream": "omniglot-rotation", "backbone": "lenet-large"}
    more |= {"recipe": {"epochs": 20, "lr": 0.005, "batch": 16}}
    for order, note in (("sequential", None), ("A", "the paper's order is sequential")):
        table = comparison([stable(final, range(100), "stl", order=order, **more)])[0]
        (row,) = rows_of(table, benchmark="omniglot-rotation", method="stl")
        assert row["note"] == note
        assert row["difference"] == pytest.approx(80 - 80.93)


@pytest.mark.parametrize(
    ("difference", "theirs", "ours", "mark"),
    [
        (0.5, 0.3, 0.4, "equal"),
        (0.501, 0.3, 0.4, "better"),
        (-0.5, 0.3, 0.4, "equal"),
        (-0.501, 0.3, 0.4, "worse"),
        (0.0, 0.3, None, ""),
        (0.3 * ALONE, 0.3, None, ""),
        (0.3 * ALONE + 0.001, 0.3, None, "better"),
        (-0.3 * ALONE - 0.001, 0.3, None, "worse"),
        (5.0, None, 0.4, ""),
        (None, 0.3, 0.4, ""),
    ],
)
def test_marks_at_the_boundary(difference: float | None, theirs: float | None, ours: float | None, mark: str) -> None:
    assert judged(difference, theirs, ours) == mark


def test_marks_of_runs() -> None:
    # Paper: 45.13 ± 0.04. Seeds s apart by d have an error of d / 2.
    def mark(*accuracies: float) -> list[str]:
        records = [run(accuracy, seed=seed) for seed, accuracy in enumerate(accuracies)]
        return mark_of(comparison(records)[0], **HERE, method="stl")

    assert mark(45.13 + 0.04 - 0.03, 45.13 + 0.04 + 0.03) == ["equal"], "0.04 is less than √(0.03² + 0.04²) = 0.05"
    assert mark(45.13 + 0.05 - 0.03, 45.13 + 0.05 + 0.03) == ["equal"], "just the bound"
    assert mark(45.13 + 0.06 - 0.03, 45.13 + 0.06 + 0.03) == ["better"]
    assert mark(45.13 - 0.06 - 0.03, 45.13 - 0.06 + 0.03) == ["worse"]
    assert mark(45.2) == [""]
    assert mark(45.6) == ["better"]


# ---- orders -------------------------------------------------------------------------------------------------------


def disparate(method: str, width: float, orders: str = ORDERS, **more: Any) -> list[dict[str, Any]]:
    """Runs in which task 0 ranges over `width` points and the others over half of it."""
    steps = {order: index / (len(orders) - 1) for index, order in enumerate(orders)}
    return [
        run({i: 40 + step * width / (1 + (i > 0)) for i in range(10)}, method, order=order, **more)
        for order, step in steps.items()
    ]


def test_disparities_beside_the_papers() -> None:
    records = disparate("ewc", 20) + disparate("stl", 2, settings={"redraw": True})
    table = comparison(records)[1]
    (row,) = rows_of(table, **HERE, method="ewc")
    assert (row["mopd"], row["aopd"]) == (pytest.approx(20), pytest.approx((20 + 9 * 10) / 10))
    assert (row["mopd_paper"], row["aopd_paper"]) == (11.92, 6.07)
    assert row["mopd_difference"] == pytest.approx(20 - 11.92)
    assert row["aopd_difference"] == pytest.approx(11 - 6.07)
    assert (row["stl_mopd"], row["stl_aopd"]) == (pytest.approx(2), pytest.approx(1.1))
    assert (row["all_mopd"], row["all_aopd"], row["note"], row["seeds"]) == (None, None, None, 1)
    assert mark_of(table, **HERE, method="ewc") == ["worse"]


@pytest.mark.parametrize(
    ("width", "mark"),
    # AOPD is 0.55 of the width and the paper's is 6.07; the floor is 1.1.
    [(6.07 / 0.55 + 2, ""), (6.07 / 0.55 + 2.01, "worse"), (6.07 / 0.55 - 2, ""), (6.07 / 0.55 - 2.01, "better")],
)
def test_marks_of_disparities_at_the_boundary(width: float, mark: str) -> None:
    records = disparate("ewc", width) + disparate("stl", 2, settings={"redraw": True})
    assert mark_of(comparison(records)[1], **HERE, method="ewc") == [mark]


def test_disparities_are_compared_over_five_orders_alone() -> None:
    (row,) = rows_of(comparison(disparate("ewc", 20, "ABC"))[1], **HERE, method="ewc")
    assert row["mopd"] == pytest.approx(20)
    assert (row["mopd_difference"], row["aopd_difference"], row["note"]) == (None, None, "3 orders, not 5")
    table = comparison([run(44.0, "ewc"), run(43.0, "ewc", settings={"strength": 1.0})])[1]
    (row,) = rows_of(table, **HERE, method="ewc")
    assert (row["mopd"], row["runs"]) == (None, 1)
    assert str(row["note"]).startswith("one order has no disparity")
    assert rows_of(comparison([run(20.0, "finetune")])[1], **HERE, method="finetune") == []


def test_exact_disparities_have_columns_of_their_own() -> None:
    # p[o, t] of order first-k: the task that comes first ends with 60 %, and any other one with 30 + k.
    records = [
        stable(
            {t: 0.6 if t == k else 0.3 + k / 100 for t in range(10)},
            [k, *(t for t in range(10) if t != k)],
            "be",
            order=f"first-{k}",
            **SPLIT,
        )
        for k in range(10)
    ]
    (row,) = rows_of(comparison(records)[1], **HERE, method="be")
    ranges = [60 - min(30 + k for k in range(10) if k != t) for t in range(10)]
    assert row["all_mopd"] == pytest.approx(max(ranges))
    assert row["all_aopd"] == pytest.approx(mean(ranges))
    assert (row["mopd"], row["mopd_difference"], row["orders"], row["note"]) == (None, None, "all 10!", None)


# ---- relations ----------------------------------------------------------------------------------------------------


def test_relations_of_made_runs() -> None:
    records = [
        *(run(45.0 + seed, "stl", seed=seed) for seed in (0, 1)),
        run(40.0, "l2"),
        run(39.0, "ewc"),
        run(44.0, "halrp-budget"),
        run(38.0, "halrp-official"),
        run(90.0, "mtl", tasks=4),
        run(12.0, "l2", settings={"strength": 1.0}),
    ]
    table = relations(records, "cifar100-split", "lenet", 0.05)
    held = {(row["better"], row["worse"]): dict[str, Any](row) for row in table.rows if row["holds"] is not None}
    # 45.13 ± 0.04 and 45.09 ± 0.05 are no clear ordering; 37.76 ± 0.20 and 37.15 ± 0.21 are.
    assert {pair: row["holds"] for pair, row in held.items()} == {
        ("stl", "l2"): "yes",
        ("stl", "ewc"): "yes",
        ("ewc", "l2"): "no",
        ("halrp-budget", "l2"): "yes",
        ("halrp-official", "l2"): "no",
        ("halrp-budget", "ewc"): "yes",
        ("halrp-official", "ewc"): "no",
    }
    assert table.about.startswith("4 of 7 clear orderings of the paper hold here. ")
    row = held["stl", "l2"]
    assert (row["paper"], row["paper_error"]) == (pytest.approx(45.13 - 37.15), pytest.approx(0.04 + 0.21))
    assert (row["ours"], row["ours_error"]) == (pytest.approx(45.5 - 40), None)
    assert (table.key, table.marks) == ("relations", ())


def test_every_clear_pair_of_the_paper_has_a_row() -> None:
    printed = {row["method"]: row for row in RAW["records"][:15]}
    clear = {
        frozenset(pair)
        for pair in itertools.combinations(printed, 2)
        if abs(printed[pair[0]]["accuracy"] - printed[pair[1]]["accuracy"])
        > printed[pair[0]]["std"] + printed[pair[1]]["std"] + 1e-9
    }
    table = relations([], "cifar100-split", "lenet", 0.05)
    assert {frozenset(paper.NAMES[str(row[side])] for side in ("better", "worse")) for row in table.rows} == clear
    assert all(float(row["paper"] or 0) > 0 for row in table.rows)
    assert table.about.startswith(f"0 of 0 clear orderings of the paper hold here. {len(clear)} more")


def test_relations_where_the_paper_prints_nothing_are_empty() -> None:
    assert relations([run(45.0)], "digits", "mlp", 0.125).rows == ()
    assert relations([run(45.0)], "cifar100-split@subset", "lenet", 0.05).rows == ()


def test_runs_that_show_first_tasks_count_only_where_there_are_no_others() -> None:
    shows = [
        stable(
            dict.fromkeys(range(10), 0.3), [k, *(t for t in range(10) if t != k)], "stl", order=f"first-{k}", **SPLIT
        )
        for k in (0, 1)
    ]
    for records, ours in ((shows, 30 - 35), ([*shows, run(45.0, "stl")], 45 - 35)):
        (row,) = rows_of(
            relations([*records, run(35.0, "l2")], "cifar100-split", "lenet", 0.05), better="stl", worse="l2"
        )
        assert row["ours"] == pytest.approx(ours)


def test_equal_accuracies_are_no_agreement() -> None:
    table = relations([run(40.0, "stl"), run(40.0, "l2")], "cifar100-split", "lenet", 0.05)
    assert [row["holds"] for row in table.rows if row["ours"] is not None] == ["no"]


def test_errors_of_two_methods_are_put_together() -> None:
    records = [
        run(value, method, seed=seed)
        for method, pair in (("stl", (45, 51)), ("l2", (30, 38)))
        for seed, value in enumerate(pair)
    ]
    (row,) = rows_of(relations(records, "cifar100-split", "lenet", 0.05), better="stl", worse="l2")
    assert (row["ours"], row["ours_error"]) == (pytest.approx(48 - 34), pytest.approx(5.0))


def test_committed_records_agree_with_their_raw_rows() -> None:
    records = load([RESULTS / "cifar100-split-5"]).records
    groups, here = summarise(frames.runs(records)), Benchmark("cifar100-split", "lenet", 0.05)
    table = built.comparison(groups, [here])[0]
    raw: dict[str, dict[str, float]] = {}
    for record in records:
        if record.method == "prd" and record.settings.get("mode") != "official":
            continue  # the short mode is not that of the preset
        last = record.rows[-1]["test"]
        raw.setdefault(record.method, {})[record.order] = 100 * sum(last) / len(last)
    for method, by_order in raw.items():
        (row,) = rows_of(table, method=method)
        values = list(by_order.values())
        assert row["ours"] == pytest.approx(mean(values))
        if len(values) > 1:
            assert row["ours_error"] == pytest.approx(stdev(values) / math.sqrt(len(values)))
        theirs = [row["accuracy"] for row in RAW["records"][:15] if row["method"] == paper.NAMES.get(method)]
        assert row["difference"] == (pytest.approx(mean(values) - theirs[0]) if theirs else None)
    assert {row["benchmark"] for row in table.rows} == {"cifar100-split"}
    everywhere = rows_of(ordered.relations(groups), benchmark="cifar100-split", backbone="lenet", data=5)
    assert [*ordered.relations(groups, [here]).rows] == everywhere
