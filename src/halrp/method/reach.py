"""Which layers a task may change: those near the output.

Training a layer takes the gradients and the activations of all that come after it, and of none that come before. In
nets for images the first layers have the most activations and the fewest weights; and what they compute, edges or
words, is what most tasks share.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from contextlib import ExitStack
from functools import partial

import torch
from torch import nn

from halrp.model.batch import Batch
from halrp.model.call import Call

LEAST = 8
"""As many adapted weights are always reached, so that small networks change as a whole."""


def reached(net: nn.Module, call: Call, x: Batch, adapted: Collection[str], share: float) -> frozenset[str]:
    """The paths of modules that are not called before the last `share` of the adapted weights, seen on some rows.

    `adapted` are names of weights. A module that is called twice counts where it is called first, and one whose weights
    are used without a call, as attention uses its output projection, where the module around it is called.
    """
    first: dict[str, int] = {}

    def before(_: nn.Module, __: object, path: str) -> None:
        first.setdefault(path, len(first))

    with ExitStack() as hooks, torch.no_grad():
        for path, module in net.named_modules():
            hooks.callback(module.register_forward_pre_hook(partial(before, path=path)).remove)
        call(net.eval(), x)

    def position(path: str) -> int:
        return first[path] if path in first else position(path.rpartition(".")[0]) if path else 0

    positions = sorted(position(name.rpartition(".")[0]) for name in adapted)
    count = max(LEAST, math.ceil(share * len(positions)))
    start = positions[-count] if count < len(positions) else 0
    return frozenset(path for path, _ in net.named_modules() if position(path) >= start)
