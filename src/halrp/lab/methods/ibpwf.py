"""`ibpwf`: weight factors chosen by an Indian buffet process (Mehta et al., 2021).

A layer's weight is W_t = Vᵀ diag(λ_t) U with λ_t = r_t ∘ b_t: real r_t, binary b_t, and a dictionary U, V of K factors
that tasks share. Prior: v_k ~ Beta(a, 1), π_k = Π_{j≤k} v_j, b_k ~ Bernoulli(π_k), r_k ~ N(0, σ²). Posterior:
b_k ~ Bernoulli(sigmoid ρ_k), relaxed to a binary concrete variable; v_k ~ Kumaraswamy(c_k, d_k), where each task's
posterior is the next one's prior; r_k ~ N(r_k, σ²), used at its mean. A task of N images has two stages:

    1. mean CE + (KL_b + KL_v + KL_r) / N, one sample per step, at a temperature that falls from 10 to 2/3
    2. mean CE with λ = p ∘ 1[p ≥ κ] ∘ r, p = sigmoid ρ, which is also used for prediction

The task uses the factors with p ≥ κ. From then on they are frozen: later tasks may use them, and train the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.errors import SettingError
from halrp.lab.methods import kumaraswamy, network
from halrp.lab.methods.factored import (
    Factored,
    LayerFactors,
    SharedFactors,
    TaskFactors,
    body,
    extent,
    followed_by_norm,
)
from halrp.lab.methods.protocol import Context, Size, State
from halrp.lab.streams import Task
from halrp.model.layers.norm import BATCH_NORMS
from halrp.model.views import replace_module
from halrp.training.loop import Group, supervised_loss

EDGE = 1e-4
"""Uniform samples lie in EDGE … 1−EDGE."""


class Posterior(NamedTuple):
    """What a layer passes from task to task besides its factors: ρ, log c and log d, (K,) each."""

    rho: Tensor
    log_c: Tensor
    log_d: Tensor


class Selected(Factored):
    """A layer whose gate is sampled or chosen before each forward pass; a last column of U gives the bias."""

    def __init__(
        self, layer: nn.Module, factors: tuple[Tensor, Tensor], start: Posterior, r: Tensor, free: Tensor, sigma: float
    ) -> None:
        """Copy a dictionary and an initial posterior; `free` (K,) is 1 for factors that are trained, else 0."""
        super().__init__(layer)
        self.inputs, self.sigma = math.prod(self.shape[1:]), sigma
        self.u, self.v = (nn.Parameter(t.clone()) for t in factors)
        self.rho, self.log_c, self.log_d = (nn.Parameter(t.clone()) for t in start)
        self.r = nn.Parameter(r)
        self.prior, self.free = shapes(start), free
        self.gate = r

    def factors(self) -> LayerFactors:
        """The factors with the gate that was set last."""
        biased = self.u.shape[1] > self.inputs
        bias = self.v.t() @ (self.gate * self.u[:, -1]) if biased else None
        return LayerFactors(self.u[:, : self.inputs], self.v, self.gate, bias)

    def sample_gate(self, temperature: Tensor, terms: int) -> Tensor:
        """Set the gate to a sample b ∘ r, and return an estimate of KL_b + KL_v + KL_r from it."""
        # From the global generator, which training seeds in every epoch and restores afterwards.
        first, second = (torch.rand_like(self.rho) * (1 - 2 * EDGE) + EDGE for _ in range(2))
        y = kumaraswamy.logistic(self.rho, first, temperature)
        self.gate = y.sigmoid() * self.r
        c, d = shapes(Posterior(self.rho, self.log_c, self.log_d))
        prior = kumaraswamy.log_odds(kumaraswamy.stick(kumaraswamy.sample(c, d, second)))
        posterior = self.rho.clamp(-kumaraswamy.LIMIT, kumaraswamy.LIMIT)
        binary = kumaraswamy.log_density(y, posterior, temperature) - kumaraswamy.log_density(y, prior, temperature)
        breaks = kumaraswamy.divergence(c, d, *self.prior, terms)
        return (binary + breaks + self.r.square() / (2 * self.sigma**2)).sum()

    def fix_gate(self, kappa: float) -> None:
        """Set the gate to p ∘ 1[p ≥ κ] ∘ r."""
        p = self.rho.sigmoid()
        self.gate = p * active(p.detach(), kappa) * self.r


def shapes(posterior: Posterior) -> tuple[Tensor, Tensor]:
    """The shape parameters c and d, at most 999 each."""
    c, d = (t.clamp(-kumaraswamy.LIMIT, kumaraswamy.LIMIT).exp() for t in (posterior.log_c, posterior.log_d))
    return c, d


def prior(k: int, a: float) -> Posterior:
    """The initial posterior of K factors: p_k = (a / (a+1))^k, the prior's mean, and c = a, d = 1; float64."""
    odds = kumaraswamy.log_odds(math.log(a / (a + 1)) * torch.arange(1, k + 1, dtype=torch.float64))
    return Posterior(odds, torch.full_like(odds, math.log(a)), torch.zeros_like(odds))


