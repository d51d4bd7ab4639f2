"""`docs/reliability.md` has the counts of the committed run, and that run did what is claimed."""

from __future__ import annotations

import re

from halrp.lab.report.documents import filled
from tests.reliability.document import DOCUMENT, ROOT, parts, record
from tests.reliability.operations import NAMED


def test_the_counts_in_the_document_are_those_of_the_record() -> None:
    text = DOCUMENT.read_text("utf-8")
    assert filled(text, parts()) == text, "run: python -m tests.reliability.document"
    assert all(f"<!-- begin {name} -->" in text for name in parts())


def test_every_test_that_the_document_names_is_there() -> None:
    paths = re.findall(r"\]\(\.\./(tests/[^)]+)\)", DOCUMENT.read_text("utf-8"))
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_the_committed_run_has_every_operation_and_enough_faults() -> None:
    run = record("faults")
    for fault in ("kills", "full disk", "power loss"):
        assert set(run[fault]) == set(NAMED), "run: make reliability"
    assert sum(counts["kills"] for counts in run["kills"].values()) >= 1_000
    assert all(counts["kills"] >= counts["steps"] for counts in run["kills"].values())
    assert all(counts["faults"] == counts["steps"] for counts in run["full disk"].values())
    # Cuts after different steps may leave the same state, which counts once.
    assert all(counts["states"] > counts["steps"] // 2 for counts in run["power loss"].values())


def test_the_committed_run_has_a_million_changed_files_and_accounts_for_each() -> None:
    kinds = record("faults")["changed files"]
    assert sum(counts["mutants"] for counts in kinds.values()) >= 1_000_000
    for name, counts in kinds.items():
        accounted = counts["refused"] + counts["set_aside"] + counts["same"] + counts["sound"]
        assert accounted == counts["mutants"], name
        assert counts["sound"] == 0 or "put right" in name, name
    for file in ("task", "base", "manifest", "checkpoint", "run state", "record"):
        assert file in kinds


def test_the_committed_repetitions_ended_without_a_failure_with_and_without_load() -> None:
    runs = record("repeat")["runs"]
    last = {run["kind"]: run for run in runs if run["marked"] == "timing and not slow"}
    assert set(last) <= {"idle", "load"}, "run: python -m tests.repeat --json results/reliability/repeat.json"
    assert [run["failed"] for run in last.values() if run["failed"]] == []
    assert all(run["tests"] > 900 for run in last.values())
