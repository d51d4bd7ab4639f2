"""What a server takes on at most: `Limits`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from halrp.checks import is_number, is_whole
from halrp.errors import SettingError


@dataclass(frozen=True)
class Limits:
    """Bounds of requests. What is beyond them is refused at once, with the status that says why."""

    body: int = 64 << 20
    """Bytes of a request; 413 beyond."""
    text: int = 16 << 20
    """Bytes of a request's JSON, which takes many times its size while it is read; 413 beyond. Tensors need none."""
    bodies: int = 512 << 20
    """Bytes of all requests under way together; 429 beyond."""
    rows: int = 4096
    """Rows of a request; 413 beyond."""
    queue: int = 256
    """Requests that wait; 429 beyond."""
    seconds: float = 30.0
    """From a request's first byte to its answer; 408 if the request has not come by then, 503 if its answer has not."""
    batch: int = 64
    """Rows that requests are fused to; a larger request is computed alone, this number of rows at a time."""
    delay: float = 0.002
    """Seconds that a request waits for others to share its batch."""

    def __post_init__(self) -> None:
        """Refuse what bounds nothing."""
        for field in fields(self):
            value = getattr(self, field.name)
            timed = field.name in ("seconds", "delay")
            if not (is_number(value, 0) if timed else is_whole(value, 1)):
                raise SettingError(f"Limits({field.name}={value!r}) is out of range; give a number above 0")
