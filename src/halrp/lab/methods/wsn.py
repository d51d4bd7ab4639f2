"""`wsn`: winning subnetworks (Kang et al., 2022).

All tasks share weights θ and scores s of the same shape. A task uses the subnetwork θ ∘ m of the weights whose scores
are largest: per layer, m = 1 where |s| is at least the k-th smallest of its n scores, k = 1 + round((1 − c)(n − 1)).
A task trains weights, scores and its head together; the mask is computed again at every step and passes the gradient g
of the masked weight straight through,

    ∂L/∂θ = g ∘ m        ∂L/∂s = g ∘ θ ∘ sign s        (also for weights that are not selected).

After a task its mask is stored, and the weights that it uses never change again, because the gradients of all weights
that an earlier task uses are set to zero. Later tasks may use them, and train the others.

Nothing else is shared: layers have no biases, and norm layers have no affine parts and use the statistics of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from halrp import seeding
from halrp.errors import ModelError, SettingError
from halrp.lab.methods import network
from halrp.lab.methods.masks import Masks
from halrp.lab.methods.norms import with_weights_only
from halrp.lab.methods.plateau import train_until_plateau
from halrp.lab.methods.protocol import Context, Method, Size, State
from halrp.lab.methods.settings import MODES, Mode, check_choice, official_recipe
from halrp.lab.streams import Task
from halrp.model.views import task_view
from halrp.objectives import classification
from halrp.training.loop import Group, Training

PATIENCE, FLOOR = 6, 1e-6
"""Of the official schedule: epochs on a plateau before the learning rate is halved, and the rate that ends training."""


def threshold(magnitudes: Tensor, share: float) -> Tensor:
    """The k-th smallest of n magnitudes, k = 1 + round((1 − share)(n − 1)); a number."""
    k = 1 + round((1 - share) * (magnitudes.numel() - 1))
    if magnitudes.device.type == "cpu" and magnitudes.dtype in (torch.float32, torch.float64):
        # The order does not matter, so memory is read contiguously; several times faster than torch's own.
        flat = magnitudes.permute(sorted(range(magnitudes.dim()), key=magnitudes.stride, reverse=True)).reshape(-1)
        return torch.from_numpy(np.partition(flat.numpy(), k - 1)[k - 1 : k]).squeeze(0)
    return magnitudes.flatten().kthvalue(k).values


def selected(scores: Tensor, share: float) -> Tensor:
    """The mask of a layer, boolean, of the shape of its scores."""
    magnitudes = scores.detach().abs()
    return magnitudes >= threshold(magnitudes, share)


class StraightThrough(torch.autograd.Function):
    """θ ∘ m, with the gradient of m given to the scores as if m were |s|."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, scores: Tensor, mask: Tensor) -> Tensor:
        """The masked weight; all three have its shape."""
        ctx.save_for_backward(weight, scores, mask)
        return weight * mask

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        """Gradients of weight and scores."""
        (gradient,), (weight, scores, mask) = gradients, ctx.saved_tensors
        return gradient * mask, gradient * weight * scores.sign(), None


class Masked(nn.Module):
    """A parametrization that masks a layer's weight; `mask` is the newest mask."""

    def __init__(self, scores: nn.Parameter, share: float) -> None:
        """Select a share of the weights by scores of the weight's shape."""
        super().__init__()
        self.scores, self.share = scores, share
        self.mask: Tensor | None = None

    def forward(self, weight: Tensor) -> Tensor:
        """The weight where the scores select it, 0 elsewhere."""
        self.mask = selected(self.scores, self.share)
        masked: Tensor = StraightThrough.apply(weight, self.scores, self.mask)
        return masked


@contextmanager
def masking(net: nn.Module, scores: Mapping[str, nn.Parameter], share: float) -> Iterator[dict[str, Masked]]:
    """Mask the weights of a network for a block."""
    layers = {n: (net.get_submodule(n.rpartition(".")[0]), n.rpartition(".")[2]) for n in scores}
    masked = {n: Masked(s, share) for n, s in scores.items()}
    for name, (layer, leaf) in layers.items():
        parametrize.register_parametrization(layer, leaf, masked[name], unsafe=True)
    try:
        yield masked
    finally:
        for layer, leaf in layers.values():
            parametrize.remove_parametrizations(layer, leaf, leave_parametrized=False)


