"""`gpm`: gradient projection memory (Saha, Garg and Roy, 2021).

A layer's gradient lies in the span of the layer's inputs. For each layer an orthonormal basis M (D, k) of the inputs
that mattered to past tasks is kept, and its weight W (O, D) moves only orthogonally to it,

    ΔW ← ΔW − (ΔW M) Mᵀ,    so that W x stays for every x in span(M).

After task t, M is extended until it captures a share e_t of the energy of the inputs R of some of its examples.
Biases and norm layers learn with the first task alone, batch norms use the statistics of the batch at hand, and every
task has its own head. What M does not capture is forgotten, so old logits move a little.

Projecting gradients holds under SGD, whose step is a multiple of the gradient. Adam rescales every entry of it and
leaves the complement of M; weight decay inside an optimiser does too. In the mode "paper" the run's recipe is used, and
after every step it is the displacement since the task began that is projected, whatever made it. In the mode
"official" it is the gradient under plain SGD, with the rate lowered when the validation loss no longer falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.errors import SettingError
from halrp.lab.methods import network, subspaces
from halrp.lab.methods.finetune import FineTune
from halrp.lab.methods.norms import without_running_statistics
from halrp.lab.methods.protocol import Context, State
from halrp.lab.names import check_name
from halrp.lab.streams import Task
from halrp.model.inference import batch_sizes
from halrp.training.batches import Data
from halrp.training.evaluate import evaluate
from halrp.training.loop import Training
from halrp.training.recipe import Recipe

Mode = Literal["paper", "official"]
Projection = Callable[[Tensor], Tensor]
"""Takes from a matrix (O, D) what lies in the span of a basis (D, k)."""

HIGHEST = 0.9999
"""No threshold is above this; at 1 a layer would soon be frozen by the rounding of its inputs."""
SHALLOW, DEEP = (24, 100), (10,) * 8 + (50,) * 3 + (100,)
"""Images for the convolutions of a network in order, the last number for all further ones; deep is more than eight."""


@dataclass(frozen=True)
class Settings:
    """The published settings of a benchmark: the memory's in both modes, the training's in the official one."""

    start: float = 0.97
    """The threshold e of the first task."""
    rise: float | None = None
    """What is added to e with every task; None raises it by 0.029 in all, evenly."""
    first: float | None = None
    """The threshold of the first layer, for all tasks, if it is another."""
    samples: int = 125
    """Examples whose inputs are looked at."""
    images: int | None = None
    """Of these, how many for every layer; None means as published for small and deep networks."""
    lr: float = 0.01
    epochs: int = 200
    batch: int = 64
    factor: float = 2.0
    """What the rate is divided by."""
    patience: int | None = 6
    """Epochs without a lower validation loss before that; None keeps the rate."""
    floor: float = 1e-5
    """The rate below which training ends."""

    def threshold(self, position: int, tasks: int, layer: int = 1) -> float:
        """The share e of the energy to be captured after the task at a position of a stream, in a layer."""
        if layer == 0 and self.first is not None:
            return min(self.first, HIGHEST)
        rise = 0.029 / max(tasks - 1, 1) if self.rise is None else self.rise
        return min(self.start + rise * position, HIGHEST)

    def images_of(self, layers: Mapping[str, nn.Module]) -> dict[str, int]:
        """How many images each layer's inputs are taken of; a shortcut of 1×1 takes as many as the one before it."""
        wide = {n for n, m in layers.items() if isinstance(m, nn.Conv2d) and math.prod(m.kernel_size) > 1}
        counts = DEEP if len(wide) > 8 else SHALLOW
        found, passed = {}, 0
        for name, layer in layers.items():
            passed += name in wide
            few = counts[min(max(passed - 1, 0), len(counts) - 1)] if isinstance(layer, nn.Conv2d) else self.samples
            found[name] = min(self.samples, few if self.images is None else self.images)
        return found


BENCHMARKS: dict[str, Settings] = {
    "general": Settings(),
    "cifar100-split": Settings(rise=0.003),
    "cifar100-superclass": Settings(start=0.98, rise=0.001, epochs=50),
    "pmnist": Settings(start=0.99, rise=0.0, first=0.95, samples=300, images=300, epochs=5, batch=10, patience=None),
    "five": Settings(start=0.965, rise=0.0, samples=100, lr=0.1, epochs=100, factor=3.0, patience=5, floor=1e-3),
}
"""The published settings; "general" serves benchmarks without any."""


