"""All faults on all operations, and changed files of all kinds: the long run, and short ones of the same functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

from tests.helpers import one_thread
from tests.reliability.changed_files import Kind, check, kinds
from tests.reliability.faults import full_at, kill_at, lose_power, steps_of
from tests.reliability.operations import Operation


def kills(operation: Operation, scratch: Path, stride: int = 1, again: int = 0, seed: int = 0) -> dict[str, int]:
    """Kill at every n-th step; then `again` times at one random step and, while that is recovered from, at others."""
    with one_thread():
        steps = len(steps_of(operation, scratch))
        killed = [kill_at(operation, [number], scratch) for number in range(1, steps + 1, stride)]
        assert all(killed), "a child was done before it was killed"
        random = Random(f"{operation.name}, {seed}")
        for _ in range(again):
            numbers = [random.randrange(1, steps + 1) for _ in range(random.choice((2, 3, 5)))]
            killed.append(kill_at(operation, numbers, scratch))
    return {"steps": steps, "kills": sum(killed)}


def full_disk(operation: Operation, scratch: Path, stride: int = 1) -> dict[str, int]:
    """Let the disk be full at every n-th step."""
    with one_thread():
        steps = len(steps_of(operation, scratch))
        refused = [full_at(operation, number, scratch) for number in range(1, steps + 1, stride)]
    assert any(refused) or stride > 1, "a full disk was never noticed"
    return {"steps": steps, "faults": len(refused), "refused": sum(refused)}


def power_loss(operation: Operation, scratch: Path, most: int = 16, stride: int = 1) -> dict[str, int]:
    """Lose power after every step."""
    with one_thread():
        steps = steps_of(operation, scratch)
        return {"steps": len(steps), "states": lose_power(operation, steps, scratch, most, stride)}


def changed_files(kind: Kind, count: int, seed: int = 0) -> Mapping[str, Any]:
    """Read changed files of a kind."""
    return dataclasses.asdict(check(kind, count, seed))


def mutants_of(scratch: Path, total: int) -> Iterator[tuple[Kind, int]]:
    """Every kind of file, and how many changed ones of it are read for a total."""
    every = kinds(scratch)
    whole = sum(kind.share for kind in every)
    for kind in every:
        yield kind, round(total * kind.share / whole)
