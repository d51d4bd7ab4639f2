"""The commit of each record: the one that it names, or for older records the one that brought it into the repository.

Today a record names the commit of the sources that it was measured with. `python -m benchmarks.pretrained commits`
looks the others up in the history and writes what it says to `results/pretrained/commits.json`, so that a copy without
a history knows it too. A record is identified there by the beginning of the SHA-256 of its line.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from benchmarks.pretrained.records import Row
from halrp.store import atomic

FILE = "commits.json"
DIGITS = 12
"""Of checksums and of commits."""
Known: TypeAlias = Mapping[str, Mapping[str, str]]
"""By domain and by the checksum of a record, its commit."""


def digest(row: Row) -> str:
    """What a record is identified by: its line is the JSON of its values in their order."""
    return hashlib.sha256(json.dumps(row).encode()).hexdigest()[:DIGITS]


def commit_of(row: Row, known: Mapping[str, str]) -> str | None:
    """The commit of a record, or None if nothing is known about it."""
    named: str | None = row.get("commit") or known.get(digest(row))
    return named


def read(results: Path) -> dict[str, dict[str, str]]:
    """What is known of records that name no commit."""
    path = results / FILE
    known: dict[str, dict[str, str]] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return known


def write(results: Path, domains: Mapping[str, list[Row]]) -> int:
    """Look the other records up in the history of their files, keep what was known, and return how many are known."""
    before, known = read(results), dict[str, dict[str, str]]()
    for name, rows in domains.items():
        brought = before.get(name, {}) | first_commits(results / f"{name}.jsonl")
        known[name] = {key: brought[key] for row in rows if "commit" not in row and (key := digest(row)) in brought}
    text = json.dumps(known, indent=0, sort_keys=True) + "\n"
    atomic.write(results / FILE, text.encode())
    return sum(map(len, known.values()))


def first_commits(path: Path) -> dict[str, str]:
    """By the checksum of a record, the first commit whose version of a file has it; nothing without a history."""
    commits: dict[str, str] = {}
    log = _git(path.parent, "log", "--reverse", "--format=%H", "--", path.name)
    for commit in log.split() if log else ():
        text = _git(path.parent, "show", f"{commit}:./{path.name}") or ""
        for row in _rows(text):
            commits.setdefault(digest(row), commit[:DIGITS])
    return commits


def _rows(text: str) -> Iterator[Row]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # a line that was torn then
            continue


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return None
