"""Starting the server: a socket, uvicorn, and what ends it. `serve`."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn

from halrp.errors import SettingError
from halrp.server.app import LOOPBACK, make_app
from halrp.server.service import Service
from halrp.server.tokens import Tokens


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
            return socket.create_server((self.host, self.port), family=family, backlog=2048)
        except (OSError, OverflowError) as error:
            raise SettingError(f"cannot listen on {self.host}, port {self.port}: {error}") from error


class _Server(uvicorn.Server):
    """A server that does not let requests wait for others once it shuts down."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the requests under way."""
        self._service.fusion.hurry()
        await super().shutdown(sockets)


def serve(service: Service, address: Address, tokens: Tokens | None, started: Callable[[str], None]) -> None:
    """Answer requests until SIGTERM or SIGINT; then finish those under way. `started` gets the address."""
    address.check(tokens)
    app = make_app(service, tokens, LOOPBACK if address.is_loopback else None)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=int(service.limits.seconds) + 1,
    )
    with address.bound() as listening:
        host = f"[{address.host}]" if ":" in address.host else address.host
        started(f"http://{host}:{listening.getsockname()[1]}")
        _Server(config, service).run(sockets=[listening])
