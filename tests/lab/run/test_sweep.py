"""Sweeps: how a file becomes cells, what is refused, and what is chosen."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from halrp.errors import SettingError
from halrp.lab import streams
from halrp.lab.presets import sweep_file
from halrp.lab.run import runner, sweep
from halrp.lab.run.cell import Cell
from tests.lab.run.tiny_cells import BUDGET, STL, cell

GRID = """
about = "an example"
stream = "digits"
backbone = "digits-net"
recipe = { epochs = 2, batch = 32 }
[grid]
order = ["A", "B"]
seed = [0, 1]
[[cells]]
method = "stl"
recipe.lr = 0.01
[[cells]]
method = "ewc"
order = "C"
grid.settings.strength = [10, 100]
"""


def expanded(text: str, **over: Any) -> list[Cell]:
    return sweep.expand(tomllib.loads(text), over)


def test_a_file_has_the_entries_of_a_cell() -> None:
    assert tuple(field.name for field in dataclasses.fields(Cell)) == sweep_file.FIELDS


def test_lists_make_every_combination_and_blocks_are_layers_on_what_stands_at_the_top() -> None:
    cells = expanded(GRID)
    stl = [c for c in cells if c.method == "stl"]
    assert [(c.order, c.seed) for c in stl] == [("A", 0), ("A", 1), ("B", 0), ("B", 1)]
    assert all(c.recipe == {"epochs": 2, "batch": 32, "lr": 0.01} for c in stl)
    ewc = [c for c in cells if c.method == "ewc"]
    assert [(c.order, c.seed, c.settings["strength"]) for c in ewc] == [
        ("C", 0, 10),
        ("C", 0, 100),
        ("C", 1, 10),
        ("C", 1, 100),
    ]
    assert all(c.recipe == {"epochs": 2, "batch": 32} for c in ewc), "a block does not change the others"


def test_a_list_in_a_block_takes_the_place_of_a_value_at_the_top() -> None:
    text = 'stream="digits"\nbackbone="mlp"\nseed=7\n[[cells]]\nmethod="stl"\ngrid.seed=[1,2]\n[[cells]]\nmethod="be"'
    assert [(c.method, c.seed) for c in expanded(text)] == [("stl", 1), ("stl", 2), ("be", 7)]


def test_without_blocks_there_is_one_and_equal_cells_are_run_once() -> None:
    text = 'stream="digits"\nbackbone="mlp"\n[grid]\nmethod=["stl", "be", "stl"]\nrecipe.lr=[0.001, 1e-3]'
    assert [c.method for c in expanded(text)] == ["stl", "be"]


def test_a_last_layer_changes_every_cell() -> None:
    cells = expanded(GRID, order="E", **{"recipe.epochs": 1})
    assert {(c.order, c.recipe["epochs"]) for c in cells} == {("E", 1)}
    assert len(cells) == 2 + 4


def test_a_value_that_follows_the_fraction_is_scaled_by_it() -> None:
    text = 'stream="pmnist"\nbackbone="lenet"\nmethod="stl"\nrecipe.decay_examples="4000 * fraction"\n'
    assert [c.recipe["decay_examples"] for c in expanded(text + "[grid]\nfraction=[1.0, 0.05, 0.0003]")] == [
        4000,
        200,
        1.2,
    ]
    assert expanded(text, fraction=0.5)[0].recipe["decay_examples"] == 2000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('stream = "digits"|strem = "digits"', "no entry of the sweep is called 'strem'; the nearest name is 'stream'"),
        ("order =|ordr =", "called 'ordr'; the nearest name is 'order'"),
        ("recipe.lr =|recipe.lrr =", r"\[\[cells\]\] block 1: no setting of a recipe is called 'lrr'.*'lr'"),
        ("grid.settings.strength|grid.settings.strenght", r"block 2: no setting of method 'ewc'.*'strength'"),
        ('method = "ewc"|method = "ewcc"', r"block 2: no method is called 'ewcc'; the nearest name is 'ewc'"),
        ('method = "ewc"|', r"block 2: a cell needs a method"),
        ('order = ["A", "B"]|order = "A"', r"grid.order='A' is not a list of values"),
        ("seed = [0, 1]|seed = []", r"grid.seed=\[\] is not a list of values"),
        ('order = "C"|grid.order = ["C"]\norder = "C"', "order has a value and a list"),
        ("recipe = {|seed = -1\nrecipe = {", "grid|seed=-1"),
        ("recipe.lr = 0.01|settings = 3", "settings=3 is not a table"),
        ("recipe = { epochs = 2,|recipe = { epochs = 0,", r"Recipe\(epochs=0\)"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name_before_anything_runs(change: str, message: str) -> None:
    old, _, new = change.partition("|")
    assert old in GRID
    with pytest.raises(SettingError, match=message):
        expanded(GRID.replace(old, new))


def test_a_last_layer_names_its_places() -> None:
    with pytest.raises(SettingError, match=r"write recipe\.name=value"):
        expanded(GRID, recipe=3)
    with pytest.raises(SettingError, match="nearest name is 'order'"):
        expanded(GRID, odrer="A")


def test_files_are_read_and_what_is_no_sweep_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GRID)
    assert sweep.read(path) == ("mine.toml", tomllib.loads(GRID))
    path.write_text("order = [")
    with pytest.raises(SettingError, match=r"mine\.toml is not TOML"):
        sweep.read(path)
    with pytest.raises(SettingError, match=r"none\.toml cannot be read: .* is missing or not a file"):
        sweep.read(tmp_path / "none.toml")
    with pytest.raises(SettingError, match="no preset is called 'cifar100-splt'; the nearest name is 'cifar100-split'"):
        sweep.read("cifar100-splt")


def test_a_file_that_starts_from_another_has_its_entries_where_it_has_none_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(GRID)
    (tmp_path / "two.toml").write_text('from = "one.toml"\nrecipe.epochs = 3\norder = "D"\ngrid.fraction = [0.5, 1.0]')
    cells = sweep.expand(sweep.read(tmp_path / "two.toml")[1])
    stl = [(c.order, c.seed, c.fraction, c.recipe) for c in cells if c.method == "stl"]
    recipe = {"epochs": 3, "batch": 32, "lr": 0.01}
    assert stl == [("D", seed, share, recipe) for seed in (0, 1) for share in (0.5, 1.0)]
    assert {c.order for c in cells if c.method == "ewc"} == {"C"}, "a block of the origin is above both files"
    (tmp_path / "three.toml").write_text('from = "two.toml"\ngrid.order = ["E"]\n[[cells]]\nmethod = "be"')
    cells = sweep.expand(sweep.read(tmp_path / "three.toml")[1])
    assert {(c.method, c.order) for c in cells} == {("be", "E")}
    assert len(cells) == 4


def test_a_file_may_include_the_cells_of_others(tmp_path: Path) -> None:
    text = 'about = "two"\ninclude = ["pmnist", "five-alexnet"]'
    cells = expanded(text, order="A", seed=0)
    assert len(cells) == 38
    assert {c.stream for c in cells} == {"pmnist", "five"}
    with pytest.raises(SettingError, match="recipe beside include"):
        expanded(text + "\nrecipe.epochs = 3")
    with pytest.raises(SettingError, match="not a list of presets or files"):
        expanded('include = "pmnist"')
    with pytest.raises(SettingError, match="paper includes others itself"):
        expanded('include = ["paper"]')


def test_files_that_start_from_themselves_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text('from = "two.toml"')
    (tmp_path / "two.toml").write_text('from = "one.toml"')
    with pytest.raises(SettingError, match="leads back to itself"):
        sweep.read(tmp_path / "one.toml")
    (tmp_path / "one.toml").write_text("from = 3")
    with pytest.raises(SettingError, match="from=3 is not the name"):
        sweep.read(tmp_path / "one.toml")
    (tmp_path / "one.toml").write_text('from = "paper"')
    with pytest.raises(SettingError, match="from and include do not go together"):
        sweep.read(tmp_path / "one.toml")


def test_only_keeps_cells_by_any_of_their_entries_defaults_included() -> None:
    cells = expanded(GRID)
    assert [c.seed for c in sweep.only(cells, {"method": "stl", "order": "B"})] == [0, 1]
    assert len(sweep.only(cells, {"order": "A,C", "seed": "1"})) == 3
    assert [c.method for c in sweep.only(cells, {"settings.strength": "10", "seed": "0"})] == ["ewc"]
    assert len(sweep.only(cells, {"recipe.lr": "0.001"})) == 4, "the default of the recipe"
    with pytest.raises(SettingError, match="no cell has order=D; here it is A, B, C"):
        sweep.only(cells, {"order": "D"})
    with pytest.raises(SettingError, match="nearest name is 'method'"):
        sweep.only(cells, {"metod": "stl"})


def test_values_are_read_as_typed() -> None:
    texts = ("3", "1e-3", "true", "A", "[1, 2]", "none", "first-0", '"5"')
    assert [sweep.value_of(text) for text in texts] == [3, 1e-3, True, "A", [1, 2], None, "first-0", "5"]
    assert sweep.pairs(["a=1", "b=x=y"], "--set") == {"a": "1", "b": "x=y"}
    with pytest.raises(SettingError, match="--set 'a' is not of the form key=value"):
        sweep.pairs(["a"], "--set")


def test_cells_are_held_against_the_data_before_they_run() -> None:
    result = sweep.prepare([BUDGET, cell("stl", tasks=None)])
    assert [c.name for c in result.cells] == list(result.tasks)
    assert list(result.tasks.values()) == [3, 10]
    assert result.notes == []
    with pytest.raises(SettingError, match="no order of stream 'digits' is called 'Z'"):
        sweep.prepare([cell("stl", order="Z")])
    with pytest.raises(SettingError, match="tasks=11 of a cell: the stream 'digits' has 10"):
        sweep.prepare([cell("stl", tasks=11)])
    with pytest.raises(SettingError, match="backbone 'alexnet' cannot be built for images of shape"):
        sweep.prepare([cell("stl", backbone="alexnet")])


def test_cells_on_part_of_the_data_get_the_name_of_the_subset(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    whole = streams.load("digits")
    monkeypatch.setattr(streams, "load", lambda *_: dataclasses.replace(whole, name="digits@subset"))
    result = sweep.prepare([BUDGET])
    assert [c.stream for c in result.cells] == ["digits@subset"]
    assert result.notes == ["the data of 'digits' are incomplete: it runs, and is recorded, as 'digits@subset'"]


def test_missing_data_are_an_error_here_and_left_to_workers_elsewhere(tmp_path: Path) -> None:
    far = cell("stl", stream="five", backbone="resnet18")
    with pytest.raises(streams.DataMissing):
        sweep.prepare([far], tmp_path)
    result = sweep.prepare([far], tmp_path, elsewhere=True)
    assert result.cells == [far]
    assert result.tasks == {}


def test_unfinished_cells_are_found_by_what_they_left(tmp_path: Path) -> None:
    class Enough(Exception):  # noqa: N818
        pass

    def stop(row: dict[str, Any]) -> None:
        if row["position"] == 1:
            raise Enough

    with pytest.raises(Enough):
        runner.execute(STL, tmp_path, on_row=stop)
    (tmp_path / f"foreign{runner.UNFINISHED}").write_bytes(b"something else")
    cells, wrong = sweep.unfinished(tmp_path)
    assert [c.name for c in cells] == [STL.name]
    assert list(wrong) == [f"foreign{runner.UNFINISHED}"]


def test_a_results_folder_that_cannot_be_is_refused_and_nothing_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="is a file"):
        sweep.check_folder(tmp_path / "file" / "results")
    sweep.check_folder(tmp_path / "a" / "b")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_key_that_is_given_twice_is_an_error_that_says_how_to_give_both() -> None:
    with pytest.raises(SettingError, match="write method=l2,ewc"):
        sweep.pairs(["method=l2", "method=ewc"], "--only")


def test_a_last_layer_may_change_a_setting_that_only_some_methods_have() -> None:
    cells = sweep.expand(tomllib.loads(GRID), {"settings.redraw": True}, only_methods=["stl"])
    assert {(c.method, c.settings["redraw"]) for c in cells} == {("stl", True)}
