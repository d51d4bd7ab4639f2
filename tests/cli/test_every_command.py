"""Every command prints JSON where it prints data, fits eighty columns, and is plain text where nobody sees colours."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from halrp import Halrp, Learner, Recipe
from halrp.cli.app import app
from halrp.lab.run import local_engine
from halrp.text_table import width_of
from tests.commands import EVIL, Result, every_command, invoke
from tests.helpers import net, tiny_task
from tests.lab.made_records import put, stable
from tests.lab.run.tiny_cells import SWEEP, InlineEngine

COMMANDS = every_command(app)

ran = partial(invoke, app)
MODEL = "tests.cli.test_every_command:build"
WITHOUT_JSON = {("serve",): "it runs until it is stopped, and answers in JSON over HTTP"}
DIGITS = (
    "--method",
    "be",
    "--stream",
    "digits",
    "--backbone",
    "digits-net",
    "--tasks",
    1,
    "--epochs",
    1,
    "--fraction",
    0.2,
)
NAMES = ("birds", "the second task, whose name is as long as people make them", EVIL)


def build() -> object:
    return net("mlp")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three tasks, of which the first has an old version, and two sets of records beside it."""
    folder = tmp_path_factory.mktemp("every")
    method, recipe = Halrp.budget(growth_per_task=0.9), Recipe(epochs=1, batch=8, lr=5e-3)
    learner = Learner(net("mlp"), recipe=recipe, method=method, base="given", store=folder / "store")
    for number, name in enumerate(NAMES):
        learner.learn(name, tiny_task("mlp", number), tiny_task("mlp", number))
    learner.learn("birds", tiny_task("mlp", 8), replace=True)
    for name, final in (("before", {0: 0.5, 1: 0.75}), ("after", {0: 0.6, 1: 0.75})):
        for method_name in ("halrp-budget", "stl"):
            settings = {"settings": {"note": "with a long setting, " * 3}}
            put(folder / name, f"{method_name}.json", stable(final, [0, 1], method_name, **settings))
    return folder


