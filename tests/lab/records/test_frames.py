"""Records as frames: one row per run, one per run and task, compared with values computed by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halrp.lab.records import frames
from halrp.lab.records.loading import load
from halrp.lab.records.summary import summarise
from tests.lab.made_records import groups_of, made, older, runs_of, stable

RESULTS = Path(__file__).parents[3] / "results"


def close(value: object) -> Any:
    assert isinstance(value, float)
    return pytest.approx(value, rel=1e-12)


def reason(row: Mapping[str, Any], name: str) -> str:
    assert row[name] is None or math.isnan(row[name]), f"{name} is {row[name]}"
    return str(row["undefined"][name])


def rows_of(*raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [dict(row) for row in runs_of(*raw).to_dict("records")]


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
    [row] = frames.plain(runs_of([record]))
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
        "time_ratio": None,
        "later_time_ratio": None,
        "peak_bytes": 10**6 + 2,
        "undefined": dict.fromkeys(
            ("time_ratio", "later_time_ratio"),
            "no record of stl with as many epochs on such a machine has training times",
        ),
    }


def test_what_an_older_record_lacks_is_undefined_with_a_reason() -> None:
    [row] = rows_of([older(made([[0.8], [0.8, 0.6]], method="stl"))])
    assert row["growth_bytes"] == close(0.1)
    assert reason(row, "growth_counted") == "the record lacks the paper's count"
    assert reason(row, "peak_bytes") == "the record lacks the peak memory"


def test_a_single_task_has_no_transfer_and_no_later_task() -> None:
    [row] = rows_of([made([[0.8]])])
    assert (row["accuracy"], row["growth_bytes"]) == (close(80.0), 0.0)
    assert "at least 2 tasks" in reason(row, "bwt")
    assert reason(row, "later_bytes") == "there is no later task"


def joint(**cell: Any) -> dict[str, Any]:
    return made([[None], [None, None], [0.5, 0.6, 0.7]], method="mtl", bytes=[None, None, 1500.0], **cell)


def test_growth_of_a_joint_method_is_relative_to_a_single_task_of_stl() -> None:
    stl = made([[0.8], [0.8, 0.6]], method="stl", bytes=[1000.0, 2000.0])
    larger = made([[0.8], [0.8, 0.6]], method="be", bytes=[600.0, 2000.0])
    elsewhere = made([[0.8], [0.8, 0.6]], method="stl", bytes=[10.0, 20.0], stream="pmnist")
    row = next(row for row in rows_of([joint(), larger, stl, elsewhere]) if row["method"] == "mtl")
    assert row["growth_bytes"] == close(0.5)
    assert row["accuracy"] == close(60.0)
    assert "learned at once" in reason(row, "bwt")
    [row] = rows_of([joint()], [joint(), stl])
    assert row["growth_bytes"] == close(0.5)
    [row] = rows_of([joint(), elsewhere])[:1]
    assert "no record of stl on digits with mlp has the stored bytes" in reason(row, "growth_bytes")


def test_growth_of_a_method_that_begins_small_is_relative_to_stl_where_that_was_run() -> None:
    small = made([[0.8], [0.8, 0.6]], method="bmkp", bytes=[100.0, 1500.0])
    stl = made([[0.8], [0.8, 0.6]], method="stl", bytes=[1000.0, 2000.0])
    assert rows_of([small])[0]["growth_bytes"] == close(14.0)
    assert rows_of([small], [small, stl])[0]["growth_bytes"] == close(0.5)


def test_a_step_has_the_accuracies_sizes_and_times_after_its_task() -> None:
    stl = made([[0.8], [0.8, 0.6]], method="stl", bytes=[500.0, 1000.0], seconds=[4.0, 4.0])
    run = made([[0.8], [0.7, 0.6]], [1, 0], bytes=[1000.0, 1100.0], seconds=[8.0, 2.0])
    runs = runs_of([run, stl])
    steps = frames.steps(runs)
    here = steps[steps["run"] == runs.index[runs["method"] == "halrp-budget"][0]]
    assert [*here["position"]] == [0, 1]
    assert [*here["label"]] == ["1 task 1", "2 task 0"]
    assert [*map(list, here["test"])] == [[80.0], [70.0, 60.0]]
    assert [*here["average"]] == [80.0, 65.0]
    assert [*here["growth_bytes"]] == pytest.approx([1.0, 1.2])
    assert [*here["time_ratio"]] == [2.0, 0.5]


def test_steps_of_an_older_record_or_of_none_have_the_same_columns() -> None:
    steps = frames.steps(runs_of([older(made([[0.8], [None, 0.6]]))]))
    assert np.isnan(steps["peak_bytes"]).all()
    assert np.isnan(steps["average"].iloc[1])
    assert {"run", "average", "growth_bytes", "time_ratio"} <= set(frames.steps(runs_of([])).columns)


# ---- files --------------------------------------------------------------------------------------------------------


def test_json_has_every_value_in_full_and_the_reasons_of_undefined_ones() -> None:
    groups = groups_of([stable({0: 0.5, 1: 0.7}, [0, 1], seed=seed) for seed in (0, 1)])
    [plain] = json.loads(frames.to_json(groups))
    assert plain["accuracy"] == groups["accuracy"].iloc[0]
    assert plain["every_order"] is False
    assert plain["mopd"] is None
    assert plain["undefined"]["mopd"].startswith("one order has no disparity")
    assert "mopd, aopd: one order has no disparity" in frames.reasons(plain["undefined"])
    assert json.loads(frames.to_json(groups_of([]))) == []


# ---- the committed records ----------------------------------------------------------------------------------------


def test_the_committed_records_can_be_read_and_their_numbers_are_those_of_the_raw_rows() -> None:
    loaded = load([RESULTS / "demo", RESULTS / "frontier-cifar100-split"])
    assert loaded.records
    assert [problem for problem in loaded.problems if problem.kind == "damaged"] == []
    runs = frames.runs(loaded.records)
    assert len(runs) == len(loaded.records)
    raw = sorted(100 * sum(last["test"]) / len(last["test"]) for last in (r.rows[-1] for r in loaded.records))
    assert sorted(runs["accuracy"]) == pytest.approx(raw)
    assert summarise(runs)["runs"].sum() == len(runs)
