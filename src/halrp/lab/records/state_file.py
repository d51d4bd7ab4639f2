"""The file of an interrupted run, `NAME.unfinished`: what it contains, its format number, its checks.

A file is three parts: a line of text, `halrp run state FORMAT BYTES SHA256`, with the number and the checksum of the
bytes that follow it; a line of JSON, the `Saved` without its tensors; the method's tensors as safetensors. A file that
is torn, changed in any byte, or of another format is a typed error. Neither torch nor any method is imported here.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from halrp.errors import DamagedError, FormatError, StoreError
from halrp.lab.records.schema import rows_in_order

FORMAT = 2
"""Format 1 had neither a number nor a checksum."""
_LABEL = b"halrp run state"
_FIRST_LINE = 200
"""Bytes that the first line may have."""
LARGEST = 16 << 30
"""Limit on the bytes of a state: it may hold a network for every task."""
_CHUNK = 1 << 20

Json = dict[str, Any]


@dataclass(frozen=True)
class Saved:
    """All that a run of a cell needs to resume after its last learned task."""

    origin: Json
    """The cell, its resolved configuration, and the versions of the code: a run resumes only where all are the same."""
    data: list[str]
    """The fingerprint of each learned task's examples."""
    rows: list[Json]
    """What was measured after each task."""
    values: Json
    """The part of the method's state that is not tensors."""
    tensors: bytes
    """The other part, as safetensors; empty where it was not read."""

    @property
    def cell(self) -> Mapping[str, Any]:
        """The configuration of the run, without its defaults."""
        cell: Mapping[str, Any] = self.origin["cell"]
        return cell


def pack(saved: Saved) -> bytes:
    """The content of the file."""
    facts = {"origin": saved.origin, "data": saved.data, "rows": saved.rows, "values": saved.values}
    body = json.dumps(facts).encode() + b"\n" + saved.tensors
    return _first_line(len(body), hashlib.sha256(body).hexdigest()) + body


def read(path: str | os.PathLike[str], tensors: bool = True) -> Saved:
    """Read and check a file; without `tensors` they are checked, too, and left out of the result.

    A file that is torn or changed is a `DamagedError`, one of another format a `FormatError`.
    """
    path = Path(path)
    try:
        if not path.is_file():
            raise DamagedError(f"{path} is missing or not a file")
        with path.open("rb") as file:
            return _read(file, tensors)
    except StoreError as error:
        raise type(error)(f"{path} is {error}") from error
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror or error}") from error
    except MemoryError as error:
        raise DamagedError(
            f"{path} cannot be read: there is no memory for its {path.stat().st_size:,} bytes"
        ) from error


def _read(file: BinaryIO, tensors: bool) -> Saved:
    first = file.readline(_FIRST_LINE)
    label, _, rest = first.rpartition(b" ")[0].rpartition(b" ")[0].rpartition(b" ")
    if label != _LABEL:
        raise DamagedError("not the state of a run, or one of format 1, which has no checksum")
    if rest != str(FORMAT).encode():
        raise FormatError(f"a state of format {rest.decode('ascii', 'replace')!r}; this version reads format {FORMAT}")
    length = os.fstat(file.fileno()).st_size - len(first)
    if length > LARGEST:
        raise DamagedError(f"not the state of a run: it has {length:,} bytes, more than the {LARGEST:,} it may have")
    if not first.startswith(_first_line(length, "")[:-1]):
        raise DamagedError("not complete: its length is not the one it was written with")
    if first != _first_line(length, _checksum(file)):
        raise DamagedError("not what the run wrote: its checksum does not match")
    file.seek(len(first))
    facts = file.readline()
    try:
        return _checked(json.loads(facts), file.read() if tensors else b"")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"not the state of a run ({type(error).__name__}: {error})") from error


def _first_line(length: int, checksum: str) -> bytes:
    return b"%s %d %d %s\n" % (_LABEL, FORMAT, length, checksum.encode())


def _checksum(file: BinaryIO) -> str:
    """The SHA-256 of the rest of a file, in bounded memory."""
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def _checked(facts: Any, tensors: bytes) -> Saved:
    """The values, once their types are known."""
    saved = Saved(facts["origin"], facts["data"], facts["rows"], facts["values"], tensors)
    typed = (
        facts.keys() == {"origin", "data", "rows", "values"}
        and isinstance(saved.origin, dict)
        and isinstance(saved.cell, dict)
        and isinstance(saved.data, list)
        and all(isinstance(fingerprint, str) for fingerprint in saved.data)
        and isinstance(saved.values, dict)
        and rows_in_order(saved.rows)
        and len(saved.rows) == len(saved.data)
    )
    if not typed:
        raise ValueError("a value of the wrong kind, or rows that do not follow each other")
    return saved
