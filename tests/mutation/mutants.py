"""Mutants of a source file: one small change each, of a kind that a programmer's mistake may have."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_DELETED = (ast.Assign, ast.AugAssign, ast.Expr, ast.Raise, ast.Delete, ast.Continue, ast.Break)


@dataclass(frozen=True)
class Mutant:
    """A changed module."""

    line: int
    change: str
    """The kind of change, and the code before and after it."""
    source: str


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of a source, in its order. Docstrings, annotations and the texts of messages are left alone."""
    tree = ast.parse(source)
    for parent in list(ast.walk(tree)):
        for field, value in ast.iter_fields(parent):
            if field in ("annotation", "returns"):
                continue
            for at, node in enumerate(value if isinstance(value, list) else [value]):
                for kind, new in _changes(node) if isinstance(node, ast.expr | ast.stmt) else ():
                    _put(parent, field, at, new)
                    yield Mutant(node.lineno, f"{kind}: {_text(node)} → {_text(new)}", ast.unparse(tree))
                    _put(parent, field, at, node)


def _put(parent: ast.AST, field: str, at: int, node: ast.AST) -> None:
    value = getattr(parent, field)
    if isinstance(value, list):
        value[at] = node
    else:
        setattr(parent, field, node)


def _text(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0][:100]


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    """What may stand in place of a node, and the kind of that change."""
    match node:
        case ast.Compare(left, operators, others):
            for at, operator in enumerate(operators):
                changed = [*operators[:at], _COMPARISONS[type(operator)](), *operators[at + 1 :]]
                yield "comparison", ast.Compare(left, changed, others)
        case ast.BinOp(left, operator, right) if type(operator) in _ARITHMETIC:
            yield "arithmetic", ast.BinOp(left, _ARITHMETIC[type(operator)](), right)
        case ast.BoolOp(operator, values):
            yield "boolean", ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield "boolean", ast.Call(ast.Name("bool", ast.Load()), [operand], [])
        case ast.UnaryOp(ast.USub(), operand):
            yield "arithmetic", operand
        case ast.Constant(bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(int(value) | float(value)):
            yield "constant", ast.Constant(value + 1)
        case ast.IfExp(_, body, other):
            yield "condition", body
            yield "condition", other
        case ast.If(_, body, other):
            yield "condition", ast.If(ast.Constant(True), body, other)
            yield "condition", ast.If(ast.Constant(False), body, other)
        case ast.Return(ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield "return", ast.Return(ast.Constant(None))
        case ast.AugAssign(target, operator, value):
            if type(operator) in _ARITHMETIC:
                yield "arithmetic", ast.AugAssign(target, _ARITHMETIC[type(operator)](), value)
    if isinstance(node, _DELETED) and not isinstance(getattr(node, "value", None), ast.Constant):
        yield "deletion", ast.Pass()
