"""Activation checkpointing: inner activations are computed again in the backward pass instead of being kept.

All of them, or only those that are cheap. Norms, activation functions, dropout and sums cost little more than writing
their results to memory; products are most of a network's work, and theirs are kept. A model that can compute all of
them again itself, as those of transformers can, is asked to. Otherwise the direct children of the largest
`nn.Sequential` or `nn.ModuleList` are blocks whose inner activations are not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from halrp.errors import SettingError

Again: TypeAlias = Literal[True, "cheap"]
"""Which activations are computed again."""

DEAR = 100
"""Products for each number of a result from which on it is kept: one that has fewer costs as much as reading it."""
_aten = torch.ops.aten
_PRODUCTS: dict[Any, Callable[..., int]] = {
    _aten.mm.default: lambda a, b: a.shape[1],
    _aten.bmm.default: lambda a, b: a.shape[2],
    _aten.addmm.default: lambda c, a, b, **_: a.shape[1],
    _aten.baddbmm.default: lambda c, a, b, **_: a.shape[2],
    _aten.convolution.default: lambda x, weight, *_: weight[0].numel(),
}
"""How many products each number of a result needs, by operation."""


def refuse_activations(module: nn.Module, again: Again) -> None:
    """Raise if the activations of a module cannot be computed again."""
    setting, itself = f"Recipe(checkpoint_activations={again!r})", _checkpoints_itself(module, again)
    for name, layer in module.named_modules():
        if itself and isinstance(layer, _BatchNorm) and layer.track_running_stats:
            raise SettingError(
                f"{setting}: {name} ({type(layer).__name__}) would count every batch twice in its running statistics, "
                "since the model computes activations again itself; give 'cheap', or use a smaller batch with "
                "accumulate"
            )
    if not itself and not _blocks(module):
        raise SettingError(
            f"{setting}: {type(module).__name__} has neither gradient_checkpointing_enable nor an nn.Sequential or "
            "nn.ModuleList of several blocks; put its blocks into one, or use a smaller batch with accumulate"
        )


@contextmanager
def recomputed_activations(module: nn.Module, again: Again) -> Iterator[None]:
    """Compute activations again in backward passes, inside the block."""
    with ExitStack() as stack:
        if _checkpoints_itself(module, again):
            model: Any = module
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            stack.callback(model.gradient_checkpointing_disable)
        else:
            for block in _blocks(module):
                vars(block)["forward"] = partial(_forward, block, block.forward, again)
                stack.callback(vars(block).pop, "forward")
            if again == "cheap":
                _write_results_apart(module, stack)
        yield


def _checkpoints_itself(module: nn.Module, again: Again) -> bool:
    return again is True and hasattr(module, "gradient_checkpointing_enable")


def _write_results_apart(module: nn.Module, stack: ExitStack) -> None:
    """Make activation functions that overwrite their input leave it: it may be a product that is kept."""
    for layer in module.modules():
        if getattr(layer, "inplace", None) is True:
            vars(layer)["inplace"] = False
            stack.callback(vars(layer).__setitem__, "inplace", True)


def _forward(block: nn.Module, forward: Callable[..., Any], again: Again, *arguments: Any, **keywords: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*arguments, **keywords)
    contexts = partial(_contexts, block, again)
    return checkpoint(forward, *arguments, use_reentrant=False, context_fn=contexts, **keywords)


def _contexts(block: nn.Module, again: Again) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """The contexts of a block's forward pass, and of computing it again."""
    saving, cached = create_selective_checkpoint_contexts(_policy) if again == "cheap" else (ExitStack(), ExitStack())
    return saving, _same_statistics(block, cached)


def _policy(_: Any, operation: Any, *arguments: Any, **keywords: Any) -> CheckpointPolicy:
    products = _PRODUCTS.get(operation)
    if products is not None and products(*arguments, **keywords) >= DEAR:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


@contextmanager
def _same_statistics(block: nn.Module, inner: AbstractContextManager[Any]) -> Iterator[None]:
    """Let batch norms count their batch in copies of their running statistics, which are thrown away."""
    norms = [layer for layer in block.modules() if isinstance(layer, _BatchNorm)]
    statistics: list[dict[str, Tensor | None]] = [dict(norm._buffers) for norm in norms]
    for norm, buffers in zip(norms, statistics, strict=True):
        norm._buffers.update({name: None if b is None else b.clone() for name, b in buffers.items()})
    try:
        with inner:
            yield
    finally:
        for norm, buffers in zip(norms, statistics, strict=True):
            norm._buffers.update(buffers)


def _blocks(module: nn.Module) -> list[nn.Module]:
    """The children of the container with most parameters, of those with at least two."""
    containers = [m for m in module.modules() if isinstance(m, (nn.Sequential, nn.ModuleList)) and len(m) > 1]
    largest = max(containers, key=lambda m: sum(p.numel() for p in m.parameters()), default=None)
    return [] if largest is None else list(dict.fromkeys(largest.children()))
