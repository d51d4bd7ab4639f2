"""The checklist of a release finds what is not done, and goes on to the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from halrp import __version__
from tests.package import release


def fails() -> str:
    """It is not done."""
    raise release.NotDoneError("something is missing; add it")


def test_every_step_is_walked_and_those_that_fail_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps: dict[str, Callable[[], str]] = {"first": fails, "second": lambda: "all good", "third": lambda: "unused"}
    monkeypatch.setattr(release, "STEPS", steps)
    assert release.walk(["third"]) == ["first"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "NOT DONE    first: something is missing; add it"
    assert lines[1] == "done        second: all good"
    assert lines[2].startswith("skipped     third")


def test_a_changelog_with_unreleased_entries_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "__version__", "99.0.0")
    with pytest.raises(release.NotDoneError, match=r"no heading '## \[99\.0\.0\]"):
        release.changelog()
    with pytest.raises(release.NotDoneError, match=r"CITATION\.cff has version"):
        release.citation()


def test_the_steps_that_read_the_tree_agree_with_the_tree_now() -> None:
    assert release.citation().startswith(__version__)
    assert release.frozen_signatures().endswith("lines")
