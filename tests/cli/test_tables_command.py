"""`halrp tables`: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import io
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer

from halrp.cli.tables import tables
from halrp.errors import SettingError
from tests.commands import invoke
from tests.lab.made_records import put, stable, unfinished

app = typer.Typer(add_completion=False)
app.command()(tables)

RESULTS = Path(__file__).parents[2] / "results"
SPLIT: dict[str, Any] = {"stream": "cifar100-split", "backbone": "lenet", "recipe": {"epochs": 20}}

ran = partial(invoke, app)


@pytest.fixture
def records(tmp_path: Path) -> Path:
    folder = tmp_path / "records"
    for seed, share in ((0, 0.44), (1, 0.46)):
        final = dict.fromkeys(range(10), share)
        put(folder, f"stl{seed}.json", stable(final, range(10), "stl", fraction=0.05, seed=seed, **SPLIT))
    final = dict.fromkeys(range(10), 0.40)
    put(folder, "l2.json", stable(final, range(10), "l2", fraction=0.05, settings={"strength": 2.0}, **SPLIT))
    put(folder, "few.json", stable({0: 0.5, 1: 0.6}, [0, 1], "stl", fraction=0.25, **SPLIT))
    put(folder, "digits.json", stable({0: 0.5, 1: 0.6}, [0, 1], "stl"))
    return folder


def test_accuracies_on_the_screen(records: Path) -> None:
    shown = ran(records)
    assert shown.code == 0
    assert "cifar100-split, lenet, 5 % of the data" in shown.out
    assert ["stl", "45.13", "±", "0.04", "45.00", "±", "1.00", "-0.13", "seeds", "2", "A", "equal"] in shown.lines
    assert ["l2", "37.15", "±", "0.21", "40.00", "+2.85", "1", "A", "better"] in shown.lines
    assert ["strength=2"] in shown.lines
    assert ["stl", "59.04", "±", "0.03", "55.00", "–", "1", "A"] in shown.lines
    assert ["2", "of", "10", "tasks"] in shown.lines
    assert ["apd", "36.60", "±", "0.14", "–", "–"] in shown.lines
    assert ["not", "run"] in shown.lines
    assert "cifar100-superclass" not in shown.out, "nothing was run there"
    assert "digits" not in shown.out, "it is not in the paper"


def test_all_shows_what_was_not_run(records: Path) -> None:
    out = ran(records, "--all").out
    assert "tinyimagenet-40, resnet18, 100 % of the data" in out
    assert "pmnist-20, mlp, 100 % of the data" in out
    rows = list(csv.DictReader(io.StringIO(ran(records, "--all", "--stream", "pmnist", "--csv").out)))
    assert len(rows) == 15
    assert {row["note"].partition(";")[0] for row in rows} == {"not run"}


def test_benchmarks_can_be_chosen(records: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(ran(records, "--fraction", "0.25", "--csv").out)))
    assert {(row["benchmark"], row["data"]) for row in rows} == {("cifar100-split", "25")}
    rows = list(csv.DictReader(io.StringIO(ran(records, "--all", "--backbone", "resnet18", "--csv").out)))
    assert {row["benchmark"] for row in rows} == {"five", "tinyimagenet-20", "tinyimagenet-40", "cifar100-20"}


def test_relations_on_the_screen(records: Path) -> None:
    shown = ran(records, "--table", "relations")
    assert ["stl", "l2", "+7.98", "±", "0.25", "+5.00", "yes"] in shown.lines
    assert "1 of 1 clear orderings of the paper hold here." in shown.out
    assert "apd" not in shown.out
    assert "apd" in ran(records, "--table", "relations", "--all").out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--table", "paper-acuracy"), "nearest name is 'paper-accuracy'"),
        (("--stream", "cifar10-split"), "nearest name is 'cifar100-split'"),
        (("--backbone", "alex"), "nearest name is 'alexnet'"),
        (("--fraction", "0.3"), "it has 0.05, 0.25, 0.5, 1"),
        (("--stream", "pmnist", "--backbone", "alexnet"), "together"),
        (("--stream", "pmnist"), "--all shows the paper's alone"),
        (("--csv", "--latex"), "--latex and --csv do not go together"),
        (("-o", "table.tex"), "-o table.tex needs a format"),
        (("--markdown", "-o", "."), "not a file"),
        (("--csv", "-o", ""), "not a file"),
    ],
)
def test_impossible_options_are_refused_with_a_remedy(records: Path, arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        ran(records, *arguments)


def test_files_are_written(records: Path, tmp_path: Path) -> None:
    texts = {}
    for option in ("markdown", "latex", "csv"):
        path = tmp_path / "out" / option
        shown = ran(records, f"--{option}", "-o", path)
        assert f"wrote {path}: 30 rows" in shown.out
        texts[option] = path.read_text()
    assert "| stl | 45.13 ± 0.04 | 45.00 ± 1.00 | -0.13 | seeds | 2 | A |  |  | equal |" in texts["markdown"]
    assert r"stl & 45.13 $\pm$ 0.04 & 45.00 $\pm$ 1.00 & $-$0.13 & seeds & 2 & A &  &  \\" in texts["latex"]
    rows = list(csv.DictReader(io.StringIO(texts["csv"])))
    assert len(rows) == 30, "fifteen methods on two benchmarks"
    assert float(rows[0]["ours_error"]) == pytest.approx(1.0)


def test_standard_output_has_the_table_and_nothing_else(records: Path) -> None:
    put(records, "cut.json", "{")
    shown = ran(records, "--markdown")
    assert shown.out.startswith("### Accuracy beside the paper's\n\n| benchmark ")
    assert "cut.json" not in shown.out
    assert "cut.json: not JSON" in shown.error


def test_files_left_out_are_listed(records: Path) -> None:
    unfinished(records, "run.unfinished", stable({0: 0.5, 1: 0.6}, [0, 1]), 1)
    put(records, "cut.json", "{")
    out = ran(records).out
    assert "run.unfinished: 1 of 2 tasks done" in out
    assert "cut.json: not JSON" in out


def test_folders_without_what_is_needed_are_errors(tmp_path: Path) -> None:
    put(tmp_path, "cut.json", "{")
    with pytest.raises(SettingError, match=r"no finished record in .* \(1 files were left out\)"):
        ran(tmp_path)
    with pytest.raises(SettingError, match="does not exist"):
        ran(tmp_path / "nowhere")
    put(tmp_path, "digits.json", stable({0: 0.5, 1: 0.6}, [0, 1], "stl"))
    with pytest.raises(SettingError, match="no record is of a benchmark"):
        ran(tmp_path)


def test_the_default_folder_is_results(records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(records, tmp_path / "here" / "results")
    monkeypatch.chdir(tmp_path / "here")
    assert "45.00 ± 1.00" in ran().out


@pytest.mark.parametrize("key", ["paper-accuracy", "paper-orders", "relations"])
def test_the_committed_records_fit_a_hundred_columns(key: str) -> None:
    out = ran(RESULTS, "--table", key).out
    shown = out.partition("\nLeft out")[0]
    assert "cifar100-split, lenet, 5 % of the data" in shown
    assert max(map(len, shown.splitlines())) <= 100
    words = set(re.split(r"[\s/]+", shown))
    rows = list(csv.DictReader(io.StringIO(ran(RESULTS, "--table", key, "--csv").out)))
    numbers = {number for row in rows for number in row.values() if re.fullmatch(r"-?\d+\.\d+", number)}
    for number in map(float, numbers):
        assert {f"{number:.2f}", f"{number:+.2f}"} & words or abs(number) < 0.005, "nothing is cut or broken"
    assert {row["method"] if "method" in row else row["better"] for row in rows} <= words


def test_text_of_records_is_no_markup(records: Path) -> None:
    odd = stable(dict.fromkeys(range(10), 0.4), range(10), "ewc", fraction=0.05, settings={"x": "[red]y"}, **SPLIT)
    put(records, "odd.json", odd)
    assert ["x=[red]y"] in ran(records).lines
