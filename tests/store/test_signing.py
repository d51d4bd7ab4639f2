"""Signatures: what is signed verifies, and nothing else does."""

from __future__ import annotations

import builtins
import dataclasses
import hashlib
import hmac
import stat
from pathlib import Path
from typing import Any, get_args

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from halrp.errors import ConflictError, SettingError, SignatureError, StoreError, WriteError
from halrp.store import signing
from halrp.store.signing import Key, Purpose, read_key, sign, verify, write_key

SECRET = Key("hmac-sha256", bytes(range(32)))
PRIVATE = Key("ed25519-private", bytes(range(32)))
KEYS = (SECRET, PRIVATE)
PURPOSES = get_args(Purpose)

keys = pytest.mark.parametrize("key", KEYS, ids=lambda key: key.algorithm)


@keys
@given(content=st.binary(max_size=200), purpose=st.sampled_from(PURPOSES))
def test_what_is_signed_verifies(key: Key, content: bytes, purpose: Purpose) -> None:
    signature = sign(key, purpose, content)
    assert signature == sign(key, purpose, content), "deterministic"
    verify(key.verifier(), purpose, content, signature, "file")
    verify(key, purpose, content, signature, "file")


@keys
@given(data=st.data())
def test_a_changed_bit_of_content_or_signature_is_refused(key: Key, data: st.DataObject) -> None:
    content = data.draw(st.binary(min_size=1, max_size=100))
    signature = sign(key, "task", content)
    part = data.draw(st.sampled_from(("content", "signature")))
    changed = bytearray(content if part == "content" else signature)
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    pair = (bytes(changed), signature) if part == "content" else (content, bytes(changed))
    with pytest.raises(SignatureError, match="file"):
        verify(key, "task", *pair, "file")


@keys
def test_a_signature_of_one_kind_of_file_is_none_of_another(key: Key) -> None:
    for purpose in PURPOSES:
        signature = sign(key, purpose, b"content")
        for other in PURPOSES:
            if other != purpose:
                with pytest.raises(SignatureError):
                    verify(key, other, b"content", signature, "file")


@keys
def test_another_key_is_named(key: Key) -> None:
    signature = sign(key, "task", b"content")
    for other in (*KEYS, Key("hmac-sha256", bytes(32)), Key("ed25519-private", bytes(32))):
        if other != key:
            with pytest.raises(SignatureError, match=f"is signed with the .* key {key.id}, not with .* key {other.id}"):
                verify(other, "task", b"content", signature, "file")


def test_the_key_decides_the_algorithm_and_not_the_file() -> None:
    """The public half is no secret: a signature that uses it as one must not verify."""
    public = PRIVATE.verifier()
    message = signing._message("task", b"content")
    for algorithm in ("hmac-sha256", "ed25519"):
        forged = hmac.digest(public.content, message, "sha256").hex()
        text = f"halrp-signature 1 {algorithm} {public.id} {forged}\n".encode()
        with pytest.raises(SignatureError):
            verify(public, "task", b"content", text, "file")


def test_signatures_are_those_of_the_published_algorithms() -> None:
    message = b"halrp signature 1\0task\0" + hashlib.sha512(b"content").digest()
    value = hmac.new(SECRET.content, message, hashlib.sha256).hexdigest()
    assert sign(SECRET, "task", b"content") == f"halrp-signature 1 hmac-sha256 {SECRET.id} {value}\n".encode()
    pair = Ed25519PrivateKey.from_private_bytes(PRIVATE.content)
    expected = f"halrp-signature 1 ed25519 {PRIVATE.id} {pair.sign(message).hex()}\n"
    assert sign(PRIVATE, "task", b"content") == expected.encode()


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"halrp-signature 2 ed25519 0 0\n", b"x" * 5000, b"\0" * 100])
def test_what_is_no_signature_is_refused(text: bytes) -> None:
    with pytest.raises(SignatureError, match="signature that is none"):
        verify(SECRET, "task", b"content", text, "file")


def test_a_missing_or_wrong_signature_is_an_error_of_the_store() -> None:
    assert issubclass(SignatureError, StoreError)


@pytest.mark.parametrize("kind", ["hmac-sha256", "ed25519"])
def test_a_key_is_read_as_it_was_written(kind: Any, tmp_path: Path) -> None:
    key = signing.new_key(kind)
    assert key != signing.new_key(kind)
    for name, half in (("secret", key), ("public", key.verifier())):
        write_key(tmp_path / name, half)
        assert read_key(tmp_path / name) == half
        assert half.id == key.id
        assert signing.key_of(tmp_path / name) == signing.key_of(half) == half
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert signing.key_of(None) is None


def test_a_key_never_replaces_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("mine")
    with pytest.raises(ConflictError, match="never replaced"):
        write_key(tmp_path / "key", SECRET)
    assert (tmp_path / "key").read_text() == "mine"
    with pytest.raises(WriteError, match="could not be written"):
        write_key(tmp_path / "none" / "key", SECRET)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "halrp-key rsa AAAA",
        "halrp-key hmac-sha256 AAAA",
        "halrp-key hmac-sha256 A",
        "halrp-key ed25519-public",
        "ü",
        "x" * 5000,
    ],
)
def test_what_is_no_key_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(SettingError, match=r"is not the file of a key: .*halrp keygen"):
        read_key(tmp_path / "key")
    with pytest.raises(SettingError, match="missing"):
        read_key(tmp_path / "none")


def test_a_key_is_never_shown() -> None:
    for key in KEYS:
        assert repr(key) == f"Key({key.kind}, {key.id})"
        assert key.content.hex() not in repr(dataclasses.asdict(key) and key)


def test_the_public_half_does_not_sign() -> None:
    with pytest.raises(SettingError, match="only verifies"):
        sign(PRIVATE.verifier(), "task", b"content")


def test_without_cryptography_a_secret_key_works_and_a_pair_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name.startswith("cryptography"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments)

    signature = sign(PRIVATE, "task", b"content")
    public = PRIVATE.verifier()
    monkeypatch.setattr(builtins, "__import__", without)
    verify(SECRET, "task", b"content", sign(SECRET, "task", b"content"), "file")
    with pytest.raises(SettingError, match=r"halrp\[signing\]"):
        sign(PRIVATE, "task", b"content")
    with pytest.raises(SettingError, match=r"halrp\[signing\]"):
        verify(public, "task", b"content", signature, "file")
