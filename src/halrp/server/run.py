"""Starting the server: a socket, uvicorn, and what ends it. `serve`."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from halrp.errors import SettingError
from halrp.server.app import LOOPBACK, make_app
from halrp.server.board import Board
from halrp.server.connections import AT_ONCE, WAITING, Connections, lengthen
from halrp.server.limits import Limits
from halrp.server.metrics import Metrics
from halrp.server.service import Service
from halrp.server.tokens import Tokens
from halrp.server.workers import Orphaned, supervise

GRACE = 3.0
"""Seconds that a process has to end beyond those that its last requests have."""


@dataclass(frozen=True)
class Address:
    """Where the server listens, and who may connect."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 is any free one."""
    anyone: bool = False
    """Whether a server without tokens may be reached from other machines."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def check(self, tokens: Tokens | None) -> None:
        """Refuse to let other machines in by accident."""
        if not self.is_loopback and tokens is None and not self.anyone:
            raise SettingError(
                f"--host {self.host} lets other machines connect, and without tokens all of them may use every task: "
                "give --tokens FILE (halrp token makes one), or --anyone if that is meant"
            )

    def bound(self) -> socket.socket:
        """A socket that listens here."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=WAITING)
        except (OSError, OverflowError) as error:
            raise SettingError(f"cannot listen on {self.host}, port {self.port}: {error}") from error


class _Server(uvicorn.Server):
    """A server of one process: it closes connections that take too long, and shares its figures."""

    def __init__(self, config: uvicorn.Config, service: Service, metrics: Metrics, supervised: bool) -> None:
        super().__init__(config)
        self._service, self._metrics, self._supervised = service, metrics, supervised

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, few at once."""
        await super().startup(sockets)
        for listening in sockets or ():
            lengthen(listening)

    async def on_tick(self, counter: int) -> bool:
        """What is done now and then."""
        if counter % 10 == 0:
            self.config.http.close_late()  # type: ignore[union-attr]
        if counter % 5 == 0:
            self._metrics.share(self._service.gauges(), self._service.counters())
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shut down; a process with a supervisor leaves a terminal's Ctrl-C to it."""
        if not (self._supervised and sig == signal.SIGINT):
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the requests under way, which wait for no others any more."""
        self._service.fusion.hurry()
        await super().shutdown(sockets)


def serve(
    make_service: Callable[[], Service],
    limits: Limits,
    address: Address,
    tokens: Tokens | None,
    started: Callable[[str], None],
    workers: int = 1,
) -> None:
    """Answer requests until SIGTERM or SIGINT; then finish those under way. `started` gets the address.

    With several workers, each makes its service of what this process has opened.
    """
    address.check(tokens)
    with address.bound() as listening:
        host = f"[{address.host}]" if ":" in address.host else address.host
        url = f"http://{host}:{listening.getsockname()[1]}"
        hosts, board = LOOPBACK if address.is_loopback else None, Board(workers)

        def work(number: int, orphaned: Orphaned | None) -> None:
            service, metrics = make_service(), Metrics(board, number)
            app = make_app(service, tokens, hosts, metrics)
            server = _Server(_config(app, limits), service, metrics, supervised=orphaned is not None)
            if orphaned is not None:
                orphaned.watch(lambda: setattr(server, "should_exit", True), limits.seconds + GRACE)
            server.run(sockets=[listening])

        if workers > 1:
            supervise(workers, work, limits.seconds + GRACE, lambda: started(url))
        else:
            started(url)
            work(0, None)


def _config(app: Starlette, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connections(limits.seconds),  # type: ignore[arg-type]
        backlog=AT_ONCE,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=int(limits.seconds) + 1,
    )
