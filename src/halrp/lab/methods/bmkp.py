"""`bmkp`: bilevel memory with knowledge projection (Sun et al., 2023).

A working memory, an ordinary network, learns each task freely. A long-term memory has, for each layer with a weight
W (O, D), an orthonormal basis B (O, k) of patterns of the layer's outputs, which all tasks share and which only grows,
and coefficients A_t (k_t, D) for each task t. The task's weight is W_t = B[:, :k_t] A_t. A task has three steps:

1. Learn: train the working memory, from the second task on with CE + λ Σ_l Reg_l. With the residual E = W − B Bᵀ W,

       Reg = tr(E Eᵀ) / ‖E Eᵀ‖₁          (form "paper"; entries' absolute values are summed)
       Reg = tr(K) / Σ K,  K = B Bᵀ + E Eᵀ   (form "code"; signed, so the sum can come near 0 and the loss explode)

2. Project: extend B until it captures a share of the energy of the outputs W x of some examples; A_t = Bᵀ W.
3. Recall: with B frozen, train A_t on the task, with CE alone.

Biases, norm layers with their statistics and the head belong to the task and are trained in steps 1 and 3. Nothing that
a learned task uses is ever written to, so its logits stay bit-identical.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from halrp.errors import SettingError
from halrp.lab.methods import network, subspaces
from halrp.lab.methods.gpm import sample
from halrp.lab.methods.protocol import Context, Method, Size, State
from halrp.lab.methods.settings import MODES, Mode, check_choice, official_recipe
from halrp.lab.streams import Task
from halrp.model.base import set_memory_format
from halrp.model.layers.norm import NORMS
from halrp.model.views import clone, task_view
from halrp.training.loop import Group, Training

Form = Literal["paper", "code"]
EPSILON = 1e-12
"""Keeps the paper's quotient finite where the residual is zero."""
STEP_SIZE, GAMMA = 45, 0.1
"""The official schedule: the learning rate is multiplied by GAMMA every STEP_SIZE epochs."""


@dataclass(frozen=True, eq=False)
class TaskMemory:
    """The long-term memory of a task: coefficients A (k, D) by layer; biases, norm layers with buffers, and head."""

    classes: int
    coefficients: Mapping[str, Tensor]
    tensors: Mapping[str, Tensor]


