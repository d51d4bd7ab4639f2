"""A watch over one HTTP transfer: it ends a connection that is too slow or takes too long.

A timeout of a socket starts again with every byte, so a server that sends one now and then would never end: in the
headers, in the length of a chunk, or in the content. The watch counts received bytes in a thread of its own and shuts
the connection down, which ends a read in any of these.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
import urllib.request
from contextlib import suppress
from typing import Any, Self


class Watch:
    """Ends the connections of its opener if fewer than `slowest` bytes per second come, or at a deadline."""

    def __init__(self, slowest: float, window: float, deadline: float) -> None:
        """Take the rate, the seconds over which it is measured, and a deadline on the monotonic clock."""
        self.received = 0
        """Bytes of content; whoever receives them counts them here."""
        self.problem: str | None = None
        """Why the watch has ended the transfer."""
        self._slowest, self._window, self._deadline = slowest, window, deadline
        self._sockets: list[socket.socket] = []
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="halrp-download-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for connection in self._sockets:
            connection.close()

    def opener(self, *handlers: Any) -> urllib.request.OpenerDirector:
        """An opener of URLs whose connections are watched."""
        watch = self

        class PlainConnection(http.client.HTTPConnection):
            def connect(self) -> None:
                super().connect()
                watch._add(self.sock)

        class TlsConnection(
            http.client.HTTPSConnection, PlainConnection
        ):  # whose `connect` calls that of `PlainConnection`
            pass

        class Http(urllib.request.HTTPHandler):
            def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
                return self.do_open(PlainConnection, req)

        class Https(urllib.request.HTTPSHandler):
            def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
                return self.do_open(TlsConnection, req)

        return urllib.request.build_opener(Http, Https, *handlers)

    def _add(self, connection: socket.socket) -> None:
        with self._lock:
            self._sockets.append(connection.dup())  # shutting a duplicate down ends the connection, TLS or not
        if self.problem is not None:
            self._end()

    def _end(self) -> None:
        with self._lock:
            for connection in self._sockets:
                with suppress(OSError):  # it is closed already
                    connection.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        while True:
            before = self.received
            left = self._deadline - time.monotonic()
            if self._over.wait(max(0.0, min(self._window, left))):
                return
            if left <= self._window:
                self.problem = "it was not finished before the deadline"
            elif self.received - before < self._slowest * self._window:
                self.problem = (
                    f"only {self.received - before:,} bytes came in {self._window:g} seconds, fewer than "
                    f"{self._slowest:,.0f} per second"
                )
            if self.problem is not None:
                self._end()
                return
