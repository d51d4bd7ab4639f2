"""Connections that take their time do not keep the server from others: `Connections`.

A connection whose request has not begun or not ended within a time is closed, and if as many are open as the system
allows, the one that has been idle for longest makes room for a new one. A request under way is never closed for that.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

AT_ONCE = 16
"""Connections that are accepted in one go: the others are left to other workers, and for idle ones to make room."""
WAITING = 2048
"""Connections that the system holds until they are accepted."""
RESERVED = 128
"""Descriptors for files, and for what is open at the start."""
MOST = 16_384
"""Connections of a process, however many descriptors it may have; each takes some 20 KB."""


class Connection(H11Protocol):
    """A connection, which knows since when it has been waiting for the same thing."""

    def __init__(self, all_connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._all = all_connections
        self.since = time.monotonic()
        self.request: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room if need be."""
        super().connection_made(transport)
        self._all.add(self)

    def on_response_complete(self) -> None:
        """Count as the one that has been idle for the shortest time."""
        super().on_response_complete()
        self._all.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self._all.remove(self)

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way: none has come whole up to its body, or the last one was answered."""
        return self.cycle is None or self.cycle.response_complete


class Connections:
    """The connections of one process. Its calls are those of the event loop's thread."""

    def __init__(self, seconds: float, most: int | None = None) -> None:
        """Allow a time for each request, and as much for reading its answer; `most` defaults to all there can be."""
        self.seconds, self.most = seconds, allowed() if most is None else most
        self._open: dict[Connection, None] = {}

    def __call__(self, **options: Any) -> Connection:
        """A new connection, as uvicorn makes it."""
        return Connection(self, **options)

    def add(self, connection: Connection) -> None:
        """Note that a connection waits from now on; the one that waited for longest makes room."""
        self._open.pop(connection, None)
        self._open[connection] = None
        connection.since = time.monotonic()
        if len(self._open) > self.most:
            idle = next((each for each in self._open if each.is_idle), connection)
            self.remove(idle)
            idle.transport.abort()

    def remove(self, connection: Connection) -> None:
        """Forget a connection that was lost."""
        self._open.pop(connection, None)

    def close_late(self) -> None:
        """Close those whose request has not come, or whose answer was not read, in time."""
        now = time.monotonic()
        for connection in list(self._open):
            if connection.cycle is not connection.request and not connection.is_idle:
                connection.request, connection.since = connection.cycle, now
            elif now - connection.since > (1 if connection.is_idle else 2) * self.seconds:
                self.remove(connection)
                connection.transport.abort()


def allowed() -> int:
    """The connections that the system lets this process have, after asking for as many as it may."""
    if sys.platform == "win32":  # pragma: no cover
        return MOST
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + RESERVED if hard == resource.RLIM_INFINITY else min(hard, MOST + RESERVED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return max(RESERVED // 4, min(wanted if soft == resource.RLIM_INFINITY else soft, MOST + RESERVED) - RESERVED)


def lengthen(listening: socket.socket) -> None:
    """Let the system hold many connections again, after an event loop has asked for few at once."""
    listening.listen(WAITING)
