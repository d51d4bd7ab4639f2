"""The rooms of the house: an import never points up, and light rooms stay light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"

LIBRARY = (
    ("halrp._version", "halrp.text", "halrp.text_table", "halrp.errors", "halrp.checks", "halrp.references"),
    ("halrp.seeding",),
    ("halrp.objectives",),
    ("halrp.model",),
    ("halrp.store",),
    ("halrp.training",),
    ("halrp.method",),
    ("halrp.serve",),
    ("halrp.provenance", "halrp.identity"),
    ("halrp.committed", "halrp.task_setup"),
    ("halrp.retained", "halrp.report"),
    ("halrp.managed",),
    ("halrp.predictions",),
    ("halrp.learner", "halrp.parallel", "halrp.callbacks"),
    ("halrp.tools", "halrp.sklearn", "halrp.server", "halrp.mlflow"),
)
"""The library's rooms, each line above the one before it. A module imports from its own line and from lines before."""

LABORATORY = (
    ("halrp.terminal",),
    ("halrp.lab.names", "halrp.lab.reference", "halrp.lab.directories"),
    ("halrp.lab.registry",),
    ("halrp.lab.presets",),
    ("halrp.lab.records", "halrp.lab.metrics"),
    ("halrp.lab.report",),
    ("halrp.lab.data",),
    ("halrp.lab.streams",),
    ("halrp.lab.backbones",),
    ("halrp.lab.methods",),
    ("halrp.lab.run",),
    ("halrp.lab.demo",),
)
TOP = (("halrp.cli",), ("halrp.__main__",))

TORCH_FREE = ("halrp.lab.registry", "halrp.lab.presets", "halrp.lab.records", "halrp.lab.report", "halrp.lab.metrics")
"""Rooms that a person reading results needs: they know no method and load no torch."""

LEVELS = {room: level for level, rooms in enumerate((*LIBRARY, *LABORATORY, *TOP)) for room in rooms}


def modules() -> dict[str, Path]:
    """Every module of the package, by its name."""
    paths = sorted((SOURCE / "halrp").rglob("*.py"))
    names = [".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in paths]
    return {name.removesuffix(".__init__"): path for name, path in zip(names, paths, strict=True)}


MODULES = modules()


def imports(name: str) -> Iterator[tuple[str, int]]:
    """What a module of the package imports from the package, type checking and lazy imports included."""
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name.split(".")[0] == "halrp")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "halrp":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield (full if full in MODULES else str(node.module)), node.lineno


def room(name: str) -> str | None:
    """The room of a module; None for the package itself and for a package that only holds rooms."""
    return next((room for room in LEVELS if name == room or name.startswith(f"{room}.")), None)


def test_every_module_is_in_a_room() -> None:
    assert [name for name in MODULES if room(name) is None] == ["halrp", "halrp.lab"]


def test_no_import_points_up() -> None:
    wrong = []
    for name in MODULES:
        here = room(name)
        for target, line in imports(name):
            there = room(target)
            if here is not None and there is not None and LEVELS[there] > LEVELS[here]:
                wrong.append(f"{name}:{line} imports {target}: {here} is below {there}")
    assert wrong == []


def test_the_library_never_imports_the_laboratory() -> None:
    library = {name for rooms in LIBRARY for name in rooms}
    wrong = [(n, t) for n in MODULES if room(n) in library for t, _ in imports(n) if t.startswith("halrp.lab")]
    assert wrong == []


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph = {name: {target for target, _ in imports(name) if target != name} for name in MODULES if name != "halrp"}
    finished: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in finished:
            for target in graph.get(name, ()):
                visit(target, (*path, name))
            finished.add(name)

    for name in graph:
        visit(name, ())


def loaded_after(*names: str) -> set[str]:
    """The modules in a fresh process after some imports."""
    code = f"import sys, {', '.join(names)}; print(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("light", TORCH_FREE)
def test_reading_results_needs_neither_torch_nor_methods(light: str) -> None:
    names = [name for name in MODULES if room(name) == light and not name.endswith("__main__")]
    modules = loaded_after(*names)
    assert "torch" not in modules
    assert not [name for name in modules if name.startswith("halrp.lab.methods")]


def test_predicting_needs_no_training_code() -> None:
    modules = loaded_after(*(name for name in MODULES if room(name) == "halrp.serve"))
    assert not [name for name in modules if name.startswith(("halrp.training", "halrp.method", "halrp.learner"))]


def test_the_server_needs_no_training_code() -> None:
    modules = loaded_after(*(name for name in MODULES if room(name) == "halrp.server"))
    assert not [name for name in modules if name.startswith(("halrp.training", "halrp.method", "halrp.learner"))]


def without(*doors: str) -> list[str]:
    """The modules of the library that are not behind a door to an optional package."""
    return [n for n in MODULES if room(n) in {r for rooms in LIBRARY for r in rooms}.difference(doors)]


def test_only_the_server_loads_a_web_framework() -> None:
    names = without("halrp.server", "halrp.mlflow")  # MLflow loads one itself
    assert loaded_after(*names).isdisjoint({"starlette", "uvicorn"})


def test_a_task_that_mlflow_loads_needs_no_training_code() -> None:
    pytest.importorskip("mlflow")
    modules = loaded_after("halrp.mlflow")
    assert not [name for name in modules if name.startswith(("halrp.training", "halrp.method", "halrp.learner"))]


def test_the_version_needs_nothing() -> None:
    assert "torch" not in loaded_after("halrp")


def test_the_library_loads_no_optional_package_but_by_its_door() -> None:
    names = without("halrp.sklearn", "halrp.mlflow")
    packages = "[name for name in ('sklearn', 'transformers', 'timm', 'torchvision', 'pandas') if name in sys.modules]"
    code = f"import sys, {', '.join(names)}; print({packages}); import halrp.sklearn; print('sklearn' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[]", "True"]


def test_a_file_holds_one_idea() -> None:
    long = {n: len(path.read_text(encoding="utf-8").splitlines()) for n, path in MODULES.items()}
    assert {name: lines for name, lines in long.items() if lines > 420} == {}


def test_the_walks_of_the_document_lead_somewhere() -> None:
    rows = re.findall(r"\| `([\w/.]+)`(?:: `(\w+)`)? \|$", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert len(rows) > 30
    for path, name in rows:
        assert (ROOT / path).exists(), path
        if name:
            assert name in defined(ROOT / path), f"{path} has no {name}"


def defined(path: Path) -> set[str]:
    """The names that a module defines at its top level."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    names = {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    assigned = [node for node in body if isinstance(node, (ast.Assign, ast.AnnAssign))]
    targets = [target for node in assigned for target in getattr(node, "targets", [getattr(node, "target", None)])]
    return names | {target.id for target in targets if isinstance(target, ast.Name)}
