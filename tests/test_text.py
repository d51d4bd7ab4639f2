"""Text that is shown has no effect of its own."""

from __future__ import annotations

import sys
import unicodedata

import pytest

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


def kinds() -> list[type[errors.HalrpError]]:
    every, todo = [], [errors.HalrpError]
    while todo:
        kind = todo.pop()
        every.append(kind)
        todo += kind.__subclasses__()
    return [kind for kind in every if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_the_text_of_every_error_is_printable(kind: type[errors.HalrpError]) -> None:
    assert str(kind("the task \x1b]0;owned\x07 \u202e\udcff")) == r"the task \x1b]0;owned\x07 \u202e\udcff"
    assert str(kind()) == ""


def test_what_cannot_be_encoded_is_known() -> None:
    assert is_encodable("Vögel 🐦")
    assert not is_encodable("\ud83d")
    assert not is_encodable("file-\udcff")
