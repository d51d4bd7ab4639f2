"""Commands about signatures: keygen and sign; `halrp verify --key` checks them."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from halrp.cli.options import Json
from halrp.cli.screen import show
from halrp.cli.store import Folder
from halrp.terminal import echo, echo_json


class Algorithm(StrEnum):
    """Kinds of keys."""

    ed25519 = "ed25519"
    hmac = "hmac-sha256"


def make_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="the new file of the key", show_default=False)],
    algorithm: Annotated[
        Algorithm, typer.Option("--kind", help="a pair of keys, or one secret that signs and verifies")
    ] = Algorithm.ed25519,
    as_json: Json = False,
) -> None:
    """Make a key that signs stores, in a file that only you can read.

    A pair has its public half in FILE.pub: give it to whoever verifies. An hmac-sha256 key is one secret: whoever
    verifies could sign as well. No file is ever replaced.

    Example: halrp keygen team.key
    """
    from halrp.store import signing

    key = signing.new_key("ed25519" if algorithm is Algorithm.ed25519 else "hmac-sha256")
    signing.write_key(file, key)
    public = None if key.verifier() == key else file.with_name(f"{file.name}.pub")
    if public is not None:
        signing.write_key(public, key.verifier())
    if as_json:
        echo_json({"key": str(file), "public": public and str(public), "kind": algorithm.value})
        return
    echo(f"wrote {file}: {key!r}; keep it secret, and outside of stores")
    if public is not None:
        echo(f"wrote {public}: verifies what {file} signs")


def sign_store(
    store: Folder,
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="a key of halrp keygen", show_default=False)],
    as_json: Json = False,
) -> None:
    """Sign every file of a store as it is, for load(..., verify_key=…) and verify --key.

    Files are compared with their checksums first, which whoever changed them could have changed as well: sign a store
    that you know to be right. A learner with Store(..., signing_key=…) signs what it commits.

    Example: halrp sign store/ --key team.key
    """
    from halrp.store.store import Store

    count = Store(store).sign(key)
    show({"store": str(store), "signed": count}, f"signed {count} files of {store}", as_json)


COMMANDS: dict[str, Callable[..., None]] = {"keygen": make_key, "sign": sign_store}
