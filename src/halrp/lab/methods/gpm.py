"""`gpm`: gradient projection memory (Saha, Garg and Roy, 2021).

A layer's gradient lies in the span of the layer's inputs. For each layer an orthonormal basis M (D, k) of the inputs
that mattered to past tasks is kept, and its weight W (O, D) moves only orthogonally to it,

    ΔW ← ΔW − (ΔW M) Mᵀ,    so that W x stays for every x in span(M).

After task t, M is extended until it captures a share e_t of the energy of the inputs R of some of its examples.
Biases and norm layers learn with the first task alone, batch norms use the statistics of the batch at hand, and every
task has its own head. What M does not capture is forgotten, so old logits move a little.

Projecting gradients is enough for SGD, whose step is a multiple of the gradient. Adam rescales every entry and so
leaves the complement of M; weight decay inside an optimiser does too. In the mode "paper" the run's recipe is used, and
after every step the displacement since the start of the task is projected. In the mode "official" the gradient of plain
SGD is projected, and the learning rate falls when the validation loss no longer does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.errors import SettingError
from halrp.lab.methods import network, subspaces
from halrp.lab.methods.finetune import FineTune
from halrp.lab.methods.norms import with_batch_statistics
from halrp.lab.methods.plateau import train_until_plateau
from halrp.lab.methods.protocol import Context, Size, State
from halrp.lab.methods.settings import MODES, Mode, check_choice, official_recipe
from halrp.lab.names import check_name
from halrp.lab.streams import Task
from halrp.model.inference import batch_sizes
from halrp.training.evaluate import evaluate
from halrp.training.loop import Training

Projection = Callable[[Tensor], Tensor]
"""Projects the rows of a matrix (O, D) onto the span of a basis (D, k)."""

HIGHEST = 0.9999
"""The largest threshold; at 1 rounding errors of the inputs would soon freeze a layer."""
SHALLOW, DEEP = (24, 100), (10,) * 8 + (50,) * 3 + (100,)
"""Images per convolution, in the network's order; the last number for all further ones. Deep: more than eight."""


@dataclass(frozen=True)
class Settings:
    """The published settings of a benchmark: of the memory for both modes, of the training for the official one."""

    start: float = 0.97
    """The threshold e of the first task."""
    rise: float | None = None
    """What each task adds to e; None: 0.029 in total, in equal steps."""
    first: float | None = None
    """The threshold of the first layer for all tasks, if it differs."""
    samples: int = 125
    """Examples whose layer inputs are recorded."""
    images: int | None = None
    """Of these, the number for every layer; None: as published for small and deep networks."""
    lr: float = 0.01
    epochs: int = 200
    batch: int = 64
    factor: float = 2.0
    """Divides the learning rate on a plateau."""
    patience: int | None = 6
    """Epochs without a lower validation loss that make a plateau; None: a constant learning rate."""
    floor: float = 1e-5
    """The learning rate below which training ends."""

    def threshold(self, position: int, tasks: int, layer: int = 1) -> float:
        """The share e of the energy to be captured after the task at a position of a stream, in a layer."""
        if layer == 0 and self.first is not None:
            return min(self.first, HIGHEST)
        rise = 0.029 / max(tasks - 1, 1) if self.rise is None else self.rise
        return min(self.start + rise * position, HIGHEST)

    def images_of(self, layers: Mapping[str, nn.Module]) -> dict[str, int]:
        """The number of images for each layer; a 1×1 shortcut has that of the convolution before it."""
        wide = {n for n, m in layers.items() if isinstance(m, nn.Conv2d) and math.prod(m.kernel_size) > 1}
        counts = DEEP if len(wide) > 8 else SHALLOW
        images, depth = {}, 0
        for name, layer in layers.items():
            depth += name in wide
            few = counts[min(max(depth - 1, 0), len(counts) - 1)] if isinstance(layer, nn.Conv2d) else self.samples
            images[name] = min(self.samples, few if self.images is None else self.images)
        return images


BENCHMARKS: dict[str, Settings] = {
    "general": Settings(),
    "cifar100-split": Settings(rise=0.003),
    "cifar100-superclass": Settings(start=0.98, rise=0.001, epochs=50),
    "pmnist": Settings(start=0.99, rise=0.0, first=0.95, samples=300, images=300, epochs=5, batch=10, patience=None),
    "five": Settings(start=0.965, rise=0.0, samples=100, lr=0.1, epochs=100, factor=3.0, patience=5, floor=1e-3),
}
"""The published settings; "general" is for benchmarks without any."""


