"""The example for Ray Serve runs on a local Ray, and its replicas answer as the learner does."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from tests.server.asking import ROOT
from tests.timing import PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is in no extra; see docs/decisions.md"),
]


def test_replicas_fuse_requests_of_several_tasks_or_get_them_by_task_and_follow_the_store() -> None:
    # Ray would write a token into the home folder, and tell its makers that it runs.
    quiet = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "ray_serve.py")],
        env=os.environ | quiet | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    ways = re.findall(r"^(.+): up to (\d) tasks in a batch; as expected: True$", run.stdout, re.MULTILINE)
    assert [way for way, _ in ways] == ["by task", "to any replica"]
    by_task, fused = (int(tasks) for _, tasks in ways)
    assert by_task == 1  # Ray divides batches by the id of a model
    assert fused > 1
    assert re.search(r"^a new task over HTTP: .+; as expected: True$", run.stdout, re.MULTILINE)
