"""The base of a store, on a user's model: what a predictor needs of a store before its first task."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from halrp.errors import HeadError, WrongBaseError
from halrp.model import views
from halrp.model.appended import WithHead, as_stored
from halrp.model.base import Base
from halrp.model.batch import Batch
from halrp.model.call import Call, Pick
from halrp.model.plan import plan
from halrp.serve.follow import Generation
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
    manifest = generation.manifest
    try:
        stored, name = as_stored(model, manifest.head, generation.layouts.values(), head, output)
        call = Call(None if isinstance(stored, WithHead) else output, transform)
        like = Base(views.clone(stored), plan(stored, name), manifest.channels_last, call=call)
    except HeadError as error:
        raise WrongBaseError(f"the store {store.folder} was made with another model: {error}") from error
    return store.read_base(like)
