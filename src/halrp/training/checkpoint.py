"""Checkpoints of a task that is being learned: the state of its trainings after a finished epoch.

They belong to one task of one learner: a key stands for base, data, method, recipe and seed. A checkpoint with another
key is ignored and replaced. One that is damaged or does not fit is set aside with a warning, and the stage starts
again. They need not survive a power cut, so they are moved into place without waiting for the disk; a checksum detects
incomplete ones. In a store that signs what it commits, the checksum needs the key: what is learned from a checkpoint
that somebody else wrote would otherwise be committed and signed.

Several processes may learn the same task. Whoever commits it first removes the folder, also while others write to it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from halrp.errors import CheckpointWarning, DamagedError, WriteError
from halrp.store import atomic, signing
from halrp.store.signing import Key
from halrp.store.tensors import copy_of

SHARE = 0.02
"""The most of a training's time that is spent on checkpoints, unless each epoch is asked for."""
SMALL = 1 << 20
"""Bytes of a checkpoint besides its tensors, at most."""
REJECTED = ".rejected"
"""Ending of checkpoints that were set aside."""
_ATTEMPTS = 10


class Checkpoints:
    """The saved trainings of one task, in a folder that is removed when the task is committed."""

    def __init__(self, folder: Path, key: str, every: float = 0.0, signing_key: Key | None = None) -> None:
        """Use a folder for the task of `key`.

        States are saved at least `every` seconds apart, and never more often than `SHARE` of the time allows; with 0,
        after every epoch. With `signing_key`, only states that were saved with that key are loaded.
        """
        self.folder, self.key, self.every, self.signing_key = folder, key, every, signing_key
        self._saved, self._cost = time.monotonic(), 0.0

    def due(self) -> bool:
        """Whether enough time has passed since the last state was saved."""
        return self.every == 0 or time.monotonic() - self._saved >= max(self.every, self._cost / SHARE)

    def save(self, stage: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Save the state of a stage, in place of an earlier one; `facts` are JSON values."""
        began = time.monotonic()
        text = json.dumps({"key": self.key, "stage": stage, **facts}, sort_keys=True)
        content = safetensors.torch.save({n: copy_of(t) for n, t in tensors.items()}, {"facts": text})
        self._write(self._path(stage), self._checksum(content) + content)
        if tensors:  # a note costs nothing
            self._saved = time.monotonic()
            self._cost = self._saved - began

    def _write(self, path: Path, content: bytes) -> None:
        for _ in range(_ATTEMPTS):
            try:
                return atomic.write(path, content, durable=False)
            except WriteError as error:
                if not _vanished(error):
                    raise
        # Another process commits this very task just now: a checkpoint of it has no use.
        return None

    def load(self, stage: str, limit: int = SMALL) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The state of a stage, if there is one with this key and of at most `limit` bytes."""
        path = self._path(stage)
        if not path.exists():
            return None
        try:
            content = atomic.read(path, limit)
            digest, content = content[:64], content[64:]
            if not hmac.compare_digest(self._checksum(content), digest):
                raise DamagedError("its checksum is wrong")
            length = int.from_bytes(content[:8], "little")
            facts = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["facts"])
            if facts["key"] != self.key:
                return None
            if facts["stage"] != stage:
                raise DamagedError(f"it is of the stage {facts['stage']!r}, not {stage!r}")
            return safetensors.torch.load(content), facts
        except (DamagedError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
            if path.exists():  # RecursionError is a RuntimeError
                self.reject(stage, str(error) or type(error).__name__)
            return None

    def _checksum(self, content: bytes) -> bytes:
        key = self.signing_key
        return (atomic.checksum(content) if key is None else signing.keyed_checksum(key, content)).encode()

    def reject(self, stage: str, reason: str) -> None:
        """Set the checkpoint of a stage aside, where nothing reads it, and warn."""
        path = self._path(stage)
        aside = path.with_name(path.name + REJECTED)
        with suppress(OSError):
            path.replace(aside)
        warnings.warn(
            f"the checkpoint {path} of {stage!r} does not fit ({reason}); it is set aside as {aside.name} and the "
            "stage starts again",
            CheckpointWarning,
            stacklevel=2,
        )

    def clear(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, stage: str) -> Path:
        return self.folder / f"{hashlib.sha256(stage.encode()).hexdigest()[:16]}.safetensors"


def _vanished(error: BaseException | None) -> bool:
    """Whether a write failed because its folder was removed meanwhile."""
    while error is not None:
        if isinstance(error, FileNotFoundError):
            return True
        error = error.__cause__
    return False
