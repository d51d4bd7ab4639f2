"""A contact sheet: what the tasks of a stream look like, on one picture.

Each task is a row with its name at the left, and each class a picture with its name below. Pictures are shown as they
were before they were normalised, enlarged without smoothing.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from halrp.errors import SettingError
from halrp.lab.streams.stream import Normal, Stream, Task

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont, ImageFont

PAPER, INK, FAINT = (250, 250, 248), (30, 30, 30), (228, 228, 226)
CELL = 48
"""The least that the longer side of a picture takes on the sheet, in pixels."""
COLUMNS = 24
"""A task with more pictures continues below them."""
GAP, MARGIN = 6, 8
TEXT, TITLE = 10, 12
"""Sizes of the letters under a picture and at the left of a row."""
TITLE_WIDTH = 180


class _Row(NamedTuple):
    """What is shown of a task: for each class, `per_class` images (channels, height, width) or None for want of one."""

    name: str
    labels: list[str]
    images: list[Tensor | None]
    raw: bool
    """Whether the images are not normalised, by the task's `normal`."""


def contact_sheet(
    stream: Stream, tasks: int | None = None, per_class: int = 1, part: str = "test", scale: int | None = None
) -> Image:
    """Show the first images of every class of a stream's tasks: rows are tasks, columns are classes.

    `tasks` is the most tasks that are shown, `per_class` how many images of each class, `part` "train", "val" or
    "test". Each pixel becomes `scale`×`scale` of them; without it the longer side of an image becomes at least 48.
    Floats that the stream does not say how to turn back into pixels are stretched from its least value to its greatest
    when they leave 0 … 1. One channel is shown in grey, as is the mean of any number but three.
    """
    from PIL import Image, ImageDraw, ImageFont  # part of the `lab` extra

    for key, value in {"tasks": tasks, "per_class": per_class, "scale": scale}.items():
        if value is not None and value < 1:
            raise SettingError(f"{key}={value} of a contact sheet must be at least 1")
    if part not in ("train", "val", "test"):
        raise SettingError(f"part={part!r} of a contact sheet must be 'train', 'val' or 'test'")
    rows = [_row(task, per_class, part) for task in stream[:tasks]]
    if not rows:
        raise SettingError(f"stream {stream.name!r} has no tasks to show")
    low, high = _range(rows)

    _, height, width = stream.shape
    scale = scale or math.ceil(CELL / max(height, width))
    font, title_font = ImageFont.load_default(TEXT), ImageFont.load_default(TITLE)
    columns = min(COLUMNS, max(len(row.images) for row in rows))
    cell_width, cell_height = width * scale, height * scale
    left = MARGIN + min(TITLE_WIDTH, math.ceil(max(title_font.getlength(row.name) for row in rows))) + MARGIN
    line = cell_height + TEXT + 4 + GAP
    lines = [math.ceil(len(row.images) / columns) for row in rows]
    size = (left + columns * (cell_width + GAP) - GAP + MARGIN, 2 * MARGIN + sum(lines) * line - GAP)
    sheet = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(sheet)

    top = MARGIN
    for row, high_lines in zip(rows, lines, strict=True):
        title = _shortened(row.name, TITLE_WIDTH, title_font)
        draw.text((MARGIN, top + cell_height // 2), title, INK, title_font, anchor="lm")
        for number, (label, image) in enumerate(zip(row.labels, row.images, strict=True)):
            x = left + number % columns * (cell_width + GAP)
            y = top + number // columns * line
            if image is None:
                draw.rectangle((x, y, x + cell_width - 1, y + cell_height - 1), FAINT)
            else:
                pixels = (image - low) / (high - low) if row.raw else image
                picture = Image.fromarray(_bytes(pixels).numpy())
                sheet.paste(picture.resize((cell_width, cell_height), Image.Resampling.NEAREST), (x, y))
            below = (x + cell_width / 2, y + cell_height + 2)
            draw.text(below, _shortened(label, cell_width, font), INK, font, anchor="ma")
        top += high_lines * line
    return sheet


def _row(task: Task, per_class: int, part: str) -> _Row:
    """Choose the images of a task, the first ones of each class, and undo their normalisation."""
    x, y = getattr(task, part)
    names = task.class_names or [str(label) for label in range(task.classes)]
    mean, deviation = (x.new_tensor(value).view(-1, 1, 1) for value in task.normal)
    labels: list[str] = []
    images: list[Tensor | None] = []
    for label, name in enumerate(names):
        rows = (y == label).nonzero()[:per_class, 0]
        shown = list((x[rows] * deviation + mean).to("cpu"))
        images += shown + [None] * (per_class - len(shown))
        labels += [_one_line(name)] * per_class
    return _Row(_one_line(task.name), labels, images, task.normal == Normal((0.0,), (1.0,)))


def _range(rows: list[_Row]) -> tuple[float, float]:
    """Find what to show as black and white where images were never normalised: 0 and 1 if that holds them."""
    raw = [image for row in rows if row.raw for image in row.images if image is not None]
    low = min((float(image.min()) for image in raw), default=0.0)
    high = max((float(image.max()) for image in raw), default=1.0)
    if low >= 0.0 and high <= 1.0:
        return 0.0, 1.0
    return low, high if high > low else low + 1.0


def _bytes(image: Tensor) -> Tensor:
    """Turn pixels (channels, height, width) in 0 … 1 into bytes (height, width, 3), clipped."""
    if image.shape[0] != 3:
        image = image.mean(0, keepdim=True).expand(3, -1, -1)
    return image.mul(255).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous()


def _one_line(text: str) -> str:
    """Put a text on one line."""
    return " ".join(text.split())


def _shortened(text: str, width: float, font: FreeTypeFont | ImageFont) -> str:
    """Leave out the middle of a text that does not fit into a width: names often differ at their ends."""
    remaining, shorter = len(text), text
    while font.getlength(shorter) > width and remaining > 0:
        remaining -= 1
        shorter = text[: (remaining + 1) // 2] + "…" + text[len(text) - remaining // 2 :]
    return shorter
