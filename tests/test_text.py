"""Text that is shown has no effect of its own."""

from __future__ import annotations

import ast
import sys
import unicodedata
from pathlib import Path

import pytest

import halrp
from halrp import errors
from halrp.text import is_encodable, printable

UNSAFE = [chr(n) for n in range(sys.maxunicode + 1) if unicodedata.category(chr(n)) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


def test_no_control_format_or_surrogate_character_is_left() -> None:
    shown = printable("".join(UNSAFE))
    assert {c for c in shown if c in UNSAFE} == {"\u200c", "\u200d"}, "joiners of letters and symbols stay"
    shown.encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b31m", "\\x9b31m"),
        ("a\rb\nc\td", "a\\rb\\nc\\td"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\ud83d", "\\ud83d"),
        ("file-\udcff", "file-\\udcff"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_an_unsafe_character_is_written_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("text", ["", "birds", "Vögel", "鳥", "🐦", "a\xa0b", "नमस्\u200dते", "1.5 ± 0.2", "\\x1b"])
def test_other_text_is_shown_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_line_breaks_of_a_block_are_kept_if_asked_for() -> None:
    assert printable("a\n\tb\x1b", keep="\n\t") == "a\n\tb\\x1b"


def kinds(root: type[Exception]) -> list[type[Exception]]:
    """A type and those derived from it, as far as they are in `errors`."""
    every, todo = [], [root]
    while todo:
        kind = todo.pop()
        every.append(kind)
        todo += kind.__subclasses__()
    return [kind for kind in every if kind.__module__ == errors.__name__]


KINDS = (*kinds(errors.HalrpError), *kinds(errors.HalrpWarning))


def test_every_type_is_an_error_or_a_warning_of_the_library() -> None:
    types = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert types == set(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_text_of_every_error_and_warning_is_printable(kind: type[Exception]) -> None:
    assert str(kind("the task \x1b]0;owned\x07 \u202e\udcff")) == r"the task \x1b]0;owned\x07 \u202e\udcff"
    assert str(kind()) == ""


def test_what_cannot_be_encoded_is_known() -> None:
    assert is_encodable("Vögel 🐦")
    assert not is_encodable("\ud83d")
    assert not is_encodable("file-\udcff")


def test_every_warning_has_a_type_of_the_library() -> None:
    wrong = []
    for path in sorted(Path(halrp.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn":
                category = ast.unparse(node.args[1]) if len(node.args) > 1 else "UserWarning"
                kind = getattr(errors, category, UserWarning)
                if not issubclass(kind, errors.HalrpWarning):
                    wrong.append(f"{path.name}:{node.lineno} warns with {category}")
    assert wrong == []
