"""Two sets of records side by side: what is paired with what, and what the tests say."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from halrp.cli.app import app
from halrp.lab.records import paired
from halrp.lab.report.versus import compare
from tests.commands import invoke
from tests.lab.made_records import made, parsed, put, stable

ran = partial(invoke, app)
TASKS = range(6)


def run(method: str, gain: float = 0.0, **cell: Any) -> dict[str, Any]:
    """A run of six tasks whose final accuracies are 50, 51, … % and a gain."""
    return stable({task: 0.5 + 0.01 * task + gain for task in TASKS}, list(TASKS), method, **cell)


def rows(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [dict(row) for row in compare(parsed(first), parsed(second)).table.rows]


def test_the_same_method_is_compared_run_by_run() -> None:
    first = [run("stl", order="A"), run("stl", order="B"), run("stl", order="C")]
    second = [run("stl", 0.02, order="A"), run("stl", 0.04, order="B")]
    [row] = rows(first, second)
    assert row["pairs"] == 12
    assert row["difference"] == pytest.approx(3.0)
    assert row["second"] - row["first"] == pytest.approx(3.0)
    assert row["p"] == pytest.approx(paired.sign_flips([3.0] * 6))
    assert row["verdict"] == "better"


def test_the_same_numbers_are_identical_and_one_task_says_little() -> None:
    [row] = rows([run("stl")], [run("stl")])
    assert (row["difference"], row["verdict"]) == (0.0, "identical")
    [row] = rows([made([[0.5]], method="stl")], [made([[0.9]], method="stl")])
    assert (row["verdict"], row["difference_error"]) == ("not distinguishable", None)


def test_several_rows_are_corrected() -> None:
    first = [run("stl"), run("finetune"), run("mtl")]
    second = [run("stl", 0.1), run("finetune", 0.1), run("mtl", 0.1)]
    alone, together = rows(first[:1], second[:1]), rows(first, second)
    assert together[0]["p"] == pytest.approx(3 * alone[0]["p"])


def test_one_group_left_of_a_method_or_of_all_is_compared_too() -> None:
    settings = {"settings": {"view": "full"}}
    [row] = rows([run("halrp-budget")], [run("halrp-budget", 0.01, **settings)])
    assert row["method"] == "halrp-budget"
    assert row["details"].endswith("; B: view=full")
    both = rows([run("stl"), run("wsn")], [run("stl", 0.1), run("finetune")])
    assert [row["method"] for row in both] == ["stl", "wsn → finetune"]


def test_what_only_one_set_has_is_listed_and_other_setups_are_not_mixed() -> None:
    first = [run("stl"), run("wsn"), run("stl", fraction=0.25)]
    result = compare(parsed(first), parsed([run("stl"), run("finetune"), run("mtl")]))
    assert [row["method"] for row in result.table.rows] == ["stl"]
    [part, whole] = result.only_first
    assert "25 %" in part
    assert (result.only_first[whole], result.only_first[part]) == (["wsn"], ["stl"])
    assert [*result.only_second.values()] == [["mtl", "finetune"]]


def test_runs_without_a_common_order_are_no_pairs() -> None:
    result = compare(parsed([run("stl", order="A")]), parsed([run("stl", order="B")]))
    assert result.table.rows == ()
    assert [*result.unpaired.values()] == [["stl"]]


def test_the_command_shows_the_table_and_json(tmp_path: Path) -> None:
    put(tmp_path / "a", "stl.json", run("stl"))
    put(tmp_path / "b", "stl.json", run("stl", 0.02))
    put(tmp_path / "b", "wsn.json", run("wsn"))
    put(tmp_path / "b", "cut.json", "{")
    result = ran("compare", tmp_path / "a", tmp_path / "b")
    [line] = [words for words in result.lines if words[:1] == ["stl"]]
    assert line[1:4] == ["52.50", "54.50", "+2.00"]
    assert "Only in B, digits, mlp, 100 %, 6 tasks" in result.flat
    assert "cut.json: not JSON" in result.out
    facts = json.loads(ran("compare", tmp_path / "a", tmp_path / "b", "--json").out)
    assert math.isclose(facts["rows"][0]["difference"], 2.0)
    assert [*facts["only_second"].values()] == [["wsn"]]
    (tmp_path / "c").mkdir()
    put(tmp_path / "c", "wsn.json", run("wsn"))
    put(tmp_path / "c", "mtl.json", run("mtl"))
    assert "No method was run by both" in ran("compare", tmp_path / "a", tmp_path / "c").out
