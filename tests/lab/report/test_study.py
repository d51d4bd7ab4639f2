"""The frames of a report: labels, variants of settings and representatives."""

from __future__ import annotations

import math
from typing import Any

import pytest

from halrp.lab.records.frames import Frame
from halrp.lab.report import figures_ablation, figures_accuracy, figures_size, figures_time
from halrp.lab.report.shapes import rounded, significant
from halrp.lab.report.study import Study, stream_title
from tests.lab.made_records import groups_of, older, parsed
from tests.lab.report.made import steady, with_facts
from tests.timing import calls_of


def study(*records: dict[str, Any]) -> Study:
    return Study.of(parsed(records))


def labels(*records: dict[str, Any]) -> list[str]:
    return [*study(*records).setups]


def only_setup(*records: dict[str, Any]) -> Frame:
    [groups] = study(*records).setups.values()
    return groups


def test_a_setup_is_named_by_stream_backbone_and_share() -> None:
    record = steady(0.5, stream="cifar100-split", backbone="lenet", fraction=0.25)
    assert labels(record) == ["CIFAR100-Split · LeNet · 25 %"]


def test_custom_streams_and_backbones_keep_their_names() -> None:
    assert labels(steady(0.5, stream="mine", backbone="net")) == ["mine · net · 100 %"]
    assert stream_title("tinyimagenet-20@swapped") == "TinyImageNet-20 (swapped)"
    assert stream_title("tinyimagenet-20@swapped@subset") == "TinyImageNet-20 (swapped, subset)"


def test_labels_are_longer_only_where_setups_would_share_one() -> None:
    records = [steady(0.5), steady(0.5, recipe={"epochs": 1}), steady(0.5, tasks=1), steady(0.5, stream="pmnist")]
    assert sorted(labels(*records)) == [
        "Digits · MLP · 100 % · 1 task · 3 epochs",
        "Digits · MLP · 100 % · 3 tasks · 1 epoch",
        "Digits · MLP · 100 % · 3 tasks · 3 epochs",
        "PMNIST · MLP · 100 %",
    ]
    assert sorted(labels(steady(0.5), steady(0.5, network={"width": 8}))) == [
        "Digits · MLP · 100 %",
        "Digits · MLP · 100 % · width=8",
    ]


def test_an_older_record_without_epochs_has_a_label_that_says_so() -> None:
    record = older(steady(0.5))
    del record["cell"]["recipe"]
    assert "Digits · MLP · 100 % · epochs unknown" in labels(record, steady(0.5))


def test_settings_are_named_only_where_they_distinguish_groups_of_a_method() -> None:
    same = {"growth": 0.4, "rate": 0.9}
    groups = only_setup(
        steady(0.5, method="halrp-paper", settings=same),
        steady(0.5, method="halrp-paper", settings=same | {"rate": 0.5}),
        steady(0.5, method="lrp", settings={"growth": 0.1}),
        steady(0.5, method="stl", recipe={"batch": 8}),
        steady(0.5, method="stl"),
        steady(0.5, method="halrp-budget", settings={"precision": "int8"}),
        steady(0.5, method="halrp-budget"),
    )
    assert {*groups["name"]} == {
        "halrp-paper (rate=0.9)",
        "halrp-paper (rate=0.5)",
        "lrp",
        "stl (batch=8)",
        "stl (batch=128)",
        "halrp-budget (precision=int8)",
        "halrp-budget (defaults)",
    }


def test_a_method_that_is_not_registered_has_groups_too() -> None:
    groups = only_setup(steady(0.5, method="mine", settings={"a": 1}), steady(0.5, method="mine", settings={"a": 2}))
    assert [*groups["name"]] == ["mine (a=1)", "mine (a=2)"]
    assert groups["values"].iloc[0]["a"] == 1


def test_a_method_of_a_user_has_its_title_and_the_reference_where_two_share_one() -> None:
    def titled(method: str, title: str) -> dict[str, Any]:
        return steady(0.5, method=method) | {"method": {"title": title}}

    assert [*only_setup(titled("mine:A", "my method"), titled("stl", "separate networks"))["name"]] == [
        "stl", "my method",
    ]  # fmt: skip
    same = (
        titled("mine:A", "my method"),
        titled("mine:B", "my method"),
        titled("mine:C", "stl"),
        steady(0.5, method="stl"),
    )
    names = ["stl", "my method [mine:A]", "my method [mine:B]", "stl [mine:C]"]
    assert [*only_setup(*same)["name"]] == names


