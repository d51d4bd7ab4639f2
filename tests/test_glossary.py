"""One word, one meaning, and it is the field's word: in identifiers, messages and documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import glossary
from tests.glossary import ROOT, check

ROOMS = (
    "src",
    "tests",
    "benchmarks",
    "examples",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
)


@pytest.mark.parametrize("name", ROOMS)
def test_words_to_avoid_are_avoided(name: str) -> None:
    findings = [str(finding) for finding in check([ROOT / name])]
    assert findings == [], "\n".join(findings[:20])


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("found = 1\n", "found"),
        ("def f(what): ...\n", "what"),
        ("class Bought: ...\n", "Bought"),
        ("own_net = 1\n", "own_net"),
        ("for one in (): ...\n", "one"),
        ("x = 'is told'\n", "told"),
        ("# taken apart\n", "taken apart"),
        ('"""Bit by bit.\n\nEqual to the bit."""\n', "to the bit"),
    ],
)
def test_a_word_to_avoid_is_noticed(text: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    assert [finding.word for finding in check([path])] == [word]


def test_ordinary_names_pass(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("foundation = replaced = none = 1\n'not found; one of them; kept components; in place'\n")
    assert list(check([path])) == []


def test_every_pattern_has_an_alternative() -> None:
    assert all(glossary.PROSE.values())
    assert all(glossary.NAMES.values())
    assert all(glossary.WORDS.values())