@pytest.fixture
def here(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy, as the current folder; what takes long or needs a network is replaced."""
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    shutil.copytree(tmp_path / "store", tmp_path / "other")
    (tmp_path / "mine.toml").write_text(SWEEP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HALRP_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(local_engine, "LocalEngine", InlineEngine)
    written = SimpleNamespace(bytes=10, difference=0.0, rows=(1, 2))
    monkeypatch.setattr("halrp.tools.export.write", lambda *_, **__: written)
    monkeypatch.setattr("halrp.cli.data._get", lambda name, *_: {"name": name})
    monkeypatch.setattr(
        "halrp.lab.presets.names", lambda: ["cifar100-split", "cifar100-split-5"]
    )  # to expand all of them takes seconds
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before


USES: dict[tuple[str, ...], tuple[object, ...]] = {
    ("explain",): (MODEL,),
    ("inspect",): ("store",),
    ("verify",): ("store", "--model", MODEL),
    ("export",): ("store", "birds", "-o", "birds.pt2", "--model", MODEL, "--input", "1,10"),
    ("remove",): ("store", "birds"),
    ("rename",): ("store", "birds", "fowl"),
    ("versions",): ("store", "birds"),
    ("revert",): ("store", "birds"),
    ("drop",): ("store", "birds"),
    ("merge",): ("copy", "store"),
    ("repair",): ("store", "--dry-run"),
    ("keygen",): ("team.key", "--kind", "hmac-sha256"),
    ("sign",): ("store", "--key", "team.key"),
    ("token",): ("tokens.toml", "--task", "birds"),
    ("run",): DIGITS,
    ("sweep",): ("cifar100-split-5", "--only", "method=stl", "--dry-run"),
    ("resume",): ("--results", "before"),
    ("methods",): (),
    ("streams",): (),
    ("backbones",): (),
    ("presets",): (),
    ("results",): ("before",),
    ("report",): ("store", "--model", MODEL),
    ("compare",): ("store", "other"),
    ("doctor",): ("store", "--no-speed"),
    ("tables",): ("before", "--all"),
    ("data", "list"): (),
    ("data", "get"): ("cifar100",),
    ("data", "show"): ("digits", "-o", "sheet.png", "--tasks", 1),
}
"""How each command is used here."""
OTHERS: dict[str, tuple[object, ...]] = {
    "compare records": ("compare", "before", "after"),
    "inspect a task": ("inspect", "store", "birds"),
    "methods of one": ("methods", "ewc"),
    "presets of one": ("presets", "cifar100-split-5"),
    "results of runs": ("results", "before", "--runs"),
    "report on records": ("report", "before"),
    "sweep of one cell": ("sweep", "mine.toml", "--only", "method=finetune", "--with", "tasks=1"),
    "tables of orders": ("tables", "before", "--all", "--table", "paper-orders"),
}


def test_every_command_is_used_here() -> None:
    assert {*USES, *WITHOUT_JSON} == set(COMMANDS)
    for path in WITHOUT_JSON:
        assert not [p for p in COMMANDS[path].params if "--json" in p.opts]


def used(*arguments: object) -> Result:
    if "sign" in arguments:
        ran("keygen", "team.key", "--kind", "hmac-sha256")
    result = ran(*arguments)
    assert result.code == 0, result.error
    return result


@pytest.mark.parametrize("use", [*USES, *OTHERS], ids=lambda use: use if isinstance(use, str) else " ".join(use))
def test_every_command_that_prints_data_prints_it_as_json(use: Any, here: Path) -> None:
    arguments = OTHERS[use] if isinstance(use, str) else (*use, *USES[use])
    values = ("--json", "-") if arguments[0] == "results" else ("--json",)
    result = used(*arguments, *values)
    assert isinstance(json.loads(result.out), (dict, list))
    assert "\x1b" not in result.out + result.error
    assert not (here / "report.html").exists(), "a page that nobody asked for"


TABLES = (
    *(
        ("inspect",),
        ("streams",),
        ("methods",),
        ("backbones",),
        ("results",),
        ("tables",),
        ("data", "list"),
        ("report",),
    ),
    *(("compare",), ("doctor",), ("explain",)),
)
PROSE: dict[tuple[str, ...], Callable[[list[str]], list[str]]] = {
    ("inspect",): lambda lines: lines[: lines.index("What training gained:")],
    ("report",): lambda lines: lines[: next(i for i, line in enumerate(lines) if line.startswith("Base "))],
    ("compare",): lambda lines: lines[: next(i for i, line in enumerate(lines) if line.startswith("3 tasks "))],
    ("explain",): lambda lines: [line for line in lines if "  " in line],
    ("data", "list"): lambda lines: lines[1:-1],
    ("streams",): lambda lines: lines[:-1],
    ("methods",): lambda lines: lines[:-1],
}
"""The lines of a table, without the sentences around it, which the terminal wraps."""


@pytest.mark.parametrize("path", TABLES, ids=" ".join)
def test_tables_fit_eighty_columns_and_lose_nothing_silently(
    path: tuple[str, ...], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = used(*path, *USES[path]).out.splitlines()
    table = PROSE.get(path, lambda lines: lines)(lines)
    assert len(table) > 3
    assert [line for line in table if width_of(line) > 80] == []
    assert "…" not in "".join(table)


@pytest.mark.parametrize("path", TABLES, ids=" ".join)
def test_a_pipe_gets_plain_text(path: tuple[str, ...], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert "\x1b" not in used(*path, *USES[path]).out


class FakeTerminal:
    """The standard output as a terminal."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(
    ("settings", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"NO_COLOR": ""}, True)],
    ids=["colours", "NO_COLOR", "dumb", "NO_COLOR is empty"],
)
def test_a_terminal_gets_colours_unless_it_must_not(
    settings: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from halrp.cli.screen import print_table

    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm-256color", "COLUMNS": "60"} | settings).items():
        monkeypatch.setenv(name, value)
    screen = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", screen)
    print_table(("task", "state"), [("birds", "bitwise")], colours={"bitwise": "green"})
    assert ("\x1b[32m" in screen.text) is coloured
    assert ("\x1b" in screen.text) is coloured
    assert "birds" in screen.text
