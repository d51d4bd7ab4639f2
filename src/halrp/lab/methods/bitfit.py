"""`bitfit`: the biases of a pretrained network and a head (Ben Zaken et al., 2022).

Biases are those of layers and of norms; batch norms keep the statistics of the base.
"""

from __future__ import annotations

from torch import Tensor, nn

from halrp.lab.methods import network
from halrp.lab.methods.protocol import Context
from halrp.lab.methods.rounding import Form
from halrp.lab.methods.tuned import Head, Tuned


class BitFit(Tuned):
    """All biases are trained and stored."""

    def __init__(self, context: Context, lr: float = 3e-3, form: Form = "float32", head: Head = "random") -> None:
        """Take the highest learning rate, the precision of files, and the start of the head."""
        super().__init__(context, lr, form, head)

    def trained(self, net: nn.Module) -> dict[str, Tensor]:
        """The parameters called bias, the head's left out."""
        head = f"{network.HEAD}."
        return {n: p for n, p in net.named_parameters() if n.endswith(".bias") and not n.startswith(head)}
