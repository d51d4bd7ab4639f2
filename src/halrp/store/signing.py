"""Signatures of a store's files: who wrote them, checked before anything of them is used.

A key is either a secret that signs and verifies (HMAC-SHA256), or a pair of which the private half signs and the public
half verifies (Ed25519, from the package `cryptography`). What is signed is

    "halrp signature 1" 0 purpose 0 SHA-512(content)

so that a signature of one kind of file is none of another. The key decides the algorithm, never the file. Signatures
are deterministic: the same content, purpose and key give the same bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from halrp.errors import ConflictError, DamagedError, SettingError, SignatureError, WriteError
from halrp.store import atomic

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Purpose = Literal["task", "base", "layout", "manifest"]
"""What a signed file is for."""
Kind = Literal["hmac-sha256", "ed25519-private", "ed25519-public"]

LARGEST = 4096
"""Limit on the bytes of a key file and of a signature."""
LENGTH = 32
"""Bytes of a key, of each kind."""
_CONTEXT = b"halrp signature 1"
_KEY = re.compile(r"halrp-key (\S+) ([A-Za-z0-9+/=]+)\s*")
_SIGNATURE = re.compile(r"halrp-signature 1 (hmac-sha256|ed25519) ([0-9a-f]{16}) ([0-9a-f]{64}|[0-9a-f]{128})\n")


@dataclass(frozen=True, repr=False)
class Key:
    """A key that signs, verifies, or both."""

    kind: Kind
    content: bytes

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind) or len(self.content) != LENGTH:
            raise SettingError(
                f"a key of kind {self.kind!r} with {len(self.content)} bytes is unknown; make one: halrp keygen"
            )

    def __repr__(self) -> str:
        """Its kind and its name; never the secret."""
        return f"Key({self.kind}, {self.id})"

    @property
    def algorithm(self) -> str:
        """The algorithm of its signatures."""
        return self.kind.removesuffix("-private").removesuffix("-public")

    @property
    def signs(self) -> bool:
        """Whether it can sign."""
        return self.kind != "ed25519-public"

    @property
    def id(self) -> str:
        """A name of the key that gives nothing of a secret away; both halves of a pair have the same."""
        if self.kind == "hmac-sha256":
            return hmac.digest(self.content, _CONTEXT + b"\0key", "sha256").hex()[:16]
        return hashlib.sha256(_CONTEXT + b"\0key\0" + self.verifier().content).hexdigest()[:16]

    def verifier(self) -> Key:
        """The key that verifies what this one signs: the public half, or the same secret."""
        if self.kind != "ed25519-private":
            return self
        return Key("ed25519-public", _private(self.content).public_key().public_bytes_raw())


AnyKey: TypeAlias = Key | str | os.PathLike[str] | None
"""A key, the file it is in, or none."""


def new_key(kind: Literal["hmac-sha256", "ed25519"] = "ed25519") -> Key:
    """A new random key that signs."""
    return Key("hmac-sha256" if kind == "hmac-sha256" else "ed25519-private", secrets.token_bytes(LENGTH))


def read_key(path: str | os.PathLike[str]) -> Key:
    """Read a key from its file: one line with its kind and its content."""
    try:
        match = _KEY.fullmatch(atomic.read(Path(path), LARGEST).decode("ascii"))
        if match is None:
            raise ValueError("it is not one line that begins with halrp-key")
        return Key(match[1], base64.b64decode(match[2], validate=True))  # type: ignore[arg-type]
    except (DamagedError, ValueError, binascii.Error, SettingError) as error:
        reason = str(error).removeprefix(f"{path} ")
        raise SettingError(f"{path} is not the file of a key: {reason}; make one: halrp keygen") from error


def write_key(path: str | os.PathLike[str], key: Key) -> None:
    """Write a key to a new file, which only its owner can read if it is secret; an existing file is never replaced."""
    text = f"halrp-key {key.kind} {base64.b64encode(key.content).decode()}\n"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if key.signs else 0o644)
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise ConflictError(f"{path} exists, and a key is never replaced; choose another name") from error
    except OSError as error:
        raise WriteError(f"{path} could not be written: {error.strerror or error}") from error


def key_of(key: AnyKey) -> Key | None:
    """A key as it is given: itself, the file it is in, or none."""
    return key if key is None or isinstance(key, Key) else read_key(key)


def sign(key: Key, purpose: Purpose, content: bytes) -> bytes:
    """The signature of a file's content, as the content of a signature file."""
    if not key.signs:
        raise SettingError(f"{key!r} is the public half of a pair and only verifies; sign with the private half")
    message = _message(purpose, content)
    if key.kind == "hmac-sha256":
        value = hmac.digest(key.content, message, "sha256")
    else:
        value = _private(key.content).sign(message)
    return f"halrp-signature 1 {key.algorithm} {key.id} {value.hex()}\n".encode()


def verify(key: Key, purpose: Purpose, content: bytes, signature: bytes, source: str) -> None:
    """Check a signature; `source` names the file in the error."""
    match = _SIGNATURE.fullmatch(signature.decode("ascii", "replace"))
    if match is None:
        raise SignatureError(f"{source} has a signature that is none; restore a copy of it, or sign the store again")
    if match[1] != key.algorithm or match[2] != key.id:
        raise SignatureError(
            f"{source} is signed with the {match[1]} key {match[2]}, not with {key.algorithm} key {key.id}; verify it "
            "with the key of whoever signed it"
        )
    if not _holds(key, _message(purpose, content), bytes.fromhex(match[3])):
        raise SignatureError(
            f"{source} is not what {key.algorithm} key {key.id} signed: the file or its signature was changed; restore "
            "copies of both"
        )


def keyed_checksum(key: Key, content: bytes) -> str:
    """A checksum of a checkpoint that only whoever can sign can compute: HMAC-SHA256, for both kinds of keys."""
    if not key.signs:
        raise SettingError(f"{key!r} is the public half of a pair and only verifies; use the private half")
    message = b"\0".join((_CONTEXT, b"checkpoint", key.kind.encode(), hashlib.sha512(content).digest()))
    return hmac.digest(key.content, message, "sha256").hex()


def _message(purpose: Purpose, content: bytes) -> bytes:
    if purpose not in get_args(Purpose):
        raise SettingError(f"nothing is signed for {purpose!r}; choose one of {', '.join(get_args(Purpose))}")
    return b"\0".join((_CONTEXT, purpose.encode(), hashlib.sha512(content).digest()))


def _holds(key: Key, message: bytes, value: bytes) -> bool:
    if key.kind == "hmac-sha256":
        return hmac.compare_digest(hmac.digest(key.content, message, "sha256"), value)
    with _needs_cryptography():
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    try:
        Ed25519PublicKey.from_public_bytes(key.verifier().content).verify(value, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _private(content: bytes) -> Ed25519PrivateKey:
    with _needs_cryptography():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    return Ed25519PrivateKey.from_private_bytes(content)


@contextmanager
def _needs_cryptography() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise SettingError(
            "Ed25519 keys need the package cryptography; run: pip install 'halrp[signing]', or use an hmac-sha256 key"
        ) from error
