"""What the parts of a delta promise: the gradients of all of them at one point, from one pass over a task's data.

A part is a row or column scale of a weight, a norm parameter, a bias, another small parameter, or a component of a
weight's gradient (`weight_gradients`). Each is scored in predicted loss, so that one allocation compares them all.

With the gradient G (J, I, *kernel) of a weight W, those of its scales at r = s = 1 are, summed over all but one
dimension,

    ∂L/∂r_j = Σ G_j ∘ W_j,     ∂L/∂s_i = Σ G_·i ∘ W_·i,

so one backward pass gives everything. A hook takes the gradient of one layer at a time and frees it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from halrp.errors import DivergedError
from halrp.method.importance import at_least_float32, differentiable
from halrp.method.passes import halves
from halrp.method.weight_gradients import WeightGradient
from halrp.model.batch import Batch
from halrp.model.call import Call
from halrp.model.layers.norm import BATCH_NORMS, NORMS
from halrp.training.activations import recomputed_activations
from halrp.training.batches import loss_of
from halrp.training.run import TaskRun

LEAST_ROWS, PARTS_OF_A_BATCH = 4, 2
"""Gradients are taken of half a batch at a time, which needs less memory than training does, and not of less
than four rows."""


class VectorGradient:
    """The gradient of a small tensor over the two halves of a pass, and the mean square of its entries over batches."""

    def __init__(self, like: Tensor) -> None:
        self._sums = [at_least_float32(torch.zeros_like(like)) for _ in range(2)]
        self._counts = [self._sums[0].new_zeros(()) for _ in range(2)]
        self._square, self._number = self._sums[0].new_zeros(()), self._sums[0].new_zeros(())
        self.shape = tuple(like.shape)
        self.half = self.batches = 0

    def add(self, gradient: Tensor, rows: int, weight: Tensor) -> None:
        """Add the gradient of the mean loss of a batch of some rows, which counts `weight` in means over several."""
        gradient = at_least_float32(gradient)
        self._sums[self.half] += weight * gradient
        self._counts[self.half] += weight
        self._square += rows * gradient.square().mean()
        self._number += 1
        self.batches += 1

    def sums(self) -> list[Tensor]:
        """What has been summed in this half, so that processes can add theirs up before it ends."""
        return [self._sums[self.half], self._counts[self.half], *([self._square, self._number] if self.half else [])]

    def end_half(self) -> None:
        """End a half of the pass."""
        self.half = 1

    @property
    def curvature(self) -> Tensor:
        """The mean diagonal entry of the empirical Fisher, (,)."""
        return self._square / self._number.clamp(min=1)

    @property
    def score(self) -> Tensor:
        """The predicted decrease of the loss, (,): the slope estimated from the two halves, over four curvatures."""
        first, second = (total / count.clamp(min=1e-12) for total, count in zip(self._sums, self._counts, strict=True))
        h = self.curvature
        return torch.where(h > 0, (first * second).sum() / (4 * torch.where(h > 0, h, 1)), 0).clamp(min=0)

    @property
    def rate(self) -> float:
        """The step of an entry after which the loss has changed by about one, if all entries take it."""
        return 1 / math.sqrt(math.prod(self.shape) * float(self.curvature) + 1e-30)


@dataclass(frozen=True)
class Wanted:
    """The parts whose gradients are taken: weights with what sketches them, scales by weight, and small parameters."""

    weights: Mapping[str, WeightGradient]
    rows: frozenset[str] = frozenset()
    """Weights whose row scales r are offered."""
    columns: frozenset[str] = frozenset()
    """Weights whose column scales s are offered."""
    vectors: frozenset[str] = frozenset()
    """Parameters that the task may own."""


def collect(net: nn.Module, wanted: Wanted, run: TaskRun, examples: int) -> tuple[dict[str, VectorGradient], list[str]]:
    """Pass over the data and take all gradients: those of scales (`r/NAME`, `s/NAME`) and of others (`plain/NAME`).

    Those of weights are added to what is `wanted` of them. Also returns the names of weights that none reached.
    """
    parameters = dict(net.named_parameters())
    vectors = _vectors(parameters, wanted)
    scaled = {key[2:] for key in vectors if key[:2] in ("r/", "s/")}
    device = next(iter(parameters.values())).device
    net.requires_grad_(False).eval()
    rows, counts = 0, torch.zeros(())

    def take(parameter: Tensor, name: str) -> None:
        gradient, parameter.grad = parameter.grad, None
        if gradient is None:
            return
        gradient = at_least_float32(gradient)
        if name in wanted.weights:
            wanted.weights[name].add(gradient, rows, counts)
        if name in scaled:
            slope = gradient * parameter.detach()
            for part, dimension in (("r", 0), ("s", 1)):
                if f"{part}/{name}" in vectors:
                    others = [dim for dim in range(slope.dim()) if dim != dimension]
                    vectors[f"{part}/{name}"].add(slope.sum(others), rows, counts)
        if f"plain/{name}" in vectors:
            vectors[f"plain/{name}"].add(gradient, rows, counts)

    everything: list[WeightGradient | VectorGradient] = [*wanted.weights.values(), *vectors.values()]
    with ExitStack() as hooks:
        if run.recipe.checkpoint_activations:
            hooks.enter_context(recomputed_activations(net, run.recipe.checkpoint_activations))
        for name in {*wanted.weights, *scaled, *wanted.vectors}:
            parameter = parameters[name].requires_grad_(True)
            hooks.callback(parameter.register_post_accumulate_grad_hook(partial(take, name=name)).remove)
        batch = max(LEAST_ROWS, run.recipe.batch // PARTS_OF_A_BATCH)
        for half in halves(run.data.train, batch, examples, (*run.seed_key, "gradients"), device):
            for x, y in half:
                rows, counts = y.shape[0], torch.as_tensor(run.data.objective.weight(y), device=y.device)
                with differentiable(net):
                    loss = loss_of(run.data.train, net, x, y)
                    if loss.requires_grad:  # else no weight is reached, which the caller refuses
                        loss.backward()
            if run.processes is not None:
                run.processes.add([total for gradient in everything for total in gradient.sums()])
            for gradient in everything:
                gradient.end_half()
    finite = {n: g.importance for n, g in wanted.weights.items()} | {k: v.curvature for k, v in vectors.items()}
    for name in (name for name, number in finite.items() if not bool(number.isfinite())):
        raise DivergedError(
            f"{run.task}: the gradients of {name} are not finite at the start of fine-tuning; check the scale of the "
            "inputs, and that the model's weights are finite"
        )
    reached = {name for name, gradient in wanted.weights.items() if gradient.batches}
    reached |= {key.partition("/")[2] for key, gradient in vectors.items() if gradient.batches}
    return vectors, [name for name in (*wanted.weights, *scaled) if name not in reached]


def _vectors(parameters: Mapping[str, nn.Parameter], wanted: Wanted) -> dict[str, VectorGradient]:
    """The gradients of small parts before a pass."""
    vectors = {}
    for part, names in (("r", wanted.rows), ("s", wanted.columns)):
        for name in sorted(names):
            vectors[f"{part}/{name}"] = VectorGradient(
                parameters[name].new_zeros(parameters[name].shape["rs".index(part)])
            )
    return vectors | {f"plain/{name}": VectorGradient(parameters[name].detach()) for name in sorted(wanted.vectors)}


class _Output:
    """A tensor that a module gave, and whether each module that read it is a norm that it reached unchanged."""

    def __init__(self, path: str, tensor: Tensor) -> None:
        self.path, self.tensor, self.version = path, tensor, tensor._version
        self.read_by_norm: list[bool] = []


def followed_by_norm(net: nn.Module, call: Call, x: Batch) -> frozenset[str]:
    """The modules whose outputs all go into a batch norm with its own scale and shift, and into no other module.

    There a row scale and a bias do what the norm's parameters do. Other norms divide a scale of their input out again,
    but share it between channels. Seen in a pass over some rows: the norm's input is the very tensor that the module
    gave. What reads that tensor outside of modules, as the sum of a shortcut may, is not seen.
    """
    outputs: list[_Output] = []
    latest: dict[int, _Output] = {}  # tensors are held in outputs, so that no address is used twice

    def before(module: nn.Module, inputs: tuple[object, ...]) -> None:
        for output in (latest[id(value)] for value in inputs if id(value) in latest):
            suits = isinstance(module, BATCH_NORMS) and module.weight is not None
            output.read_by_norm.append(suits and output.tensor._version == output.version)

    def after(_: nn.Module, __: object, value: object, path: str) -> None:
        if isinstance(value, Tensor):
            latest[id(value)] = _Output(path, value)
            outputs.append(latest[id(value)])

    with ExitStack() as hooks, torch.no_grad():
        for path, module in net.named_modules():
            if isinstance(module, NORMS) or not list(module.children()):
                hooks.callback(module.register_forward_pre_hook(before).remove)
                hooks.callback(module.register_forward_hook(partial(after, path=path)).remove)
        call(net.eval(), x)
    others = {output.path for output in outputs if not output.read_by_norm or not all(output.read_by_norm)}
    return frozenset(output.path for output in outputs if output.path not in others)
