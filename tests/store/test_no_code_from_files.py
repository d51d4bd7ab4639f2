"""Nothing in the library can run code that comes from a file: no call that unpickles or evaluates anything."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import halrp

SOURCE = Path(halrp.__file__).parent
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "code", "codeop"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
LOADERS = {
    ("torch", "load"),
    ("torch.jit", "load"),
    ("torch.hub", "load"),
    ("torch.package", "PackageImporter"),
    ("torch.serialization", "load"),
    ("torch.export", "load"),
    ("pandas", "read_pickle"),
    ("yaml", "load"),
}
"""Functions that run what a file says, by module."""


def dotted(node: ast.expr) -> str:
    """The name of `a.b.c`, or nothing."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imported(tree: ast.AST) -> dict[str, str]:
    """What the names of a module's imports stand for."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def dangers(source: str) -> Iterator[str]:
    """Every way in which a source could run code from a file."""
    tree = ast.parse(source)
    names = imported(tree)
    for node in ast.walk(tree):
        where = f"line {getattr(node, 'lineno', '?')}"
        if isinstance(node, ast.Import):
            yield from (f"{where}: import {a.name}" for a in node.names if a.name.partition(".")[0] in MODULES)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in MODULES:
            yield f"{where}: from {node.module}"
        if isinstance(node, (ast.Name, ast.Attribute)):
            first, _, rest = dotted(node).partition(".")
            full = f"{names.get(first, first)}.{rest}" if rest else names.get(first, first)
            module, _, function = full.rpartition(".")
            if (module, function) in LOADERS:
                yield f"{where}: {full}"
            if first in BUILTINS and isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                yield f"{where}: {first}"
            if module == "builtins" and function in BUILTINS:
                yield f"{where}: {full}"
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                constant = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                if keyword.arg == "allow_pickle" and constant is not False:
                    yield f"{where}: allow_pickle"
                if keyword.arg == "weights_only":
                    yield f"{where}: weights_only"


FILES = sorted(SOURCE.rglob("*.py"))
ALLOWED = {
    "tools/export.py": {"torch.export.load"},
    "lab/backbones/weights.py": {"torch.load", "weights_only"},
}
"""An export is run once to check it: the bytes come from this very process, not from a file. Weights that somebody else
saved with torch are read as tensors and nothing else, which the test below holds them to."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_no_source_runs_code_from_a_file(path: Path) -> None:
    allowed = ALLOWED.get(path.relative_to(SOURCE).as_posix(), set())
    listed = list(dangers(path.read_text(encoding="utf-8")))
    assert [danger for danger in listed if danger.partition(": ")[2] not in allowed] == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as safe",
        "from pickle import loads",
        "import torch\ntorch.load(f)",
        "import torch as t\nt.load(f)",
        "from torch import load\nload(f)",
        "from torch import load as read\nread(f)",
        "import torch\nread = torch.load",
        "eval('1')",
        "exec(text)",
        "import builtins\nbuiltins.eval('1')",
        "import marshal",
        "from shelve import open",
        "import numpy as np\nnp.load(f, allow_pickle=True)",
        "import numpy as np\nnp.load(f, allow_pickle=flag)",
        "__import__('pick' + 'le')",
        "import torch\ntorch.jit.load(f)",
    ],
)
def test_the_search_finds_each_way(source: str) -> None:
    assert list(dangers(source))


@pytest.mark.parametrize(
    "source",
    [
        "import safetensors.torch\nsafetensors.torch.load(b)",
        "import torch\nmodel.eval()\ntorch.save",
        "import numpy as np\nnp.load(f, allow_pickle=False)",
        "import re\nre.compile('x')",
    ],
)
def test_the_search_does_not_find_what_is_harmless(source: str) -> None:
    assert not list(dangers(source))
