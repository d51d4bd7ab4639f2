"""The presets against the paper's table of hyper-parameters and the authors' scripts."""

from collections import Counter
from typing import Any

import pytest

from halrp import explain
from halrp.errors import SettingError
from halrp.lab import backbones, methods, presets, registry
from halrp.lab.run import sweep
from halrp.lab.run.cell import Cell

COLUMNS = [
    "stream",
    "backbone",
    "tasks",
    "epochs",
    "warm_up",
    "rate",
    "lr",
    "l1",
    "l2",
    "batch",
    "cap",
    "growth",
    "validation",
]
TABLE = {
    "cifar100-split": ("cifar100-split", "lenet", 10, 20, 1, 0.9, 1e-3, 1e-4, 1e-4, 128, 100, 0.2, 0.2),
    "cifar100-superclass": ("cifar100-superclass", "lenet", 20, 20, 1, 0.9, 1e-3, 1e-4, 1e-4, 128, 100, 0.2, 0.2),
    "pmnist": ("pmnist", "lenet", 10, 12, 1, 0.9, 1e-3, 1e-6, 1e-3, 128, 100, 0.6, 0.2),
    "five-alexnet": ("five", "alexnet", 5, 12, 1, 0.9, 1e-3, 1e-6, 1e-4, 128, 100, 0.6, 0.2),
    "five-resnet18": ("five", "resnet18", 5, 12, 3, 0.95, 1e-3, 1e-6, 1e-4, 128, 120, 0.6, 0.2),
    "omniglot-rotation": ("omniglot-rotation", "lenet-large", 100, 20, 1, 0.99, 5e-3, 9e-5, 1e-4, 16, 100, 0.6, 0.2),
    "tinyimagenet-40-alexnet": ("tinyimagenet-40", "alexnet", 40, 50, 20, 0.9, 1e-3, 5e-4, 1e-4, 32, 100, 0.6, 0.1),
    "tinyimagenet-40-resnet18": ("tinyimagenet-40", "resnet18", 40, 50, 25, 0.9, 5e-4, 5e-4, 1e-4, 32, 100, 0.6, 0.1),
    "tinyimagenet-20-alexnet": ("tinyimagenet-20", "alexnet", 20, 50, 25, 0.9, 1e-3, 1e-5, 5e-4, 32, 100, 0.6, 0.1),
    "tinyimagenet-20-resnet18": ("tinyimagenet-20", "resnet18", 20, 50, 25, 0.9, 5e-4, 5e-4, 1e-4, 32, 100, 0.6, 0.1),
}
CLASSES = {"omniglot-rotation": 12, "cifar100-superclass": 5, "tinyimagenet-40": 5}
BASELINES = ["stl", "mtl", "finetune", "l2", "ewc", "bn", "be"]
ABLATIONS = {"scales", "halrp-whitened"}
NEED_BASE = {name for name, entry in registry.METHODS.items() if entry.needs_base}
NINE = ["apd", "apdfix", "ibpwf", "gpm", "wsn", "bmkp", "clr", "prd", "iru"]


def cells_of(name: str, **over: Any) -> list[Cell]:
    return sweep.expand(sweep.read(name)[1], over, name)


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_begins_with_its_command_says_what_it_is_and_has_cells(name: str) -> None:
    assert presets.text(name).startswith(f"# halrp sweep {name}\n")
    assert presets.about(name)
    assert cells_of(name)


@pytest.mark.parametrize("name", TABLE)
def test_the_papers_hyper_parameters(name: str) -> None:
    row = dict(zip(COLUMNS, TABLE[name], strict=True))
    for cell in cells_of(name):
        settings, recipe = methods.settings_of(cell.method, cell.settings), cell.make_recipe()
        assert (cell.stream, cell.backbone, cell.fraction) == (row["stream"], row["backbone"], 1.0)
        assert (recipe.epochs, recipe.lr, recipe.batch) == (row["epochs"], row["lr"], row["batch"])
        assert (recipe.optimiser, recipe.schedule, recipe.decay) == ("adam", "exponential", 0.95)
        if cell.method not in ("ibpwf", "prd", "iru"):
            assert settings["l2"] == row["l2"], "shared with the baselines"
        if cell.method.startswith("halrp"):
            assert (settings["l1"], settings["warm_up"]) == (row["l1"], row["warm_up"])
        if cell.method == "halrp-official":
            assert (settings["rate"], settings["cap"], settings["growth"]) == (row["rate"], row["cap"], row["growth"])
        if cell.method == "stl":
            assert settings["redraw"] is True


