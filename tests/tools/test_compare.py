"""Two stores side by side: which tasks have the same bits, and what differs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from halrp import FromProbe, Halrp, Learner, Store
from halrp.cli.app import app
from halrp.errors import StoreError
from halrp.tools.compare import compare
from tests.commands import invoke
from tests.helpers import FAST, net, tiny_task

ran = partial(invoke, app)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores: `plain`, `larger` with another precision, `twin` of the same numbers, and `elsewhere` on another base."""
    folder = tmp_path_factory.mktemp("compare")
    small = Halrp.budget(bytes_per_task=9_000)
    large = replace(small, start=FromProbe(precision="float32"))
    for name, method, seed in (("plain", small, 0), ("larger", large, 0), ("elsewhere", small, 1)):
        learner = Learner(net("mlp", seed), method=method, recipe=FAST, base="given", store=folder / name)
        learner.learn("both", tiny_task("mlp"), tiny_task("mlp", 3))
        if name == "larger":
            learner.learn("new", tiny_task("mlp", 1))
    learner = Learner(net("mlp"), method=small, recipe=FAST, base="given", store=folder / "twin")
    learner.learn("both", tiny_task("mlp"), tiny_task("mlp", 3), class_names=("a", "b", "c"))
    return folder


@pytest.mark.parametrize(
    ("other", "bits", "same_base"),
    [
        ("plain", "same file", True),
        ("twin", "same numbers", True),
        ("larger", "other numbers", True),
        ("elsewhere", "other base", False),
    ],
)
def test_bits_are_compared_apart_from_names_and_bases(folder: Path, other: str, bits: str, same_base: bool) -> None:
    result = compare(folder / "plain", folder / other)
    assert [(pair.name, pair.bits) for pair in result.pairs] == [("both", bits)]
    assert result.same_base is same_base
    assert result.only_first == ()
    assert result.only_second == (("new",) if other == "larger" else ())
    [pair] = result.pairs
    assert pair.difference == pytest.approx((pair.second.score or 0) - (pair.first.score or 0))


def test_a_damaged_task_is_unreadable_and_a_folder_is_no_store(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder / "plain", tmp_path / "copy"))
    (copy / Store(copy).manifest().tasks["both"].file).write_bytes(b"cut")
    [pair] = compare(folder / "plain", copy).pairs
    assert (pair.bits, pair.difference) == ("unreadable", None)
    with pytest.raises(StoreError, match="not a store"):
        compare(folder / "plain", tmp_path)


def test_the_command_shows_changes_from_a_to_b(folder: Path) -> None:
    result = ran("compare", folder / "plain", folder / "larger")
    sizes = [Store(folder / name).manifest().tasks["both"].bytes for name in ("plain", "larger")]
    assert f"{sizes[0]:,} → {sizes[1]:,}" in result.out
    assert "1 task in both, on the same base; 0 with the same bits." in result.out
    assert "Only in B: 'new'." in result.out
    facts = json.loads(ran("compare", folder / "plain", folder / "larger", "--json").out)
    assert facts["tasks"][0]["bits"] == "other numbers"
    assert facts["only_second"] == ["new"]


def test_a_store_and_something_else_are_not_compared(folder: Path, tmp_path: Path) -> None:
    result = ran("compare", tmp_path, folder / "plain")
    assert result.code == 2
    assert "is a store and" in result.error
