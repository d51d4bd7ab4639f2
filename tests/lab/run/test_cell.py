"""Cells: configurations that are refused before anything runs, and names that follow what a cell is made of."""

import json
from pathlib import Path
from typing import Any

import pytest

from halrp.errors import SettingError
from halrp.lab import presets
from halrp.lab.run import sweep
from halrp.lab.run.cell import Cell

RESULTS = Path(__file__).parents[3] / "results"
PLAIN: dict[str, Any] = {"method": "stl", "stream": "digits", "backbone": "digits-net"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "slt"}, "nearest name is 'stl'"),
        ({"stream": "digit"}, "nearest name is 'digits'"),
        ({"backbone": "lnet"}, "nearest name is 'lenet'"),
        ({"order": "Z"}, "no order of stream 'digits' is called 'Z'"),
        ({"order": "first-10"}, "its tasks are 0 to 9"),
        ({"order": "0,1,2"}, "no permutation"),
        ({"fraction": 0}, "fraction=0 of a cell"),
        ({"fraction": 1.5}, "fraction=1.5 of a cell"),
        ({"fraction": "all"}, "fraction='all' of a cell"),
        ({"seed": -1}, "seed=-1 of a cell"),
        ({"seed": True}, "seed=True of a cell"),
        ({"tasks": 0}, "tasks=0 of a cell"),
        ({"recipe": {"epoch": 3}}, "nearest name is 'epochs'"),
        ({"recipe": {"epochs": 0}}, "Recipe(epochs=0)"),
        ({"recipe": {"epochs": "many"}}, "many"),
        ({"settings": {"l1": 0.1}}, "no setting of method 'stl' is called 'l1'"),
        ({"method": "halrp-budget", "settings": {"view": "half"}}, "view='half'"),
        ({"method": "ewc", "settings": {"labels": "some"}}, "labels='some'"),
        ({"epochs": 3}, "no entry of a cell is called 'epochs'"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name_and_with_a_remedy(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError) as caught:
        Cell.of(PLAIN | change)
    assert words in str(caught.value)


@pytest.mark.parametrize("key", PLAIN)
def test_a_cell_needs_a_method_a_stream_and_a_backbone(key: str) -> None:
    with pytest.raises(SettingError, match=f"needs a {key}"):
        Cell.of({k: v for k, v in PLAIN.items() if k != key})


def test_the_name_changes_with_everything_that_the_cell_is_made_of() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"order": "B"},
        {"seed": 1},
        {"fraction": 0.5},
        {"settings": {"l2": 0.0}},
        {"recipe": {"epochs": 3}},
        {"tasks": 2},
        {"method": "be"},
    ]
    names = [Cell.of(PLAIN | change).name for change in changes]
    assert len(set(names)) == len(names)
    assert names[0].startswith("digits-digits-net-100-stl-A0-")


def test_values_that_are_the_default_do_not_change_the_name_and_are_written_out_in_the_resolved_form() -> None:
    spelled = Cell.of(PLAIN | {"settings": {"l2": 1e-4}, "recipe": {"epochs": 20}, "order": "A"})
    assert spelled.name == Cell.of(PLAIN).name
    assert spelled.canonical() == PLAIN
    assert Cell.of(PLAIN | {"settings": {"l2": 1}}).name == Cell.of(PLAIN | {"settings": {"l2": 1.0}}).name
    resolved = Cell.of(PLAIN).resolved()
    assert resolved["settings"] == {"l2": 1e-4, "redraw": False}
    assert resolved["recipe"]["epochs"] == 20
    assert resolved["order"] == "A"
    assert Cell.of(spelled.canonical()) == Cell.of(PLAIN)


def test_the_cell_of_every_committed_record_has_the_name_of_its_file() -> None:
    records = {
        path: json.loads(path.read_text())
        for path in RESULTS.rglob("*.json")
        if path.parent.name not in ("benchmarks", "conformance", "pretrained", "reliability")
    }
    assert len(records) >= 408
    assert [path for path, record in records.items() if Cell.of(record["cell"]).name != path.stem] == []


def test_a_sweep_recognises_the_committed_records_of_its_preset() -> None:
    recognised = {}
    for name in presets.names():
        cells = sweep.expand(sweep.read(name)[1], name=name)
        recognised[name] = sum(sweep.finished(cell, RESULTS / name) for cell in cells)
    # Records of other settings, of fewer tasks and of data subsets lie beside them.
    assert {name: count for name, count in recognised.items() if count} == {
        "ablations-cifar100-split": 10,
        "ablations-cifar100-split-5": 14,
        "cifar100-split": 6,
        "cifar100-split-25": 38,
        "cifar100-split-5": 106,
        "cifar100-split-orders": 30,
        "cifar100-superclass-25": 16,
        "cifar100-superclass-5": 85,
        "frontier-cifar100-split": 11,
        "iru": 24,
        "penalties-cifar100-split": 22,
        "pmnist-5": 6,
    }
