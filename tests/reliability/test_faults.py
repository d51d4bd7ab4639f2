"""Kills, a full disk and power loss at the steps of every operation: some of them here, all of them in the slow tests.

What must hold is in `faults`: a reader finds the old state or the new one, and finishing the work ends with the bytes
of an uninterrupted run.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.reliability import campaign
from tests.reliability.operations import NAMED

pytestmark = [
    pytest.mark.skipif(not os.path.isdir("/proc/self/fd") or not hasattr(os, "fork"), reason="needs Linux"),
    # Forking beside threads is deprecated; torch's threads are asleep, and children use one.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::halrp.errors.CheckpointWarning"),  # a power cut may leave a torn checkpoint
]


@pytest.mark.parametrize("name", NAMED)
def test_a_kill_at_some_steps_loses_nothing(name: str, tmp_path: Path) -> None:
    counts = campaign.kills(NAMED[name], tmp_path, stride=13, again=1)
    assert counts["kills"] >= counts["steps"] // 13


@pytest.mark.parametrize("name", NAMED)
def test_a_full_disk_at_some_steps_is_refused_or_harmless(name: str, tmp_path: Path) -> None:
    counts = campaign.full_disk(NAMED[name], tmp_path, stride=7)
    assert counts["faults"] >= counts["steps"] // 7


@pytest.mark.parametrize("name", NAMED)
def test_power_lost_at_any_step_leaves_the_old_state_or_the_new_one(name: str, tmp_path: Path) -> None:
    assert campaign.power_loss(NAMED[name], tmp_path, most=4, stride=17)["states"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_a_kill_at_every_step_and_kills_in_a_row_lose_nothing(name: str, tmp_path: Path) -> None:
    counts = campaign.kills(NAMED[name], tmp_path, again=30)
    assert counts["kills"] >= counts["steps"] + 30


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_a_full_disk_at_every_step_is_refused_or_harmless(name: str, tmp_path: Path) -> None:
    counts = campaign.full_disk(NAMED[name], tmp_path)
    assert counts["faults"] == counts["steps"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_power_lost_at_every_step_leaves_the_old_state_or_the_new_one(name: str, tmp_path: Path) -> None:
    counts = campaign.power_loss(NAMED[name], tmp_path)
    assert counts["states"] > counts["steps"] // 2
