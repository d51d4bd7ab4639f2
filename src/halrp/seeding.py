"""Randomness as a function of names, never of history.

Every random draw in the library takes its seed from `(seed, base fingerprint, task name, stage, epoch)`. What ran
before, in which order, in which process, leaves no trace, so a task learned alone equals the same task learned
tenth. Code that can only draw from the global generator (dropout, default initialisers, a user's `DataLoader`) runs
inside `isolated`, which restores the global state afterwards. A process has one set of global generators, so one thread
at a time is inside; the others wait.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor


def seed_of(*parts: object) -> int:
    """Hash any sequence of names and numbers to a 63-bit seed.

    Parts are joined by a separator that is escaped inside them, so no two sequences make the same text.
    """
    text = "\x1f".join(str(part).replace("\x1e", "\x1e0").replace("\x1f", "\x1e1") for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogatepass")).digest()[:8], "big") >> 1


def generator(*parts: object) -> torch.Generator:
    """Make a CPU generator whose stream depends on `parts` alone.

    Draws are made on the CPU and moved, so that the same parts give the same numbers on every device.
    """
    return torch.Generator().manual_seed(seed_of(*parts))


class _Turn:
    """Whose turn it is to use what a process has once; a thread that has the turn may take it again."""

    def __init__(self) -> None:
        self.lock, self.holder = threading.RLock(), 0
        if hasattr(os, "register_at_fork"):  # the thread that has the turn does not exist in a forked process
            os.register_at_fork(after_in_child=self._free)

    def _free(self) -> None:
        self.lock, self.holder = threading.RLock(), 0


_TURN = _Turn()


@contextmanager
def exclusive() -> Iterator[None]:
    """Run a block while no other thread is in one: for what a process has once, as generators and thread counts."""
    with _TURN.lock:
        before, _TURN.holder = _TURN.holder, threading.get_ident()
        try:
            yield
        finally:
            _TURN.holder = before


def is_exclusive() -> bool:
    """Whether this thread is in an `exclusive` block, so that waiting for another thread to enter one never ends."""
    return _TURN.holder == threading.get_ident()


@contextmanager
def isolated(*parts: object, device: torch.device) -> Iterator[None]:
    """Run a block on the global generators of the CPU and of `device`, seeded by `parts`, and restore their states.

    `torch.manual_seed` would also seed every other device, whose states nobody restores. Python's and numpy's
    generators are treated alike, for augmentations that draw from them. Other threads wait until the block ends.
    """
    with exclusive(), _seeded(seed_of(*parts), device):
        yield


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        mps = torch.mps.get_rng_state() if device.type == "mps" else None
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        if mps is not None:
            torch.mps.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            if mps is not None:
                torch.mps.set_rng_state(mps)
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Name a set of tensors by a hash of their names, types, shapes and bytes.

    Independent of memory format, of device and of the order of the mapping.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        digest.update(f"{name}\x1f{tensor.dtype}\x1f{tuple(tensor.shape)}\x1f".encode())
        flat = tensor.contiguous().cpu().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