class GradientProjection(FineTune):
    """One network whose layers move orthogonally to the span of past tasks' inputs."""

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

        `threshold` and `rise` replace its e at the first task and what each further task adds to it. `epochs` and `lr`
        replace those of the official mode, which has no `l2`, the penalty λ/2·‖W‖² on the weights.
        """
        check_choice("gpm", "mode", mode, MODES)
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
        recipe = context.recipe
        if mode == "official":
            s = self.settings
            recipe = official_recipe(recipe, optimiser="sgd", lr=s.lr, epochs=s.epochs, batch=s.batch)
        super().__init__(replace(with_batch_statistics(context), recipe=recipe), l2 if mode == "paper" else 0.0)
        self.memory: dict[str, Tensor] = {}
        """An orthonormal basis (D, k) for each layer, by its name."""

    def learn(self, task: Task) -> None:
        """Train the network orthogonally to the memory; then extend the memory by the task's inputs."""
        context, hooks = self.context, {}
        if self.net is None:
            self.net, self.plan = network.fresh(context, task)
            seed_key, stage = network.first_seed_key(context, task), "base"
        else:
            network.add_head(context, self.net, task)
            seed_key, stage = network.later_seed_key(context, task), "fine-tune"
            hooks = self.hooks()
        groups = network.weight_groups(self.net, self.plan, self.l2)
        if self.mode == "paper" or self.settings.patience is None:
            network.fit(context, task, self.net, groups, seed_key, stage, **hooks)
        else:  # the state of the plateau is in no checkpoint: an interrupted task starts again
            training = network.training(context, task, self.net, groups, seed_key, stage, checkpoints=None, **hooks)
            self.train_on_plateaus(training, task, self.settings.patience)
        self.heads.append(self.net.get_submodule(network.HEAD))
        self.extend_memory(task, seed_key)
        self.freeze()

    def train_on_plateaus(self, training: Training, task: Task, patience: int) -> None:
        """Train with a learning rate that falls when the validation loss no longer does."""
        net, recipe = training.module, self.context.recipe
        data = network.examples(self.context, replace(task, train=task.val), net)
        trained = [p for p in net.parameters() if p.requires_grad]

        def validation_loss() -> float:
            return evaluate(net, data, recipe.batch, recipe.autocast)[0]

        train_until_plateau(training, trained, validation_loss, self.settings.factor, patience, self.settings.floor)

    def hooks(self) -> dict[str, Any]:
        """Keep the steps of every layer orthogonal to its basis."""
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

    def extend_memory(self, task: Task, seed_key: network.SeedKey) -> None:
        """Extend the bases until they capture the newest task's inputs."""
        assert self.net is not None
        layers, position = self.layers(), len(self.heads) - 1
        batches = sample(self.context, self.net, task, self.settings.samples, seed_key)
        inputs = subspaces.collected(self.net, layers, batches, self.settings.images_of(layers), subspaces.inputs)
        for i, (name, columns) in enumerate(inputs.items()):
            weight = subspaces.matrix(layers[name].weight)
            basis = self.memory.get(name, weight.new_zeros(weight.shape[1], 0))
            energy = self.settings.threshold(position, self.context.tasks, i)
            self.memory[name] = subspaces.extended(basis, columns, energy, first=position == 0)

    def freeze(self) -> None:
        """From the second task on, only the weights of free layers and a new head are trained."""
        assert self.net is not None
        weights = {id(layer.weight) for layer in self.free().values()}
        for parameter in self.net.parameters():
            parameter.requires_grad_(id(parameter) in weights)

    def layers(self) -> dict[str, Any]:
        """The layers whose weights are shared by all tasks and projected."""
        assert self.net is not None, "learn a task first"
        return dict(subspaces.layers_of(self.net, network.HEAD))

    def free(self) -> dict[str, Any]:
        """The layers that can still move: those whose basis has fewer than D directions."""
        return {n: layer for n, layer in self.layers().items() if self.memory[n].shape[1] < len(self.memory[n])}

    def details(self) -> dict[str, Any]:
        """The ranks and the size of the memory, which is needed to learn further tasks and not to evaluate."""
        size = Size.of(self.memory.values())
        ranks = {name: basis.shape[1] for name, basis in self.memory.items()}
        return {"ranks": ranks, "memory_parameters": size.parameters, "memory_bytes": size.bytes}

    def state(self) -> State:
        """The state of fine-tuning, and the bases."""
        plain = super().state()
        return State(plain.tensors | network.add_prefix("memory", self.memory), plain.values)

    def restore(self, state: State) -> None:
        """Continue from a state."""
        bases = network.strip_prefix("memory", state.tensors)
        plain = {n: t for n, t in state.tensors.items() if not n.startswith("memory/")}
        super().restore(State(plain, state.values))
        self.memory = {n: bases[n].to(layer.weight.device) for n, layer in self.layers().items()}
        self.freeze()


def projection(basis: Tensor) -> Projection:
    """X (O, D) → (X M) Mᵀ for a basis M (D, k), with M Mᵀ computed in advance where that is cheaper."""
    if 2 * basis.shape[1] <= len(basis):
        return lambda x: (x @ basis) @ basis.T
    exact = basis.double()
    square = (exact @ exact.T).to(basis.dtype)
    return lambda x: x @ square


def sample(context: Context, net: nn.Module, task: Task, size: int, seed_key: network.SeedKey) -> list[Tensor]:
    """`size` training examples of a task, chosen by the seed key, in batches on the network's device."""
    chosen = torch.randperm(len(task.train.x), generator=seeding.generator(*seed_key, "sample"))[:size]
    x = task.train.x[chosen.to(task.train.x.device)].to(next(net.parameters()).device)
    return list(x.split(batch_sizes(len(x), context.recipe.batch)))
