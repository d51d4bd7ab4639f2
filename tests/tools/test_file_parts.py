"""Where the bytes of a task's file go, in every format, and what a store's summary says of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from halrp import Halrp, Learner
from halrp.cli.app import app
from halrp.method.outcome import KEY, Outcome
from halrp.model.base import Base
from halrp.model.delta import Delta
from halrp.model.plan import plan
from halrp.store import task_file
from halrp.store.store import Store
from halrp.tools import file_parts
from halrp.tools.file_parts import GROUPS, groups
from halrp.tools.inspect import summary
from halrp.training.stopping import Validation
from tests.commands import invoke
from tests.helpers import FAST, net, tiny_task
from tests.parts import parts_task
from tests.store.corpus.make import CORPORA, HERE


def base_of(kind: str) -> Base:
    model = net(kind)
    return Base(model, plan(model), False, counts_head=False)


def check(delta: Delta) -> None:
    """Compare the groups of a task with its file and with its parts."""
    by_group = groups(delta)
    assert list(by_group) == [group for group in GROUPS if group in by_group]
    assert sum(group.bytes for group in by_group.values()) == len(task_file.write(delta))
    assert sum(group.entries for group in by_group.values()) == delta.parameters
    parts = sum(group.parts for name, group in by_group.items() if name not in ("extra", "header"))
    assert parts == len(delta.stored)
    assert by_group["header"].bytes >= delta.header


@pytest.mark.parametrize("kind", ["conv", "grouped", "transformer", "gru", "mlp"])
@pytest.mark.parametrize("seed", range(4))
def test_the_groups_of_a_task_of_parts_add_up_to_its_file(kind: str, seed: int) -> None:
    delta = parts_task(base_of(kind), seed)
    check(delta)
    with_extra = replace(delta, probe={"x": torch.zeros(2, 3)}, statistics={"means": torch.zeros(5)})
    check(with_extra)
    assert groups(with_extra)["extra"].bytes == 4 * (2 * 3 + 5)


def test_parts_are_grouped_by_what_they_are() -> None:
    delta = parts_task(base_of("conv"), seed=1, share=1.0)
    by_group, stored = groups(delta), delta.stored
    assert by_group["head"].bytes == stored["plain/fc.weight"].bytes + stored["plain/fc.bias"].bytes
    assert by_group["norms"].parts == 4
    assert by_group["biases"].parts == 2
    assert by_group["statistics"].parts == 6
    for group, kinds in {"row scales": "r", "column scales": "s", "components": "pq"}.items():
        keys = [key for key in stored if key[1] == "/" and key[0] in kinds]
        assert (group in by_group) is bool(keys)
        if keys:
            assert by_group[group].bytes == sum(stored[key].bytes for key in keys)
            assert set(by_group[group].precisions) == {stored[key].precision for key in keys}


@pytest.mark.parametrize("name", CORPORA)
def test_the_groups_of_tasks_of_every_format_add_up_to_what_this_version_writes(name: str) -> None:
    store = Store(HERE / name / "store")
    manifest = store.manifest()
    layouts = store.layouts(manifest)
    for entry in manifest.tasks.values():
        delta = task_file.read(store.content(entry), layouts, entry.file)
        if delta.is_base:
            assert groups(delta) == {}
        else:
            assert sum(group.bytes for group in groups(delta).values()) == delta.bytes


def test_a_store_shows_where_the_bytes_go_and_what_training_gained(tmp_path: Path) -> None:
    learner = Learner(net("conv"), base="given", method=Halrp.budget(6_000), recipe=FAST, store=tmp_path, progress=None)
    compared = learner.learn("compared", tiny_task("conv"), tiny_task("conv", 5))
    learner.learn("alone", tiny_task("conv", 1))
    tasks = {task["name"]: task for task in summary(tmp_path)["tasks"]}
    for name, task in tasks.items():
        assert sum(group["bytes"] for group in task["groups"].values()) == task["bytes"] == learner.tasks[name].bytes
    outcome = tasks["compared"]["outcome"]
    assert outcome["text"].startswith("probe ")
    start, end = Validation(**outcome["start"]), Validation(**outcome["end"])
    assert compared.provenance[KEY] == Outcome(start, end, outcome["epoch"], outcome["guess"]).text()
    assert tasks["alone"]["outcome"] is None
    shown = invoke(app, "inspect", tmp_path)
    assert f"compared: {outcome['text']}" in shown.out
    titles = next(line for line in shown.out.splitlines() if line.startswith("task") and "header" in line)
    assert "head" in titles
    line = next(words for words in shown.lines if words[:1] == ["alone"] and words[1] != "classification")
    assert line[1:] == [f"{group['bytes']:,}" for group in tasks["alone"]["groups"].values()]


def test_a_base_that_a_task_trained_has_no_groups(tmp_path: Path) -> None:
    learner = Learner(net("mlp"), recipe=FAST, store=tmp_path, progress=None)
    learner.learn("first", tiny_task("mlp"))
    assert summary(tmp_path)["tasks"][0]["groups"] == {} == file_parts.groups(learner.tasks["first"])
    assert "Where the bytes go" not in invoke(app, "inspect", tmp_path).out
