"""Activation checkpointing: inner activations are computed again in the backward pass instead of being kept.

A model that can do so itself, as those of transformers can, is asked to. Otherwise the direct children of the largest
`nn.Sequential` or `nn.ModuleList` are blocks whose inner activations are not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from halrp.errors import SettingError


def refuse_activations(module: nn.Module) -> None:
    """Raise if the activations of a module cannot be computed again."""
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm) and layer.track_running_stats:
            raise SettingError(
                f"Recipe(checkpoint_activations=True): {name} ({type(layer).__name__}) would count every batch twice "
                "in its running statistics; use a smaller batch with accumulate, or a model with another norm"
            )
    if not hasattr(module, "gradient_checkpointing_enable") and not _blocks(module):
        raise SettingError(
            f"Recipe(checkpoint_activations=True): {type(module).__name__} has neither gradient_checkpointing_enable "
            "nor an nn.Sequential or nn.ModuleList of several blocks; put its blocks into one, or use a smaller batch "
            "with accumulate"
        )


@contextmanager
def recomputed_activations(module: nn.Module) -> Iterator[None]:
    """Compute activations again in backward passes, inside the block."""
    with ExitStack() as stack:
        if hasattr(module, "gradient_checkpointing_enable"):
            model: Any = module
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            stack.callback(model.gradient_checkpointing_disable)
        else:
            for block in _blocks(module):
                vars(block)["forward"] = partial(_forward, block, block.forward)
                stack.callback(vars(block).pop, "forward")
        yield


def _forward(block: nn.Module, forward: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    if not block.training:
        return forward(*arguments, **keywords)
    return checkpoint(forward, *arguments, use_reentrant=False, **keywords)


def _blocks(module: nn.Module) -> list[nn.Module]:
    """The children of the container with most parameters, of those with at least two."""
    containers = [m for m in module.modules() if isinstance(m, (nn.Sequential, nn.ModuleList)) and len(m) > 1]
    largest = max(containers, key=lambda m: sum(p.numel() for p in m.parameters()), default=None)
    return [] if largest is None else list(dict.fromkeys(largest.children()))
