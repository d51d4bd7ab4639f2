"""`ia3`: a factor for each output of a layer (Liu et al., 2022), by PEFT."""

from __future__ import annotations

from typing import Any

from halrp.lab.methods.peft_adapters import ALL, PeftAdapter, peft
from halrp.lab.methods.protocol import Context
from halrp.lab.methods.rounding import Form
from halrp.lab.methods.tuned import Head
from halrp.lab.streams import Task


class Ia3(PeftAdapter):
    """A vector for every layer that is adapted."""

    def __init__(
        self,
        context: Context,
        lr: float = 1e-2,
        layers: str = ALL,
        norms: bool = False,
        form: Form = "float32",
        head: Head = "random",
    ) -> None:
        """Take the rate, the layers, what happens to norms, the precision of files, and the head's start."""
        super().__init__(context, lr, 1, layers, norms, form, head)

    def config(self, targets: list[str], saved: list[str], task: Task | None) -> Any:
        """PEFT's configuration; factors are on outputs, and on none of a layer's inputs."""
        return peft().IA3Config(target_modules=targets, feedforward_modules=[], modules_to_save=saved)
