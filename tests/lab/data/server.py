"""A small web server on the loopback interface that misbehaves on demand."""

from __future__ import annotations

import hashlib
import random
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from halrp.lab.data.download import RetryPolicy, fetch
from halrp.lab.data.sources import File
from tests.timing import PATIENCE

CONTENT = random.Random(1).randbytes(600_000)


@dataclass
class Site:
    """What the server gives for any address, and how it fails."""

    content: bytes
    ranges: bool = True
    """Whether a Range request gets a piece; otherwise it gets all."""
    etag: str | None = '"one"'
    modified: str | None = None
    length: bool = True
    """Whether the length is sent."""
    cut: list[int] = field(default_factory=list)
    """For each of the next answers, after how many bytes the connection ends."""
    statuses: list[int] = field(default_factory=list)
    """For each of the next answers, a status to give instead."""
    hang: bool = False
    """Send half of it, then nothing more."""
    drip: threading.Event | None = None
    """Send half of it, then byte after byte without an end; set after the first of them."""
    drip_headers: bool = False
    """Send byte after byte of a header without an end."""
    stated_length: str | None = None
    """A Content-Length to state in place of the right one."""
    wrong_range: bool = False
    redirect: str | None = None
    gate: threading.Event | None = None
    """Wait for this in the middle of an answer."""
    asked: list[dict[str, str]] = field(default_factory=list)
    """The headers of each request."""
    url: str = ""
    closing: threading.Event = field(default_factory=threading.Event)


def _handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append({name.lower(): value for name, value in self.headers.items()})
            if site.redirect and self.path == "/file":
                self.send_response(302)
                self.send_header("Location", site.redirect)
                self.end_headers()
                return
            if site.statuses:
                self.send_error(site.statuses.pop(0))
                return
            if site.drip_headers:
                self.wfile.write(b"HTTP/1.0 200 OK\r\nX-Long: ")
                self._drip()
                return
            start = self._start()
            if start is not None and start >= len(site.content):
                self.send_error(416)
                return
            if start is not None and site.wrong_range:
                start = max(0, start - 1)
            body = site.content[start or 0 :]
            self.send_response(200 if start is None else 206)
            if start is not None:
                self.send_header("Content-Range", f"bytes {start}-{len(site.content) - 1}/{len(site.content)}")
            for name, value in (("ETag", site.etag), ("Last-Modified", site.modified)):
                if value is not None:
                    self.send_header(name, value)
            if site.length:
                self.send_header("Content-Length", site.stated_length or str(len(body)))
            self.end_headers()
            self._send(body)

        def _start(self) -> int | None:
            result = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            condition = self.headers.get("If-Range")
            if not site.ranges or result is None or condition not in (None, site.etag, site.modified):
                return None
            return int(result[1])

        def _send(self, body: bytes) -> None:
            if site.cut:
                body = body[: site.cut.pop(0)]
            half = len(body) // 2
            self.wfile.write(body[:half])
            self.wfile.flush()
            if site.hang:
                site.closing.wait(PATIENCE)
                return
            if site.drip is not None:
                site.drip.set()
                self._drip()
                return
            if site.gate is not None:
                site.gate.wait(PATIENCE)
            self.wfile.write(body[half:])

        def _drip(self) -> None:
            while not site.closing.wait(0.01):
                self.wfile.write(b"x")
                self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@contextmanager
def serving(site: Site) -> Iterator[Site]:
    """Serve a site for a block; `site.url` is the address of its file."""
    server = _Quiet(("127.0.0.1", 0), _handler(site))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_address[1]}/file"
    try:
        yield site
    finally:
        site.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


def published(*urls: str, content: bytes = CONTENT, **changes: Any) -> File:
    return replace(File("set/file.bin", urls, len(content), hashlib.sha256(content).hexdigest(), None), **changes)


def part_of(root: Path) -> Path:
    return root / "set" / "file.bin.part"


def only_the_file(root: Path) -> bool:
    return sorted(path.name for path in (root / "set").iterdir()) == ["file.bin"]


def check_next_try(site: Site, root: Path, policy: RetryPolicy) -> None:
    path = fetch(published(site.url), root, policy=policy)
    assert path.read_bytes() == CONTENT
    assert only_the_file(root)
