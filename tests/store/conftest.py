"""A store for tests that change files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from halrp import Flat, Halrp, Learner
from tests.helpers import tiny_task
from tests.store.stores import OFFICIAL, Material, learned, roomy


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Learner]:
    """A store with a task of each precision: one has dense weights, one is sparse, one has factors everywhere."""
    folder = tmp_path_factory.mktemp("fuzz") / "store"
    learner = learned("conv", tasks=2, method=roomy("int8"), store=folder)
    learner.method = dataclasses.replace(OFFICIAL, precision="bfloat16")
    learner.learn("sparse", tiny_task("conv", 5))
    learner.method = Halrp(allocate=Flat(3))
    learner.learn("float", tiny_task("conv", 6))
    return folder, learner


@pytest.fixture(scope="session")
def material() -> Material:
    """Tasks to commit, learned once."""
    learner = learned("mlp", tasks=0, base="given")
    contents = tuple(learner.learn(f"t{number}", tiny_task("mlp", number)) for number in range(3))
    return Material(learner._committed.ready, contents)
