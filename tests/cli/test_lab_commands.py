"""The laboratory's commands: what they run, print and refuse, and their exit codes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from halrp.cli.app import app
from halrp.lab import presets, registry, streams
from halrp.lab.methods.finetune import FineTune
from halrp.lab.run import local_engine, runner
from tests.commands import invoke
from tests.lab.run.tiny_cells import BUDGET, FAILING, FINETUNE, STL, SWEEP, InlineEngine, alone, records

DIGITS = ("--stream", "digits", "--backbone", "digits-net", "--tasks", 2, "--epochs", 1)

ran = partial(invoke, app)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative folders are the test's own, and cells run in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local_engine, "LocalEngine", InlineEngine)


@pytest.mark.parametrize("command", ["run", "sweep", "resume", "methods", "streams", "backbones", "presets"])
def test_every_command_teaches_by_example(command: str) -> None:
    assert f"halrp {command}" in ran(command, "--help").out
    assert command in ran("--help").out


# ---- run --------------------------------------------------------------------------------------------------------


def test_run_prints_a_line_for_each_task_and_a_table_and_writes_the_record(tmp_path: Path) -> None:
    given = ("run", "--method", "ewc", "--set", "strength=10", "--recipe", "lr=0.01", *DIGITS, "--results", "out")
    result = ran(*given, "--tensorboard", "events")
    assert result.code == 0, result.error
    [path] = (tmp_path / "out").glob("*.json")
    record = runner.read(path)
    assert record["cell"]["settings"] == {"strength": 10}
    assert record["cell"]["recipe"] == {"epochs": 1, "lr": 0.01}
    assert record["environment"]["threads"] == 1
    last = 100 * record["rows"][-1]["test"][1]
    assert "task 1 of 2  0-4-upright: accuracy" in result.out
    assert f"task 2 of 2  5-9-upright: accuracy {last:5.1f}%" in result.out
    for word in ("average accuracy", "backward transfer", "stored", path.stem):
        assert word in result.out
    again = ran(*given)
    assert again.out.startswith(f"{path.stem}: already finished")
    assert again.code == 0
    assert scalars(tmp_path / "events" / path.stem)["accuracy of each task/test/1"] == {1: pytest.approx(last)}


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return {tag: {e.step: e.value for e in read.Scalars(tag)} for tag in read.Tags()["scalars"]}


def test_run_takes_a_cell_of_a_preset_or_file_and_changes_it(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(SWEEP.replace("[[cells]]", "[grid]\nseed = [3, 4]\n[[cells]]", 1))
    result = ran("run", "mine.toml", "--method", "stl", "--tasks", 1, "--epochs", 1, "--fraction", 0.5)
    assert result.code == 0, result.error
    [path] = (tmp_path / "results").glob("*.json")
    expected = {"seed": 3, "fraction": 0.5, "tasks": 1, "recipe": {"epochs": 1, "batch": 32}}
    assert runner.read(path)["cell"] == {"method": "stl", "stream": "digits", "backbone": "digits-net"} | expected


def test_joint_learning_tells_accuracies_at_the_end() -> None:
    result = ran("run", "--method", "mtl", *DIGITS)
    assert "task 1 of 2  0-4-upright: waits for the last task" in result.out
    assert "none: tasks were learned together" in result.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run",), "a run needs --method and --stream and --backbone"),
        (("run", "--method", "stll", *DIGITS), "no method is called 'stll'; the nearest name is 'stl'"),
        (("run", "--method", "stl", *DIGITS, "--order", "Z"), "no order of stream 'digits' is called 'Z'"),
        (("run", "--method", "stl", *DIGITS, "--fraction", 0), "fraction=0.0 of a cell is out of range"),
        (("run", "--method", "stl", *DIGITS, "--seed", -1), "seed=-1 of a cell is out of range"),
        (("run", "--method", "stl", *DIGITS, "--set", "strength=1"), "no setting of method 'stl' is called 'strength'"),
        (("run", "--method", "stl", *DIGITS, "--set", "l2"), "--set 'l2' is not of the form key=value"),
        (("run", "--method", "stl", *DIGITS, "--recipe", "lr=fast"), "recipe {'epochs': 1, 'lr': 'fast'}"),
        (("run", "--method", "stl", *DIGITS, "--device", "tpu3"), "--device 'tpu3' cannot be used here"),
        (("run", "--method", "stl", *DIGITS, "--threads", 0), "--threads 0"),
        (("run", "--method", "stl", *DIGITS, "--results", "file/out"), "file is a file"),
        (("run", "cifar100-split"), "cifar100-split has several methods; choose one with --method: halrp-official"),
        (("run", "cifar100-splt", "--method", "stl"), "no preset is called 'cifar100-splt'"),
        (
            ("run", "penalties-cifar100-split", "--method", "stl"),
            "no method of penalties-cifar100-split is called 'stl'",
        ),
        (("run", "five-alexnet", "--method", "stl", "--data", "."), "halrp data get"),
        (("sweep", "typo.toml"), "no entry of typo.toml is called 'ordr'; the nearest name is 'order'"),
        (
            ("sweep", "good.toml", "--only", "method=ewc"),
            "no cell has method=ewc; here it is halrp-budget, finetune, stl",
        ),
        (("sweep", "good.toml", "--with", "order=Z"), "no order of stream 'digits' is called 'Z'"),
        (("sweep", "good.toml", "--results", "file"), "file is a file"),
        (("sweep", "good.toml", "--jobs", 0), "--jobs 0 must be at least 1"),
        (("resume", "--results", "none"), "there is no results folder none"),
        (("methods", "ewcc"), "no method is called 'ewcc'"),
        (("presets", "none"), "no preset is called 'none'"),
    ],
)
def test_bad_configurations_are_one_line_exit_code_two_and_nothing_written(
    arguments: tuple[object, ...], message: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "good.toml").write_text(SWEEP)
    (tmp_path / "typo.toml").write_text('ordr = "A"\n' + SWEEP)
    result = ran(*arguments)
    assert result.code == 2
    assert message in result.error
    assert result.error.startswith("halrp: ")
    assert result.error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "good.toml", "typo.toml"]


# ---- sweep and resume -------------------------------------------------------------------------------------------


def test_a_sweep_lists_runs_and_skips_cells_and_exits_with_one_if_one_failed(tmp_path: Path) -> None:
    bad = '[[cells]]\nmethod = "stl"\nrecipe = { epochs = 1, lr = 1e38, batch = 128 }\n'
    (tmp_path / "sweep.toml").write_text(SWEEP + bad)
    dry = ran("sweep", "sweep.toml", "--dry-run")
    assert dry.code == 0
    assert dry.out.endswith("4 cells, 4 to run\n")
    assert f"to run  {BUDGET.name}\n" in dry.out
    assert not (tmp_path / "results").exists()

    chosen = ran("sweep", "sweep.toml", "--only", "method=stl", "recipe.lr=0.001")
    assert chosen.code == 0, chosen.error
    assert f"done   {STL.name}" in chosen.out
    assert list(records(tmp_path / "results")) == [STL.name]

    result = ran("sweep", "sweep.toml", "--jobs", 1)
    assert result.code == 1
    assert "3 of 4 cells done, 1 failed. Records: results" in result.out
    assert f"halrp: {FAILING.name} failed: " in result.error
    assert "the loss became" in result.error
    assert f"start  {STL.name}" not in result.out, "it was there"
    assert records(tmp_path / "results") == alone(tmp_path / "alone")


def test_a_damaged_record_fails_its_cell_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(SWEEP)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / f"{STL.name}.json").write_text("{")
    result = ran("sweep", "sweep.toml", "--only", "method=stl,finetune")
    assert result.code == 1
    assert f"{STL.name} failed: " in result.error
    assert "is not a record" in result.error
    assert (tmp_path / "results" / f"{FINETUNE.name}.json").exists()


def test_an_interrupted_run_exits_with_130_and_resume_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(FineTune):
        def learn(self, task: streams.Task) -> None:
            if len(self.heads) == 2:
                raise KeyboardInterrupt
            super().learn(task)

    which = ("--method", "finetune", "--stream", "digits", "--backbone", "digits-net", "--tasks", 3)
    with monkeypatch.context() as patch:
        patch.setitem(registry.METHODS, "finetune", registry.MethodEntry(Interrupted, "stops"))
        result = ran("run", *which, "--epochs", 2, "--recipe", "batch=32")
    assert result.code == 130
    assert "the same command resumes" in result.error
    (tmp_path / "results" / f"foreign{runner.UNFINISHED}").write_text("foreign")
    resumed = ran("resume")
    assert resumed.code == 1
    assert f"foreign{runner.UNFINISHED} cannot be resumed" in resumed.error
    assert f"done   {FINETUNE.name}" in resumed.out
    assert records(tmp_path / "results") == alone(tmp_path / "alone", [FINETUNE])
    (tmp_path / "results" / f"foreign{runner.UNFINISHED}").unlink()
    assert ran("resume").out == "nothing is unfinished in results\n"


def test_a_plain_name_on_part_of_the_data_runs_as_the_subset_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    load = streams.load

    def partial(name: str, *rest: Any) -> streams.Stream:
        return replace(load(name.removesuffix(streams.SUBSET), *rest), name="digits@subset")

    monkeypatch.setattr(streams, "load", partial)
    result = ran("run", "--method", "stl", *DIGITS)
    assert result.code == 0, result.error
    assert "note: the data of 'digits' are incomplete: it runs, and is recorded, as 'digits@subset'" in result.error
    [path] = (tmp_path / "results").glob("*.json")
    assert runner.read(path)["cell"]["stream"] == "digits@subset"
    assert "already finished" in ran("run", "--method", "stl", *DIGITS).out


# ---- lists ------------------------------------------------------------------------------------------------------


def test_methods_lists_all_and_shows_the_settings_of_one() -> None:
    text = ran("methods").out
    for name, entry in registry.METHODS.items():
        assert name in text
        assert entry.description in text
    shown = ran("methods", "ewc").out
    assert "strength" in shown
    assert "100000.0" in shown
    assert "Fisher" in shown
    assert "growth_per_task" in ran("methods", "halrp-budget").out


def test_streams_says_how_many_tasks_there_are_and_whether_data_are_here(tmp_path: Path) -> None:
    lines = {line.split()[0]: line for line in ran("streams", "--data", tmp_path).out.splitlines() if line.strip()}
    assert set(registry.stream_names()) <= set(lines)
    assert lines["digits"].split()[1:] == ["10", "×", "5", "none", "yes"]
    assert "no: cifar10, mnist" in lines["five"]
    digits = streams.load("digits")
    assert (registry.STREAMS["digits"].tasks, registry.STREAMS["digits"].classes) == (len(digits), digits[0].classes)
    from halrp.lab.reference import load_reference

    published = load_reference("task_orders")["orders"]
    for name, key in (("five", "five_dataset"), ("cifar100-split", "cifar100_split"), ("pmnist", "pmnist")):
        assert registry.STREAMS[name].tasks == len(next(iter(published[key].values())))


def test_presets_lists_all_and_prints_one_as_it_is() -> None:
    text = ran("presets").out
    assert all(name in text for name in presets.names())
    assert ran("presets", "cifar100-split").out == presets.text("cifar100-split")
