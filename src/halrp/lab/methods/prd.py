"""`prd`: prototype-sample relation distillation (Asadi et al., 2023).

An encoder f computes features h = f(x) of width d; a projector g, an MLP d → 512 → 512 → 128, is used in training only.
A task has a prototype w_c per class, and its logits are cos(h, w_c). No examples are stored. For two views of a batch,

    L = L_sc + β·L_p + α·L_d                                  β = 2, α = 4
    L_sc   supervised contrastive loss of g(h) / ‖g(h)‖, which trains encoder and projector
    L_p    mean of 1 − cos(h, w_y) with h detached, which trains the prototypes
    L_d    Σ over earlier tasks of KL(softmax a_old ‖ softmax a), a = h·w / ‖w‖ with that task's prototypes: encoder and
           old prototypes may change as long as the relations of new examples to old prototypes do not

where a_old is computed by a frozen copy of encoder and prototypes from the end of the previous task. All parameters are
shared and trained by every task, so earlier tasks change. Batch norms use the statistics of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Generator, Tensor, nn

from halrp import seeding
from halrp.errors import SettingError
from halrp.lab.methods import network
from halrp.lab.methods.norms import with_batch_statistics
from halrp.lab.methods.prd_losses import Axis, View, attract, contrast, distil, relations
from halrp.lab.methods.protocol import Context, Method, Size, State
from halrp.lab.methods.settings import MODES, Mode, check_choice, official_recipe
from halrp.lab.streams import Task
from halrp.model.views import clone, replace_module
from halrp.training.batches import Augment
from halrp.training.loop import Group

PROJECTED = 128
"""Width of the projector's outputs."""


class PrototypeNetwork(nn.Module):
    """Encoder, projector and the prototypes (classes, d) of every task."""

    def __init__(self, encoder: nn.Module, features: int, hidden: int) -> None:
        """Start without tasks; the projector is initialised with the global generator."""
        super().__init__()
        self.encoder = encoder
        self.projector = nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, PROJECTED)
        )
        self.prototypes = nn.ParameterList()

    def fresh(self, classes: int) -> nn.Parameter:
        """New prototypes (classes, d), initialised with the global generator like the weight of a linear layer."""
        first = self.projector[0]
        assert isinstance(first, nn.Linear)
        weight = nn.Linear(first.in_features, classes, bias=False).weight
        return nn.Parameter(weight.detach().to(first.weight))


class CosineClassifier(nn.Module):
    """The cosine between an example's features and each prototype of a task."""

    prototypes: Tensor

    def __init__(self, encoder: nn.Module, prototypes: Tensor) -> None:
        """Take prototypes (classes, d)."""
        super().__init__()
        self.encoder = encoder
        self.register_buffer("prototypes", F.normalize(prototypes.detach(), dim=1))

    def forward(self, x: Tensor) -> Tensor:
        """Cosines, (batch, classes)."""
        return F.normalize(self.encoder(x), dim=1) @ self.prototypes.T


