"""A head on top of a model that gives features: `WithHead`.

The head is a part of the model from then on, under a name that no user's module may have (`APPENDED`). The name says
whether it is an nn.Linear, which a store's layout describes completely, or a module that must be given again.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from typing import Any, cast

from torch import Tensor, nn

from halrp.errors import HeadError, ModelError
from halrp.model.call import Call, Pick
from halrp.model.layers.head import APPENDED, HeadName, unfit
from halrp.model.layout import Layout
from halrp.model.wrappers import unwrapped

LINEAR, MODULE = APPENDED


class WithHead(nn.Module):
    """A model, and a head that is applied to its outputs."""

    def __init__(self, model: nn.Module, head: nn.Module, output: Pick = None) -> None:
        """Hold both; `output` picks the features in what the model gives."""
        super().__init__()
        self.training = model.training
        self.model, self._features = model, Call(output)
        self.appended = LINEAR if type(head) is nn.Linear else MODULE
        self.add_module(self.appended, head)

    @property
    def forward(self) -> Callable[..., Any]:  # type: ignore[override]
        """A function with the parameters of the model's own, as torch.export names inputs by them."""

        def forward(*inputs: Any, **named: Any) -> Any:
            given = self.model(*inputs, **named)
            if self._features.output is None and not isinstance(given, Tensor):
                raise ModelError(
                    f"the model gives a {type(given).__name__}, but a head on top of it needs one tensor of features; "
                    "say which: Learner(..., output='last_hidden_state', a position, or a function)"
                )
            return getattr(self, self.appended)(self._features.pick(given))

        cast(Any, forward).__signature__ = inspect.signature(self.model.forward)
        return forward


def with_head(model: nn.Module, head: nn.Module | HeadName, output: Pick = None) -> tuple[nn.Module, HeadName]:
    """The model inside its wrappers, with a head on top if `head` is a module, and the head's name in it.

    The head is copied, to the model's device. `output` picks the features that it takes.
    """
    if not isinstance(head, nn.Module):
        model, name = unwrapped(model, head if isinstance(head, str) else None)
        _refuse_reserved(model)
        return model, head if name is None else name
    model, _ = unwrapped(model)
    _refuse_reserved(model)
    if reason := unfit(head):
        raise HeadError(f"the head that is put on top of the model {reason}")
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), None)
    joined = WithHead(model, copy.deepcopy(head).to(device).train(model.training), output)
    return joined, joined.appended


def as_stored(
    model: nn.Module, name: str, layouts: Iterable[Layout], head: nn.Module | None = None, output: Pick = None
) -> tuple[nn.Module, HeadName]:
    """A user's model as a store with this head holds it: with a head on top if its tasks have one there.

    An nn.Linear is built from what a layout says; any other head must be given.
    """
    if name not in APPENDED:
        if head is not None:
            present = f"at {name!r}" if name else "as the model has it"
            raise HeadError(
                f"head=...: the store's tasks have their head {present}, not on top of the model; leave it out"
            )
        return with_head(model, name or False)
    linear = _linear(layouts) if name == LINEAR else None
    if head is None and linear is None:
        raise HeadError(
            "the store's tasks have a head of yours on top of the model; give it: Learner.load(..., head=...)"
        )
    joined = with_head(model, linear if head is None else head, output)
    if joined[1] != name:
        wanted = "an nn.Linear" if name == LINEAR else "another module"
        raise HeadError(f"head=...: the head on top of the model is a {type(head).__name__}, the store's is {wanted}")
    return joined


def _linear(layouts: Iterable[Layout]) -> nn.Linear | None:
    for layout in layouts:
        if f"{LINEAR}.weight" in layout.by_name:
            outputs, inputs = layout.by_name[f"{LINEAR}.weight"].shape
            bias = f"{LINEAR}.bias" in layout.by_name
            dtype = layout.by_name[f"{LINEAR}.weight"].torch_dtype
            return nn.Linear(inputs, outputs, bias=bias, dtype=dtype, device="meta").to_empty(device="cpu")
    return None


def _refuse_reserved(model: nn.Module) -> None:
    names = [name for name, _ in model.named_children() if name in APPENDED]
    if names and not isinstance(model, WithHead):
        raise HeadError(f"the model has a module {names[0]!r}, a name for heads on top of a model; rename it")