def test_groups_hold_all_orders_and_seeds_and_the_row_of_the_table() -> None:
    records = [steady(0.1 * seed, order=order, seed=seed) for order in "AB" for seed in (1, 2)]
    shown = study(*records)
    assert [*zip(shown.runs["order"], shown.runs["seed"], strict=True)] == [("A", 1), ("A", 2), ("B", 1), ("B", 2)]
    assert [*shown.runs["group"]] == [0, 0, 0, 0]
    [group] = shown.groups.to_dict("records")
    assert group["repeats"] == "4 runs"
    assert group["accuracy"] == groups_of(records)["accuracy"].iloc[0]
    assert group["accuracy"] == pytest.approx(15.0)
    assert math.isnan(group["stl_mopd"])


def test_labels_of_runs_differ() -> None:
    records = [steady(0.5, order=order, seed=seed) for order in ("A", "first-1") for seed in (0, 1)]
    records += [steady(0.5, settings={"precision": "int8"}), steady(0.5, stream="pmnist")]
    runs = study(*records).runs
    assert runs["label"].nunique() == len(records)
    assert "PMNIST · MLP · 100 % · halrp-budget · order A · seed 0" in [*runs["label"]]


def test_the_settings_with_the_most_runs_represent_a_method() -> None:
    often = [steady(0.5, method="l2", settings={"strength": 2.0}, order=order) for order in "ABC"]
    rare = [steady(0.9, method="l2", settings={"strength": s}) for s in (3.0, 4.0)]
    firsts = [steady(0.6, method=m, order=f"first-{k}", settings=s) for k in range(3)
              for m, s in (("l2", {"strength": 2.0}), ("be", {}))]  # fmt: skip
    groups = only_setup(*often, *rare, *firsts)
    chosen = groups[groups["representative"]]
    assert [*zip(chosen["name"], chosen["first_order"], strict=True)] == [("l2 (strength=2)", False), ("be", True)]
    assert [*groups["name"][groups["distinct"]]] == [
        "l2 (strength=2)", "l2 (strength=3)", "l2 (strength=4)", "be",
    ]  # fmt: skip


def test_of_equally_many_runs_those_with_the_settings_of_the_preset_represent_a_method() -> None:
    runs = [steady(0.5, method="wsn", stream="cifar100-split", backbone="lenet", settings=settings)
            for settings in ({"share": 0.1, "l2": 1e-4}, {"share": 0.5, "l2": 1e-4}, {"share": 0.5})]  # fmt: skip
    groups = only_setup(*runs)
    assert [*groups["settings"][groups["representative"]]] == ["l2=0.0001"], "share=0.5 is the default, too"


def test_the_paper_stands_beside_whole_streams_only() -> None:
    def printed(tasks: int, stream: str, method: str = "stl") -> Any:
        record = steady(0.5, tasks, method=method, stream=stream, backbone="lenet", fraction=0.05)
        return only_setup(record)["printed"].iloc[0]

    assert printed(10, "cifar100-split") is not None
    assert printed(10, "cifar100-split", "mine") is None
    assert printed(3, "cifar100-split") is None
    assert printed(10, "cifar100-split@subset") is None
    assert printed(10, "mine") is None


def test_numbers_are_rounded_and_what_is_missing_stays_missing() -> None:
    assert rounded([1.236, None, math.nan, -0.0001]) == (1.24, None, None, 0.0)
    assert math.copysign(1, rounded([-0.0001])[0] or 0.0) == 1
    assert significant([123456.0, 0.0, -1.0, None, math.inf]) == (123500.0, None, None, None, None)


def test_no_records_make_no_figures() -> None:
    nothing = study()
    for module in (figures_accuracy, figures_size, figures_time, figures_ablation):
        assert module.figures(nothing) == ()


def test_work_grows_with_the_number_of_records_not_with_its_square() -> None:
    layers = [f"layer{i}.weight" for i in range(6)]
    facts = {
        "ranks": dict.fromkeys(layers, 7),
        "view": "mean",
        "importance": dict.fromkeys(layers, 0.5),
        "scores": {layer: [1 / (i + 1) for i in range(40)] for layer in layers},
    }
    records = [
        with_facts(steady(0.5, 10, method=method, order=order, seed=seed, settings={"l2": l2}), {}, *[facts] * 9)
        for method in ("halrp-paper", "halrp-official", "lrp", "stl", "mtl", "ewc", "l2", "bn", "be", "finetune")
        for l2 in (1e-3, 1e-4)
        for order in "ABCDE"
        for seed in range(10)
    ]

    def draw(step: int) -> None:
        shown = study(*records[::step])
        for module in (figures_accuracy, figures_size, figures_time, figures_ablation):
            assert module.figures(shown)

    draw(1)
    few, more, most = (calls_of(lambda step=step: draw(step)) for step in (20, 10, 5))  # type: ignore[misc]
    assert most - more < 3 * (more - few), "twice as many records more; the square of that is four"
