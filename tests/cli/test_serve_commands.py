"""`halrp serve` and `halrp token`: mistakes are named before anything listens."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from halrp.cli.app import app
from halrp.server.tokens import Tokens
from tests.commands import invoke

ran = partial(invoke, app)
MODEL = ("--model", "tests.server.asking:build")


def test_a_token_is_printed_and_its_checksum_added_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    first = ran("token", path, "--task", "birds", "--task", "cars").out.strip()
    second = ran("token", path, "--task", "*").out.strip()
    tokens = Tokens.load(path)
    for token, name, may in ((first, "birds", True), (first, "coins", False), (second, "coins", True)):
        access = tokens.access(f"Bearer {token}")
        assert access is not None
        assert access.may(name) is may
    assert first not in path.read_text()
    assert tokens.access("Bearer birds") is None


def test_a_file_of_something_else_is_not_taken_for_one_of_tokens(tmp_path: Path) -> None:
    path = tmp_path / "notes.toml"
    path.write_text("title = 'notes'\n")
    result = ran("token", path, "--task", "birds")
    assert (result.code, "is no file of tokens" in result.error) == (2, True)
    assert path.read_text() == "title = 'notes'\n"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "is not a store"),
        (("--host", "0.0.0.0"), "lets other machines connect"),
        (("--tokens", "nowhere.toml"), "is no file of tokens"),
        (("--input", "FP8:3"), "is no input"),
        (("--queue", "0"), "queue=0"),
        (("--workers", "0"), "--workers 0"),
    ],
)
def test_mistakes_end_the_server_before_it_listens(tmp_path: Path, options: tuple[str, ...], reason: str) -> None:
    result = ran("serve", tmp_path, *MODEL, *options)
    assert result.code == 2
    assert reason in result.error
    assert result.out == ""
