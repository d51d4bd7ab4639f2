"""Adapters of PEFT, by PEFT: its layers, its files, and the same files rounded.

    pip install peft

Layers are chosen by the end of their name. "all" stands for linear layers and for convolutions of a single group, the
head left out: PEFT has no low-rank form of depthwise convolutions, as it asks for ranks that are multiples of the
groups.
"""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import safetensors.torch
from torch import Tensor, nn

from halrp import seeding
from halrp.checks import is_whole
from halrp.errors import MissingPackageError, ModelError, SettingError
from halrp.lab.backbones.operations import declare_image_operations
from halrp.lab.methods import features, network, rounding
from halrp.lab.methods.on_base import Predictor
from halrp.lab.methods.protocol import Context
from halrp.lab.methods.rounding import Form
from halrp.lab.methods.tuned import Head, Tuned
from halrp.lab.streams import Task
from halrp.model.layers.norm import BATCH_NORMS

ALL = "all"
SEED = "peft"


def peft() -> Any:
    """The package, which is slow to import."""
    declare_image_operations()
    try:
        import peft
    except ImportError as error:
        raise MissingPackageError("adapters of PEFT need it: pip install 'halrp[peft]'") from error
    return peft


class PeftAdapter(Tuned):
    """An adapter, the head, and the norms if they are trained."""

    adapts: ClassVar[tuple[type[nn.Module], ...]] = (nn.Linear, nn.Conv2d)
    """The layer types that PEFT's method can adapt."""

    def __init__(
        self, context: Context, lr: float, rank: int, layers: str, norms: bool, form: Form, head: Head
    ) -> None:
        """Take the rate, the rank, the layers ("all", or ends of names such as "query,value"), and the rest.

        With `norms` batch norms are trained and stored with their statistics, as PEFT's guide has it; otherwise they
        are frozen as the base has them.
        """
        super().__init__(context, lr, form, head)
        if not is_whole(rank) or rank < 1:
            raise SettingError(f"{type(self).__name__}(rank={rank!r}) is out of range; give a whole number above 0")
        self.rank, self.layers, self.norms = rank, layers, norms
        self.frozen_norms = not norms
        self._resident: dict[int, Any] = {}

    @abstractmethod
    def config(self, targets: list[str], saved: list[str], task: Task | None) -> Any:
        """PEFT's configuration; `task` is None if a file is opened."""

    def fit(self, task: Task) -> bytes:
        """Train, and return PEFT's file, or what it becomes when it is rounded."""
        with seeding.isolated(*network.later_seed_key(self.context, task), SEED, device=self.device):
            model = self.adapted(self.fresh(task), task)
            self.train(model, task, lambda step: self.after_step(model, step))
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            content = (Path(folder) / "adapter_model.safetensors").read_bytes()
        return content if self.form == "float32" else rounding.encode(safetensors.torch.load(content), self.form)

    def after_step(self, model: Any, step: int) -> None:
        """What the method does after each step."""

    def adapted(self, net: nn.Module, task: Task | None = None) -> Any:
        """A network with adapters."""
        saved = [network.HEAD]
        if self.norms:
            saved += [name for name, module in net.named_modules() if isinstance(module, BATCH_NORMS)]
        return peft().get_peft_model(net, self.config(self.targets(net), saved, task))

    def targets(self, net: nn.Module) -> list[str]:
        """The names of the layers to adapt."""
        ends = None if self.layers == ALL else tuple(filter(None, self.layers.split(",")))
        names = [
            name
            for name, layer in net.named_modules()
            if isinstance(layer, self.adapts)
            and name != network.HEAD
            and getattr(layer, "groups", 1) == 1
            and (ends is None or name.endswith(ends))
        ]
        if not names:
            kinds = " or ".join(kind.__name__ for kind in self.adapts)
            raise ModelError(
                f"{type(self).__name__}(layers={self.layers!r}): the network has no such layer of type {kinds}; choose "
                "others, or another method"
            )
        return names

    def opened(self, content: bytes, classes: int) -> Predictor:
        """A network with what the file holds; tasks with as many classes share it, one after the other."""
        if classes not in self._resident:
            net = self.context.build(classes, self.context.seed).requires_grad_(False)
            with seeding.isolated(SEED, device=self.device):
                self._resident[classes] = self.adapted(net)
        model = self._resident[classes].eval()
        tensors = {name: tensor.to(self.device) for name, tensor in rounding.decode(content).items()}
        peft().set_peft_model_state_dict(model, tensors)
        return lambda x: features.outputs(model, self.on_device(x))

    def trained(self, net: nn.Module) -> dict[str, Tensor]:
        """PEFT decides."""
        return {}


def alpha_of(rank: int) -> int:
    """The scale of all low-rank adapters: 2, as twice the rank is divided by the rank."""
    return 2 * rank
