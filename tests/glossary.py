"""The glossary as a check: `python -m tests.glossary src/halrp/model` lists words that the field does not use.

One word has one meaning here, and it is the field's. Identifiers are read from the syntax tree, prose from comments,
strings and documents.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent

PROSE = {
    r"told": "reported, shown",
    r"tells? apart|told apart": "distinguished",
    r"tak(?:en|es?|ing) apart": "decomposed, parsed",
    r"h(?:eld|olds?|olding) against": "compared with",
    r"to the bit": "bit-identical",
    r"whole or (?:not at all|absent)": "atomic",
    r"outright": "dense",
    r"bought|buys?|buying": "recovered (loss); costs, pays for",
    r"g(?:o|oes|oing|one) on (?:from|with|at)": "resumed, continued",
    r"anew": "again, new",
    r"said": "given, documented",
    r"lessons?": "task data",
    r"so many": "the number of",
}
"""Patterns that no comment, message or document uses, with what to write instead."""

NAMES = {
    "found": "what it is: path, match, result, …",
    "one": "what it is: row, cell, task, …",
    "how": "provenance, settings",
    "what": "label, source, kind",
    "chance": "generator",
    "judge": "held_out, data",
    "own": "custom, private, or what it is",
    "usual": "representative, default",
    "told": "reported",
}
"""Names that say nothing, with what to write instead."""

WORDS = {
    "told": "reported",
    "outright": "dense",
    "bought": "recovered",
    "anew": "again",
    "said": "given",
    "kept": "cache, checkpoint, retained",
    "place": "path, key, location, setting",
    "places": "paths, keys, locations, aliases",
    "looks": "style",
    "draws": "seeding, samples",
    "lesson": "task_data",
    "lessons": "task_data",
    "truncate": "start",
    "taskfile": "task_file",
    "onbase": "frozen_base",
    "offer": "options",
    "treatment": "parameter plan",
    "treatments": "parameters",
    "watched": "what it watches",
    "standing": "status",
    "manner": "mode",
}
"""Words that no part of an identifier is, with what to write instead."""

EXEMPT = {
    ("tests/glossary.py", ""),
    ("tests/test_glossary.py", ""),
    ("src/halrp/store/format_1.py", "bought"),
    ("docs/format.md", "bought"),
}
"""Files and the word that each may quote, such as a key of an old format; an empty word stands for all words."""


class Finding(NamedTuple):
    """A word to avoid: where it stands, and what to write instead."""

    path: Path
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        """As compilers write it."""
        return f"{self.path}:{self.line}: {self.word!r}: write {self.instead}"


def check(paths: Iterable[Path]) -> Iterator[Finding]:
    """Find words to avoid in Python files and documents."""
    for path in files(paths):
        exempt = {word for name, word in EXEMPT if path.resolve() == ROOT / name}
        yield from (finding for finding in _findings(path) if finding.word.lower() not in exempt)


def _findings(path: Path) -> Iterator[Finding]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _identifiers(path, text)
        yield from _named(path, path.stem, 1)
        for number, prose in _python_prose(text):
            yield from _prose(path, number, prose)
    else:
        for number, line in enumerate(text.splitlines(), 1):
            yield from _prose(path, number, line)


def files(paths: Iterable[Path]) -> list[Path]:
    """Python files and documents below some paths."""
    listed: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        listed += [p for p in inside if p.suffix in (".py", ".md", ".toml", ".js", ".yml", ".cff") and p.is_file()]
    exempt = {ROOT / name for name, word in EXEMPT if not word}
    return [path for path in listed if path.resolve() not in exempt]


def _identifiers(path: Path, text: str) -> Iterator[Finding]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from _named(path, node.name, node.lineno)
        elif isinstance(node, ast.arg):
            yield from _named(path, node.arg, node.lineno)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield from _named(path, node.id, node.lineno)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield from _named(path, node.attr, node.lineno)


def _named(path: Path, name: str, line: int) -> Iterator[Finding]:
    if name.startswith("test_"):
        return
    bare = name.strip("_")
    if bare in NAMES or bare.startswith("own_"):
        yield Finding(path, line, name, NAMES.get(bare, "custom_…"))
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    for word in {part.lower() for part in parts} & WORDS.keys():
        yield Finding(path, line, name, WORDS[word])


def _python_prose(text: str) -> Iterator[tuple[int, str]]:
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def _prose(path: Path, line: int, text: str) -> Iterator[Finding]:
    for pattern, instead in PROSE.items():
        for match in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE):
            yield Finding(path, line, match.group(), instead)


def main() -> None:
    """List every finding below the paths on the command line; exit with 1 if there is one."""
    paths = [Path(argument) for argument in sys.argv[1:]] or [ROOT / "src"]
    findings = list(check(paths))
    for finding in findings:
        print(finding)
    print(f"{len(findings)} findings")
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
