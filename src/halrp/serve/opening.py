"""The base of a store, on a user's model: what a predictor needs of a store before its first task."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from torch import nn

from halrp.errors import HeadError, WrongBaseError
from halrp.model import views
from halrp.model.appended import WithHead, as_stored
from halrp.model.base import Base
from halrp.model.batch import Batch
from halrp.model.call import Call, Pick
from halrp.model.plan import plan
from halrp.serve.follow import Generation
from halrp.store import atomic, base_file
from halrp.store.folder import MANIFEST
from halrp.store.store import Store


def open_base(
    store: Store,
    generation: Generation,
    model: nn.Module,
    head: nn.Module | None,
    output: Pick,
    transform: Callable[[Batch], Batch] | None,
) -> Base:
    """The base of a store, on the architecture of a model; the model's weights do not matter."""
    return store.read_base(as_base(store, generation, model, head, output, transform))


def as_base(
    store: Store,
    generation: Generation,
    model: nn.Module,
    head: nn.Module | None,
    output: Pick,
    transform: Callable[[Batch], Batch] | None,
) -> Base:
    """A model as the base of a store, with the model's weights, which may be others than the store's."""
    manifest = generation.manifest
    try:
        stored, name = as_stored(model, manifest.head, generation.layouts.values(), head, output)
        call = Call(None if isinstance(stored, WithHead) else output, transform)
        module = views.clone(stored)
        return Base(module, plan(stored, name), manifest.channels_last, counts_head=manifest.counts_head, call=call)
    except HeadError as error:
        raise WrongBaseError(f"the store {store.folder} was made with another model: {error}") from error


def base_elsewhere(like: Base, generation: Generation, path: str | os.PathLike[str] | None) -> Base:
    """The base of a store that does not hold it: of another store, of a base's file, or `like` as it is.

    It must be the one that the store's manifest names by its fingerprint, or `WrongBaseError` says what was given.
    """
    manifest, source = generation.manifest, "the model as it is built" if path is None else str(path)
    base = like
    if path is not None:
        content = _content(Path(path), like)
        base = base_file.parse(content, manifest, like, source)
    if base.fingerprint != manifest.fingerprint:
        raise WrongBaseError(
            f"{source} has the fingerprint {base.fingerprint[:12]}…, not {manifest.fingerprint[:12]}… of the base that "
            f"{', '.join(map(repr, manifest.tasks))} was learned on; give the store or the file of that base"
        )
    return base


def _content(path: Path, like: Base) -> bytes:
    limit = base_file.largest(like)
    if path.is_dir() or path.name == MANIFEST:
        store = Store(path if path.is_dir() else path.parent)
        return store.content(store.manifest().base, limit)
    return atomic.read(path, limit)
