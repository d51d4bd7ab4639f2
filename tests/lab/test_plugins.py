"""A user's own method, stream and backbone, found without a change to the package: by reference and by entry point."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from halrp.cli.app import app
from halrp.errors import SettingError
from halrp.lab import backbones, registry, streams
from halrp.lab.run import runner
from halrp.lab.run.cell import Cell
from tests.commands import invoke
from tests.lab.page_content import page_content
from tests.lab.plugin_module import MODULE

SWEEP = """
stream = "experiments:load"
backbone = "experiments:Net"
recipe = { epochs = 2, batch = 16 }
[[cells]]
method = "experiments:Mine"
grid.settings.boldness = [0.5, 0.75]
[[cells]]
method = "experiments:composed"
[[cells]]
method = "stl"
"""
POINTS = """
[halrp.methods]
mine = experiments:Mine
ewc = experiments:Mine
[halrp.streams]
clicks = experiments:load
[halrp.backbones]
small = experiments:Net
"""
REFERENCES = {"method": "experiments:Mine", "stream": "experiments:load", "backbone": "experiments:Net"}
INSTALLED = {"method": "mine", "stream": "clicks", "backbone": "small"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder: a module, and a package's entry points that name it."""
    (tmp_path / "experiments.py").write_text(MODULE)
    information = tmp_path / "experiments-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: experiments\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(POINTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    registry.installed.cache_clear()
    yield tmp_path
    registry.installed.cache_clear()
    sys.modules.pop("experiments", None)