class BilevelMemory(Method):
    """A working network, and the patterns and coefficients from which the networks of tasks are rebuilt."""

    frozen = True

    def __init__(
        self,
        context: Context,
        mode: Mode = "paper",
        strength: float = 1.0,
        form: Form = "paper",
        energy_first: float = 0.95,
        energy: float = 0.96,
        samples: int = 500,
        lr: float = 0.05,
        l2: float = 1e-4,
    ) -> None:
        """Take the mode, λ and the form of the regulariser, and the share of the outputs' energy that bases capture.

        In the mode "paper" the recipe's epochs are divided evenly between learning and recalling, and `l2` is the
        penalty λ/2·‖W‖² while learning. In the mode "official" each has all epochs, by SGD with the learning rate `lr`.
        """
        check_choice("bmkp", "mode", mode, MODES)
        check_choice("bmkp", "form", form, ("paper", "code"))
        for name, value in (("energy_first", energy_first), ("energy", energy)):
            if not 0 < value <= 1:
                raise SettingError(f"bmkp({name}={value}) is a share of the energy; it must lie above 0 and up to 1")
        if not strength >= 0:
            raise SettingError(f"bmkp(strength={strength}) must be at least 0")
        if samples < 1:
            raise SettingError(f"bmkp(samples={samples}) must be at least 1")
        recipe = context.recipe
        if mode == "official":
            recipe = official_recipe(recipe, optimiser="sgd", lr=lr)
        super().__init__(replace(context, recipe=recipe))
        self.mode, self.strength, self.form, self.samples = mode, strength, form, samples
        self.energy_first, self.energy = energy_first, energy
        self.l2 = l2 if mode == "paper" else 0.0
        self.working: nn.Module | None = None
        self.bases: dict[str, Tensor] = {}
        self.tasks: list[TaskMemory] = []

    def learn(self, task: Task) -> None:
        """Learn, project and recall."""
        seed_key = self.train_working_memory(task)
        self.extend_bases(task, seed_key)
        self.tasks.append(self.recall(task, seed_key))

    def train_working_memory(self, task: Task) -> network.SeedKey:
        """Train the working memory, and return the task's seed key."""
        context, hooks = self.context, {}
        if self.working is None:
            self.working, self.plan = network.fresh(context, task)
            seed_key = network.first_seed_key(context, task)
        else:
            network.add_head(context, self.working, task)
            for module in self.working.modules():
                if isinstance(module, NORMS) and hasattr(module, "reset_parameters"):
                    module.reset_parameters()
            seed_key, hooks = network.later_seed_key(context, task), self.regularised()
        groups = network.weight_groups(self.working, self.plan, self.l2)
        self.fit(task, self.working, groups, seed_key, "learn", max(1, context.recipe.epochs // 2), **hooks)
        return seed_key

    def regularised(self) -> dict[str, Any]:
        """A hook that adds the regulariser's gradient after every backward pass."""
        growing = [(layer.weight, self.bases[n]) for n, layer in self.layers().items() if _can_grow(self.bases[n])]
        strength = self.strength * self.context.recipe.gradient_scale
        if strength == 0:
            return {}

        def add_gradient() -> None:
            for weight, basis in growing:
                assert weight.grad is not None
                gradient = regulariser_gradient(subspaces.matrix(weight), basis, self.form)
                weight.grad.add_(gradient.view(weight.shape), alpha=strength)

        return {"after_backward": add_gradient}

    def extend_bases(self, task: Task, seed_key: network.SeedKey) -> None:
        """Extend the bases until they capture the outputs of the working memory."""
        assert self.working is not None
        layers, first = self.layers(), not self.bases
        batches = sample(self.context, self.working, task, self.samples, seed_key)
        counts = dict.fromkeys(layers, self.samples)
        outputs = subspaces.collected(self.working, layers, batches, counts, subspaces.outputs)
        for name, columns in outputs.items():
            weight = subspaces.matrix(layers[name].weight)
            basis = self.bases.get(name, weight.new_zeros(len(weight), 0))
            energy = self.energy_first if first else self.energy
            self.bases[name] = subspaces.extended(basis, columns, energy, first)

    def recall(self, task: Task, seed_key: network.SeedKey) -> TaskMemory:
        """Train a task's coefficients, biases, norm layers and head over the bases."""
        assert self.working is not None
        net = clone(self.working)
        coefficients = {name: rebuild(net.get_submodule(name), self.bases[name]) for name in self.layers()}
        rest = {n: t for n, t in network.contents(net).items() if ".parametrizations." not in n}
        trained = [p for n, p in net.named_parameters() if n in rest and p.requires_grad]
        groups = [Group([a for a in coefficients.values() if a.numel()]), Group(trained)]
        epochs = self.context.recipe.epochs
        self.fit(task, net, groups, seed_key, "recall", epochs - epochs // 2)
        learned = {name: a.detach().clone() for name, a in coefficients.items()}
        return TaskMemory(task.classes, learned, {n: t.clone() for n, t in rest.items()})

    def fit(
        self,
        task: Task,
        net: nn.Module,
        groups: list[Group],
        seed_key: network.SeedKey,
        stage: str,
        epochs: int,
        **hooks: Any,
    ) -> None:
        """Train by the recipe for `epochs`; in the official mode for all epochs, with a learning rate that falls."""
        if self.mode == "paper":
            network.fit(self.context, task, net, groups, seed_key, stage, epochs=epochs, **hooks)
        else:
            train_in_steps(network.training(self.context, task, net, groups, seed_key, stage, **hooks))

    def layers(self) -> dict[str, Any]:
        """The layers that are rebuilt for each task."""
        assert self.working is not None, "learn a task first"
        return dict(subspaces.layers_of(self.working, network.HEAD))

    def module(self, task: int) -> nn.Module:
        """A task's network, rebuilt from the bases."""
        assert self.working is not None, "learn a task first"
        memory, layers = self.tasks[task], self.layers()
        weights = {
            f"{name}.weight": rebuilt(self.bases[name], a).view(layers[name].weight.shape)
            for name, a in memory.coefficients.items()
        }
        net = task_view(self.working, self.plan, {}, weights | dict(memory.tensors), memory.classes)
        return set_memory_format(net, self.context.recipe.channels_last)

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits of the task's network."""
        return network.logits(self.context, self.module(task), x)

    def stored(self) -> Size:
        """The long-term memory; the working memory is needed to learn further tasks and not to evaluate."""
        return Size.of(self.long_term_memory().values())

    def counted(self) -> int:
        """Without the running statistics of batch norms."""
        assert self.working is not None, "learn a task first"
        buffers = {n for n, _ in self.working.named_buffers()}
        return sum(t.numel() for n, t in self.long_term_memory().items() if n.split("/", 3)[-1] not in buffers)

    def details(self) -> dict[str, Any]:
        """The ranks of the bases."""
        return {"ranks": {name: basis.shape[1] for name, basis in self.bases.items()}}

    def long_term_memory(self) -> dict[str, Tensor]:
        """The bases, and the tensors of each task."""
        tensors = network.add_prefix("basis", self.bases)
        for i, memory in enumerate(self.tasks):
            tensors |= network.add_prefix(f"task/{i}/coefficients", memory.coefficients)
            tensors |= network.add_prefix(f"task/{i}/own", memory.tensors)
        return tensors

    def state(self) -> State:
        """The working memory and the long-term memory."""
        assert self.working is not None, "learn a task first"
        tensors = network.add_prefix("working", network.contents(self.working)) | self.long_term_memory()
        return State(tensors, {"classes": [memory.classes for memory in self.tasks]})

    def restore(self, state: State) -> None:
        """Rebuild both memories."""
        classes = state.values["classes"]
        self.working, self.plan = network.empty(self.context, classes[-1])
        network.fill(self.working, network.strip_prefix("working", state.tensors))
        device = next(self.working.parameters()).device
        tensors = {n: t.to(device) for n, t in state.tensors.items() if not n.startswith("working/")}
        self.bases = {name: network.strip_prefix("basis", tensors)[name] for name in self.layers()}
        self.tasks = [
            TaskMemory(
                width,
                network.strip_prefix(f"task/{i}/coefficients", tensors),
                network.strip_prefix(f"task/{i}/own", tensors),
            )
            for i, width in enumerate(classes)
        ]


class Rebuilt(nn.Module):
    """A parametrization of a weight as B A: coefficients A (k, D) are trained, B (O, k) is frozen."""

    basis: Tensor

    def __init__(self, basis: Tensor, shape: torch.Size) -> None:
        """Take the basis and the shape of the weight."""
        super().__init__()
        self.register_buffer("basis", basis.clone(), persistent=False)
        self.shape = shape

    def forward(self, coefficients: Tensor) -> Tensor:
        """The weight."""
        return rebuilt(self.basis, coefficients).view(self.shape)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """The coefficients of a weight, Bᵀ W."""
        return (self.basis.double().T @ subspaces.matrix(weight).double()).to(weight.dtype)


def rebuild(layer: nn.Module, basis: Tensor) -> nn.Parameter:
    """Parametrize a layer's weight as B A, and return A (k, D), which starts as Bᵀ W."""
    weight = cast(Tensor, layer.weight)
    parametrize.register_parametrization(layer, "weight", Rebuilt(basis, weight.shape), unsafe=True)
    coefficients = cast(Any, layer).parametrizations.weight.original
    assert isinstance(coefficients, nn.Parameter)
    return coefficients


def rebuilt(basis: Tensor, coefficients: Tensor) -> Tensor:
    """The weight (O, D) of coefficients A (k, D) over the first k columns of a basis (O, K ≥ k).

    The columns are copied, so that a basis that has grown gives the same bits.
    """
    return basis[:, : len(coefficients)].contiguous() @ coefficients


def regulariser(weight: Tensor, basis: Tensor, form: Form = "paper") -> Tensor:
    """The regulariser of a weight (O, D) and a basis (O, k), a number; its forms are in the module's docstring."""
    residual = weight - basis @ (basis.T @ weight)
    inner = residual @ residual.T
    if form == "code":
        inner = inner + basis @ basis.T
        return inner.trace() / inner.sum()
    return inner.trace() / (inner.abs().sum() + EPSILON)


def regulariser_gradient(weight: Tensor, basis: Tensor, form: Form = "paper") -> Tensor:
    """The gradient (O, D) of the regulariser by the weight: (I − B Bᵀ) 2 S E, where S = I/d − (tr K / d²) sign K.

    K is the matrix whose trace is taken and d what it is divided by; the code's signed sum has ones instead of signs.
    """
    residual = weight - basis @ (basis.T @ weight)
    inner = residual @ residual.T
    if form == "code":
        inner = inner + basis @ basis.T
        signs, divisor = torch.ones_like(inner), inner.sum()
    else:
        signs, divisor = inner.sign(), inner.abs().sum() + EPSILON
    slope = signs.mul_(-inner.trace() / divisor.square())
    slope.diagonal().add_(1 / divisor)
    gradient = 2 * slope @ residual
    return gradient - basis @ (basis.T @ gradient)


def train_in_steps(training: Training) -> None:
    """Train to the end with the learning rate of the official schedule."""
    start = training.recipe.lr
    while training.epoch < training.epochs:
        steps = training.epoch // STEP_SIZE
        training.set_rate(start * GAMMA**steps)
        training.run(STEP_SIZE * (steps + 1))


def _can_grow(basis: Tensor) -> bool:
    """Whether a basis (O, k) spans less than all of the outputs."""
    return basis.shape[1] < len(basis)
