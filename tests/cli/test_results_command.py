"""`halrp results`: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import io
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer

from halrp.cli.results import results
from halrp.errors import SettingError
from tests.commands import invoke
from tests.lab.made_records import made, older, put, stable, unfinished

app = typer.Typer(add_completion=False)
app.command()(results)

RESULTS = Path(__file__).parents[2] / "results"

ran = partial(invoke, app)


@pytest.fixture
def records(tmp_path: Path) -> Path:
    folder = tmp_path / "records"
    for order, identities in (("A", [0, 1]), ("B", [1, 0])):
        for seed in (0, 1):
            final = {0: 0.5 + 0.1 * (order == "B") + 0.02 * seed, 1: 0.7}
            more: dict[str, Any] = {"order": order, "seed": seed}
            put(folder, f"h{order}{seed}.json", stable(final, identities, settings={"view": "full"}, **more))
            put(folder, f"s{order}{seed}.json", stable(final, identities, "stl", settings={"redraw": True}, **more))
    put(folder, "quarter.json", older(made([[0.25], [0.2, 0.3]], method="finetune", fraction=0.25)))
    return folder


def test_the_summary_on_the_screen(records: Path) -> None:
    shown = ran(records)
    assert shown.code == 0
    assert "digits, mlp, 100 % of the data, 2 tasks, 3 epochs" in shown.out
    lines = [line.split() for line in shown.out.splitlines()]
    # Accuracies 60, 61, 65, 66; by seed 62.5 and 63.5; ranges of tasks 10 and 0.
    assert ["halrp-budget", "AB", "4", "63.00", "±0.50", "0.00", "10.0/5.0", "10.0/5.0"] in [line[:8] for line in lines]
    assert ["view=full"] in lines
    assert "– growth in the paper's count of finetune: the record lacks the paper's count" in shown.flat
    assert "-5.00" in shown.out


def test_each_run_on_the_screen(records: Path) -> None:
    shown = ran(records, "--runs", "--method", "halrp-budget")
    lines = [line.split() for line in shown.out.splitlines()]
    assert ["halrp-budget", "B", "1", "66.00", "0.00", "10.0/10.0/10.0", "100", "B", "4.0", "1.0", "MB"] in lines
    assert "Shown are 4 of 9 records" in shown.out


def test_filters_still_find_stl_to_compare_with(records: Path) -> None:
    row = json.loads(ran(records, "--method", "halrp-budget", "--json", "-").out)[0]
    assert row["stl_mopd"] == pytest.approx(10.0)
    assert row["time_ratio"] == 2.0


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--method", "halrp-bugdet", "nearest name is 'halrp-budget'"),
        ("--stream", "digit", "nearest name is 'digits'"),
        ("--order", "first-0", "all of them are A, B"),
        ("--fraction", "0.5", "there are 0.25, 1"),
    ],
)
def test_a_filter_that_matches_nothing_names_what_is_there(records: Path, option: str, value: str, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        ran(records, option, value)


def test_filters_that_match_nothing_together_are_an_error(records: Path) -> None:
    with pytest.raises(SettingError, match="not together"):
        ran(records, "--method", "stl", "--fraction", "0.25")


def test_files_left_out_are_listed(records: Path) -> None:
    unfinished(records, "run.unfinished", made([[0.5], [0.5, 0.5]]), 1)
    put(records, "cut.json", "{")
    put(records, "speed.json", {"rows": []})
    put(records, "again.json", json.loads((records / "hA0.json").read_text()), age=100)
    out = ran(records).out
    assert "Left out, unfinished: 1" in out
    assert "run.unfinished: 1 of 2 tasks done" in out
    assert "cut.json: not JSON" in out
    assert "again.json: " in out
    assert "Left out, JSON that is not a record of a run: 1" in out
    aside = ran(records, "--csv", "-")
    assert "cut.json: not JSON" in aside.error
    assert "cut.json" not in aside.out


def test_standard_output_has_the_table_and_nothing_else(records: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(ran(records, "--csv", "-").out)))
    assert [row["method"] for row in rows] == ["finetune", "halrp-budget", "stl"]
    rows = json.loads(ran(records, "--runs", "--json", "-").out)
    assert len(rows) == 9


def test_files_are_written_beside_the_table_on_the_screen(records: Path, tmp_path: Path) -> None:
    shown = ran(records, "--csv", tmp_path / "t.csv", "--json", tmp_path / "t.json")
    assert len(list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text())))) == 3
    assert len(json.loads((tmp_path / "t.json").read_text())) == 3
    assert "63.00" in shown.out
    assert f"wrote {tmp_path / 't.csv'}: 3 rows" in shown.out


def test_impossible_outputs_are_refused(records: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="cannot both"):
        ran(records, "--csv", "-", "--json", "-")
    for target in ("", ".", tmp_path):
        with pytest.raises(SettingError, match="not a file"):
            ran(records, "--csv", target)


def test_a_folder_without_records_is_an_error_that_lists_its_files(tmp_path: Path) -> None:
    put(tmp_path, "cut.json", "{")
    with pytest.raises(SettingError, match=r"no finished record in .* \(1 files were left out\)"):
        ran(tmp_path)
    with pytest.raises(SettingError, match="does not exist"):
        ran(tmp_path / "nowhere")


def test_the_default_folder_is_results(records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(records, tmp_path / "here" / "results")
    monkeypatch.chdir(tmp_path / "here")
    assert "63.00" in ran().out


@pytest.mark.parametrize("extra", [(), ("--runs",)])
def test_the_committed_records_fit_a_hundred_columns(extra: tuple[str, ...]) -> None:
    out = ran(RESULTS, *extra).out
    assert "cifar100-split, lenet, 25 % of the data, 10 tasks, 20 epochs" in out
    table = out.partition("\nLeft out")[0]
    assert max(map(len, table.splitlines())) <= 100
    assert "…" not in out, "nothing is cut"


def test_wide_values_fit_a_hundred_columns(tmp_path: Path) -> None:
    for order, identities in (("A", [0, 1]), ("B", [1, 0])):
        final = {0: 1.0 if order == "A" else 0.0, 1: 1.0}
        more: dict[str, Any] = {
            "order": order,
            "bytes": [1000.0, 20000.0],
            "settings": {"parameters_per_task": 123456, "view": "full"},
        }
        put(tmp_path, f"{order}.json", stable(final, identities, **more))
        put(tmp_path, f"s{order}.json", stable(final, identities, "stl", order=order, settings={"redraw": True}))
    out = ran(tmp_path).out
    assert max(map(len, out.splitlines())) <= 100
    assert "…" not in out
    for words in ("±25.00*", "100.0/50.0", "1900/1900/1900"):
        assert words in out