class GradientProjection(FineTune):
    """One network whose layers move orthogonally to what past tasks' inputs span."""

    def __init__(
        self,
        context: Context,
        mode: Mode = "paper",
        benchmark: str = "general",
        threshold: float | None = None,
        rise: float | None = None,
        epochs: int | None = None,
        lr: float | None = None,
        l2: float = 1e-4,
    ) -> None:
        """Take the mode, and the benchmark whose published settings are used.

        `threshold` and `rise` replace its e at the first task and what a further task adds to it. `epochs` and `lr`
        replace those of the official mode, in which there is no `l2`, the penalty λ/2·‖W‖² on the weights.
        """
        if mode not in ("paper", "official"):
            raise SettingError(f"gpm(mode={mode!r}) is unknown; choose 'paper' or 'official'")
        check_name("benchmark of gpm", benchmark, BENCHMARKS)
        for name, value in (("threshold", threshold), ("rise", rise)):
            if value is not None and not 0 <= value <= 1:
                raise SettingError(f"gpm({name}={value}) is a share of the energy; it must lie in 0 … 1")
        if mode == "paper" and (epochs is not None or lr is not None):
            raise SettingError(
                f"gpm(epochs={epochs}, lr={lr}) are settings of the official mode; use mode='official', or the recipe's"
            )
        given: dict[str, Any] = {"start": threshold, "rise": rise, "epochs": epochs, "lr": lr}
        self.settings = replace(BENCHMARKS[benchmark], **{n: v for n, v in given.items() if v is not None})
        self.mode = mode

        def build(classes: int, seed: int) -> nn.Module:
            return without_running_statistics(context.build(classes, seed))

        recipe = context.recipe if mode == "paper" else official(self.settings, context.recipe)
        super().__init__(replace(context, build=build, recipe=recipe), l2 if mode == "paper" else 0.0)
        self.memory: dict[str, Tensor] = {}
        """An orthonormal basis (D, k) for each layer, by its name."""

    def learn(self, task: Task) -> None:
        """Train the network on, orthogonally to what is remembered; then remember the task's inputs."""
        context, hooks = self.context, {}
        if self.net is None:
            self.net, self.plan = network.fresh(context, task)
            names, stage = network.first_names(context, task), "base"
        else:
            network.add_head(context, self.net, task)
            names, stage = network.later_names(context, task), "fine-tune"
            hooks = self.hooks()
        groups = network.weight_groups(self.net, self.plan, self.l2)
        if self.mode == "paper" or self.settings.patience is None:
            network.fit(context, task, self.net, groups, names, stage, **hooks)
        else:  # what the rate depends on is not in a checkpoint: an interrupted task is learned anew
            going = network.training(context, task, self.net, groups, names, stage, checkpoints=None, **hooks)
            validation = network.examples(context, replace(task, train=task.val), self.net)
            lower_the_rate(going, validation, self.settings.factor, self.settings.patience, self.settings.floor)
        self.heads.append(self.net.get_submodule(network.HEAD))
        self.remember(task, names)
        self.freeze()

    def hooks(self) -> dict[str, Any]:
        """Let every layer move orthogonally to its basis."""
        moving = [(layer.weight, projection(self.memory[name])) for name, layer in self.free().items()]
        if self.mode == "official":

            def project_gradients() -> None:
                for weight, inside in moving:
                    assert weight.grad is not None
                    weight.grad.sub_(inside(weight.grad.flatten(1)).view(weight.shape))

            return {"after_backward": project_gradients}
        begun = [weight.detach().clone() for weight, _ in moving]

        def project_displacements() -> None:
            for (weight, inside), start in zip(moving, begun, strict=True):
                weight.sub_(inside((weight - start).flatten(1)).view(weight.shape))

        return {"after_step": project_displacements}

    def remember(self, task: Task, names: tuple[object, ...]) -> None:
        """Extend the bases by what the newest task's inputs need."""
        assert self.net is not None
        layers, position = self.layers(), len(self.heads) - 1
        parts = sample(self.context, self.net, task, self.settings.samples, names)
        found = subspaces.collected(self.net, layers, parts, self.settings.images_of(layers), subspaces.inputs)
        for i, (name, columns) in enumerate(found.items()):
            weight = subspaces.matrix(layers[name].weight)
            basis = self.memory.get(name, weight.new_zeros(weight.shape[1], 0))
            energy = self.settings.threshold(position, self.context.tasks, i)
            self.memory[name] = subspaces.extended(basis, columns, energy, first=position == 0)

    def freeze(self) -> None:
        """From the second task on, nothing but the weights of free layers and a new head is trained."""
        assert self.net is not None
        weights = {id(layer.weight) for layer in self.free().values()}
        for parameter in self.net.parameters():
            parameter.requires_grad_(id(parameter) in weights)

    def layers(self) -> dict[str, Any]:
        """The layers whose weights are shared by all tasks and projected."""
        assert self.net is not None, "learn a task first"
        return dict(subspaces.layers_of(self.net, network.HEAD))

    def free(self) -> dict[str, Any]:
        """The layers that can still move: a basis of D directions leaves no other."""
        return {n: layer for n, layer in self.layers().items() if self.memory[n].shape[1] < len(self.memory[n])}

    def details(self) -> dict[str, Any]:
        """What is remembered to learn on, beside what is stored to evaluate: the ranks of bases, and their size."""
        size = network.size_of(self.memory.values())
        ranks = {name: basis.shape[1] for name, basis in self.memory.items()}
        return {"ranks": ranks, "memory_parameters": size.parameters, "memory_bytes": size.bytes}

    def state(self) -> State:
        """What fine-tuning keeps, and the bases."""
        plain = super().state()
        return State(plain.tensors | network.prefixed("memory", self.memory), plain.values)

    def restore(self, state: State) -> None:
        """Go on from a state."""
        bases = network.under("memory", state.tensors)
        plain = {n: t for n, t in state.tensors.items() if not n.startswith("memory/")}
        super().restore(State(plain, state.values))
        self.memory = {n: bases[n].to(layer.weight.device) for n, layer in self.layers().items()}
        self.freeze()


