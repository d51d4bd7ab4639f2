"""All orders and seeds of the same settings, compared with values computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from halrp.lab.records.metrics import all_orders, bootstrap
from tests.lab.made_records import groups_of, older, stable
from tests.lab.records.test_frames import close, reason


def summary(*raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [dict(row) for row in groups_of(*raw).to_dict("records")]


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
    assert reason(row, "peak_bytes") == "in 1 of the runs: the record lacks the peak memory"


# ---- all orders ---------------------------------------------------------------------------------------------------

P = [[0.90, 0.50, 0.70], [0.84, 0.60, 0.66], [0.87, 0.55, 0.80]]


def firsts(method: str = "halrp-budget", seed: int = 0, shift: float = 0.0) -> list[dict[str, Any]]:
    records = []
    for first, final in enumerate(P):
        identities = [first, *(i for i in range(3) if i != first)]
        accuracies = {i: value + shift for i, value in enumerate(final)}
        records.append(stable(accuracies, identities, method, order=f"first-{first}", seed=seed))
    return records


def test_every_task_first_gives_all_orders_exactly() -> None:
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
