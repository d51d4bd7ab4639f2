"""Small figures as SVG text: panels with axes, lines, points, bars, and matrices as pictures."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

INK, SOFT, FAINT = "#1b2027", "#59626e", "#dfe3e8"
COLOURS = ("#2b5ea7", "#c2571a", "#2b8a5f", "#8560d6", "#7b828b")
FONT = "font-family='DejaVu Sans,Verdana,sans-serif' font-size='11'"
Scale = Callable[[float], float]


def svg(width: int, height: int, parts: Sequence[str], title: str) -> str:
    """A drawing with a title for those who cannot see it."""
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'"
    return f"{head} role='img' {FONT}>\n<title>{escape(title)}</title>\n" + "\n".join(parts) + "\n</svg>\n"


def text(x: float, y: float, content: str, anchor: str = "start", colour: str = INK, size: int = 11) -> str:
    """One line of text."""
    attributes = f"x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' fill='{colour}' font-size='{size}'"
    return f"<text {attributes}>{escape(content)}</text>"


def matrix(x: float, y: float, values: Sequence[Sequence[float]], cell: float, limit: float) -> str:
    """A matrix as a picture: blue below zero, orange above, white at zero, full colour at ± limit."""
    rows = b"".join(b"\0" + b"".join(_pixel(value / limit) for value in row) for row in values)
    height, width = len(values), len(values[0])
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)
    attributes = f"x='{x:.1f}' y='{y:.1f}' width='{width * cell:.1f}' height='{height * cell:.1f}'"
    data = base64.b64encode(png).decode()
    frame = f"<rect {attributes} fill='none' stroke='{SOFT}' stroke-width='.5'/>"
    return f"<image {attributes} style='image-rendering:pixelated' href='data:image/png;base64,{data}'/>{frame}"


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _pixel(share: float) -> bytes:
    end = (0x1F, 0x55, 0xA5) if share < 0 else (0xC2, 0x57, 0x1A)
    strength = min(1.0, abs(share))
    return bytes(round(255 + strength * (channel - 255)) for channel in end)


def ticks(low: float, high: float, log: bool) -> list[float]:
    """A few round numbers between two."""
    if log:
        powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
        decades = [10.0**power for power in powers]
        finer = [m * 10.0**p for p in range(powers.start - 1, powers.stop) for m in (1, 2, 5)]
        return decades if len(decades) > 2 else [value for value in finer if low <= value <= high]
    step = 10 ** math.floor(math.log10((high - low) / 3))
    step = next(step * factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 5)
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


@dataclass
class Panel:
    """Axes in a rectangle of a drawing, and what is drawn between them."""

    x: float
    y: float
    width: float
    height: float
    across: tuple[float, float]
    up: tuple[float, float]
    log: tuple[bool, bool] = (False, False)
    parts: list[str] = field(default_factory=list)

    def at(self, a: float, b: float) -> tuple[float, float]:
        """Where a pair of values is."""
        shares = [
            (math.log(v) - math.log(lo)) / (math.log(hi) - math.log(lo)) if log else (v - lo) / (hi - lo)
            for v, (lo, hi), log in zip((a, b), (self.across, self.up), self.log, strict=True)
        ]
        return self.x + shares[0] * self.width, self.y + (1 - shares[1]) * self.height

    def axes(
        self,
        below: str,
        beside: str,
        form: Callable[[float], str] = "{:g}".format,
        marks: Sequence[float] | None = None,
    ) -> None:
        """Draw ticks, grid lines and the titles of the axes."""
        bottom = self.y + self.height
        for value in ticks(*self.up, self.log[1]):
            _, at = self.at(self.across[0], value)
            self.parts.append(f"<path d='M{self.x:.1f} {at:.1f}h{self.width:.1f}' stroke='{FAINT}'/>")
            self.parts.append(text(self.x - 5, at + 4, f"{value:g}", "end"))
        for value in ticks(*self.across, self.log[0]) if marks is None else marks:
            at, _ = self.at(value, self.up[0])
            self.parts.append(f"<path d='M{at:.1f} {bottom:.1f}v4' stroke='{SOFT}'/>")
            self.parts.append(text(at, bottom + 16, form(value), "middle"))
        self.parts.append(f"<path d='M{self.x:.1f} {bottom:.1f}h{self.width:.1f}' stroke='{SOFT}'/>")
        self.parts.append(text(self.x + self.width / 2, bottom + 33, below, "middle", SOFT))
        self.parts.append(text(self.x - 30, self.y - 10, beside, "start", SOFT))

    def line(self, points: Sequence[tuple[float, float]], colour: str, dashed: bool = False) -> None:
        """A line through points."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*point) for point in points))
        dash = " stroke-dasharray='5 3'" if dashed else ""
        self.parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.5'{dash}/>")

    def dots(self, points: Sequence[tuple[float, float]], colour: str, radius: float = 3, hollow: bool = False) -> None:
        """A dot at each point."""
        fill = "#fff" if hollow else colour
        for x, y in (self.at(*point) for point in points):
            self.parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{radius}' fill='{fill}' stroke='{colour}'/>")

    def bar(self, a: float, b: float, width: float, colour: str, opacity: float = 1) -> None:
        """A bar of a width in pixels, centred at a, from the lower end to b."""
        x, y = self.at(a, b)
        size = f"width='{width:.1f}' height='{max(0.0, self.y + self.height - y):.1f}'"
        self.parts.append(f"<rect x='{x - width / 2:.1f}' y='{y:.1f}' {size} fill='{colour}' opacity='{opacity}'/>")


def legend(x: float, y: float, names: Sequence[str], colours: Sequence[str] = COLOURS, step: float = 16) -> list[str]:
    """Names with their colours, below each other."""
    parts = []
    for number, (name, colour) in enumerate(zip(names, colours, strict=False)):
        at = y + step * number
        parts.append(f"<rect x='{x}' y='{at - 8}' width='10' height='10' rx='2' fill='{colour}'/>")
        parts.append(text(x + 15, at + 1, name))
    return parts
