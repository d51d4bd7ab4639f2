"""Tables from records, against values worked by hand."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from halrp.lab.records.aggregate import (
    Row,
    Table,
    Undefined,
    Value,
    load,
    runs_table,
    summary,
    to_csv,
    to_json,
    write_csv,
    write_json,
)
from halrp.lab.records.metrics import all_orders, bootstrap
from tests.lab.made_records import made, older, stable

RESULTS = Path(__file__).parents[3] / "results"


def close(value: Value) -> Any:
    assert isinstance(value, float)
    return pytest.approx(value, rel=1e-12)


def reason(row: Row, name: str) -> str:
    value = row[name]
    assert isinstance(value, Undefined), f"{name} is {value}"
    return value.reason


# ---- one row for each run -----------------------------------------------------------------------------------------


def test_a_row_of_a_run_by_hand() -> None:
    record = made(
        [[0.8], [0.75, 0.6], [0.7, 0.65, 0.9]],
        bytes=[1000.0, 1100.0, 1250.0],
        seconds=[4.0, 2.0, 3.0],
        settings={"growth_per_task": 0.026, "view": "full"},
        recipe={"batch": 32},
        order="B",
        seed=3,
        fraction=0.25,
        network={"width": 8},
    )
    [row] = runs_table([record])
    assert row == {
        "stream": "digits",
        "backbone": "mlp",
        "network": "width=8",
        "fraction": 0.25,
        "tasks": 3,
        "epochs": 3,
        "method": "halrp-budget",
        "settings": "growth_per_task=0.026, view=full",
        "recipe": "batch=32",
        "order": "B",
        "seed": 3,
        "accuracy": close(75.0),
        "bwt": close(-2.5),
        "growth_bytes": close(0.25),
        "growth_parameters": close(0.25),
        "growth_counted": close(0.25),
        "later_bytes": close(125.0),
        "seconds": 9.0,
        "peak_bytes": 10**6 + 2,
    }


def test_what_an_older_record_does_not_say_is_undefined_with_a_reason() -> None:
    [row] = runs_table([older(made([[0.8], [0.8, 0.6]], method="stl"))])
    assert row["growth_bytes"] == close(0.1)
    assert reason(row, "growth_counted") == "the record does not say the paper's count"
    assert reason(row, "peak_bytes") == "the record does not say the peak of memory"


def test_a_single_task_has_no_transfer_and_no_later_task() -> None:
    [row] = runs_table([made([[0.8]])])
    assert (row["accuracy"], row["growth_bytes"]) == (close(80.0), 0.0)
    assert "at least 2 tasks" in reason(row, "bwt")
    assert reason(row, "later_bytes") == "there is no later task"


def joint(**cell: Any) -> dict[str, Any]:
    return made([[None], [None, None], [0.5, 0.6, 0.7]], method="mtl", bytes=[None, None, 1500.0], **cell)


def test_growth_of_a_joint_method_is_relative_to_a_single_task_of_stl() -> None:
    stl = made([[0.8], [0.8, 0.6]], method="stl", bytes=[1000.0, 2000.0])
    larger = made([[0.8], [0.8, 0.6]], method="be", bytes=[600.0, 2000.0])
    elsewhere = made([[0.8], [0.8, 0.6]], method="stl", bytes=[10.0, 20.0], stream="pmnist")
    row = next(row for row in runs_table([joint(), larger, stl, elsewhere]) if row["method"] == "mtl")
    assert row["growth_bytes"] == close(0.5)
    assert row["accuracy"] == close(60.0)
    assert "learned at once" in reason(row, "bwt")
    [row] = runs_table([joint()], [joint(), stl])
    assert row["growth_bytes"] == close(0.5)
    [row] = runs_table([joint(), elsewhere])[:1]
    assert "no record of digits with mlp says the stored bytes" in reason(row, "growth_bytes")


def test_growth_of_a_method_that_begins_small_is_relative_to_stl_where_that_was_run() -> None:
    small = made([[0.8], [0.8, 0.6]], method="bmkp", bytes=[100.0, 1500.0])
    stl = made([[0.8], [0.8, 0.6]], method="stl", bytes=[1000.0, 2000.0])
    assert runs_table([small])[0]["growth_bytes"] == close(14.0)
    assert runs_table([small], [small, stl])[0]["growth_bytes"] == close(0.5)


# ---- one row for all orders and seeds -----------------------------------------------------------------------------

# By order and seed, accuracies of the identities 0 and 1.
FOUR = {("A", 0): (0.50, 0.70), ("A", 1): (0.54, 0.72), ("B", 0): (0.60, 0.70), ("B", 1): (0.64, 0.76)}
POSITIONS = {"A": [0, 1], "B": [1, 0]}


def four(method: str = "halrp-budget", values: Any = FOUR, **cell: Any) -> list[dict[str, Any]]:
    return [
        stable(dict(enumerate(final)), POSITIONS[order], method, order=order, seed=seed, **cell)
        for (order, seed), final in values.items()
    ]


def test_a_summary_by_hand() -> None:
    [row] = summary(four())
    assert (row["orders"], row["seeds"], row["runs"], row["every_order"]) == ("A B", "0 1", 4, False)
    assert row["accuracy"] == close(64.5)  # of 60, 63, 65, 70
    # Over seeds, after the mean over orders: 62.5 and 66.5.
    assert row["spread_over"] == "seeds"
    assert row["error_paper"] == close(2 / math.sqrt(2))
    assert row["error_usual"] == close(2.0)
    assert (row["lower"], row["upper"]) == bootstrap([62.5, 66.5])
    assert (row["lowest"], row["highest"]) == (close(61.5), close(67.5))
    # By identity and averaged over seeds: A 52 and 71, B 62 and 73.
    assert (row["mopd"], row["aopd"]) == (close(10.0), close(6.0))
    assert (row["bwt"], row["growth_bytes"], row["later_bytes"]) == (0.0, close(0.1), 100.0)
    assert row["peak_bytes"] == 10**6 + 1


def test_with_one_seed_the_spread_is_over_orders_and_says_so() -> None:
    [row] = summary([record for record in four() if record["cell"]["seed"] == 0])
    assert row["spread_over"] == "orders"
    assert row["error_usual"] == close(2.5)  # of 60 and 65


def test_one_run_has_neither_spread_nor_disparity() -> None:
    [row] = summary(four()[:1])
    assert "no spread" in reason(row, "error_usual") == reason(row, "lower")
    assert "at least two" in reason(row, "mopd") == reason(row, "aopd")


def test_disparity_uses_only_seeds_that_were_run_under_every_order() -> None:
    [row] = summary(four()[:3])  # seed 1 only under A
    assert (row["mopd"], row["aopd"]) == (close(10.0), close(5.0))
    records = four()
    [row] = summary([records[0], records[3]])
    assert reason(row, "mopd") == "no seed was run under every order"


def test_orders_with_other_tasks_cannot_be_compared() -> None:
    records = [stable({0: 0.5, 1: 0.5, 2: 0.5}, p, order=o, tasks=2) for o, p in (("A", [0, 1]), ("B", [2, 0]))]
    [row] = summary(records)
    assert "do not have the same tasks" in reason(row, "mopd")


@pytest.mark.parametrize(
    "other",
    [{"settings": {"view": "full"}}, {"recipe": {"lr": 0.1}}, {"recipe": {"epochs": 4}}, {"fraction": 0.5},
     {"stream": "pmnist"}, {"backbone": "lenet"}, {"network": {"width": 3}}],
)  # fmt: skip
def test_runs_of_something_else_are_another_row(other: dict[str, Any]) -> None:
    assert [row["runs"] for row in summary(four() + four(**other)[:3])] in ([4, 3], [3, 4])


def test_the_noise_floor_is_stl_redrawn_under_the_same_orders_and_seeds() -> None:
    redrawn = four("stl", {key: (0.5, 0.5 + 0.01 * i) for i, key in enumerate(FOUR)}, settings={"redraw": True})
    plain = four("stl", dict.fromkeys(FOUR, (0.9, 0.9)))
    row = summary(four(), four() + redrawn + plain)[0]
    assert (row["stl_mopd"], row["stl_aopd"]) == (close(2.0), close(1.0))  # identity 1: means 50.5 and 52.5
    row = summary(four(), four() + plain)[0]
    assert reason(row, "stl_mopd") == "stl with redraw=true was not run here"
    row = summary(four(), four() + redrawn[:3])[0]
    assert "1 of the 4 orders and seeds; the first is order B with seed 1" in reason(row, "stl_aopd")


def test_time_is_relative_to_the_first_task_of_stl_on_such_a_machine() -> None:
    stl = stable({0: 0.5, 1: 0.5}, [0, 1], "stl", seconds=[4.0, 9.0])
    run = stable({0: 0.5, 1: 0.5}, [0, 1], seconds=[6.0, 2.0])
    [row] = summary([run], [stl, run])
    assert (row["time_ratio"], row["later_time_ratio"], row["seconds"]) == (2.0, 0.5, 8.0)
    for other in ({"threads": 2}, {"fraction": 0.5}, {"recipe": {"epochs": 9}}):
        elsewhere = stable({0: 0.5, 1: 0.5}, [0, 1], "stl", **other)
        [row] = summary([run], [elsewhere, run])
        assert "no record of stl" in reason(row, "time_ratio")


def test_a_value_that_some_runs_lack_is_undefined_for_all() -> None:
    records = four()
    records[1] = older(records[1])
    [row] = summary(records)
    assert reason(row, "peak_bytes") == "in 1 of the runs: the record does not say the peak of memory"


# ---- all orders ---------------------------------------------------------------------------------------------------

P = [[0.90, 0.50, 0.70], [0.84, 0.60, 0.66], [0.87, 0.55, 0.80]]


def firsts(method: str = "halrp-budget", seed: int = 0, shift: float = 0.0) -> list[dict[str, Any]]:
    found = []
    for first, final in enumerate(P):
        identities = [first, *(i for i in range(3) if i != first)]
        accuracies = {i: value + shift for i, value in enumerate(final)}
        found.append(stable(accuracies, identities, method, order=f"first-{first}", seed=seed))
    return found


def test_every_task_first_tells_all_orders_exactly() -> None:
    [row] = summary(firsts()[::-1])
    exact = all_orders([[100 * value for value in line] for line in P])
    assert (row["orders"], row["every_order"], row["runs"]) == ("all 3!", True, 3)
    for name in ("accuracy", "mopd", "aopd", "lowest", "highest"):
        assert row[name] == close(getattr(exact, name))
    assert "one seed has no spread" in reason(row, "error_usual")


def test_all_orders_of_several_seeds_have_a_spread_and_leave_out_a_seed_that_is_not_whole() -> None:
    [row] = summary(firsts() + firsts(seed=1, shift=0.02) + firsts(seed=2, shift=0.09)[:1])
    assert row["accuracy"] == close(72.33333333333333)  # the mean of 71.333 and 73.333
    assert (row["spread_over"], row["error_usual"]) == ("seeds", close(1.0))
    assert (row["mopd"], row["aopd"]) == (close(14.0), close(10.0))


def test_first_orders_are_never_mixed_with_named_ones() -> None:
    named = [stable({0: 0.1, 1: 0.1, 2: 0.1}, [0, 1, 2], order="A")]
    rows = summary(named + firsts())
    assert [(row["orders"], row["runs"]) for row in rows] == [("A", 1), ("all 3!", 3)]
    assert rows[0]["accuracy"] == close(10.0)


def test_all_orders_needs_every_task_and_a_method_that_the_first_decides() -> None:
    [row] = summary(firsts()[:2])
    assert (row["orders"], row["every_order"]) == ("first-0 first-1", False)
    [row] = summary(firsts("ewc"))
    assert (row["orders"], row["every_order"]) == ("first-0 first-1 first-2", False)


# ---- files --------------------------------------------------------------------------------------------------------


def test_files_have_every_value_in_full_and_reasons_beside_what_is_undefined(tmp_path: Path) -> None:
    table: Table = summary(four()[:2])
    write_csv(tmp_path / "deep" / "table.csv", table)
    write_json(tmp_path / "table.json", table)
    assert (tmp_path / "deep" / "table.csv").read_text() == to_csv(table)
    [plain] = json.loads((tmp_path / "table.json").read_text())
    assert json.loads(to_json(table)) == [plain]
    [line] = csv.DictReader(io.StringIO(to_csv(table)))
    assert float(line["accuracy"]) == plain["accuracy"] == table[0]["accuracy"]
    assert line["every_order"] == "false"
    assert (line["mopd"], plain["mopd"]) == ("", None)
    assert "mopd, aopd: one order has no disparity" in line["undefined"]
    assert plain["undefined"]["mopd"].startswith("one order has no disparity")
    assert to_csv([]) == ""


# ---- the committed records ----------------------------------------------------------------------------------------


def test_the_committed_records_can_be_read_and_their_numbers_are_those_of_the_raw_rows() -> None:
    found = load([RESULTS / "demo", RESULTS / "frontier-cifar100-split"])
    assert found.records
    assert [problem for problem in found.problems if problem.kind == "damaged"] == []
    rows = runs_table(found.records)
    assert len(rows) == len(found.records)
    raw = sorted(100 * sum(last["test"]) / len(last["test"]) for last in (r["rows"][-1] for r in found.records))
    assert sorted(row["accuracy"] for row in rows) == pytest.approx(raw)  # type: ignore[type-var]
    counts = [row["runs"] for row in json.loads(to_json(summary(found.records)))]
    assert sum(counts) == len(rows)
