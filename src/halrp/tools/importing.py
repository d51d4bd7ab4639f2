"""Import an object by its reference, "package.module:attribute", as users write it on a command line or in a file.

No file of a store holds code, so whatever needs a model takes a reference to a function that builds it.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from halrp.errors import SettingError

if TYPE_CHECKING:
    from torch import nn

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def import_object(kind: str, reference: str) -> Any:
    """Import the object of a reference, with the current folder on the path.

    `kind` says in errors what the object is: a model, a method. An error that the module itself raises is not caught.
    """
    if not _REFERENCE.fullmatch(reference):
        raise SettingError(
            f"the {kind} {reference!r} is not of the form package.module:attribute, such as my_{kind}s:build"
        )
    module, _, attribute = reference.partition(":")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        value: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, but something that it needs is not
        raise SettingError(
            f"the {kind} {reference!r}: no module named {error.name!r}; install it, or run this in its folder"
        ) from error
    for name in attribute.split("."):
        if not hasattr(value, name):
            raise SettingError(f"the {kind} {reference!r}: {module} has no {attribute!r}")
        value = getattr(value, name)
    return value


def build_model(reference: str) -> nn.Module:
    """The module of a reference: what a function there returns, or the object itself."""
    from torch import nn

    value = import_object("model", reference)
    model = value if isinstance(value, nn.Module) else value() if callable(value) else value
    if not isinstance(model, nn.Module):
        raise SettingError(f"the model {reference!r} gives a {type(model).__name__}; it must return an nn.Module")
    return model


def call_options(
    head: str | None = None, output: str | int | None = None, transform: str | None = None
) -> dict[str, Any]:
    """What `Learner.load` and `StorePredictor.open` take besides a model, where tasks were learned with it.

    `head` and `transform` are references; so is an `output` with a colon, and any other is a key or a position.
    """
    picked: Any = output
    if isinstance(output, str):
        position = output.removeprefix("-").isdecimal()
        picked = import_object("output", output) if ":" in output else int(output) if position else output
    return {
        "head": None if head is None else build_model(head),
        "output": picked,
        "transform": None if transform is None else import_object("transform", transform),
    }
