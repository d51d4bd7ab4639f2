"""Checkpoints of a task that is being learned: the state of its trainings after their last finished epoch.

They belong to one task of one learner: a key stands for base, data, method, recipe and seed. A checkpoint with another
key, or a damaged one, is ignored and the stage starts again. They need not survive a power cut, so they are moved into
place without waiting for the disk; a checksum detects incomplete ones.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from halrp.errors import DamagedError
from halrp.store import atomic
from halrp.store.tensors import copy_of


class Checkpoints:
    """The saved trainings of one task, in a folder that is removed when the task is committed."""

    def __init__(self, folder: Path, key: str, every: float = 0.0) -> None:
        """Use a folder for the task of `key`; states are saved at least `every` seconds apart."""
        self.folder, self.key, self.every = folder, key, every
        self._saved = time.monotonic()

    def due(self) -> bool:
        """Whether enough time has passed since the last state was saved."""
        return time.monotonic() - self._saved >= self.every

    def save(self, stage: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Save the state of a stage, in place of an earlier one; `facts` are JSON values."""
        self._saved = time.monotonic()
        text = json.dumps({"key": self.key, "stage": stage, **facts}, sort_keys=True)
        content = safetensors.torch.save({n: copy_of(t) for n, t in tensors.items()}, {"facts": text})
        atomic.write(self._path(stage), atomic.checksum(content).encode() + content, durable=False)

    def load(self, stage: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The state of a stage, if there is one with this key."""
        path = self._path(stage)
        try:
            content = atomic.read(path)
            digest, content = content[:64], content[64:]
            if atomic.checksum(content).encode() != digest:
                return None
            length = int.from_bytes(content[:8], "little")
            facts = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["facts"])
            if facts["key"] != self.key or facts["stage"] != stage:
                return None
            return safetensors.torch.load(content), facts
        except (DamagedError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError):  # RecursionError is one
            return None

    def clear(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, stage: str) -> Path:
        return self.folder / f"{hashlib.sha256(stage.encode()).hexdigest()[:16]}.safetensors"
