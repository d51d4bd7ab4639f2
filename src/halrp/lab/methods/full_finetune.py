"""`full-finetune`: a copy of the whole pretrained network for each task, all weights trained.

Batch norms are trained as usual, by the statistics of batches, which move the running ones; those are stored too. What
the backbone itself keeps frozen, such as an encoder's table of words, stays the base's.
"""

from __future__ import annotations

from torch import Tensor, nn

from halrp.lab.methods import network
from halrp.lab.methods.protocol import Context
from halrp.lab.methods.rounding import Form
from halrp.lab.methods.tuned import Head, Tuned


class FullFineTune(Tuned):
    """Everything is trained and stored."""

    frozen_norms = False

    def __init__(self, context: Context, lr: float = 3e-4, form: Form = "float32", head: Head = "random") -> None:
        """Take the highest learning rate, the precision of files, and the start of the head."""
        super().__init__(context, lr, form, head)

    def trained(self, net: nn.Module) -> dict[str, Tensor]:
        """All parameters that the backbone does not freeze."""
        head = f"{network.HEAD}."
        return {n: p for n, p in net.named_parameters() if n in self.free and not n.startswith(head)}
