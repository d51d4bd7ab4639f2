"""Networks without running statistics, affine norm parameters or biases, for methods that cannot share them.

Running statistics of batch norms drift from task to task, and so do norm parameters and biases that all tasks train.
Methods that cannot share them replace their context by one that builds networks without them.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from halrp.lab.methods.network import HEAD
from halrp.lab.methods.protocol import Context
from halrp.model.layers.norm import BATCH_NORMS, NORMS


def with_batch_statistics(context: Context) -> Context:
    """A context whose networks normalise by the statistics of the batch, in evaluation too."""

    def build(classes: int, seed: int) -> nn.Module:
        return without_running_statistics(context.build(classes, seed))

    return replace(context, build=build)


def with_weights_only(context: Context) -> Context:
    """A context whose networks have only weights and a head: no biases, no affine norms, batch statistics."""

    def build(classes: int, seed: int) -> nn.Module:
        return without_biases(without_running_statistics(context.build(classes, seed)))

    return replace(context, build=build)


def without_running_statistics(net: nn.Module) -> nn.Module:
    """Make batch norms use the statistics of the batch, in place."""
    for module in net.modules():
        if isinstance(module, BATCH_NORMS):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return net


def without_biases(net: nn.Module) -> nn.Module:
    """Remove the affine parameters of norms and the biases of layers except the head's, in place."""
    head = set(net.get_submodule(HEAD).modules())
    for module in (m for m in net.modules() if m not in head):
        if isinstance(module, NORMS):
            for name in list(module._parameters):
                module.register_parameter(name, None)
        elif "bias" in module._parameters:
            module.register_parameter("bias", None)
    return net
