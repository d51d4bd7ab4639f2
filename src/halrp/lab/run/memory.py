"""The largest amount of memory that a piece of work had at once.

On a GPU it is the device's own counter of what the run allocated. On a CPU it is the process's resident memory, with
everything that was in it before; Linux can forget an earlier peak, other systems report the peak since the start.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import torch

_STATUS, _FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def forget_peak(device: torch.device) -> None:
    """Begin a new measurement."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        _FORGET.write_text("5")


def peak(device: torch.device) -> int:
    """Bytes at the highest moment since the measurement began."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource  # not on Windows

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
