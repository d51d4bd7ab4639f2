"""The paper's numbers under our names."""

from __future__ import annotations

import json
import tomllib
from importlib import resources
from typing import Any

import pytest

from halrp.lab import backbones, methods, presets, streams
from halrp.lab.report import paper

RAW: dict[str, Any] = json.loads((resources.files("halrp.lab") / "reference" / "paper_results.json").read_text("utf-8"))


def test_every_row_of_the_facts_is_there_once_with_its_own_numbers() -> None:
    rows = {
        (row["dataset"], row["backbone"], row["data_fraction"], row["method"]): (
            row["accuracy"],
            row["std"],
            row["mopd"],
            row["aopd"],
        )
        for row in RAW["records"]
    }
    datasets = {ours: theirs for theirs, ours in paper.STREAMS.items()}
    networks = {ours: theirs for theirs, ours in paper.BACKBONES.items()}
    printed = {
        (datasets[row.benchmark.stream], networks[row.benchmark.backbone], row.benchmark.fraction, row.method): (
            row.accuracy,
            row.std,
            row.mopd,
            row.aopd,
        )
        for row in paper.printed()
        if row.table != "4"
    }
    assert printed == rows
    assert len(paper.printed()) == len(rows) + len(RAW["iru_table"]) == 234 + 9


def test_our_names_exist() -> None:
    assert set(paper.STREAMS.values()) <= set(streams.STREAMS)
    assert set(paper.BACKBONES.values()) <= set(backbones.BACKBONES)
    assert set(paper.NAMES) <= set(methods.METHODS)
    assert {name for row in paper.ablation() for name in row.ours} <= set(methods.METHODS)
    assert all(row.ours for row in paper.printed()), "every method of the paper is one of ours"


@pytest.mark.parametrize(
    ("where", "method", "accuracy", "std", "mopd", "aopd"),
    [
        (("cifar100-split", "lenet", 0.05), "stl", 45.13, 0.04, 1.96, 1.38),
        (("five", "resnet18", 1.0), "halrp-paper", 93.39, 0.3, 4.39, 1.27),
        (("omniglot-rotation", "lenet-large", 1.0), "apdfix", 78.14, 0.12, 6.53, 2.63),
        (("tinyimagenet-40", "alexnet", 1.0), "prd", 53.54, 0.45, 19.74, 10.02),
        (("pmnist", "lenet", 1.0), "ibpwf", 78.12, 0.83, 12.69, 6.65),
        (("pmnist-20", "mlp", 1.0), "mtl", 96.8, None, None, None),
        (("cifar100-20", "resnet18", 1.0), "iru", 68.46, 2.52, None, None),
    ],
)
def test_lookup(
    where: tuple[str, str, float],
    method: str,
    accuracy: float,
    std: float | None,
    mopd: float | None,
    aopd: float | None,
) -> None:
    row = paper.lookup(*where, method)
    assert row is not None
    assert (row.accuracy, row.std, row.mopd, row.aopd) == (accuracy, std, mopd, aopd)


def test_three_of_ours_are_compared_with_halrp() -> None:
    where = ("cifar100-superclass", "lenet", 0.25)
    (row,) = {paper.lookup(*where, f"halrp-{name}") for name in ("budget", "official", "paper")}
    assert row is not None
    assert row.method == "HALRP"
    assert row.ours == ("halrp", "halrp-budget", "halrp-official", "halrp-paper")


def test_a_fraction_is_found_however_it_was_computed() -> None:
    assert paper.lookup("cifar100-split", "lenet", 0.1 * 0.5, "stl") is not None
    assert paper.lookup("cifar100-split", "lenet", 0.1 + 0.15, "stl") is not None
    assert paper.lookup("cifar100-split", "lenet", 0.06, "stl") is None


@pytest.mark.parametrize("stream", ["five@subset", "omniglot-rotation@drawings", "tinyimagenet-20@swapped", "digits"])
def test_other_benchmarks_are_compared_with_nothing(stream: str) -> None:
    plain = stream.partition("@")[0]
    for backbone in backbones.BACKBONES:
        assert paper.lookup(stream, backbone, 1.0, "stl") is None
    assert plain == "digits" or any(paper.lookup(plain, backbone, 1.0, "stl") for backbone in backbones.BACKBONES)


def test_methods_that_the_paper_does_not_print_are_compared_with_nothing() -> None:
    for method in ("finetune", "lrp", "scales", "iru", "nonsense"):
        assert paper.lookup("cifar100-split", "lenet", 0.05, method) is None


def test_benchmarks_are_in_the_papers_order() -> None:
    benchmarks = paper.benchmarks()
    assert benchmarks[:2] == (("cifar100-split", "lenet", 0.05), ("cifar100-split", "lenet", 0.25))
    assert benchmarks[8:11] == (("pmnist", "lenet", 1.0), ("five", "alexnet", 1.0), ("five", "resnet18", 1.0))
    assert len(benchmarks) == len(set(benchmarks)) == 19
    assert [row.method for row in paper.at(paper.Benchmark("pmnist", "lenet", 1.0))][-2:] == ["HALRP", "IBPWF"]


def test_the_ablation_and_the_comparison_with_iru() -> None:
    assert [(row.alpha, row.n_r, row.accuracy, row.std, row.size) for row in paper.ablation()] == [
        (row["alpha"], row["n_r"], row["accuracy"], row["std"], row["relative_size"]) for row in RAW["ablation_table"]
    ]
    assert [row.ours for row in paper.ablation()][-2:] == [("lrp",), ("random-lrp",)]
    quoted = {row["table"] for row in RAW["iru_table"]}
    rows = [row for row in paper.printed() if row.table in quoted]
    assert [(row.accuracy, row.std) for row in rows] == [(row["accuracy"], row["std"]) for row in RAW["iru_table"]]
    assert [row.note for row in rows if row.method == "HALRP"] == ["", "", ""]
    assert {row.note for row in rows if row.method != "HALRP"} == {"quoted from the IRU paper"}


@pytest.mark.parametrize(
    "name",
    [
        *("cifar100-split", "cifar100-superclass", "pmnist", "five-alexnet", "five-resnet18", "omniglot-rotation"),
        *(f"tinyimagenet-{tasks}-{net}" for tasks in (20, 40) for net in ("alexnet", "resnet18")),
    ],
)
def test_the_schedules_are_those_of_the_presets(name: str) -> None:
    preset = tomllib.loads(presets.text(name))
    recipe = preset["recipe"]
    assert paper.schedule(preset["stream"], preset["backbone"]) == (recipe["epochs"], recipe["lr"], recipe["batch"])


def test_there_is_no_schedule_where_the_paper_does_not_document_it() -> None:
    assert paper.schedule("pmnist-20", "mlp") is None
    assert paper.schedule("cifar100-split", "alexnet") is None