@pytest.mark.parametrize("name", TABLE)
def test_the_protocol_of_the_released_code(name: str) -> None:
    tasks, validation = TABLE[name][2], TABLE[name][-1]
    cifar = name.startswith("cifar100")
    assert isinstance(tasks, int)
    assert isinstance(validation, float)
    for share in (1.0, 0.25):
        for cell in cells_of(name, fraction=share):
            recipe, official = cell.make_recipe(), cell.method == "halrp-official"
            assert recipe.gradient_scale == (10 if official else 1)
            assert recipe.shuffle is not (official and cifar), "the loader for CIFAR alone does not shuffle"
            assert recipe.drop_last is (cell.stream in ("pmnist", "five"))
            each = 50000 / (1 if cell.method == "mtl" else tasks) * share * (1 - validation)
            # On CIFAR this is the number of a task's own examples, which None means.
            assert recipe.decay_examples == (None if cifar else pytest.approx(each))


@pytest.mark.parametrize("name", TABLE)
def test_a_benchmark_has_the_papers_orders_and_repeats_for_every_method(name: str) -> None:
    repeats = 3 if name.startswith("tinyimagenet") else 5
    cells = cells_of(name)
    more = ["halrp-paper", "lrp", "random-lrp"] if name == "cifar100-split" else []
    wanted = ["halrp-official", "halrp-budget", "halrp", *BASELINES, *NINE, *more]
    assert Counter(c.method for c in cells) == dict.fromkeys(wanted, 5 * repeats)
    assert {c.order for c in cells} == set("ABCDE")
    assert {c.seed for c in cells} == set(range(repeats))


@pytest.mark.parametrize("name", TABLE)
def test_the_budget_is_the_papers_growth_shared_by_later_tasks_and_not_too_small(name: str) -> None:
    row = dict(zip(COLUMNS, TABLE[name], strict=True))
    cell = sweep.expand(sweep.read(name)[1], name=name, only_methods=["halrp-budget"])[0]
    growth = cell.settings["growth_per_task"]
    if name == "cifar100-split":
        assert growth == pytest.approx(0.234 / 9)
    elif name == "tinyimagenet-40-resnet18":
        assert growth > 0.6 / 39, "which is less than a task needs"
    else:
        assert growth == pytest.approx(float(str(row["growth"])) / (int(str(row["tasks"])) - 1), rel=1e-3)
    if cell.backbone == "alexnet":
        return  # slow to build, and so large that its budget is many times what a task needs
    channels = 1 if cell.stream.startswith("omniglot") else 3
    pixels = 64 if cell.stream.startswith("tiny") else 32
    classes = CLASSES.get(cell.stream, 10)
    model = backbones.build(cell.backbone, classes, shape=(channels, pixels, pixels))
    explained = explain(model, "head", base="first")
    owned = sum(row.parameters for row in explained.rows if row.kind == "owned")
    scales = sum(sum((row.shape or ())[:2]) for row in explained.rows if row.kind == "adapted")
    assert growth * explained.parameters > 1.02 * (owned + scales)


def test_the_sweep_on_five_percent_has_every_method_in_five_orders() -> None:
    cells = cells_of("cifar100-split-5")
    assert Counter(c.method for c in cells) == dict.fromkeys(methods.METHODS.keys() - ABLATIONS - NEED_BASE, 5), (
        "a new method is here too"
    )
    assert {(c.stream, c.backbone, c.fraction, c.seed) for c in cells} == {("cifar100-split", "lenet", 0.05, 0)}
    assert {c.order for c in cells} == set("ABCDE")


def test_the_sweep_of_all_orders_puts_each_task_first_once() -> None:
    cells = cells_of("cifar100-split-orders")
    assert Counter(c.method for c in cells) == {"halrp-budget": 10, "be": 10, "stl": 10}
    assert {c.order for c in cells} == {f"first-{task}" for task in range(10)}
    assert all(c.settings["redraw"] for c in cells if c.method == "stl")


def test_the_sweep_of_penalties() -> None:
    strengths = {
        m: [c.settings["strength"] for c in cells_of("penalties-cifar100-split") if c.method == m]
        for m in ("l2", "ewc")
    }
    # Every strength that was asked for; the grid may reach further.
    assert set(strengths["l2"]) >= {1e-4, 1e-3, 1e-2, 1e-1, 1, 10}
    assert set(strengths["ewc"]) >= {10, 1e2, 1e3, 1e4, 1e5}


def test_the_sweep_of_the_paper_has_every_cell_of_its_tables() -> None:
    cells = cells_of("paper")
    assert {(c.stream, c.backbone) for c in cells} >= {(row[0], row[1]) for row in TABLE.values()}
    shares = {c.fraction for c in cells if c.stream == "cifar100-superclass" and c.method == "wsn"}
    assert shares == {0.05, 0.25, 0.5, 1.0}
    assert {c.settings["warm_up"] for c in cells if c.method == "halrp-official" and c.stream == "cifar100-split"
            and "warm_up" in c.settings} == {2, 3, 4}  # fmt: skip
    assert {c.method for c in cells if c.stream == "pmnist-20"} == {"halrp-budget", "iru", "mtl", "stl"}


def test_an_unknown_preset_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SettingError, match="no preset is called 'five-alexnt'; the nearest name is 'five-alexnet'"):
        presets.text("five-alexnt")
