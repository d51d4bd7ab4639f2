"""Changed files of every kind: none is read as something that was not written, and every error is typed."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.helpers import one_thread
from tests.reliability import campaign
from tests.reliability.changed_files import Kind, WronglyAcceptedError, check
from tests.reliability.changed_json import changed_json
from tests.store.hostile import mutated


def run(scratch: Path, total: int) -> int:
    with one_thread():
        return sum(
            campaign.changed_files(kind, count)["mutants"] for kind, count in campaign.mutants_of(scratch, total)
        )


def test_changed_files_are_refused_or_harmless(tmp_path: Path) -> None:
    assert run(tmp_path, 3_000) >= 2_990


@pytest.mark.slow
def test_a_million_changed_files_are_refused_or_harmless(tmp_path: Path) -> None:
    assert run(tmp_path, 1_050_000) >= 1_000_000


def test_a_reader_without_a_checksum_is_found_out() -> None:
    unguarded = Kind("text", [b"the content of a file"], lambda content, _: content, mutated)
    with pytest.raises(WronglyAcceptedError, match="text, seed 0, mutant 1"):
        check(unguarded, 10)


def test_a_reader_whose_errors_are_not_typed_is_found_out() -> None:
    def read(content: bytes, _: int) -> object:
        return content.decode("ascii")

    with pytest.raises(UnicodeDecodeError) as caught:
        check(Kind("text", [b"text"], read, lambda content, _: b"\xff" + content), 1)
    assert "text, seed 0, mutant 1" in caught.value.__notes__[0]


def test_changes_of_json_reach_every_value_and_leave_the_original_alone() -> None:
    original = {"a": [1, {"b": "text"}], "c": None}
    random = Random(0)
    changed = [changed_json(original, random) for _ in range(300)]
    assert original == {"a": [1, {"b": "text"}], "c": None}
    assert any("c" not in value for value in changed)
    assert any(value.get("a") and value["a"] != original["a"] for value in changed if isinstance(value.get("a"), list))
    assert any(value.get("c") is not None for value in changed)
    assert sum(value == original for value in changed) < 100
