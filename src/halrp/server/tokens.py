"""Who may ask for which tasks: bearer tokens, known by their checksums. `Tokens`."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from halrp.checks import check_task_name
from halrp.errors import SettingError, StoreError
from halrp.store import atomic

LARGEST = 1 << 20
"""Bytes that a file of tokens may have."""
EVERYTHING = "*"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Access:
    """The tasks that a client may see and use; None for all, the base and the figures of the server."""

    tasks: frozenset[str] | None = None

    @property
    def everything(self) -> bool:
        """Whether nothing is hidden."""
        return self.tasks is None

    def may(self, name: str) -> bool:
        """Whether a task, or the base under its name, may be used."""
        return self.tasks is None or name in self.tasks


class Tokens:
    """Tokens by their SHA-256, each with its access. The tokens themselves are nowhere on the server."""

    def __init__(self, entries: Sequence[tuple[str, Access]]) -> None:
        self._entries = [(bytes.fromhex(digest), access) for digest, access in entries]

    def access(self, authorization: str | None) -> Access | None:
        """What the value of an Authorization header gives access to; None if it is no known token.

        Every entry is compared, each in constant time, so that time shows nothing of a token.
        """
        scheme, _, token = (authorization or "").partition(" ")
        digest = hashlib.sha256(token.strip().encode(errors="replace")).digest()
        known: Access | None = None
        for entry, access in self._entries:
            if hmac.compare_digest(entry, digest):
                known = access
        return known if scheme.lower() == "bearer" else None

    @staticmethod
    def load(path: Path) -> Tokens:
        """Read a file of tokens: TOML with a table `[[tokens]]` for each, with `sha256` and `tasks`."""
        try:
            facts = tomllib.loads(atomic.read(path, LARGEST).decode())
            entries = [_entry(entry, path) for entry in facts["tokens"]]
        except (StoreError, ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, SettingError):
                raise
            raise SettingError(
                f"{path} is no file of tokens ({type(error).__name__}: {error}); `halrp token` makes one"
            ) from error
        if not entries:
            raise SettingError(f"{path} has no tokens, so that nobody could ask anything; `halrp token` adds one")
        return Tokens(entries)


def _entry(facts: dict[str, object], path: Path) -> tuple[str, Access]:
    digest, tasks = facts.get("sha256"), facts.get("tasks")
    good = isinstance(tasks, list) and tasks and all(isinstance(name, str) for name in tasks)
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest) or not isinstance(tasks, list) or not good:
        raise SettingError(f"{path} has a token without a sha256 of 64 digits, or without a list of tasks")
    return digest, Access(None if EVERYTHING in tasks else frozenset(tasks))


def add_token(path: Path, tasks: Sequence[str]) -> str:
    """Make a token for some tasks, add its checksum to a file of tokens, and return it; it is not stored anywhere."""
    for name in tasks:
        check_task_name(name)
    before = atomic.read(path, LARGEST).decode() if path.exists() else ""
    if before:
        Tokens.load(path)  # raises if it is another file
    token = secrets.token_urlsafe(32)
    names = ", ".join(json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f") for name in tasks)
    digest = hashlib.sha256(token.encode()).hexdigest()
    entry = f'[[tokens]]\nsha256 = "{digest}"\ntasks = [{names}]\n'
    atomic.write(path, f"{before}{chr(10) * bool(before)}{entry}".encode())
    return token
