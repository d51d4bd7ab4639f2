"""Tests that cannot fail, found by their form: `findings` lists them. `python -m tests.vacuous` prints them.

A test asserts something, itself or through a function of the tests that it calls; it does not compare a thing with
itself; what it expects to be raised is a particular error; it swallows none; and it has cases to run on.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent
_ANY_ERROR = {"Exception", "BaseException"}
_ASSERTING_CALLS = {"raises", "warns", "fail", "gradcheck", "check_method", "parametrize_with_checks"}


class Finding(NamedTuple):
    """Something that makes a test pass whatever happens."""

    path: Path
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}"


def findings(root: Path = ROOT) -> list[Finding]:
    """All findings in the test files below a folder."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(root.rglob("*.py"))}
    asserting = _asserting(list(trees.values()))
    return [
        Finding(path, line, problem)
        for path, tree in trees.items()
        for line, problem in (*_forms(tree), *_without_assertion(tree, asserting))
    ]


def _functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _called(node: ast.AST) -> set[str]:
    """Names of all that a piece of code calls or passes on."""
    names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return names | {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}


def _asserts(node: ast.AST) -> bool:
    def asserting_call(inner: ast.AST) -> bool:
        name = _name(inner.func) if isinstance(inner, ast.Call) else ""
        return name in _ASSERTING_CALLS or name.startswith("assert_")

    return any(isinstance(inner, ast.Assert) or asserting_call(inner) for inner in ast.walk(node))


def _asserting(trees: list[ast.Module]) -> set[str]:
    """Names of functions that assert, also through others."""
    functions = {node.name: node for tree in trees for node in _functions(tree)}
    calls = {name: _called(node) for name, node in functions.items()}
    names = {name for name, node in functions.items() if _asserts(node)}
    while more := {name for name in calls if name not in names and calls[name] & names}:
        names |= more
    return names


def _without_assertion(tree: ast.Module, asserting: set[str]) -> Iterator[tuple[int, str]]:
    for node in _functions(tree):
        if node.name.startswith("test_") and not _asserts(node) and not _called(node) & asserting:
            yield node.lineno, f"{node.name} asserts nothing"


def _forms(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Assert(test=test):
                yield from ((node.lineno, problem) for problem in _assertion(test))
            case ast.Call(func=func, args=[ast.Name(id=name), *_]) if _name(func) == "raises" and name in _ANY_ERROR:
                yield node.lineno, f"any error is expected, {name}"
            case ast.Call(func=func, args=arguments) if _name(func) == "suppress":
                if any(_name(argument) in _ANY_ERROR for argument in arguments):
                    yield node.lineno, "any error is swallowed"
            case ast.ExceptHandler(type=kind, body=[ast.Pass()]) if kind is None or _name(kind) in _ANY_ERROR:
                yield node.lineno, "any error is swallowed"
            case ast.Call(func=func, args=[_, ast.List(elts=[]) | ast.Tuple(elts=[]), *_]):
                if _name(func) == "parametrize":
                    yield node.lineno, "there is no case"
            case ast.For(iter=ast.List(elts=[]) | ast.Tuple(elts=[])):
                yield node.lineno, "a loop over nothing"
            case ast.Expr(value=ast.Compare()):
                yield node.lineno, "a comparison without an assertion"


def _assertion(test: ast.expr) -> Iterator[str]:
    match test:
        case ast.Constant(value=value) if value:
            yield "what is asserted is a constant"
        case ast.Tuple(elts=[_, *_]):
            yield "a tuple is always true"
        case ast.Compare(left=left, comparators=others):
            texts = [ast.dump(part) for part in (left, *others)]
            if len(set(texts)) < len(texts) and not any(isinstance(part, ast.Call) for part in ast.walk(test)):
                yield "a thing is compared with itself"
        case ast.Call(func=func, args=[first, second, *_]):
            same = ast.dump(first) == ast.dump(second)
            if same and _name(func) in ("equal", "allclose") and not isinstance(first, ast.Call):
                yield "a thing is compared with itself"


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


if __name__ == "__main__":
    for finding in findings():
        print(finding)
    sys.exit(bool(findings()))
