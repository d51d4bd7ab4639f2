"""`apd`: additive parameter decomposition (Yoon et al., 2020).

Every layer's weight is θ_t = σ ⊗ M_t + τ_t: σ is shared by all tasks, M_t = sigmoid(v_t) has one value per output, and
τ_t is sparse. Biases, norm layers and the head belong to the task. At task t the loss is

    CE(θ_t) + λ1 Σ_{i≤t} ‖τ_i‖₁ + λ2/2 Σ_{i<t} ‖θ*_i − θ_i‖² + ω/2 (‖τ_t‖² + ‖v_t‖²) [+ ω/2 ‖σ‖² at the first task]

over σ, every τ_i and v_i, and what task t owns; θ*_i are old tasks' weights when task t begins. So σ keeps learning,
and old τ_i compensate for its change. Every few tasks the τ_i are consolidated: similar tasks share a local τ̃, which
is never trained, and θ_i = σ ⊗ M_i + τ̃_g(i) + τ_i. In predictions and in files, elements of τ and τ̃ of magnitude at
most the threshold are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import functional_call

from halrp import seeding
from halrp.errors import SettingError
from halrp.lab.methods import network
from halrp.lab.methods.consolidation import ALONE, consolidate
from halrp.lab.methods.protocol import Context, Method, Size, State
from halrp.lab.methods.settings import check_choice
from halrp.lab.streams import Task
from halrp.model.plan import Plan
from halrp.model.views import get_tensor, set_tensor, task_view
from halrp.objectives import classification
from halrp.training.loop import Group


def compose(sigma: Tensor, v: Tensor, tau: Tensor | None = None) -> Tensor:
    """σ ⊗ sigmoid(v) + τ of σ and τ (J, …) and v (J,)."""
    mask = mask_of(v, sigma)
    return sigma * mask if tau is None else torch.addcmul(tau, sigma, mask)


def mask_of(v: Tensor, like: Tensor) -> Tensor:
    """M = sigmoid(v), (J, 1, …), for a weight (J, …)."""
    return torch.sigmoid(v).view(-1, *[1] * (like.dim() - 1))


def drift_gradients(sigma: Tensor, v: Tensor, tau: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of ½‖σ ⊗ M + τ − target‖² with respect to σ (J, …), v (J,) and τ (J, …)."""
    gap = compose(sigma, v, tau).sub_(target)
    mask = mask_of(v, sigma)
    slope = torch.sigmoid(v) * (1 - torch.sigmoid(v))
    return gap * mask, (gap * sigma).sum(tuple(range(1, sigma.dim()))) * slope, gap


def cut(tensor: Tensor, threshold: float) -> Tensor:
    """A copy of a tensor with elements of magnitude at most `threshold` set to zero."""
    return torch.where(tensor.abs() <= threshold, 0, tensor)