def official(settings: Settings, recipe: Recipe) -> Recipe:
    """The published training of a benchmark: plain SGD."""
    return replace(
        recipe,
        optimiser="sgd",
        momentum=0.0,
        lr=settings.lr,
        epochs=settings.epochs,
        batch=settings.batch,
        schedule="constant",
        gradient_scale=1.0,
    )


def projection(basis: Tensor) -> Projection:
    """X (O, D) → (X M) Mᵀ for a basis M (D, k), by M Mᵀ where that is the cheaper."""
    if 2 * basis.shape[1] <= len(basis):
        return lambda x: (x @ basis) @ basis.T
    exact = basis.double()
    square = (exact @ exact.T).to(basis.dtype)
    return lambda x: x @ square


def sample(context: Context, net: nn.Module, task: Task, size: int, names: tuple[object, ...]) -> list[Tensor]:
    """Some training examples of a task, drawn from `names`, in parts of at most a batch, where the network lies."""
    chosen = torch.randperm(len(task.train.x), generator=seeding.generator(*names, "sample"))[:size]
    x = task.train.x[chosen.to(task.train.x.device)].to(next(net.parameters()).device)
    return list(x.split(batch_sizes(len(x), context.recipe.batch)))


def lower_the_rate(going: Training, validation: Data, factor: float, patience: int, floor: float) -> None:
    """Train to the end, dividing the rate by `factor` after `patience` epochs without a lower validation loss.

    Training ends early when the rate is below `floor`. The parameters of the epoch with the lowest loss are put back.
    """
    parameters = [p for p in going.module.parameters() if p.requires_grad]
    best, kept, waited = math.inf, [p.detach().clone() for p in parameters], 0
    while going.epoch < going.epochs:
        going.run(going.epoch + 1)
        loss, _ = evaluate(going.module, validation, going.recipe.batch, going.recipe.autocast)
        if loss < best:
            best, kept, waited = loss, [p.detach().clone() for p in parameters], 0
            continue
        waited += 1
        if waited >= patience:
            going.recipe, waited = replace(going.recipe, lr=going.recipe.lr / factor), 0
            if going.recipe.lr < floor:
                break
    with torch.no_grad():
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.copy_(value)
