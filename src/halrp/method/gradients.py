"""A start from gradients: where the task's loss falls fastest, without training a copy of the network.

Warm-up trains what the task owns anyway (head, norms, biases); the adapted weights stay the base's, in the base's
memory. Then the mean gradient G (J, C) of each adapted weight is sketched (`sketch`): a hook takes a batch's gradient
of one layer and frees it at once, so at no time is there more than the gradient of one layer. A component i starts at

    p_i = 0,   q_i = C^¼ v_iᵀ,   r = s = 1,

so that the outputs are unchanged, and the first step moves the weight along G v_i v_iᵀ. (Adam moves entries of p at its
learning rate, whatever their gradients. With q of unit norm the weight then hardly moves; with entries of unit size,
‖q‖ = C^½, it overshoots.) In the view "mean" of a kernel with K positions, G is the sum over positions divided by √K:
the slope along a kernel of unit norm that is the same everywhere.

All layers are compared in predicted loss. Along a direction of unit norm with slope σ, the loss changes by
−σ·t + h·t², where h is the mean diagonal entry of the layer's empirical Fisher (`MeanSquare`, from the same passes),
so the best step t = σ / 2h lowers it by

    score = σ² / 4h,

which no rescaling of a layer changes. The noise of a gradient over N examples adds about (J + C) / 4N to a score, and a
component costs J + C numbers: per number stored it favours no layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import MISSING, dataclass, fields

import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.errors import DivergedError, SettingError
from halrp.method.importance import at_least_float32, differentiable
from halrp.method.method import Halrp
from halrp.method.protocols import LayerOptions, TaskCosts
from halrp.method.sketch import Sketch, Spectrum
from halrp.method.start import Start, Starts, prices
from halrp.model.base import Base
from halrp.model.batch import Batch
from halrp.model.commit_check import CommitCheck
from halrp.model.delta import Recovered
from halrp.model.factors import Factors, identity_factors
from halrp.model.size import Size
from halrp.training.activations import recomputed_activations
from halrp.training.batches import Data, loss_of
from halrp.training.distributed import Processes
from halrp.training.groups import Group, by_kind, by_role
from halrp.training.run import TaskRun

NOT_USED = ("scales", "decompose", "importance", "initial")
"""The fields of `Halrp` that say how a warmed-up network is decomposed, of which there is none here."""


@dataclass(frozen=True)
class Gradients:
    """Choose a start from gradients: the memory of a delta's training, at the price of two passes over examples."""

    examples: int = 4096
    """The most examples whose gradients are taken, in batches spread over one pass."""
    components: int = 64
    """The most components of a layer that are considered, which bounds the memory of sketches."""

    def __post_init__(self) -> None:
        """Refuse numbers that leave nothing."""
        for name in ("examples", "components"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 1):
                raise SettingError(f"Gradients({name}={value!r}) must be a whole number of at least 1")

    def check(self, method: Halrp) -> None:
        """Refuse choices that would have no effect."""
        if unused := other_than_default(method):
            raise SettingError(
                f"Halrp({', '.join(unused)}) with start={self!r}: a start from gradients decomposes no warmed-up "
                "network and would not use it; leave it at its default, or give start=WarmUp()"
            )

    def __call__(
        self,
        base: Base,
        method: Halrp,
        run: TaskRun,
        check: CommitCheck,
        costs: Callable[[Mapping[str, Tensor], str], TaskCosts],
    ) -> Starts:
        """Return where fine-tuning starts, by view, and what the task owns in any case."""
        # Warm up: train what the task owns, over the frozen base.
        net = base.owning_copy(run.data.width, *run.seed_key)
        trained = Group([parameter for parameter in net.parameters() if parameter.requires_grad])
        groups = by_kind([trained], by_role(base.plan, net.named_parameters()), run.recipe)
        run.training("warm-up", net, groups, method.warm_up, early_stopping=False).run()
        # Gradients of the weights that the task adapts, sketched in each view that is tried.
        kernels = {n: p.kernel for n, p in base.plan.named("adapted").items()}
        views = method.views(any(kernels.values()), run.data.val is not None)
        weights, size = base.adapted_weights(), Size(base.parameter_count, base.size.bytes)
        layers = {
            name: _Layer(
                weight,
                {
                    view: self._new_sketch(name, weight, view, method, size, run)
                    for view in (views if kernels[name] else ("full",))
                },
            )
            for name, weight in weights.items()
        }
        self._sketch(net, layers, run, check)
        # Allocation over all layers, for each view of convolutions that is tried.
        owned, starts = base.owned_tensors(net), {}
        for view in views:
            spectra = {n: layer.spectrum(view if kernels[n] else "full") for n, layer in layers.items()}
            options = {n: _options(spectra[n], layer.importance, weights[n], method) for n, layer in layers.items()}
            allocation = method.allocate.allocate(options, costs(owned, view), size)
            starts[view] = Start(
                {n: _factors(spectra[n].v[:, :rank], weights[n]) for n, rank in allocation.ranks.items()},
                {n: weights[n].clone() for n in allocation.dense},
                {n: _recovered(o, layers[n].importance, allocation.ranks.get(n)) for n, o in options.items()},
                {n: layer.scores for n, layer in options.items()},
            )
        return Starts(starts, owned)

    def _new_sketch(self, name: str, weight: Tensor, view: str, method: Halrp, base: Size, run: TaskRun) -> Sketch:
        """A sketch of as many components as are considered, and no more than the budget pays for."""
        rows, columns = weight.shape[0], weight.shape[1] if view == "mean" else weight[0].numel()
        limit = method.allocate.limit(base)
        price = prices(method.allocate, method.precision, weight.shape, columns, weight.element_size()).component
        most = self.components if limit is None else min(self.components, max(1, limit // price))
        generator = seeding.generator(*run.seed_key, "sketch", name, view)
        return Sketch(rows, columns, most, at_least_float32(weight.new_zeros(())), generator)

    def _sketch(self, net: nn.Module, layers: Mapping[str, _Layer], run: TaskRun, check: CommitCheck) -> None:
        """Pass over the data twice, or once if every gradient is small enough to be summed itself."""
        weights = {n: p for n, p in net.named_parameters() if n in layers}
        net.requires_grad_(False).eval()
        rows, counts = 0, torch.zeros(())
        with ExitStack() as hooks:
            if run.recipe.checkpoint_activations:
                hooks.enter_context(recomputed_activations(net, run.recipe.checkpoint_activations))
            for name, weight in weights.items():
                weight.requires_grad_(True)

                def take(weight: Tensor, layer: _Layer = layers[name]) -> None:
                    if weight.grad is not None:
                        layer.add(at_least_float32(weight.grad), rows, counts)
                    weight.grad = None

                hooks.callback(weight.register_post_accumulate_grad_hook(take).remove)
            for _ in range(2):
                for x, y in self._batches(run, next(iter(weights.values())).device):
                    rows, counts = y.shape[0], torch.as_tensor(run.data.objective.weight(y), device=y.device)
                    with differentiable(net):
                        loss = loss_of(run.data.train, net, x, y)
                        if loss.requires_grad:  # else no weight is reached, which is refused below
                            loss.backward()
                if run.processes is not None:
                    _add_up(layers.values(), run.processes)
                for layer in layers.values():
                    layer.end_pass()
                if all(layer.complete for layer in layers.values()):
                    break
        check.gradients(weights, [weight for n, weight in weights.items() if not layers[n].batches])
        for name, layer in layers.items():
            if not bool(layer.importance.isfinite()):
                raise DivergedError(
                    f"{run.task}: the gradients of {name} are not finite after warm-up, so training diverged; lower "
                    "Recipe(lr=...) or check the scale of the inputs"
                )

    def _batches(self, run: TaskRun, device: torch.device) -> Iterator[tuple[Batch, Tensor]]:
        """Batches of at most `examples` examples, spread evenly over a pass; the same ones every time."""
        data: Data = run.data.train
        steps = data.steps(run.recipe.batch)
        wanted = max(1, min(steps, self.examples * steps // data.examples))
        key = (*run.seed_key, "gradients")
        with seeding.isolated(*key, device=device):
            for number, batch in enumerate(data.batches(run.recipe.batch, seeding.generator(*key))):
                if number * wanted // steps != (number + 1) * wanted // steps:
                    yield batch


def other_than_default(method: Halrp) -> list[str]:
    """The choices of a method that a start from gradients would not use, as text; those at their defaults are none."""
    defaults = {field.name: field.default for field in fields(method) if field.default is not MISSING}
    return [f"{name}={getattr(method, name)!r}" for name in NOT_USED if getattr(method, name) != defaults[name]]


class _Layer:
    """The gradient of one weight (J, I, *kernel): its sketch in each view, and its mean square."""

    def __init__(self, weight: Tensor, sketches: Mapping[str, Sketch]) -> None:
        self.sketches = sketches
        self.importance = at_least_float32(weight.new_zeros(()))
        self.weight = self.importance.clone()
        """What all batches count together."""
        self.batches, self.passes = 0, 0

    def add(self, gradient: Tensor, rows: int, weight: Tensor) -> None:
        """Add the gradient of the mean loss of a batch of some rows, which counts `weight` in means over several."""
        if not self.passes:
            self.batches += 1
            self.weight += weight
            self.importance += rows * gradient.square().mean()
        for view, sketch in self.sketches.items():
            sketch.add(weight * _matrix(gradient, view))

    def end_pass(self) -> None:
        """End a pass over the data."""
        self.passes += 1
        if self.passes == 1:
            self.importance /= max(1, self.batches)
            for sketch in self.sketches.values():
                sketch.turn()

    @property
    def complete(self) -> bool:
        """Whether one pass is enough."""
        return all(sketch.whole for sketch in self.sketches.values())

    def spectrum(self, view: str) -> Spectrum:
        """That of the gradient of the mean loss over all examples."""
        sigma, v, energy = self.sketches[view].spectrum()
        return Spectrum(sigma / self.weight, v, energy / self.weight**2)


def _add_up(layers: Collection[_Layer], processes: Processes) -> None:
    """Add up what several processes have seen of their parts of the data in a pass."""
    sums = [sketch.sum for layer in layers for sketch in layer.sketches.values() if sketch.sum is not None]
    first = [layer for layer in layers if not layer.passes]
    batches = torch.tensor([layer.batches for layer in first], device=processes.device)
    processes.add([*sums, *(total for layer in first for total in (layer.importance, layer.weight))])
    processes.add_flat(batches)
    for layer, count in zip(first, batches.tolist(), strict=True):
        layer.batches = count


def _matrix(gradient: Tensor, view: str) -> Tensor:
    """The slope along weights of unit norm of a view's form: (J, I) with one value per kernel, or (J, I·K)."""
    if gradient.dim() == 2:
        return gradient
    return gradient.flatten(2).sum(2) / math.sqrt(gradient[0, 0].numel()) if view == "mean" else gradient.flatten(1)


def _options(spectrum: Spectrum, importance: Tensor, weight: Tensor, method: Halrp) -> LayerOptions:
    """Scores and prices of the components of a weight; a layer without gradients has no use for any."""
    unit = torch.where(importance > 0, 4 * importance, math.inf)
    scores = spectrum.sigma.square() / unit
    rest = (spectrum.energy / unit - scores.sum()).clamp(min=0)
    columns = spectrum.v.shape[0]
    price = prices(method.allocate, method.precision, weight.shape, columns, weight.element_size())
    return LayerOptions(scores, *price, rest, may_be_dense=columns == weight[0].numel())


def _factors(v: Tensor, weight: Tensor) -> Factors:
    """Components with p = 0 and q along v (C, rank), of the norm C^¼."""
    neutral, q = identity_factors(weight), (v.shape[0] ** 0.25 * v).mT.contiguous().to(weight.dtype)
    return Factors(neutral.r, neutral.s, weight.new_zeros(weight.shape[0], v.shape[1]), q)


def _recovered(options: LayerOptions, importance: Tensor, rank: int | None) -> Recovered:
    """The predicted loss is the decrease that the best step along the whole gradient would bring."""
    total = float(options.scores.sum() + options.rest)
    recovered = total if rank is None else float(options.scores[:rank].sum())
    return Recovered(float(importance), total, min(1.0, recovered / total) if total > 0 else 1.0)
