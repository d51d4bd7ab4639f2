"""No text that a command prints has an effect of its own on a terminal, whatever the names are."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.table import Table
from torch import nn

import halrp
from halrp import Halrp, Learner
from halrp.cli.app import app
from halrp.cli.screen import print_table
from halrp.lab.run.engine import Event
from halrp.lab.run.progress import LiveTable
from halrp.lab.run.status import CellStatus, SweepStatus
from halrp.terminal import Terminal
from tests.commands import EVIL, Result, every_command, invoke
from tests.helpers import FAST, net, tiny_task
from tests.lab.made_records import made

MODEL = "tests.cli.test_safe_output:build"

ran = partial(invoke, app)


def build() -> nn.Module:
    """A model with a layer of an evil name."""
    model = nn.Sequential()
    model.add_module("first\x1b]0;owned\x07\u202e\nhalrp: [bold", nn.Linear(8, 16))
    model.add_module("last", nn.Linear(16, 3))
    return model


def raw(text: str) -> set[str]:
    """What a terminal would act on, apart from line breaks."""
    return {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}


def check(result: Result) -> None:
    assert raw(result.out + result.error) == set()
    assert "\nhalrp: [bold" not in result.out + result.error, "a name began a line of its own"


COMMANDS = every_command(app)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_is_safe_with_arguments_of_any_text(
    path: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HALRP_DATA", str(tmp_path / EVIL))
    arguments: list[str] = []
    for parameter in COMMANDS[path].params:
        if parameter.param_type_name == "argument":
            arguments.append(EVIL)
        elif parameter.required:
            arguments += [parameter.opts[0], EVIL]
    result = ran(*path, *arguments)
    check(result)
    assert result.out + result.error


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evil") / "s\x1b]0;owned\x07tore"
    learner = Learner(net("mlp"), method=Halrp.budget(bytes_per_task=100_000), recipe=FAST, store=folder)
    learner.learn(EVIL, tiny_task("mlp"))
    learner.learn(EVIL + "2", tiny_task("mlp", 1))
    return folder


@pytest.fixture
def evil_results(tmp_path: Path) -> Path:
    """A folder with a record whose texts are evil, and with files of evil names that are no records."""
    folder = tmp_path / EVIL.replace("/", "")
    folder.mkdir()
    (folder / "evil\x1b[2J\n.json").write_text("{")
    (folder / "evil\x1b[2J.unfinished").write_text("")
    record = made([[0.5], [0.5, 0.6]], settings={"note": EVIL}) | {"environment": {"machine": EVIL, "threads": 1}}
    record["rows"][0]["task"] = EVIL
    (folder / "good.json").write_text(json.dumps(record))
    return folder


USES: dict[str, Callable[[Path, Path], tuple[object, ...]]] = {
    "explain": lambda store, results: ("explain", MODEL),
    "explain --json": lambda store, results: ("explain", MODEL, "--json"),
    "inspect": lambda store, results: ("inspect", store),
    "inspect --json": lambda store, results: ("inspect", store, "--json"),
    "verify": lambda store, results: ("verify", store),
    "report of a store": lambda store, results: ("report", store, "-o", results / "store.html"),
    "report of a store --json": lambda store, results: ("report", store, "--json"),
    "compare": lambda store, results: ("compare", store, store),
    "compare records": lambda store, results: ("compare", results, results),
    "doctor": lambda store, results: ("doctor", store, "--no-speed"),
    "results": lambda store, results: ("results", results),
    "results --runs": lambda store, results: ("results", results, "--runs"),
    "results --csv": lambda store, results: ("results", results, "--csv", "-"),
    "results --json": lambda store, results: ("results", results, "--json", "-"),
    "report": lambda store, results: ("report", results, "-o", results / "page\x1b[2J.html"),
    "tables --all": lambda store, results: ("tables", results, "--all"),
    "tables --csv": lambda store, results: ("tables", results, "--all", "--csv"),
    "tables --markdown": lambda store, results: ("tables", results, "--all", "--markdown"),
    "tables --latex": lambda store, results: ("tables", results, "--all", "--latex"),
    "resume": lambda store, results: ("resume", "--results", results),
    "data list": lambda store, results: ("data", "list", "--data", results),
    "streams": lambda store, results: ("streams", "--data", results),
}


@pytest.mark.parametrize("use", USES)
def test_names_in_files_are_shown_and_have_no_effect(use: str, store: Path, evil_results: Path) -> None:
    result = ran(*USES[use](store, evil_results))
    check(result)
    assert result.out + result.error


def test_the_names_of_tasks_are_shown_as_escapes(store: Path) -> None:
    assert r"x\x1b]0;owned\x07\x9b2J\u202elive" in "".join(ran("inspect", store).out.split("\n"))


def shown_on(use: Callable[[Terminal], object]) -> str:
    out = io.StringIO()
    use(Terminal(file=out, force_terminal=True, width=400, color_system=None))
    return out.getvalue()


def test_a_console_shows_any_text_without_effect() -> None:
    def table(console: Terminal) -> None:
        grid = Table(title=EVIL)
        grid.add_column(EVIL)
        grid.add_row(EVIL)
        console.print(grid)
        console.print(EVIL, markup=False)

    assert raw(shown_on(table)) == set()


def test_live_progress_shows_any_text_without_effect() -> None:
    def live(console: Terminal) -> None:
        cell: Any = SimpleNamespace(name=EVIL)
        status = SweepStatus({EVIL: CellStatus(cell, 2, state="running")}, 1)
        with LiveTable(console) as table:
            for kind in ("failed", "retry", "done"):
                table.observe(status, Event(EVIL, kind, text=EVIL))

    text = shown_on(live)
    assert r"\x1b]0;owned" in text
    assert "\x1b]" not in text
    assert not raw(text) & {"\x07", "\x9b", "\u202e", "\u2066", "\x7f"}


def test_a_table_of_a_command_shows_markup_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name",), [("[bold]x[/bold]\nsecond line",)])
    assert r"[bold]x[/bold]\nsecond line" in capsys.readouterr().out


def test_tracebacks_and_warnings_of_the_command_are_printable(tmp_path: Path) -> None:
    code = (
        "import warnings, halrp.cli, halrp.cli.app as module\n"
        "def app(prog_name):\n"
        f"    warnings.warn({EVIL!r})\n"
        f"    raise RuntimeError({EVIL!r})\n"
        "module.app = app\n"
        "halrp.cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", cwd=tmp_path)
    assert done.returncode == 1
    assert "UserWarning: x" in done.stderr
    assert "RuntimeError: x" in done.stderr
    assert raw(done.stderr) == set()


PRINTS = {("terminal.py",), ("cli", "__init__.py")}
"""Where text may be printed: everything else goes through `halrp.terminal`."""


PRINTING = (
    *("print", "rich.print", "Console", "typer.echo", "typer.secho", "click.echo", "click.secho"),
    *("sys.stdout.write", "sys.stderr.write"),
)


def test_nothing_is_printed_past_the_terminal() -> None:
    root = Path(halrp.__file__).parent
    wrong = []
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts in PRINTS:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in PRINTING:
                    wrong.append(f"{path.relative_to(root)}:{node.lineno} calls {called}; use halrp.terminal")
    assert wrong == []
