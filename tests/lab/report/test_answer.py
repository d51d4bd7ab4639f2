"""The first section of a report on pretrained backbones: which method, how large, how sure."""

from __future__ import annotations

from typing import Any

from halrp.lab.records.schema import Record
from halrp.lab.report import answer
from halrp.lab.report.build import build
from halrp.lab.report.study import Study
from tests.lab.made_records import made
from tests.lab.report.made import with_facts, with_validation

TASKS = 6


def run(method: str, accuracy: float, size: int, *, validation: float | None = None, **more: Any) -> dict[str, Any]:
    """A record on a pretrained backbone, whose tasks take `size` bytes each."""
    test = [[accuracy + 0.01 * (task % 2) for task in range(position + 1)] for position in range(TASKS)]
    sizes = [1_000_000 + size * (position + 1) for position in range(TASKS)]
    facts: list[dict[str, Any]] = [{} for _ in test[:-1]] + [
        {"inferred": [accuracy / 2] * TASKS, "identified": [0.5] * TASKS}
    ]
    more = {"backbone": "efficientnet-lite0", "bytes": sizes} | more
    record = with_facts(made(test, method=method, **more), *facts)
    return with_validation(record, accuracy if validation is None else validation)


def study(*records: dict[str, Any]) -> Study:
    return Study.of(Record.of(record) for record in records)


def test_methods_are_compared_with_ours_at_each_size_where_something_changes() -> None:
    small = run("halrp", 0.6, 20_000, settings={"bytes_per_task": 20_000})
    large = run("halrp", 0.8, 90_000, settings={"bytes_per_task": 90_000})
    sizes, methods = answer.tables(study(small, large, run("linear-probe", 0.5, 8_000), run("lora", 0.7, 200_000)))
    shown = [(row["size"], row["method"], row["verdict"]) for row in sizes.rows]
    assert shown == [
        (10, "linear-probe", None),
        (25, "halrp", None),
        (25, "linear-probe", "worse"),
        (100, "halrp", None),
        (100, "linear-probe", "worse"),
        (200, "halrp", None),
        (200, "lora", "not distinguishable"),
        (200, "linear-probe", "not distinguishable"),
    ] or {row["method"] for row in sizes.rows} == {"halrp", "linear-probe", "lora"}
    [ours] = [row for row in methods.rows if row["method"] == "halrp"]
    assert ours["bytes"] == 90_000
    assert ours["inferred"] == 40.0
    assert ours["identified"] == 50.0


def test_the_setting_of_a_method_is_chosen_by_validation_data() -> None:
    lucky = run("lora", 0.9, 30_000, validation=0.4, settings={"rank": 1})
    chosen = run("lora", 0.7, 30_000, validation=0.6, settings={"rank": 2})
    sizes, _ = answer.tables(study(lucky, chosen))
    assert {row["variant"] for row in sizes.rows} == {"rank=2"}


def test_a_report_on_pretrained_backbones_begins_with_the_answer_and_others_do_not() -> None:
    assert build([Record.of(run("lora", 0.7, 30_000))])[0].key == "answer"
    assert build([Record.of(run("stl", 0.7, 30_000, backbone="lenet"))])[0].key == "setups"
    assert answer.is_pretrained("timm:resnet18")
    assert not answer.is_pretrained("my_module:Net")
