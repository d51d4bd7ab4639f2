"""A progress bar for terminals, in one line that is written again and again."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from typing import Literal, TextIO, TypeAlias

from halrp.errors import SettingError
from halrp.text import printable
from halrp.training.progress import Notify, Progress

Show: TypeAlias = "Notify | Literal['auto', 'bar'] | None"
"""How progress is shown: by a callback, a bar, a bar if there is a terminal ("auto"), or not at all."""
_CELLS = 20


def notifier(show: Show) -> Notify | None:
    """The callback that shows progress in a way."""
    if show == "auto":
        return Bar() if _is_terminal(sys.stderr) else None
    if show == "bar":
        return Bar()
    if show is None or callable(show):
        return show
    raise SettingError(f"Learner(progress={show!r}) is unknown; give 'bar', a callback that takes a Progress, or None")


class Bar:
    """A progress callback that draws task, stage, epochs, loss, validation score and the time left."""

    validates = True

    def __init__(self, stream: TextIO | None = None) -> None:
        """Draw on a stream; by default on what is `sys.stderr` at the time."""
        self._stream = stream
        self._line: tuple[str, str] | None = None
        self._width = 0
        self._last: Progress | None = None
        """The last epoch of the line's stage that ended."""

    def __call__(self, at: Progress) -> None:
        """Draw a report. A terminal that cannot show it is no reason to stop a training."""
        with suppress(Exception):
            if self._line != (at.task, at.stage):
                self.finish()
                self._line, self._last = (at.task, at.stage), None
            self._last = at if at.step == 0 else self._last
            text = printable(_text(at, self._last))[: shutil.get_terminal_size().columns - 1]
            self._write("\r" + text.ljust(self._width))
            self._width = len(text)

    def finish(self) -> None:
        """End the line."""
        if self._line is not None:
            with suppress(Exception):
                self._write("\n")
            self._line, self._width = None, 0

    def _write(self, text: str) -> None:
        stream = sys.stderr if self._stream is None else self._stream
        stream.write(text)
        stream.flush()


def _text(at: Progress, last: Progress | None) -> str:
    done = at.epoch + at.step / max(at.steps, 1)
    share = done / max(at.epochs, 1)
    parts = [
        f"{at.task}: {at.stage}",
        "[" + ("#" * int(_CELLS * share)).ljust(_CELLS, ".") + "]",
        f"{at.epoch}/{at.epochs}",
    ]
    if last is not None and last.loss is not None:
        parts.append(f"loss {last.loss:.4g}")
    if last is not None and last.validation_score is not None:
        parts.append(f"val {last.validation_score:.4g}")
    if done:
        parts.append(f"{_clock(at.seconds * (at.epochs - done) / done)} left")
    return "  ".join(parts)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False
