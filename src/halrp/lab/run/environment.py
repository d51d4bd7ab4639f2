"""What a run's numbers may depend on besides its configuration: versions, machine, threads, commit."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from halrp import __version__


@cache
def environment() -> dict[str, Any]:
    """The environment of this process, as records have it."""
    return {
        "halrp": __version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def _commit() -> str | None:
    """The commit of the sources, marked if they differ from it; None outside a repository."""
    folder = Path(__file__).resolve().parent
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
