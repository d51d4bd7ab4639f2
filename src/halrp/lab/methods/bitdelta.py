"""`bitdelta`: a fine-tuned network as one bit for each weight (Liu et al., 2024).

A weight matrix is W + α sign(Δ) with the base's W, the difference Δ of the fine-tuned one, and one α, which starts as
the mean of |Δ|. All α are then fitted so that the logits on the training data are those of the fine-tuned network.
Vectors (biases, norms, statistics) are differences to the base in bfloat16, and so is the head, as a whole.
"""

from __future__ import annotations

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.func import functional_call

from halrp import seeding
from halrp.checks import is_whole
from halrp.errors import SettingError
from halrp.lab.methods import features, network
from halrp.lab.methods.full_finetune import FullFineTune
from halrp.lab.methods.on_base import Predictor
from halrp.lab.methods.protocol import Context
from halrp.lab.methods.tuned import Head
from halrp.lab.streams import Task

SCALES, SIGNS, VECTOR = "scales", "signs/", "vector/"
RATE, ROWS = 1e-2, 16
"""Learning rate of log α, and rows in a step of fitting it."""


class BitDelta(FullFineTune):
    """Signs and scales of what fine-tuning changed."""

    def __init__(self, context: Context, lr: float = 3e-4, head: Head = "random", distil: int = 50) -> None:
        """Take the rate of fine-tuning, the start of the head, and the steps in which scales are fitted."""
        super().__init__(context, lr, "float32", head)
        if not is_whole(distil) or distil < 0:
            raise SettingError(f"bitdelta(distil={distil!r}) is out of range; give a whole number of at least 0")
        self.distil = distil

    def fit(self, task: Task) -> bytes:
        """Fine-tune, take the signs, and fit the scales."""
        net, owned = self.tuned(task)
        base = network.contents(self.context.build(task.classes, self.context.seed))
        matrices = [n for n, t in owned.items() if t.dim() > 1 and not n.startswith(network.HEAD)]
        differences = {name: owned[name] - base[name] for name in matrices}
        scales = torch.stack([difference.abs().mean() for difference in differences.values()])
        signs = {name: torch.where(difference >= 0, 1.0, -1.0) for name, difference in differences.items()}
        rest = {name: tensor for name, tensor in owned.items() if name not in signs}
        vectors = {VECTOR + n: self.vector(n, tensor, base) for n, tensor in rest.items()}
        if self.distil:
            restored = {n: self.restored(n, vectors[VECTOR + n], base) for n in rest}
            scales = self.fitted(net, task, base, signs, scales, restored)
        packed = {SIGNS + name: _packed(sign) for name, sign in signs.items()}
        return safetensors.torch.save(packed | vectors | {SCALES: scales.cpu()})

    def vector(self, name: str, tensor: Tensor, base: dict[str, Tensor]) -> Tensor:
        """A tensor as the file has it: a head as it is, all else as a difference to the base."""
        if not tensor.is_floating_point():
            return tensor.cpu().clone()
        change = tensor if name.startswith(network.HEAD) else tensor - base[name]
        return change.to(torch.bfloat16).cpu().contiguous()

    def restored(self, name: str, stored: Tensor, base: dict[str, Tensor]) -> Tensor:
        """The inverse of `vector`."""
        if not stored.is_floating_point():
            return stored.to(self.device)
        change = stored.to(self.device, torch.float32)
        return change if name.startswith(network.HEAD) else base[name] + change

    def fitted(
        self,
        net: nn.Module,
        task: Task,
        base: dict[str, Tensor],
        signs: dict[str, Tensor],
        scales: Tensor,
        rest: dict[str, Tensor],
    ) -> Tensor:
        """The scales whose network has the logits of the fine-tuned one, by least squares."""
        x = self.on_device(task.train.x)
        target = features.outputs(net, x)
        logarithms = torch.zeros_like(scales, requires_grad=True)
        optimiser = torch.optim.Adam([logarithms], RATE)
        generator = seeding.generator(*network.later_seed_key(self.context, task), "scales")
        for _ in range(self.distil):
            rows = torch.randint(len(x), (ROWS,), generator=generator)
            alphas = scales * logarithms.exp()
            weights = {n: base[n] + a * s for (n, s), a in zip(signs.items(), alphas.unbind(), strict=True)}
            logits = functional_call(net, weights | rest, (x[rows],))
            optimiser.zero_grad()
            (logits - target[rows]).square().mean().backward()
            optimiser.step()
        return (scales * logarithms.exp()).detach()

    def opened(self, content: bytes, classes: int) -> Predictor:
        """The base with signs, scales and vectors."""
        tensors = safetensors.torch.load(content)
        net = self.context.build(classes, self.context.seed).requires_grad_(False).eval()
        base = {name: tensor.clone() for name, tensor in network.contents(net).items()}
        named = [name.removeprefix(SIGNS) for name in base if SIGNS + name in tensors]
        changed = {
            name: base[name] + scale * _unpacked(tensors[SIGNS + name], base[name])
            for name, scale in zip(named, tensors[SCALES].to(self.device), strict=True)
        }
        vectors = network.strip_prefix(VECTOR.rstrip("/"), tensors)
        network.fill(net, changed | {n: self.restored(n, t, base) for n, t in vectors.items()})
        return lambda x: features.outputs(net, self.on_device(x))


def _packed(signs: Tensor) -> Tensor:
    return torch.from_numpy(np.packbits((signs > 0).flatten().cpu().numpy()))


def _unpacked(packed: Tensor, like: Tensor) -> Tensor:
    bits = np.unpackbits(packed.numpy(), count=like.numel())
    return torch.from_numpy(bits).to(like).mul_(2).sub_(1).view_as(like)
