"""One HTTP transfer into a part file, resumed from its end if the server supports that, else from the start."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.message import Message
from pathlib import Path
from typing import IO, Any

from halrp._version import __version__
from halrp.errors import WriteError
from halrp.lab.data.archives import LARGEST_TOTAL
from halrp.lab.data.sources import File
from halrp.lab.data.watch import Watch
from halrp.store.atomic import read as read_bounded
from halrp.store.atomic import write as write_atomically

Report = Callable[[int, int | None], None]
"""Called with the number of bytes received so far, and that of the whole file if known."""
Write = Callable[[Path, int, bytes, int | None], None]
"""Called with the part file, its handle, a chunk of content, and the number of remaining bytes if known."""

_CHUNK = 1 << 18
LARGEST_NOTE = 1 << 16
"""Limit on the bytes of a note beside a file."""
_SCHEMES = ("http", "https")


class TransientError(Exception):
    """A transfer failed for a reason that may be temporary; the part file is kept, to be resumed."""


class PermanentError(Exception):
    """A transfer failed for a reason that a retry does not change."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to HTTP and HTTPS only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        _check_scheme(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)

    def http_error_302(self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any) -> Any:
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except (PermanentError, ValueError):  # another scheme, or an address that cannot be parsed
            fp.close()
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def transfer(
    url: str,
    file: File,
    part: Path,
    report: Report,
    timeout: float,
    write: Write,
    watch: Watch,
) -> None:
    """Download `url` into a part file, from its end if it can be resumed, and report after each chunk.

    Raises `TransientError` or `PermanentError`, and whatever `write` raises.
    """
    _check_scheme(url)
    have = part.stat().st_size if part.exists() else 0
    if have and have == file.bytes:
        return
    headers = {"User-Agent": f"halrp/{__version__}", "Accept-Encoding": "identity"}
    headers |= _resume_headers(url, file, part, have)
    try:
        response = _open(url, headers, timeout, watch)
        if response.status == 206 and _start(response) != have:  # not the requested range
            response.close()
            response = _open(url, _without_range(headers), timeout, watch)
        with response:
            _receive(response, url, file, part, have, report, timeout, write, watch)
    except TransientError as error:
        raise TransientError(watch.problem or str(error)) from error


def _resume_headers(url: str, file: File, part: Path, have: int) -> dict[str, str]:
    """Headers that request the rest of the file; none if all of it must be downloaded.

    If the server sent an ETag or a date, `If-Range` makes it send the rest only if the file is still the same. Without
    either, only a published checksum makes it safe to join two parts.
    """
    if not have or (file.bytes is not None and have > file.bytes):
        return {}
    note = {}
    with suppress(ValueError, RecursionError):
        note = json.loads(read_bounded(_note_path(part), LARGEST_NOTE))
    same = isinstance(note, dict) and note.get("url") == url and isinstance(note.get("version"), str)
    if same:
        return {"Range": f"bytes={have}-", "If-Range": note["version"]}
    return {"Range": f"bytes={have}-"} if file.checksum is not None else {}


def _without_range(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in ("Range", "If-Range")}


