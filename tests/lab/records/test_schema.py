"""Reading records: what counts as one, what is left out and why."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from halrp.errors import SettingError
from halrp.lab.records import schema
from halrp.lab.records.loading import load
from halrp.lab.records.schema import Record
from tests.lab.made_records import made, older, put, stable, unfinished

RECORD = stable({0: 0.5, 1: 0.7}, [0, 1])


def reasons(folder: Path) -> list[tuple[str, str, str]]:
    return [(problem.path.name, problem.kind, problem.reason) for problem in load([folder]).problems]


def test_records_are_found_in_files_and_below_folders_each_once(tmp_path: Path) -> None:
    path = put(tmp_path / "a" / "b", "one.json", RECORD)
    put(tmp_path, "two.json", stable({0: 0.5, 1: 0.7}, [0, 1], seed=1))
    put(tmp_path / ".hidden", "three.json", stable({0: 0.5, 1: 0.7}, [0, 1], seed=2))
    loaded = load([tmp_path, path, tmp_path / "a"])
    assert sorted(record.seed for record in loaded.records) == [0, 1]
    assert loaded.problems == []


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="nowhere does not exist"):
        load([tmp_path / "nowhere"])


def test_unfinished_runs_say_how_far_they_came(tmp_path: Path) -> None:
    unfinished(tmp_path, "run.unfinished", stable({0: 0.5, 1: 0.7}, [0, 1], tasks=None), 1)
    unfinished(tmp_path, "short.unfinished", stable({0: 0.5, 1: 0.7}, [0, 1], tasks=2), 1)
    put(tmp_path, "cut.unfinished", "not safetensors")
    assert [(name, kind) for name, kind, _ in reasons(tmp_path)] == [
        ("cut.unfinished", "damaged"),
        ("run.unfinished", "unfinished"),
        ("short.unfinished", "unfinished"),
    ]
    assert [reason for *_, reason in reasons(tmp_path)[1:]] == ["1 of 10 tasks done", "1 of 2 tasks done"]


def test_other_json_is_distinguished_from_damaged_records(tmp_path: Path) -> None:
    put(tmp_path, "speed.json", {"rows": [1]})
    put(tmp_path, "cut.json", '{"cell": {')
    put(tmp_path, "deep.json", "[" * 100_000)
    assert [(name, kind) for name, kind, _ in reasons(tmp_path)] == [
        ("cut.json", "damaged"),
        ("deep.json", "damaged"),
        ("speed.json", "other"),
    ]


def broken(name: str, value: Any, **cell: Any) -> dict[str, Any]:
    record = made([[0.5], [0.5, 0.7]], **cell)
    if name:
        record["rows"][1][name] = value
    return record


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (broken("test", [0.5]), "rows do not follow"),
        (broken("test", [0.5, 1.5]), "impossible accuracies"),
        (broken("test", [0.5, float("nan")]), "impossible accuracies"),
        (broken("test", [0.5, "high"]), "impossible accuracies"),
        (broken("identity", 0), "impossible identities"),
        (broken("identity", None), "impossible identities"),
        (broken("bytes", -1), "impossible sizes or times"),
        (broken("bytes", 10**400), "OverflowError"),
        (broken("", 0, fraction=0.0), "impossible configuration"),
        (broken("", 0, order=3), "impossible configuration"),
        (broken("", 0, stream="\x1b[2J"), "impossible configuration"),
        (broken("", 0, settings=[1]), "impossible configuration"),
        (RECORD | {"resolved": [1]}, "AttributeError"),
        (RECORD | {"rows": []}, "rows do not follow"),
        (RECORD | {"rows": {"0": 1}}, "rows do not follow"),
        (RECORD | {"rows": [1, 2]}, "rows do not follow"),
        (RECORD | {"rows": RECORD["rows"][:1]}, "it has 1 rows for 2 tasks"),
        (RECORD | {"rows": RECORD["rows"][1:]}, "rows do not follow"),
        (made([[0.5]], tasks=None), "it has 1 rows for 10 tasks"),
        (made([[0.5]], tasks=None, stream="tinyimagenet-20@swapped"), "it has 1 rows for 20 tasks"),
        (made([[0.5]]) | {"resolved": made([[0.5]], method="stl")["resolved"]}, "its cell names method 'halrp-budget'"),
        (made([[0.5]], seed=4) | {"resolved": made([[0.5]], seed=3)["resolved"]}, "its cell names seed 4"),
        (RECORD | {"cell": None}, "not a record"),
    ],
)
def test_a_record_with_a_value_that_cannot_be_is_left_out(tmp_path: Path, record: object, words: str) -> None:
    put(tmp_path, "bad.json", record)
    put(tmp_path, "good.json", RECORD)
    [(name, kind, reason)] = reasons(tmp_path)
    assert (name, kind) == ("bad.json", "damaged")
    assert words in reason
    assert len(load([tmp_path]).records) == 1


def test_of_two_records_of_a_cell_the_newer_file_counts(tmp_path: Path) -> None:
    put(tmp_path, "a.json", stable({0: 0.1, 1: 0.1}, [0, 1]), age=50)
    put(tmp_path, "b.json", RECORD, age=0)
    put(tmp_path, "c.json", RECORD, age=100)
    loaded = load([tmp_path])
    assert [[*record.rows] for record in loaded.records] == [RECORD["rows"]]
    notes = {problem.path.name: problem.reason for problem in loaded.problems}
    assert [problem.kind for problem in loaded.problems] == ["duplicate", "duplicate"]
    assert notes["a.json"].endswith("b.json is a newer record of the same cell, with OTHER results")
    assert notes["c.json"].endswith("b.json is a newer record of the same cell, with the same results")


def test_a_cell_is_the_same_whether_defaults_are_written_out_or_not(tmp_path: Path) -> None:
    put(tmp_path, "a.json", stable({0: 0.5, 1: 0.7}, [0, 1], "stl", settings={"redraw": False}), age=9)
    put(tmp_path, "b.json", older(stable({0: 0.5, 1: 0.7}, [0, 1], "stl")))
    loaded = load([tmp_path])
    assert len(loaded.records) == 1
    assert [problem.path.name for problem in loaded.problems] == ["a.json"]


def test_settings_are_those_that_are_not_the_default_and_resolved_values_come_first() -> None:
    record = made([[0.5]], method="stl", settings={"redraw": True, "l2": 1e-4}, recipe={"batch": 32, "decay": 0.95})
    run = Record.of(record)
    assert (run.settings, run.recipe, run.epochs) == ({"redraw": True}, {"batch": 32}, 3)
    record["cell"]["settings"] = {}
    record["resolved"]["settings"] = {"redraw": False, "l2": 0.5}
    assert Record.of(record).settings == {"l2": 0.5}, "a default of then that is none today"


def test_what_an_older_record_lacks_is_missing() -> None:
    record = older(made([[0.5], [0.5, 0.5]]))
    run = Record.of(record)
    assert run.number(1, "counted") is None
    assert run.number(1, "peak_bytes") is None
    assert run.number(1, "bytes") == 1100.0
    del record["cell"]["recipe"]["epochs"]
    assert Record.of(record).epochs is None


@pytest.mark.parametrize(
    ("method", "settings", "decides"),
    [
        ("halrp-budget", {}, True),
        ("halrp-official", {}, False),
        ("ewc", {}, False),
        ("bn", {}, True),
        ("stl", {"redraw": False}, True),
        ("stl", {"redraw": True}, False),
        ("clr", {"bn": "shared"}, False),
        ("halrp-budget", {"unknown": 1}, False),
        ("gone", {}, False),
    ],
)
def test_whether_the_first_task_decides_is_a_property_of_the_method_and_its_settings(
    method: str, settings: dict[str, Any], decides: bool
) -> None:
    assert Record.of(made([[0.5]], method=method, settings=settings)).first_decides is decides


# ---- version 2 ----------------------------------------------------------------------------------------------------


def sealed(**method: Any) -> dict[str, Any]:
    return schema.seal(made([[0.5]], method="mine", settings={"a": 1, "b": 2}) | {"method": method})


def test_a_record_knows_the_defaults_and_properties_of_a_method_that_is_not_the_packages() -> None:
    record = Record.of(sealed(title="Mine", settings={"a": 1, "b": 1}, first_decides=True))
    assert (record.settings, record.first_decides, record.values["a"]) == ({"b": 2}, True, 1)


def test_the_packages_methods_have_todays_defaults_whatever_they_were_when_the_record_was_written() -> None:
    raw = made([[0.5]], method="stl", settings={"redraw": True}) | {"method": {"settings": {"redraw": True}}}
    assert Record.of(raw).settings == {"redraw": True}


def test_a_record_that_was_changed_is_left_out(tmp_path: Path) -> None:
    raw = sealed()
    put(tmp_path, "good.json", raw)
    raw["rows"][0]["test"] = [0.9]
    put(tmp_path, "bad.json", raw)
    assert [(name, kind) for name, kind, _ in reasons(tmp_path)] == [("bad.json", "damaged")]
    assert "checksum" in reasons(tmp_path)[0][2]
    assert len(load([tmp_path]).records) == 1


def test_a_record_of_version_2_needs_its_checksum(tmp_path: Path) -> None:
    raw = sealed()
    del raw["checksum"]
    for content in (raw, {name: value for name, value in raw.items() if name != "version"}, raw | {"version": 1}):
        put(tmp_path, "bad.json", content)
        assert [kind for _, kind, _ in reasons(tmp_path)] == ["damaged"]
        assert "checksum" in reasons(tmp_path)[0][2]


@pytest.mark.parametrize("version", [3, 0, "2", None])
def test_a_record_of_a_version_that_is_not_known_is_left_out(version: object, tmp_path: Path) -> None:
    put(tmp_path, "new.json", sealed() | {"version": version})
    assert [(kind, f"a record of version {version!r}" in reason) for _, kind, reason in reasons(tmp_path)] == [
        ("damaged", True)
    ]


def test_a_sealed_record_with_any_byte_changed_is_left_out_or_the_same(tmp_path: Path) -> None:
    content = json.dumps(sealed(title="Mine"), indent=1).encode()
    expected, random, refused = load([put(tmp_path, "good.json", content.decode())]).records, Random(0), 0
    for _ in range(300):
        at = random.randrange(len(content))
        other = bytes([content[at] ^ random.randrange(1, 128)])
        (tmp_path / "good.json").write_bytes(content[:at] + random.choice((other, b"", other * 2)) + content[at + 1 :])
        loaded = load([tmp_path])
        refused += len(loaded.problems)
        assert loaded.records in ([], expected), at
    assert refused > 200


def test_a_sealed_record_that_is_cut_anywhere_is_left_out(tmp_path: Path) -> None:
    content = json.dumps(sealed(), indent=1).encode()
    for cut in range(0, len(content), 5):
        (tmp_path / "cut.json").write_bytes(content[:cut])
        [problem] = load([tmp_path]).problems
        assert problem.kind in ("damaged", "other"), cut
