"""Text that is safe to show: names and messages that come from files, data and people."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Control and format characters, among them those that reorder text; halves of surrogate pairs; separators of lines."""
_JOINERS = "\u200c\u200d"
"""Format characters that words of some languages, and composed symbols, need; they have no effect beyond them."""


def printable(text: str, keep: str = "") -> str:
    r"""The text with every character that a terminal would act on written as an escape, such as \x1b.

    Those are control characters of both sets, marks that reorder or hide text, separators of lines, and lone
    surrogates, which cannot be encoded. `keep` are exceptions: the line breaks of a text that has several lines.
    """
    if text.isprintable():
        return text
    return "".join(c if c in keep or not _unsafe(c) else _escaped(c) for c in text)


def as_json(value: Any) -> str:
    """A value as JSON of several lines, in characters that have no effect on a terminal."""
    return json.dumps(value, indent=1).replace("\x7f", r"\u007f")  # the only one that JSON leaves as it is


def counted(number: int, noun: str) -> str:
    """A number of things, in words: 1 task, 2 tasks."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _unsafe(character: str) -> bool:
    return unicodedata.category(character) in _UNSAFE and character not in _JOINERS


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def is_encodable(text: str) -> bool:
    """Whether text can be written to a file: it has no lone half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