def halrp(*arguments: str) -> str:
    """Run the command in a process of its own, where only the current folder leads to the module."""
    run = subprocess.run([sys.executable, "-m", "halrp", *arguments], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


def here(*arguments: str) -> str:
    """Run the command in this process, which is faster."""
    run = invoke(app, *arguments)
    assert run.code == 0, run.error
    return run.out


def test_a_sweep_in_two_processes_learns_with_a_users_method_on_a_users_stream_and_the_report_shows_it(
    folder: Path,
) -> None:
    (folder / "sweep.toml").write_text(SWEEP)
    assert "4 of 4 cells done" in halrp("sweep", "sweep.toml", "--jobs", "2", "--results", "out")
    assert "4 cells, 0 to run" in here("sweep", "sweep.toml", "--dry-run", "--results", "out")
    records = [runner.read(path) for path in sorted((folder / "out").glob("*.json"))]
    assert {record["cell"]["stream"] for record in records} == {"experiments:load"}
    assert {record["method"]["title"] for record in records} == {"my method", "composed", "separate networks"}
    assert all(path.name.replace(".", "").replace("-", "").isalnum() for path in (folder / "out").glob("*.json"))

    (folder / "experiments.py").unlink()  # records hold all that the report needs
    sys.modules.pop("experiments", None)
    shown = here("results", "out")
    assert "experiments:load, experiments:Net" in shown
    assert "my method" in shown
    assert "experiments:Mine" in shown
    assert "boldness=0.75" in shown
    here("report", "out", "-o", "report.html")
    page = page_content(folder / "report.html")
    assert "my method (experiments:Mine)" in page, "in the table of runs"
    assert "my method (boldness=0.75)" in page, "in figures"
    assert registry.colour_of("experiments:Mine") in page


@pytest.mark.parametrize("names", [REFERENCES, INSTALLED], ids=["references", "entry points"])
def test_a_run_takes_references_and_names_of_installed_packages(folder: Path, names: dict[str, str]) -> None:
    options = [text for kind, name in names.items() for text in (f"--{kind}", name)]
    common = ["--epochs", "1", "--results", "out", "--set", "boldness=0.75"]
    assert "task 3 of 3" in halrp("run", *options, *common)
    [path] = (folder / "out").glob("*.json")
    record = json.loads(path.read_text())
    assert {kind: record["cell"][kind] for kind in names} == names
    assert record["resolved"]["settings"] == {"boldness": 0.75}


def test_entries_of_foreign_code_have_its_title_and_first_sentence(folder: Path) -> None:
    entry = registry.method("experiments:Mine")
    assert (entry.title, entry.description) == ("my method", "Fine-tuning, but mine.")
    assert entry.settings() == {"boldness": 0.5}
    assert registry.method("mine").title == "my method"
    assert registry.stream("experiments:load").title == "load"
    assert registry.stream("clicks").title == "clicks"
    assert registry.method("ewc") is registry.METHODS["ewc"], "a name of the registry wins"
    assert registry.method_names() == [*registry.METHODS, "mine"]
    assert registry.stream_names()[-1] == "clicks"
    assert "mine" in here("methods")
    assert "boldness" in here("methods", "experiments:Mine")
    assert "clicks" in here("streams")


def test_a_stream_is_called_as_it_was_asked_for(folder: Path) -> None:
    assert streams.load("experiments:load").name == "experiments:load"
    assert streams.load("clicks", order="B").name == "clicks"
    assert streams.identities("clicks", "B") is None, "only the data can tell"


def test_a_backbone_gets_what_it_takes_of_an_images_shape(folder: Path) -> None:
    network = backbones.build("experiments:Net", classes=3, shape=(1, 4, 6), width=5)
    assert [tuple(p.shape) for p in network.parameters()] == [(5, 24), (5,), (3, 5), (3,)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "experiments:None_"}, "experiments has no 'None_'"),
        ({"method": "no_experiments:Mine"}, "no module named 'no_experiments'"),
        ({"method": "experiments:Mine()"}, "is not of the form package.module:attribute"),
        ({"method": "experiments:NoMethod"}, "is a NoMethod; it must derive from halrp.lab.methods.Method"),
        ({"method": "experiments:no_stream"}, "needs a value for order, seed, fraction, data"),
        ({"method": "experiments:needs"}, "is a int; it must be a class or a function"),
        ({"method": "experiments:Mine", "settings": {"bold": 1}}, "the nearest name is 'boldness'"),
        ({"backbone": "experiments:needs"}, "is a int; it must be a class or a function"),
        ({"stream": "experiments:nothing"}, "experiments has no 'nothing'"),
        ({"stream": "experiments:load@swapped"}, "no stream is called 'experiments:load@swapped'"),
    ],
)
def test_what_is_not_a_method_stream_or_backbone_is_refused(
    folder: Path, change: dict[str, object], words: str
) -> None:
    with pytest.raises(SettingError) as refusal:
        Cell.of({"method": "stl", "stream": "experiments:load", "backbone": "experiments:Net"} | change)
    assert words in str(refusal.value)


def test_what_foreign_code_returns_is_checked(folder: Path) -> None:
    with pytest.raises(SettingError, match="returns a list; it must return a Stream"):
        streams.load("experiments:no_stream")
    with pytest.raises(SettingError, match=r"Linear has no nn\.Linear called head"):
        backbones.build("experiments:headless", classes=3)
    with pytest.raises(SettingError, match=r"gives a str; it must return an nn\.Module"):
        backbones.build("experiments:no_network", classes=3)


def test_file_names_of_cells_are_safe_and_those_of_long_references_short(folder: Path) -> None:
    cell = Cell("experiments:Mine", "experiments:load", "experiments:Net")
    assert cell.name.startswith("experiments.load-experiments.Net-100-experiments.Mine-A0-")
    package = ".".join(["a_long_name_of_a_package"] * 12)
    (folder / Path(*package.split(".")[:-1])).mkdir(parents=True)
    (folder / Path(*package.split(".")).with_suffix(".py")).write_text(MODULE)
    long = Cell(f"{package}:Mine", f"{package}:load", f"{package}:Net")
    assert len(long.name) < 230
    assert long.name != Cell(f"{package}:Mine", f"{package}:load", f"{package}:Net", seed=1).name
