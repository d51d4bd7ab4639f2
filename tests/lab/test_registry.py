"""The registry: its entries build what they name, and what they say of it is true."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
from torch import nn

from halrp import Halrp
from halrp.errors import SettingError
from halrp.lab import backbones, methods, registry
from halrp.lab.data import SETS
from halrp.lab.methods.tiny import tiny_context
from halrp.lab.reference import load_reference
from halrp.lab.registry import BACKBONES, METHODS, STREAMS, Properties
from halrp.lab.streams.orders import orders_of


def properties(name: str, **settings: object) -> Properties:
    method = methods.make(name, tiny_context(), **settings)
    return Properties(method.frozen, method.joint, method.first_decides)


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_properties_are_those_of_what_it_builds(name: str) -> None:
    entry = METHODS[name]
    assert entry.properties == properties(name)
    assert entry.properties_with(entry.settings()) == properties(name)
    for setting, value, changed in entry.exceptions:
        assert changed == properties(name, **{setting: value}) == entry.properties_with({setting: value})
        assert changed != entry.properties
    assert entry.composition == (not inspect.isclass(entry.load()))
    if entry.composition:
        assert isinstance(entry.load()(), Halrp)
    assert set(entry.tuned) <= entry.settings().keys()


SWITCHES = [(name, key) for name in METHODS for key, v in METHODS[name].settings().items() if isinstance(v, bool)]


@pytest.mark.parametrize(("name", "switch"), SWITCHES)
def test_a_switch_of_a_method_changes_its_properties_only_as_the_entry_says(name: str, switch: str) -> None:
    settings = {switch: not METHODS[name].settings()[switch]}
    assert METHODS[name].properties_with(settings) == properties(name, **settings)


@pytest.mark.parametrize("name", [name for name, entry in BACKBONES.items() if not entry.pretrained])
def test_every_backbone_builds(name: str) -> None:
    assert isinstance(backbones.build(name, classes=3), nn.Module)


@pytest.mark.parametrize("name", STREAMS)
def test_every_stream_and_its_variants_have_a_function_and_as_many_tasks_as_an_order(name: str) -> None:
    entry = STREAMS[name]
    for variant in ("", *entry.variants):
        assert list(inspect.signature(entry.load_variant(variant)).parameters) == ["order", "seed", "fraction", "data"]
    orders = orders_of(name)
    assert orders is not None
    assert {"A", "B", "C", "D", "E"} <= orders.keys()
    assert all(sorted(order) == list(range(entry.tasks)) for order in orders.values())
    assert (entry.orders == "published") == (entry.paper_name in load_reference("task_orders")["orders"])
    assert set(entry.data_sets) <= SETS.keys()


def test_entries_have_titles_and_methods_have_colours_of_their_own() -> None:
    for entries in (METHODS, STREAMS, BACKBONES):
        titles = [entry.title for entry in entries.values()]
        assert all(titles)
        assert len(set(titles)) == len(titles)
        assert all(entry.description for entry in entries.values())
    assert len({entry.colour for entry in METHODS.values()}) == len(METHODS)
    assert {entry.mark for entry in METHODS.values()} <= set(registry.MARKS)


def test_every_name_in_the_papers_tables_has_an_entry() -> None:
    results = load_reference("paper_results")
    rows = [*results["records"], *results["iru_table"]]
    named = {name for entry in METHODS.values() for name in (entry.paper_name, *entry.paper_aliases)}
    assert {row["method"] for row in rows} <= named
    assert {row["dataset"] for row in rows} == {entry.paper_name for entry in STREAMS.values()} - {None}
    assert {row["backbone"] for row in rows} == {entry.paper_name for entry in BACKBONES.values()} - {None}
    ablated = {entry.paper_ablation for entry in METHODS.values()} - {None}
    assert {row["variant"] for row in results["ablation_table"]} == ablated


def test_a_method_that_is_not_registered_always_has_the_same_colour_and_mark() -> None:
    assert registry.colour_of("my_module:Mine") == "#c69a12"
    assert registry.mark_of("my_module:Mine") == "cross"
    assert registry.colour_of("ewc") == METHODS["ewc"].colour


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingError, match="no method is called 'ecw'; the nearest name is 'ewc'"):
        registry.method("ecw")
    with pytest.raises(SettingError, match="no backbone is called 'lent'; the nearest name is 'lenet'"):
        registry.backbone("lent")
    with pytest.raises(SettingError, match="no stream is called 'five@halves'; the nearest name is 'five'"):
        registry.stream("five@halves")


def test_the_registry_imports_no_torch_no_method_and_no_stream() -> None:
    code = "import sys, halrp.lab.registry; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = run.stdout.split()
    heavy = {"torch", "numpy", "pandas", "matplotlib", "halrp.lab.methods", "halrp.lab.streams", "halrp.lab.backbones"}
    assert not heavy & set(modules)
