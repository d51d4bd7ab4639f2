"""The model inside the wrappers that people train with: data parallel ones, and compiled ones."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel


def unwrapped(model: nn.Module, head: str | None = None) -> tuple[nn.Module, str | None]:
    """The model inside `DataParallel`, `DistributedDataParallel` and `torch.compile`, and the head's name in it.

    A wrapper holds the model as `module` or `_orig_mod`, and names of layers begin with that; such a name is accepted.
    """
    while (inside := _inside(model)) is not None:
        model = model.get_submodule(inside)
        head = head.removeprefix(f"{inside}.") if head is not None else None
    return model, head


def _inside(model: nn.Module) -> str | None:
    """The name under which a wrapper holds the model; None if it is no wrapper."""
    if isinstance(model, (nn.DataParallel, DistributedDataParallel)):
        return "module"
    # By name: importing torch's compiler for its type would take seconds.
    return "_orig_mod" if type(model).__name__ == "OptimizedModule" and hasattr(model, "_orig_mod") else None
