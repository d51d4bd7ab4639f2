"""How a batch reaches a model, and which of what it gives are the outputs: `Call`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from halrp.checks import is_whole
from halrp.errors import ModelError, SettingError
from halrp.model.batch import Batch

Pick: TypeAlias = str | int | Callable[[Any], Tensor] | None
"""Which part of what a model gives are its outputs: a key or attribute, a position, a function, or None for a tensor
itself or what is called `logits`."""


@dataclass(frozen=True)
class Call:
    """A call of a model: `model(x)` for a tensor, `model(*x)` for a tuple, `model(**x)` for a dict."""

    output: Pick = None
    transform: Callable[[Batch], Batch] | None = None
    """Makes of a batch what the model takes, on the model's device: uint8 pictures to normalised numbers, say."""

    def __post_init__(self) -> None:
        """Refuse what picks nothing."""
        if not (self.output is None or isinstance(self.output, str) or is_whole(self.output) or callable(self.output)):
            raise SettingError(
                f"output={self.output!r}: give a key or an attribute of what the model gives, a position, or a function"
            )
        if self.transform is not None and not callable(self.transform):
            raise SettingError(f"transform={self.transform!r} cannot be called; give transform(x) -> x, or None")

    def __call__(self, module: nn.Module, batch: Batch) -> Tensor:
        """The outputs of a module for a batch."""
        return self.pick(self.given(module, batch))

    def given(self, module: nn.Module, batch: Batch) -> Any:
        """All that a module gives for a batch."""
        if self.transform is not None:
            batch = self.transform(batch)
        if isinstance(batch, Tensor):
            return module(batch)
        return module(**batch) if isinstance(batch, Mapping) else module(*batch)

    def pick(self, given: Any) -> Tensor:
        """The outputs in what a model gives."""
        if self.output is None and isinstance(given, Tensor):
            return given
        output = _picked(given, self.output)
        if isinstance(output, Tensor):
            return output
        kind = type(given).__name__
        if self.output is None:
            raise ModelError(
                f"the model gives a {kind}{_parts(given)}, not a tensor or something with `logits`; say which part "
                "are the outputs: Learner(..., output='name', a position, or a function)"
            )
        raise ModelError(
            f"output={self.output!r} picks a {type(output).__name__} from the {kind} that the model gives"
            f"{_parts(given)}; it must be a tensor"
        )


def _picked(given: Any, output: Pick) -> Any:
    if callable(output):
        return output(given)
    if isinstance(output, int):
        return given[output] if isinstance(given, Sequence) and -len(given) <= output < len(given) else None
    name = "logits" if output is None else output
    if isinstance(given, Mapping):
        return given.get(name)
    return getattr(given, name, None)


def _parts(given: Any) -> str:
    """What a model's result consists of, in words for an error."""
    if isinstance(given, Mapping):
        return f" with {', '.join(map(repr, list(given)[:6]))}"
    if isinstance(given, Sequence) and not isinstance(given, str):
        return f" of {len(given)}"
    return ""
