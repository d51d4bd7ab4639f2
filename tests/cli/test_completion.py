"""What the shell offers after TAB: every command and option, names of the laboratory and of a store, and no danger."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from halrp.cli.app import app
from halrp.cli.completion import offered
from halrp.lab import registry
from halrp.store.manifest import Manifest, entry_of
from tests.commands import every_command

COMMANDS = every_command(app)


def after(line: str, **environment: str) -> list[str]:
    """What bash is offered for the last word of a line."""
    words = line.split(" ")
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_HALRP_COMPLETE": "complete_bash"}
    return CliRunner().invoke(app, env=asked | environment, prog_name="halrp").stdout.split()


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_and_its_options_are_offered(path: tuple[str, ...]) -> None:
    assert path[-1] in after(" ".join(("halrp", *path[:-1], path[-1][:2])))
    options = {name for p in COMMANDS[path].params for name in p.opts if name.startswith("--")}
    assert options <= {*after(" ".join(("halrp", *path, "--")))}


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("halrp methods halrp-b", ["halrp-budget"]),
        ("halrp run --method ew", ["ewc"]),
        ("halrp run -s pmnist-", ["pmnist-20"]),
        ("halrp run --backbone lenet", ["lenet", "lenet-large"]),
        ("halrp sweep pmnist-", ["pmnist-5"]),
        ("halrp presets pmnist-", ["pmnist-5"]),
        ("halrp data get cifar1", ["cifar100", "cifar10"]),
        ("halrp data show omniglot-rotation@d", ["omniglot-rotation@drawings"]),
        ("halrp tables --table paper-o", ["paper-orders"]),
        ("halrp inspect nowhere ", []),
    ],
)
def test_names_of_the_laboratory_are_offered(line: str, names: list[str]) -> None:
    assert after(line) == names


def test_tasks_of_the_store_are_offered_if_they_mean_nothing_to_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("birds", "$(touch owned)", "`x`", "a;b")
    tasks = {name: entry_of(f"tasks/{number}", name.encode().ljust(8)) for number, name in enumerate(names)}
    manifest = Manifest("4", False, "0" * 64, entry_of("base", b"the base"), counts_head=False, tasks=tasks)
    monkeypatch.chdir(tmp_path)
    Path("store").mkdir()
    Path("store", "manifest.json").write_bytes(manifest.following(None).content)
    for command in ("inspect", "remove", "rename", "versions", "revert", "drop", "export"):
        assert after(f"halrp {command} store ") == ["birds"], command
    Path("store", "manifest.json").write_text("damaged")
    assert after("halrp inspect store ") == []


def test_nothing_is_offered_that_a_shell_would_act_on() -> None:
    every = [*registry.method_names(), *registry.stream_names(), "a b", "-x", "$x", "x\n", "*", "~", "ü", "a'b"]
    names = offered(every, "")
    assert set(registry.method_names()) | set(registry.stream_names()) == set(names)
    assert [shlex.quote(name) for name in names] == names


def halrp(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "halrp", *arguments], capture_output=True, text=True, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_answer_needs_no_torch() -> None:
    code = (
        "import sys; sys.argv = ['halrp']\n"
        "from halrp.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    asked = {"COMP_WORDS": "halrp run --method ew", "COMP_CWORD": "3", "_HALRP_COMPLETE": "complete_bash"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | asked)
    assert done.stdout.split() == ["ewc", "False"], done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_takes_the_script_and_completes_with_it(tmp_path: Path) -> None:
    script = halrp("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "halrp").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m halrp "$@"\n')
    (folder / "halrp").chmod(0o755)
    line = "COMP_WORDS=(halrp data g); COMP_CWORD=2; _halrp_completion halrp; echo ${COMPREPLY[*]}; complete -p halrp"
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{line}"], capture_output=True, text=True, env=os.environ | {"PATH": path}
    )
    assert done.stdout.splitlines() == ["get", "complete -o default -F _halrp_completion halrp"], done.stderr