def _open(url: str, headers: dict[str, str], timeout: float, watch: Watch) -> http.client.HTTPResponse:
    try:
        opener = watch.opener(_Redirects)
        response: http.client.HTTPResponse = opener.open(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and "Range" in headers:  # there is no such range: the part belongs to another file
            return _open(url, _without_range(headers), timeout, watch)
        kind = TransientError if error.code in (408, 429) or error.code >= 500 else PermanentError
        raise kind(f"the server answered {error.code} {error.reason}".rstrip()) from error
    except urllib.error.URLError as error:
        kind = PermanentError if isinstance(error.reason, ssl.SSLCertVerificationError) else TransientError
        raise kind(_reason(error.reason, timeout)) from error
    except (OSError, http.client.HTTPException) as error:
        raise TransientError(_reason(error, timeout)) from error
    except ValueError as error:  # an address, given or redirected to, that cannot be parsed
        raise PermanentError(f"the address cannot be used: {error}") from error
    return response


def _start(response: http.client.HTTPResponse) -> int | None:
    """The offset at which a partial response starts."""
    match = re.match(r"bytes ([0-9]{1,18})-", response.headers.get("Content-Range", "").strip())
    return None if match is None else int(match[1])


def _total(response: http.client.HTTPResponse, file: File) -> int | None:
    """The length of the file, if known; a response of another length than the published file's is an error."""
    partial = response.status == 206
    text = (
        response.headers.get("Content-Range", "").rpartition("/")[2] if partial else response.headers["Content-Length"]
    )
    if text is not None and not re.fullmatch(r"[0-9]{1,18}|\*?", text.strip()):
        raise PermanentError(f"the server gives a length that is none: {text[:40]!r} ({len(text):,} characters)")
    length = int(text) if text is not None and text.strip().isdecimal() else None
    if file.bytes is not None and length is not None and length != file.bytes:
        raise PermanentError(
            f"the server has a file of {length:,} bytes there, where the published one has {file.bytes:,}"
        )
    if length is not None and length > LARGEST_TOTAL:
        raise PermanentError(f"the server has a file of {length:,} bytes there, more than any known data set has")
    return length if file.bytes is None else file.bytes


def _receive(
    response: http.client.HTTPResponse,
    url: str,
    file: File,
    part: Path,
    have: int,
    report: Report,
    timeout: float,
    write: Write,
    watch: Watch,
) -> None:
    """Append the content of a response to the part file, which is emptied first unless the response is partial."""
    if response.status not in (200, 206):
        raise PermanentError(f"the server answered {response.status} {response.reason}")
    total = _total(response, file)
    done = have if response.status == 206 else 0
    with _opened(part, done) as handle:
        if done == 0:
            _note(part, url, response.headers)
        report(done, total)
        while content := _chunk(response, timeout):
            watch.received += len(content)
            if done + len(content) > (LARGEST_TOTAL if total is None else total):
                most = "any known data set has" if total is None else f"the {total:,} bytes of the file"
                raise PermanentError(f"the server sent more than {most}")
            write(part, handle, content, None if total is None else total - done)
            done += len(content)
            report(done, total)
    if watch.problem is not None:  # to the reader, a connection that was shut down looks like the end
        raise TransientError(watch.problem)
    if total is not None and done < total:
        raise TransientError(f"the connection ended after {done:,} of {total:,} bytes")


def _chunk(response: http.client.HTTPResponse, timeout: float) -> bytes:
    """The next bytes of a response; empty at the end."""
    try:
        return response.read1(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise TransientError(_reason(error, timeout)) from error


@contextmanager
def _opened(part: Path, size: int) -> Iterator[int]:
    """A handle for appending to a part file, truncated to `size`."""
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
        os.ftruncate(handle, size)
        os.lseek(handle, size, os.SEEK_SET)
    except OSError as error:
        raise PermanentError(f"{part} cannot be written: {error.strerror or error}") from error
    try:
        yield handle
    finally:
        os.close(handle)


def _note_path(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _note(part: Path, url: str, headers: Message) -> None:
    """Write the URL of a part file beside it, and the version of the file if the server sends one."""
    version = headers.get("ETag") or ""
    if not version.startswith('"'):  # a weak ETag does not promise the same bytes
        version = headers.get("Last-Modified") or ""
    with suppress(FileNotFoundError):
        _note_path(part).unlink()
    with suppress(WriteError):  # without the note the part is still resumed if there is a checksum
        write_atomically(_note_path(part), json.dumps({"url": url, "version": version or None}).encode(), durable=False)


def _check_scheme(url: str) -> None:
    if urllib.parse.urlsplit(url).scheme not in _SCHEMES:
        raise PermanentError(f"{url} is not an http or https address")


def _reason(error: object, timeout: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer for {timeout:g} seconds"
    if isinstance(error, socket.gaierror):
        return f"the host is not known ({error.strerror})"
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
