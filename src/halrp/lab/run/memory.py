"""Peak memory of a part of a run.

On a GPU it is the device's counter of allocated memory. On a CPU it is the process's resident memory, including what
was allocated before; Linux can reset the peak, other systems report the peak since the process started.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak(device: torch.device) -> None:
    """Start a new measurement."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        _RESET.write_text("5")


def peak(device: torch.device) -> int:
    """Peak memory in bytes since the measurement was started."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource  # not on Windows

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else largest * 1024
