"""What a sweep trusts of a Dask cluster: encryption of its connections, and what workers may say.

Dask itself sends code and pickled values, so whoever can speak to the scheduler can run code on every worker and on the
client: TLS decides who can. What is checked here is what workers report, events and records: they may be confused or of
another version. `docs/security.md` has the threat model.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from halrp.checks import is_number, is_whole
from halrp.errors import SettingError
from halrp.lab.run.engine import Event

if TYPE_CHECKING:
    from distributed.security import Security

TLS = "tls://"
LONGEST = 10_000
"""Characters of an event's text, at most."""
_FILES = {"tls_ca": "--tls-ca", "tls_cert": "--tls-cert", "tls_key": "--tls-key"}


@dataclass(frozen=True)
class ClusterSecurity:
    """Settings of the connection to a cluster."""

    tls_ca: str | os.PathLike[str] | None = None
    """A PEM file with the certificate of the authority that scheduler, workers and client share."""
    tls_cert: str | os.PathLike[str] | None = None
    """A PEM file with the client's certificate."""
    tls_key: str | os.PathLike[str] | None = None
    """A PEM file with the client's private key."""
    trusted: bool = True
    """Whether workers may use the results folder, where it is on their machine, and keep states there. Workers that are
    not trusted get no path of it and only send records, and a connection without TLS to another machine is refused."""

    @property
    def encrypted(self) -> bool:
        """Whether TLS is asked for."""
        return any(getattr(self, name) is not None for name in _FILES)

    def check(self, address: str) -> None:
        """Refuse settings that contradict each other or the address, before anything is sent."""
        missing = [option for name, option in _FILES.items() if getattr(self, name) is None]
        if self.encrypted and missing:
            raise SettingError(f"TLS needs three files: give {' and '.join(missing)} as well")
        for name, option in _FILES.items():
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise SettingError(f"{option} {path} is not a file; name a PEM file")
        if self.encrypted and not address.startswith(TLS):
            raise SettingError(f"{address!r} is not an encrypted address; with --tls-ca it begins with {TLS}")
        if not self.encrypted and address.startswith(TLS):
            raise SettingError(f"{address!r} needs TLS; give {', '.join(_FILES.values())}")
        if not self.trusted and not self.encrypted and not _is_local(address):
            raise SettingError(
                f"workers behind {address!r} are not trusted, but anybody on the way can pose as the scheduler; use "
                f"TLS: {', '.join(_FILES.values())}"
            )

    def of_dask(self) -> Security | None:
        """The same settings as Dask takes them; None leaves them to its own configuration."""
        if not self.encrypted:
            return None
        from distributed.security import Security

        return Security(
            tls_ca_file=str(self.tls_ca),
            tls_client_cert=str(self.tls_cert),
            tls_client_key=str(self.tls_key),
            require_encryption=True,
        )


def _is_local(address: str) -> bool:
    host = address.rpartition("://")[2].rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")


def event_of(message: object, cells: Container[str]) -> Event | None:
    """An event that a worker sent; None if it is none, or is about a cell that was not submitted."""
    fields = {field.name for field in dataclasses.fields(Event)}
    if not isinstance(message, Mapping) or not message.keys() <= fields or not {"cell", "kind"} <= message.keys():
        return None
    kinds = get_args(get_type_hints(Event)["kind"])
    values: dict[str, Any] = {"position": 0, "share": 0.0, "text": "", "accuracy": None, "seconds": 0.0, **message}
    good = (
        isinstance(values["cell"], str)
        and values["cell"] in cells
        and isinstance(values["kind"], str)
        and values["kind"] in kinds
        and is_whole(values["position"], 0, 10**9)
        and is_number(values["share"], 0)
        and is_number(values["seconds"], 0)
        and (values["accuracy"] is None or is_number(values["accuracy"], 0))
        and isinstance(values["text"], str)
    )
    return Event(**{**values, "text": values["text"][:LONGEST]}) if good else None