def pack(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """A sparse tensor as a file holds it: values and their positions, in the smallest of three forms.

    Positions are int32 indices, or one bit per element as uint8; or all values are stored, without positions.
    """
    flat = tensor.detach().reshape(-1)
    nonzero = flat != 0
    values = flat[nonzero]
    value_bytes = values.numel() * values.element_size()
    bitmap_bytes, index_bytes = -(-flat.numel() // 8), 4 * values.numel()
    if flat.numel() * flat.element_size() <= value_bytes + min(bitmap_bytes, index_bytes):
        return flat, nonzero.new_empty(0, dtype=torch.uint8)
    if bitmap_bytes < index_bytes:
        octets = F.pad(nonzero, (0, 8 * bitmap_bytes - flat.numel())).view(-1, 8)
        powers = 2 ** torch.arange(8, device=flat.device)
        return values, (octets * powers).sum(1).to(torch.uint8)
    return values, nonzero.nonzero().view(-1).to(torch.int32)


def unpack(values: Tensor, where: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The inverse of `pack` for a tensor of a shape."""
    flat = values.new_zeros(shape).view(-1)
    if values.numel() == flat.numel():
        flat = values
    elif where.dtype == torch.uint8:
        shifts = torch.arange(8, device=where.device)
        flat[(where.view(-1, 1).long() >> shifts & 1).bool().view(-1)[: flat.numel()]] = values
    else:
        flat[where.long()] = values
    return flat.view(shape)


@dataclass(eq=False)
class TaskParts:
    """What belongs to one task: v and τ by layer, and full tensors (biases, norms and their statistics, head)."""

    classes: int
    v: dict[str, nn.Parameter]
    tau: dict[str, nn.Parameter]
    """Dense and before the threshold, because later tasks train it; empty if the task has only a mask."""
    tensors: dict[str, Tensor] = field(default_factory=dict)


class Decomposed(Method):
    """Tasks as σ ⊗ M_t + τ_t; subclasses define how they are learned."""

    method: str
    """The method's name, for messages."""

    def __init__(self, context: Context, l1: float, l2: float, start: str, threshold: float | None) -> None:
        """Take λ1, ω, the initial τ, and the threshold."""
        super().__init__(context)
        self.l1, self.l2, self.start = l1, l2, start
        self.threshold = l1 if threshold is None else threshold
        for name, value in (("l1", l1), ("l2", l2), ("threshold", self.threshold)):
            self.refuse_negative(name, value)
        check_choice(self.method, "start", start, ("sigma", "zeros"))
        self.net: nn.Module | None = None
        """The first task's network, whose weights are σ."""
        self.tasks: list[TaskParts] = []
        self.local: dict[str, list[Tensor]] = {}
        self.groups: dict[str, list[int]] = {}
        """By layer: the τ̃ of every group, and the group of every consolidated task."""

    def refuse_negative(self, name: str, value: float) -> None:
        """Raise if a setting is below zero."""
        if not value >= 0:
            raise SettingError(f"{self.method}({name}={value}) must not be negative; 0 switches it off")

    @property
    def sigma(self) -> dict[str, nn.Parameter]:
        """σ by layer."""
        assert self.net is not None, "learn a task first"
        weights = {n: get_tensor(self.net, n) for n in layers(self.plan)}
        return {n: t for n, t in weights.items() if isinstance(t, nn.Parameter)}

    def begin(self, task: Task, sparse: bool = True) -> tuple[nn.Module, TaskParts]:
        """A network with the weights σ and new biases, norms and head, and new v and τ for it."""
        net, plan = network.fresh(self.context, task)
        if not self.tasks:
            self.net, self.plan = net, plan
        part = TaskParts(task.classes, {}, {})
        for n, sigma in self.sigma.items():
            set_tensor(net, n, sigma)
            noise = torch.randn(len(sigma), generator=seeding.generator(*self.seed_key(task), "mask", n))
            part.v[n] = nn.Parameter((noise / len(sigma) ** 0.5).to(sigma))
            if sparse:
                current = sigma.detach()
                part.tau[n] = nn.Parameter(current.clone() if self.start == "sigma" else torch.zeros_like(current))
        return net, part

    def seed_key(self, task: Task) -> network.SeedKey:
        """The seed key of the next task."""
        return (network.later_seed_key if self.tasks else network.first_seed_key)(self.context, task)

    def train(
        self,
        task: Task,
        net: nn.Module,
        part: TaskParts,
        sigma_l2: float | None,
        old: Sequence[Group] = (),
        **hooks: Any,
    ) -> None:
        """Train what a task owns, σ unless `sigma_l2` is None, and `old` parameters; then add the task."""
        sigma = {n: s if sigma_l2 is not None else s.detach() for n, s in self.sigma.items()}
        groups = [
            Group(list(part.tau.values()), l1=self.l1, l2=self.l2),
            Group(list(part.v.values()), l2=self.l2),
            Group([p for n, p in net.named_parameters() if n not in sigma and p.requires_grad]),
            Group([] if sigma_l2 is None else list(self.sigma.values()), l2=sigma_l2 or 0.0),
            *old,
        ]

        def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            weights = {n: compose(s, part.v[n], part.tau.get(n)) for n, s in sigma.items()}
            return classification.loss(functional_call(net, weights, (x,)), y)

        stage = "fine-tune" if self.tasks else "base"
        network.fit(self.context, task, net, groups, self.seed_key(task), stage, loss=loss, **hooks)
        for parameter in (p for group in groups for p in group.parameters):
            parameter.grad = None  # they take as much memory as all tasks together
        part.tensors = {n: t for n, t in network.contents(net).items() if n not in sigma}
        self.tasks.append(part)

    def local_of(self, task: int, layer: str) -> Tensor | None:
        """The τ̃ that a task shares in a layer, if any."""
        groups = self.groups.get(layer, [])
        group = groups[task] if task < len(groups) else ALONE
        return None if group == ALONE else self.local[layer][group]

    @torch.no_grad()
    def weights(self, task: int, threshold: float | None = None) -> dict[str, Tensor]:
        """θ by layer, as predictions use it: with the threshold applied to τ and τ̃ (0 changes nothing)."""
        limit, part, weights = self.threshold if threshold is None else threshold, self.tasks[task], {}
        for n, sigma in self.sigma.items():
            tau = part.tau.get(n)
            weights[n] = compose(sigma, part.v[n], None if tau is None else cut(tau, limit))
            local = self.local_of(task, n)
            if local is not None:
                weights[n] += cut(local, limit)
        return weights

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits of the task's network, with its biases, norms and head."""
        assert self.net is not None, "learn a task first"
        part = self.tasks[task]
        net = task_view(self.net, self.plan, {}, part.tensors | self.weights(task), part.classes)
        return network.logits(self.context, net, x)

    def compact(self) -> dict[str, Tensor]:
        """The tensors that a file needs to evaluate all tasks: σ, masks, packed τ and τ̃, groups, and the rest."""
        tensors: dict[str, Tensor] = network.add_prefix("sigma", self.sigma)
        for i, part in enumerate(self.tasks):
            tensors |= network.add_prefix(f"task/{i}/own", part.tensors) | network.add_prefix(f"task/{i}/v", part.v)
            tensors |= self._packed(f"task/{i}/tau", part.tau)
        for n, local in self.local.items():
            tensors |= self._packed(f"local/{n}", {str(g): t for g, t in enumerate(local)})
            tensors[f"where/groups/{n}"] = torch.tensor(self.groups[n], dtype=torch.int16)
        return tensors

    def _packed(self, prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        pairs = {n: pack(cut(t.detach(), self.threshold)) for n, t in tensors.items()}
        values = {n: pair[0] for n, pair in pairs.items()}
        where = {n: pair[1] for n, pair in pairs.items()}
        return network.add_prefix(prefix, values) | network.add_prefix(f"where/{prefix}", where)

    def stored(self) -> Size:
        """The compact form; positions of sparse values and groups count as bytes, not as numbers."""
        tensors = self.compact()
        numbers = sum(t.numel() for n, t in tensors.items() if not n.startswith("where/"))
        return Size(numbers, Size.of(tensors.values()).bytes)

    def counted(self) -> int:
        """σ, and of each task v, non-zeros of τ, biases, norms and head; non-zeros of τ̃. No running statistics."""
        assert self.net is not None, "learn a task first"
        total = sum(s.numel() for s in self.sigma.values())
        for part in self.tasks:
            total += sum(v.numel() for v in part.v.values()) + sum(self.tau_nonzeros(part).values())
            total += network.count_without_buffers(self.net, part.tensors)
        return total + sum(self._nonzeros(t) for local in self.local.values() for t in local)

    def tau_nonzeros(self, part: TaskParts) -> dict[str, int]:
        """The number of elements of a task's τ above the threshold, by layer."""
        return {n: self._nonzeros(t) for n, t in part.tau.items()}

    def _nonzeros(self, tensor: Tensor) -> int:
        return int((tensor.detach().abs() > self.threshold).sum())

    def details(self) -> dict[str, Any]:
        """The non-zeros of the newest τ in each layer, and the groups of tasks."""
        return {"sparse": self.tau_nonzeros(self.tasks[-1]), "groups": self.groups}

    def state(self) -> State:
        """σ, τ̃, and all that belongs to each task, dense and before the threshold."""
        tensors: dict[str, Tensor] = network.add_prefix("sigma", self.sigma)
        for i, part in enumerate(self.tasks):
            for kind, named in (("v", part.v), ("tau", part.tau), ("own", part.tensors)):
                tensors |= network.add_prefix(f"task/{i}/{kind}", named)
        for n, local in self.local.items():
            tensors |= network.add_prefix(f"local/{n}", {str(g): t for g, t in enumerate(local)})
        values = {"classes": [part.classes for part in self.tasks], "groups": self.groups}
        return State({n: t.detach() for n, t in tensors.items()}, values)

    def restore(self, state: State) -> None:
        """Continue from a state."""
        classes, tensors = state.values["classes"], state.tensors
        self.net, self.plan = network.empty(self.context, classes[0])
        network.fill(self.net, network.strip_prefix("sigma", tensors) | network.strip_prefix("task/0/own", tensors))
        current, sigma = network.contents(self.net), self.sigma

        def part(i: int, width: int) -> TaskParts:
            v, tau, rest = (network.strip_prefix(f"task/{i}/{kind}", tensors) for kind in ("v", "tau", "own"))
            masks = {n: nn.Parameter(v[n].to(s, copy=True)) for n, s in sigma.items() if n in v}
            sparse = {n: nn.Parameter(copy_like(tau[n], s)) for n, s in sigma.items() if n in tau}
            rest = {n: t.to(current[n].device) for n, t in rest.items()}
            rest = {n: copy_like(t, current[n]) if t.shape == current[n].shape else t for n, t in rest.items()}
            return TaskParts(width, masks, sparse, rest)

        self.tasks = [part(i, width) for i, width in enumerate(classes)]
        self.groups = {n: list(groups) for n, groups in state.values["groups"].items()}
        self.local = {n: numbered(f"local/{n}", tensors, sigma[n]) for n in self.groups}


def layers(plan: Plan) -> list[str]:
    """The weights that are decomposed: of every layer but norms and the head, unless tied."""
    return [n for n, t in plan.parameters.items() if t.role == "weight" and t.kind != "shared" and len(t.aliases) == 1]


def copy_like(tensor: Tensor, like: Tensor) -> Tensor:
    """A copy of a tensor on the device and in the memory format of another of its shape."""
    return torch.empty_like(like, requires_grad=False).copy_(tensor)


def numbered(prefix: str, tensors: Mapping[str, Tensor], like: Tensor) -> list[Tensor]:
    """Copies of the tensors prefix/0, prefix/1, … with the device and memory format of another."""
    by_number = network.strip_prefix(prefix, tensors)
    return [copy_like(by_number[str(i)], like) for i in range(len(by_number))]


class Additive(Decomposed):
    """σ keeps learning, old τ compensate for its change, and similar tasks share a part of τ."""

    method = "apd"

    def __init__(
        self,
        context: Context,
        l1: float = 4e-4,
        strength: float = 100.0,
        l2: float = 1e-4,
        beta: float = 1e-2,
        every: int = 5,
        clusters: int = 2,
        start: str = "sigma",
        fixed_masks: bool = False,
        threshold: float | None = None,
    ) -> None:
        """Take λ1, λ2 (`strength`), ω (`l2`), and the settings of consolidation.

        After each `every` tasks (0: never) there are `clusters` more clusters, and elements that differ by at most
        `beta` within a cluster are shared. τ starts as a copy of "sigma" or as "zeros". `fixed_masks` freezes old v.
        Predictions treat elements of τ of magnitude at most `threshold` as zero; None means λ1.
        """
        super().__init__(context, l1, l2, start, threshold)
        for name, value in (("strength", strength), ("beta", beta), ("every", every)):
            self.refuse_negative(name, value)
        if clusters < 1:
            raise SettingError(f"apd(clusters={clusters}) must be at least 1; every=0 switches consolidation off")
        self.strength, self.beta, self.every, self.clusters = strength, beta, every, clusters
        self.fixed_masks = fixed_masks
        self.centroids: dict[str, list[Tensor]] = {}

    def learn(self, task: Task) -> None:
        """Train σ, the new task, and v and τ of old ones; consolidate after every few tasks."""
        old, targets = list(self.tasks), self.targets()
        net, part = self.begin(task)
        retroactive = [Group([t for p in old for t in p.tau.values()])]
        if not self.fixed_masks:
            retroactive.append(Group([v for p in old for v in p.v.values()]))
        hooks = {"after_backward": self.retroactive_penalty(targets)} if old else {}
        self.train(task, net, part, 0.0 if old else self.l2, retroactive, **hooks)
        if self.every and len(self.tasks) % self.every == 0:
            self.consolidate(task)

    @torch.no_grad()
    def targets(self) -> list[dict[str, Tensor]]:
        """The current θ_i − τ̃_g(i) of every task and layer: what σ ⊗ M_i + τ_i should remain."""
        return [{n: compose(s, p.v[n], p.tau[n]) for n, s in self.sigma.items()} for p in self.tasks]

    def retroactive_penalty(self, targets: list[dict[str, Tensor]]) -> Callable[[], None]:
        """A hook that adds the gradients of λ2/2 Σ‖θ*_i − θ_i‖² and λ1 Σ‖τ_i‖₁ over old tasks.

        In closed form, one layer of one task at a time, so that autograd holds nothing of old tasks.
        """
        scale = self.context.recipe.gradient_scale
        old, sigmas, strength = self.tasks[: len(targets)], self.sigma, self.strength * scale

        @torch.no_grad()
        def add() -> None:
            for n, sigma in sigmas.items():
                assert sigma.grad is not None
                for part, target in zip(old, targets, strict=True):
                    v, tau = part.v[n], part.tau[n]
                    by_sigma, by_v, by_tau = drift_gradients(sigma, v, tau, target[n])
                    sigma.grad.add_(by_sigma, alpha=strength)
                    tau.grad = by_tau.mul_(strength).add_(tau.sign(), alpha=self.l1 * scale)
                    if not self.fixed_masks:
                        v.grad = by_v.mul_(strength)

        return add

    @torch.no_grad()
    def consolidate(self, task: Task) -> None:
        """Group the tasks in every layer, and store once the elements that agree within β."""
        count = self.clusters * len(self.tasks) // self.every
        for n in self.sigma:
            full = []
            for i, part in enumerate(self.tasks):
                local = self.local_of(i, n)
                full.append(part.tau[n].detach() if local is None else part.tau[n] + local)
            generator = seeding.generator(*network.later_seed_key(self.context, task), "clusters", n)
            result = consolidate(full, count, self.beta, self.centroids.get(n, []), generator)
            for part, private in zip(self.tasks, result.private, strict=True):
                part.tau[n] = nn.Parameter(private)
            self.local[n], self.groups[n], self.centroids[n] = result.local, result.groups, result.centroids

    def state(self) -> State:
        """The state of the decomposition, and the centroids, from which the next consolidation starts."""
        plain, centroids = super().state(), dict[str, Tensor]()
        for n, clusters in self.centroids.items():
            centroids |= network.add_prefix(f"centroid/{n}", {str(k): t for k, t in enumerate(clusters)})
        return State(plain.tensors | centroids, plain.values)

    def restore(self, state: State) -> None:
        """Continue from a state."""
        super().restore(state)
        self.centroids = {n: numbered(f"centroid/{n}", state.tensors, self.sigma[n]) for n in self.groups}