def active(p: Tensor, kappa: float) -> Tensor:
    """Which factors a task uses, (K,) bool: those with p ≥ κ, and always the likeliest, or the layer would be 0."""
    return (p >= kappa) | (torch.arange(len(p), device=p.device) == p.argmax())


def truncations(layers: Mapping[str, nn.Module]) -> dict[str, tuple[int, float]]:
    """The number of factors K and the concentration a of each layer, by path.

    With n the smaller side of the weight as a matrix: K = 3n for a convolution, and min(n, max(400, n/2)) for a linear
    layer. a is K/4 for the first convolution and the first linear layer, K/5 for those after them. LeNet on CIFAR then
    has (60, 15), (150, 30), (400, 100), (400, 80).
    """
    sizes: dict[str, tuple[int, float]] = {}
    seen: set[bool] = set()
    for path, layer in layers.items():
        linear = isinstance(layer, nn.Linear)
        n = min(extent(layer))
        k = min(n, max(400, n // 2)) if linear else 3 * n
        sizes[path] = k, min(999.0, k / (5 if linear in seen else 4))
        seen.add(linear)
    return sizes


class WeightFactors(SharedFactors):
    """Factors shared by all tasks; each task selects some and freezes them."""

    def __init__(
        self,
        context: Context,
        kappa: float = 0.5,
        start: float = 10.0,
        end: float = 2 / 3,
        cooling: float = 0.99,
        tuning: float = 0.25,
        reach: float = 10.0,
        clip: float = 0.5,
        deviation: float | None = None,
        terms: int = kumaraswamy.TERMS,
        sizes: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """Take the settings.

        A task uses a factor if its probability is at least `kappa`. The temperature falls from `start` by `cooling` per
        step to `end`, and faster if it would not reach it by the middle of the stage. `tuning` is the share of epochs
        for stage 2. In stage 1 the learning rate of ρ is raised until its steps add up to `reach`, so that a short
        training can change the selection; 0 leaves it. Gradients are clipped to ±`clip`. `deviation` is σ; None
        means 0.1, and 1 for a layer that no batch norm follows. `terms` is the length of the series in KL_v. `sizes`
        replaces `truncations` by [K, a] for the layers at these paths.
        """
        super().__init__(context)
        for name, value, good, remedy in (
            ("kappa", kappa, 0 < kappa < 1, "a probability inside 0 … 1"),
            ("end", end, 0 < end <= start < math.inf, "0 < end ≤ start"),
            ("cooling", cooling, 0 < cooling <= 1, "a factor in (0, 1]"),
            ("tuning", tuning, 0 < tuning < 1, "a share inside 0 … 1"),
            ("reach", reach, 0 <= reach < math.inf, "a number above 0, or 0 for the recipe's rate"),
            ("clip", clip, clip > 0, "a bound above 0"),
            ("deviation", deviation, deviation is None or 0 < deviation < math.inf, "a number above 0, or None"),
            ("terms", terms, terms >= 1, "a whole number of at least 1"),
        ):
            if not good:
                raise SettingError(f"ibpwf({name}={value!r}) is out of range; give {remedy}")
        self.kappa, self.start, self.end, self.cooling = kappa, start, end, cooling
        self.reach, self.tuning, self.clip, self.deviation, self.terms = reach, tuning, clip, deviation, terms
        self.sizes: dict[str, tuple[int, float]] = {}
        for path, pair in (sizes or {}).items():
            if len(pair) != 2 or pair[0] < 1 or not 0 < pair[1] <= 999:
                raise SettingError(f"ibpwf(sizes): {path} has {pair}; give [K, a], K of at least 1, a in (0, 999]")
            self.sizes[path] = int(pair[0]), float(pair[1])
        self.posteriors: dict[str, Posterior] = {}

    def learn(self, task: Task) -> None:
        """Learn the factors and their selection, then fine-tune with the selected ones."""
        net = network.fresh(self.context, task)[0]
        if not self.dictionary:
            self._initial_factors(net)
        by_path = self._select(net, task)
        layers, prefixes = by_path.values(), tuple(f"{path}." for path in by_path)
        owned = [p for n, p in net.named_parameters() if not n.startswith(prefixes)]
        weights = Group([p for layer in layers for p in (layer.u, layer.v, layer.r)] + owned)
        first, second = self._epochs()
        rho_rate, factor = self._rates(first, len(task.train.y))
        # A buffer, so that checkpoints hold it.
        net.register_buffer("temperature", weights.parameters[0].new_tensor(self.start))
        temperature = net.get_buffer("temperature")

        def variational(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            divergence = torch.stack([layer.sample_gate(temperature, self.terms) for layer in layers]).sum()
            return supervised_loss(net, x, y) + divergence / len(task.train.y)

        def cool() -> None:
            temperature.mul_(factor).clamp_(min=self.end)

        def deterministic(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            for layer in layers:
                layer.fix_gate(self.kappa)
            return supervised_loss(net, x, y)

        rho = [layer.rho for layer in layers]
        breaks = Group([p for layer in layers for p in (layer.log_c, layer.log_d)])
        groups = [weights, breaks, Group(rho, lr=rho_rate)]
        self._fit(net, task, layers, groups, "factors", first, loss=variational, after_step=cool)
        self._fit(net, task, layers, [weights, Group(rho)], "fine-tune", second, loss=deterministic)
        self._recompute_statistics(net, task, layers)
        self._commit(net, task, by_path)

    @torch.no_grad()
    def _initial_factors(self, net: nn.Module) -> None:
        layers = body(net)
        sizes = truncations(layers) | self.sizes
        for path in sizes:
            if path not in layers:
                raise SettingError(f"ibpwf(sizes): there is no layer {path!r} to factor; layers: {', '.join(layers)}")
        normed = followed_by_norm(net)
        for path, layer in layers.items():
            (inputs, outputs), (k, a) = extent(layer), sizes[path]
            inputs += layer.bias is not None and (isinstance(layer, nn.Linear) or path not in normed)
            weight, generator = layer.weight, seeding.generator(self.context.seed, "ibpwf", path)
            assert isinstance(weight, Tensor)
            u, v = (nn.init.xavier_uniform_(torch.empty(k, n), generator=generator) for n in (inputs, outputs))
            self.dictionary[path] = u.to(weight), v.to(weight)
            self.posteriors[path] = Posterior(*(t.to(weight) for t in prior(k, a)))

    def _select(self, net: nn.Module, task: Task) -> dict[str, Selected]:
        """Replace the layers of a new network by factored ones: ρ as after the previous task, r random."""
        normed, layers = followed_by_norm(net), {}
        for path, layer in body(net).items():
            sigma = self.deviation or (0.1 if path in normed else 1.0)
            start = self.posteriors[path]
            generator = seeding.generator(*network.later_seed_key(self.context, task), "r", path)
            r = (torch.randn(len(start.rho), generator=generator) * sigma).to(start.rho)
            free = (~self.used(path)).to(start.rho).unsqueeze(1)
            layers[path] = Selected(layer, self.dictionary[path], start, r, free, sigma)
            replace_module(net, path, layers[path])
        return layers

    @torch.no_grad()
    def _recompute_statistics(self, net: nn.Module, task: Task, layers: Iterable[Selected]) -> None:
        """Replace the running statistics of batch norms by averages over the training images with the final weights.

        Small factors make small activations, and running variances start at 1: a short training ends before they have
        fallen far enough.
        """
        norms = [m for m in net.modules() if isinstance(m, BATCH_NORMS) and m.running_mean is not None]
        for layer in layers:
            layer.fix_gate(self.kappa)
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
        if norms:
            for x, _ in network.examples(self.context, task, net).batches(self.context.recipe.batch, None):
                net(x)
        net.eval()

    def _epochs(self) -> tuple[int, int]:
        """The epochs of each stage, at least one."""
        second = max(1, round(self.tuning * self.context.recipe.epochs))
        return max(1, self.context.recipe.epochs - second), second

    def _rates(self, epochs: int, examples: int) -> tuple[float, float]:
        """The factor on the learning rate of ρ, and the factor per step on the temperature, in stage 1."""
        recipe = self.context.recipe
        batch = min(recipe.batch, examples)
        steps = epochs * math.ceil(examples / batch)
        travel = sum(recipe.rate(step, steps, batch, examples) for step in range(steps))
        return max(1.0, self.reach / travel), min(self.cooling, (self.end / self.start) ** (2 / steps))

    def _fit(
        self,
        net: nn.Module,
        task: Task,
        layers: Iterable[Selected],
        groups: list[Group],
        stage: str,
        epochs: int,
        **hooks: Any,
    ) -> None:
        """Train, with gradients clipped and those of frozen factors set to zero.

        A new Adam or SGD without weight decay leaves a parameter without gradients bit-identical.
        """
        bound = self.clip * self.context.recipe.gradient_scale

        def restrain() -> None:
            gradients = [p.grad for group in groups for p in group.parameters if p.grad is not None]
            torch._foreach_clamp_min_(gradients, -bound)
            torch._foreach_clamp_max_(gradients, bound)
            for layer in layers:
                for factors in (layer.u, layer.v):
                    assert factors.grad is not None
                    factors.grad.mul_(layer.free)

        seed_key = network.later_seed_key(self.context, task)
        network.fit(self.context, task, net, groups, seed_key, stage, epochs=epochs, after_backward=restrain, **hooks)

    @torch.no_grad()
    def _commit(self, net: nn.Module, task: Task, layers: Mapping[str, Selected]) -> None:
        gates, chosen = {}, {}
        for path, layer in layers.items():
            layer.fix_gate(self.kappa)
            chosen[path] = active(layer.rho.sigmoid(), self.kappa).nonzero().squeeze(1)
            gates[path] = layer.gate[chosen[path]]
            self.dictionary[path] = layer.u.detach(), layer.v.detach()
            self.posteriors[path] = Posterior(*(t.detach() for t in (layer.rho, layer.log_c, layer.log_d)))
        self.tasks.append(TaskFactors(task.classes, gates, self.owned(net, task.classes), chosen))

    def used(self, path: str) -> Tensor:
        """Which factors of a layer some learned task uses, (K,) bool."""
        u = self.dictionary[path][0]
        used = torch.zeros(len(u), dtype=torch.bool, device=u.device)
        for task in self.tasks:
            used[task.chosen[path]] = True
        return used

    def factors(self, path: str, task: int) -> LayerFactors:
        """The factors that the task has selected."""
        learned, (u, v) = self.tasks[task], self.dictionary[path]
        u, v, gate = u[learned.chosen[path]], v[learned.chosen[path]], learned.gates[path]
        inputs, _ = extent(body(self.plain(learned.classes))[path])
        bias = v.t() @ (gate * u[:, -1]) if u.shape[1] > inputs else None
        return LayerFactors(u[:, :inputs], v, gate, bias)

    def stored(self) -> Size:
        """Factors that some task uses, and what belongs to each task; a selection is counted in bytes alone."""
        numbers, size = Size.of(t for task in self.tasks for t in (*task.gates.values(), *task.tensors.values()))
        for path, (u, v) in self.dictionary.items():
            used = int(self.used(path).sum())
            entries = used * (u.shape[1] + v.shape[1])
            numbers, size = numbers + entries, size + entries * u.element_size() + len(self.tasks) * math.ceil(used / 8)
        return Size(numbers, size)

    def state(self) -> State:
        """All factors, used or not, tasks, and the posterior, which is the next task's prior."""
        plain = super().state()
        posteriors = {f"{field}/{path}": t for path, p in self.posteriors.items() for field, t in p._asdict().items()}
        return State(plain.tensors | posteriors, plain.values)

    def restore(self, state: State) -> None:
        """Take factors, tasks and the posterior from a state."""
        super().restore(state)
        fields = [network.strip_prefix(field, state.tensors) for field in Posterior._fields]
        self.posteriors = {
            path: Posterior(*(field[path].to(u.device) for field in fields)) for path, (u, _) in self.dictionary.items()
        }

    def details(self) -> dict[str, Any]:
        """By layer: the number of factors that the task just learned uses, that any task uses, and of all."""
        if not self.tasks:
            return {}
        return {
            "factors": {
                path: [len(chosen), int(self.used(path).sum()), len(self.dictionary[path][0])]
                for path, chosen in self.tasks[-1].chosen.items()
            }
        }
