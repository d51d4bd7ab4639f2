"""Networks whose norm layers, and biases, are changed as soon as they are built.

Running statistics of batch norms drift from task to task, and so do affine parts and biases that all tasks train. What
a method cannot share between tasks it takes out of the network before it learns anything: the changed context builds
such networks wherever one is built.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from halrp.lab.methods.network import HEAD
from halrp.lab.methods.protocol import Context
from halrp.model.layers.norm import BATCH_NORMS, NORMS


def with_batch_statistics(context: Context) -> Context:
    """A context whose networks normalise by the statistics of the batch at hand, in evaluation too."""

    def build(classes: int, seed: int) -> nn.Module:
        return without_running_statistics(context.build(classes, seed))

    return replace(context, build=build)


def with_weights_only(context: Context) -> Context:
    """A context whose networks have nothing but weights and the head: no biases, no affine norms, batch statistics."""

    def build(classes: int, seed: int) -> nn.Module:
        return without_biases(without_running_statistics(context.build(classes, seed)))

    return replace(context, build=build)


def without_running_statistics(net: nn.Module) -> nn.Module:
    """Let batch norms use the statistics of the batch, in place."""
    for module in net.modules():
        if isinstance(module, BATCH_NORMS):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return net


def without_biases(net: nn.Module) -> nn.Module:
    """Take the affine parts of norms and the biases of layers away, in place; the head keeps its own."""
    head = set(net.get_submodule(HEAD).modules())
    for module in (m for m in net.modules() if m not in head):
        if isinstance(module, NORMS):
            for name in list(module._parameters):
                module.register_parameter(name, None)
        elif "bias" in module._parameters:
            module.register_parameter("bias", None)
    return net
