"""A compressed .xz file as a stream whose memory is limited.

A file names the size of the dictionary that decompresses it, up to 4 GB; the standard library's `LZMAFile` allocates
what it asks for. The decompressor here refuses more than `MEMORY`.
"""

import io
import lzma
from pathlib import Path

XzError = lzma.LZMAError
MEMORY = 128 << 20
"""Limit on the bytes of a decompressor; the strongest preset of xz needs 65 MB."""
_CHUNK = 1 << 16


class XzFile(io.RawIOBase):
    """The content of an .xz file; seeking back decompresses it again from the start."""

    def __init__(self, path: Path) -> None:
        """Open a file."""
        self._file = open(path, "rb")  # noqa: SIM115  (closed by `close`)
        self._restart()

    def _restart(self) -> None:
        self._file.seek(0)
        self._position = 0
        self._decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)

    def _some(self, most: int) -> bytes:
        """Up to `most` bytes of content; none at the end."""
        while True:
            decompressor = self._decompressor
            if decompressor.eof:  # another stream may follow, after zeros
                left = (decompressor.unused_data or self._file.read(_CHUNK)).lstrip(b"\0")
                while not left:
                    if not (more := self._file.read(_CHUNK)):
                        return b""
                    left = more.lstrip(b"\0")
                self._decompressor = decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
                content = decompressor.decompress(left, most)
            elif decompressor.needs_input:
                if not (packed := self._file.read(_CHUNK)):
                    raise EOFError("it ends in the middle of a compressed stream")
                content = decompressor.decompress(packed, most)
            else:
                content = decompressor.decompress(b"", most)
            if content:
                self._position += len(content)
                return content

    def read(self, size: int = -1) -> bytes:
        """Read `size` bytes, fewer at the end; all of them if it is negative."""
        parts, left = [], size
        while size < 0 or left > 0:
            if not (some := self._some(_CHUNK if size < 0 else left)):
                break
            parts.append(some)
            left -= len(some)
        return b"".join(parts)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to an offset from the start."""
        if whence != io.SEEK_SET or offset < 0:
            raise io.UnsupportedOperation("only offsets from the start")
        if offset < self._position:
            self._restart()
        while self._position < offset and self._some(min(_CHUNK, offset - self._position)):
            pass
        return self._position

    def tell(self) -> int:
        """The offset of the next byte."""
        return self._position

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()
