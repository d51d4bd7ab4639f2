"""The JavaScript that draws plots on the page: Vega, Vega-Lite and Vega-Embed, as vl-convert bundles them.

Bundling takes seconds, so the result is cached in the user's cache directory, by the version of vl-convert. The first
line of the file is the checksum of the rest: a damaged file is ignored and written again.
"""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from halrp.errors import DamagedError, WriteError
from halrp.lab.directories import cache_directory
from halrp.store import atomic

PROGRAM = "window.vegaEmbed = vegaEmbed;"
LARGEST = 64 << 20
"""Limit on the bytes of the cached script."""


def script_library() -> str:
    """The bundle, from the cache or made again; a cache that cannot be written is no error."""
    path = cache_directory() / "report" / f"vega-{version('vl-convert-python')}.js"
    cached = _read(path)
    if cached is not None:
        return cached
    import vl_convert

    text = vl_convert.javascript_bundle(PROGRAM)
    content = text.encode()
    with suppress(WriteError):
        atomic.write(path, f"// {atomic.checksum(content)}\n".encode() + content, durable=False)
    return text


def _read(path: Path) -> str | None:
    try:
        first, _, content = atomic.read(path, LARGEST).partition(b"\n")
    except DamagedError:
        return None
    return content.decode() if first.decode("ascii", "replace") == f"// {atomic.checksum(content)}" else None