@dataclass
class TaskLoss:
    """The loss of one task. `attend` stands in for the augmentation, to get the generator that views are drawn with."""

    parts: PrototypeNetwork
    teacher: nn.Module
    """The frozen encoder, in evaluation mode: no dropout, batch norms with the statistics of the batch."""
    remembered: list[Tensor]
    """The frozen prototypes of earlier tasks."""
    view: Augment | None
    temperature: float
    attraction: float
    distillation: float
    axis: Axis
    generator: Generator | None = None

    def attend(self, x: Tensor, generator: Generator) -> Tensor:
        """Return the batch unchanged; `loss` makes both views of it."""
        self.generator = generator
        return x

    def views(self, x: Tensor) -> Tensor:
        """Two views of a batch, (2 · batch, …), all of the first before the second."""
        if self.view is None:
            return torch.cat([x, x])
        assert self.generator is not None
        return torch.cat([self.view(x, self.generator), self.view(x, self.generator)])

    def loss(self, module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch."""
        parts, x, y = self.parts, self.views(x), torch.cat([y, y])
        h = parts.encoder(x)
        z = F.normalize(parts.projector(h).float(), dim=1)
        current, earlier = parts.prototypes[-1], list(parts.prototypes)[:-1]
        total = contrast(z, y, self.temperature) + self.attraction * attract(h.float(), y, current)
        if earlier:
            with torch.no_grad():
                old = relations(self.teacher(x).float(), self.remembered)
            total = total + self.distillation * distil(old, relations(h.float(), earlier), self.axis)
        return total


class RelationDistillation(Method):
    """One encoder that every task trains, and prototypes for each task."""

    def __init__(
        self,
        context: Context,
        mode: Mode = "paper",
        temperature: float = 0.1,
        attraction: float = 2.0,
        distillation: float = 4.0,
        axis: Axis = "classes",
        views: bool = True,
        padding: int | None = None,
        prototype_rate: float = 1.0,
        hidden: int = 512,
        l2: float = 1e-4,
    ) -> None:
        """Take τ, β (`attraction`) and α (`distillation`).

        `mode` "paper" uses the run's recipe. "official" is SGD with a constant learning rate of 0.01 and momentum 0.9,
        100 epochs and batches of 128. Relations are distilled as distributions over the `axis`. With views=False both
        views of a batch are the batch itself, or the stream's augmentation of it. `padding` is that of crops, by
        default an eighth of the image and at most 4 pixels. `prototype_rate` is a factor on the learning rate of
        prototypes, `hidden` the width of the projector, l2 is λ in λ/2·‖·‖² on encoder and projector.
        """
        check_choice("prd", "mode", mode, MODES)
        check_choice("prd", "axis", axis, ("classes", "samples"))
        for name, value in (("temperature", temperature), ("prototype_rate", prototype_rate), ("hidden", hidden)):
            if not value > 0:
                raise SettingError(f"prd({name}={value!r}) is out of range; give a number above 0")
        if mode == "official":
            recipe = official_recipe(context.recipe, optimiser="sgd", lr=0.01, momentum=0.9, batch=128, epochs=100)
            context = replace(context, recipe=recipe)
        super().__init__(with_batch_statistics(context))
        self.mode, self.temperature, self.attraction, self.distillation = mode, temperature, attraction, distillation
        self.axis, self.with_views, self.padding, self.l2 = axis, views, padding, l2
        self.prototype_rate, self.hidden = prototype_rate, hidden
        self.parts: PrototypeNetwork | None = None

    def learn(self, task: Task) -> None:
        """Train encoder, projector and the prototypes of this task and of all earlier ones."""
        context = self.context
        if self.parts is None:
            net, _ = network.fresh(context, task)
            self.parts = self._parts(net)
            seed_key, stage = network.first_seed_key(context, task), "base"
        else:
            seed_key, stage = network.later_seed_key(context, task), "fine-tune"
        parts = self.parts
        teacher = clone(parts.encoder).requires_grad_(False).eval()
        remembered = [p.detach().clone() for p in parts.prototypes]
        with seeding.isolated(*seed_key, "prototypes", device=torch.device("cpu")):
            parts.prototypes.append(parts.fresh(task.classes))
        view = View(task.normal, task.train.x, self.padding).to(self.device) if self.with_views else task.augment
        objective = TaskLoss(
            parts, teacher, remembered, view, self.temperature, self.attraction, self.distillation, self.axis
        )
        # The original has no momentum on prototypes: a rate of (1 − momentum) moves them as far with it.
        rate = self.prototype_rate * (1 - context.recipe.momentum)
        groups = [
            Group([*parts.encoder.parameters(), *parts.projector.parameters()], l2=self.l2),
            Group(list(parts.prototypes), lr=rate),
        ]
        network.fit(
            context, replace(task, augment=objective.attend), parts, groups, seed_key, stage, loss=objective.loss
        )

    @property
    def device(self) -> torch.device:
        """The device of the encoder."""
        assert self.parts is not None, "learn a task first"
        return next(self.parts.encoder.parameters()).device

    def _parts(self, net: nn.Module) -> PrototypeNetwork:
        """A network without its head as the encoder, and a projector initialised by the run's seed."""
        like = next(net.get_submodule(network.HEAD).parameters())
        replace_module(net, network.HEAD, nn.Flatten())
        with seeding.isolated(self.context.seed, "projector", device=torch.device("cpu")):
            parts = PrototypeNetwork(net, like.shape[1], self.hidden)
        parts.projector.to(like)
        return parts

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Cosines with the prototypes of the task, by the current encoder."""
        assert self.parts is not None, "learn a task first"
        net = CosineClassifier(self.parts.encoder, self.parts.prototypes[task])
        return network.logits(self.context, net.eval(), x)

    def stored(self) -> Size:
        """Encoder and prototypes; not the projector, which is used in training only and whose size is in `details`."""
        assert self.parts is not None, "learn a task first"
        return Size.of([*network.contents(self.parts.encoder).values(), *self.parts.prototypes])

    def details(self) -> dict[str, int]:
        """The parameters of the projector, which the authors of the HALRP paper count too."""
        assert self.parts is not None, "learn a task first"
        return {"projector": sum(p.numel() for p in self.parts.projector.parameters())}

    def state(self) -> State:
        """Encoder, projector and prototypes."""
        assert self.parts is not None, "learn a task first"
        return State(network.contents(self.parts), {"classes": [len(p) for p in self.parts.prototypes]})

    def restore(self, state: State) -> None:
        """Build everything again."""
        net, _ = network.empty(self.context, 1)
        self.parts = self._parts(net)
        with torch.random.fork_rng(devices=[]):
            self.parts.prototypes.extend(self.parts.fresh(classes) for classes in state.values["classes"])
        network.fill(self.parts.eval(), state.tensors)