class WinningSubnetworks(Method):
    """Shared weights, a mask and a head for each task."""

    frozen = True

    def __init__(
        self,
        context: Context,
        share: float = 0.5,
        mode: Mode = "paper",
        l2: float | None = None,
        epochs: int | None = None,
    ) -> None:
        """Take the share c of a layer's weights that a task uses.

        `mode` "paper" uses the run's recipe, with λ/2·‖θ ∘ m‖² added to the loss, l2 = λ = 1e-4. "official" is Adam
        with a learning rate of 1e-3 that is halved on a plateau of the validation loss, batches of 64, up to 200
        epochs (or `epochs`), the best epoch's parameters, and no penalty.
        """
        if not 0 < share <= 1:
            raise SettingError(f"wsn(share={share!r}) is out of range; give a share above 0 and at most 1, such as 0.5")
        check_choice("wsn", "mode", mode, MODES)
        recipe = context.recipe
        if mode == "official":
            recipe = official_recipe(recipe, optimiser="adam", lr=1e-3, batch=64, epochs=epochs or 200)
        elif epochs is not None:
            recipe = replace(recipe, epochs=epochs)
        super().__init__(with_weights_only(replace(context, recipe=recipe)))
        self.share, self.mode = share, mode
        self.l2 = l2 if l2 is not None else 1e-4 if mode == "paper" else 0.0
        self.net: nn.Module | None = None
        self.scores: dict[str, nn.Parameter] = {}
        self.masks = Masks()
        self.heads: list[dict[str, Tensor]] = []
        self.classes: list[int] = []

    def learn(self, task: Task) -> None:
        """Train weights that no earlier task uses, all scores and a head; then store the mask."""
        if self.net is None:
            self.net, self.plan = network.fresh(self.context, task)
            flat = [n for n, weight in self.weights().items() if weight.dim() < 2]
            if flat:
                raise ModelError(f"wsn: {', '.join(flat)} is neither a weight nor a bias nor a norm, and has no mask")
            self.scores = {n: self.initial_scores(n, weight) for n, weight in self.weights().items()}
            seed_key, stage = network.first_seed_key(self.context, task), "base"
        else:
            network.add_head(self.context, self.net, task)
            seed_key, stage = network.later_seed_key(self.context, task), "fine-tune"
        head = self.net.get_submodule(network.HEAD)
        weights = self.weights()
        groups = [Group(list(weights.values())), Group(list(self.scores.values())), Group(list(head.parameters()))]
        with masking(self.net, self.scores, self.share) as layers:
            hook = protect(weights, layers, self.masks.used(), self.l2 * self.context.recipe.gradient_scale)
            options: dict[str, Any] = {"after_backward": hook}
            if self.mode == "official":
                options["checkpoints"] = None  # they do not hold the state of the plateau
            training = network.training(self.context, task, self.net, groups, seed_key, stage, **options)
            if self.mode == "paper":
                training.run()
            else:
                self.train_on_plateaus(training, task, [p for group in groups for p in group.parameters])
        self.masks.add({n: selected(s, self.share) for n, s in self.scores.items()})
        self.heads.append({n: p.detach().clone() for n, p in head.named_parameters(network.HEAD)})
        self.classes.append(task.classes)

    def initial_scores(self, name: str, weight: Tensor) -> nn.Parameter:
        """Scores, initialised like a layer's weights; a function of the run's seed and the weight's name."""
        scores = torch.empty(weight.shape, dtype=weight.dtype)
        nn.init.kaiming_uniform_(scores, a=math.sqrt(5), generator=seeding.generator(self.context.seed, "scores", name))
        return nn.Parameter(torch.empty_like(weight).copy_(scores).detach())

    def train_on_plateaus(self, training: Training, task: Task, parameters: list[nn.Parameter]) -> None:
        """Train with a learning rate that is halved when the validation loss no longer falls."""
        split = task.val if len(task.val.y) > 1 else task.train

        def validation_loss() -> float:
            logits = network.logits(self.context, training.module, split.x)
            return float(classification.loss(logits.float(), split.y.to(logits.device)))

        train_until_plateau(training, parameters, validation_loss, factor=2, patience=PATIENCE, floor=FLOOR)

    def weights(self) -> dict[str, nn.Parameter]:
        """The shared weights: all but the head."""
        assert self.net is not None, "learn a task first"
        return {n: p for n, p in self.net.named_parameters() if self.plan.role(n) != "head"}

    def module(self, task: int) -> nn.Module:
        """The subnetwork of a task."""
        masks, weights = self.masks.of(task), self.weights()
        masked = {n: w.detach().clone().masked_fill_(~masks[n], 0) for n, w in weights.items()}
        assert self.net is not None
        return task_view(self.net, self.plan, {}, masked | self.heads[task], self.classes[task])

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits of the task's subnetwork."""
        return network.logits(self.context, self.module(task), x)

    def stored(self) -> Size:
        """The weights that some task uses, the heads, and the compressed masks, of which 32 bits count as a number."""
        weights, counts = self.weights(), {n: int(mask.sum()) for n, mask in self.masks.used().items()}
        heads, coded = Size.of(t for head in self.heads for t in head.values()), self.masks.bytes()
        numbers = sum(counts.values()) + heads.parameters + math.ceil(coded / 4)
        return Size(numbers, sum(k * weights[n].element_size() for n, k in counts.items()) + heads.bytes + coded)

    def details(self) -> dict[str, Any]:
        """The share of weights that some task uses, and the compressed bits per bit of a mask."""
        used = self.masks.used().values()
        total = sum(mask.numel() for mask in used)
        return {
            "used": round(sum(int(mask.sum()) for mask in used) / total, 6),
            "mask_rate": round(8 * self.masks.bytes() / (total * self.masks.tasks), 6),
        }

    def state(self) -> State:
        """Weights, used or not, scores, masks and heads."""
        tensors = network.add_prefix("weight", {n: w.detach() for n, w in self.weights().items()})
        tensors |= network.add_prefix("score", {n: s.detach() for n, s in self.scores.items()})
        tensors |= network.add_prefix("mask", self.masks.tensors())
        for i, head in enumerate(self.heads):
            tensors |= network.add_prefix(f"head/{i}", head)
        return State(tensors, {"classes": self.classes})

    def restore(self, state: State) -> None:
        """Build the network again, with the last task's head."""
        self.classes = list(state.values["classes"])
        self.net, self.plan = network.empty(self.context, self.classes[-1])
        self.heads = []
        for i in range(len(self.classes)):
            head = network.strip_prefix(f"head/{i}", state.tensors)
            self.heads.append({n: t.to(next(self.net.parameters()).device, copy=True) for n, t in head.items()})
        weights = self.weights()
        network.fill(self.net, network.strip_prefix("weight", state.tensors) | self.heads[-1])
        scores = network.strip_prefix("score", state.tensors)
        self.scores = {n: nn.Parameter(torch.empty_like(w).copy_(scores[n]).detach()) for n, w in weights.items()}
        self.masks = Masks.restored(network.strip_prefix("mask", state.tensors), len(self.classes), weights)


def protect(
    weights: Mapping[str, nn.Parameter], layers: Mapping[str, Masked], used: Mapping[str, Tensor], l2: float
) -> Callable[[], None]:
    """A hook that adds λ·(θ ∘ m) to the gradients, then zeroes those of weights that earlier tasks use.

    Weights that are not selected get no penalty: it would be their whole gradient, and Adam, whose steps do not depend
    on the size of gradients, would bring them to zero before a later task could select them.
    """

    def hook() -> None:
        for name, weight in weights.items():
            if weight.grad is None:
                continue
            mask = layers[name].mask
            if l2 and mask is not None:
                weight.grad.addcmul_(weight.detach(), mask.to(weight.dtype), value=l2)
            if name in used:
                weight.grad.masked_fill_(used[name], 0)

    return hook
