"""The committed table of defaults is that of the package's methods."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from halrp import Recipe
from halrp.lab import registry
from halrp.lab.records.schema import Record
from halrp.lab.reference import load_reference
from halrp.lab.run import runner
from halrp.lab.run.cell import Cell, describe_all
from halrp.provenance import describe

DEFAULTS = load_reference("defaults")
REMEDY = "a default has changed or a method was added: write it to src/halrp/lab/reference/defaults.json"


def test_the_recipe() -> None:
    assert DEFAULTS["recipe"] == describe(Recipe()), REMEDY


def test_the_methods() -> None:
    assert set(DEFAULTS["methods"]) == set(registry.METHODS), REMEDY


@pytest.mark.parametrize("name", registry.METHODS)
def test_the_settings_of_a_method(name: str) -> None:
    settings = registry.METHODS[name].settings()
    known = {key: value for key, value in settings.items() if value is not inspect.Parameter.empty}
    assert DEFAULTS["methods"][name] == describe_all(known), REMEDY


@pytest.mark.parametrize(
    ("method", "settings"), [("stl", {}), ("stl", {"redraw": True}), ("clr", {"bn": "shared"}), ("mtl", {})]
)
def test_a_new_record_has_what_a_report_needs_of_its_method(method: str, settings: dict[str, Any]) -> None:
    cell = Cell(method, "digits", "digits-net", settings=settings)
    rows = [{"position": 0, "identity": 0, "test": [0.5], "val": [0.5]}]
    raw = runner.record(cell, rows)
    stored = raw["method"]
    assert stored["title"] == registry.METHODS[method].title
    assert stored["settings"] == DEFAULTS["methods"][method]
    properties = registry.METHODS[method].properties_with(settings)
    assert {name: stored[name] for name in properties._fields} == properties._asdict()
    assert Record.of(raw).first_decides is properties.first_decides
    assert Record.of({key: value for key, value in raw.items() if key != "method"}) == Record.of(raw)
