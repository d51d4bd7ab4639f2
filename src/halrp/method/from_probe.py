"""A start at the probe: the head is fitted first, and every other part of a delta must earn its bytes.

The head is fitted on the features of the frozen base (`probe`). There, with the base's outputs unchanged but for the
head, the gradients of all parts of a delta are taken in one pass (`offers`), and the method's allocation compares
what each promises with what it costs: row scales, column scales, norm parameters, biases, other small parameters, and
components. A component i of a weight starts at

    p_i = 0,   q_i = C^¼ v_iᵀ,

along the right singular vectors v_i of the gradient (J, C), so that fine-tuning starts at the probe itself. What is not
chosen stays the base's and costs nothing, neither in the file nor in time.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from contextlib import nullcontext
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import nn

from halrp.checks import is_number, is_whole
from halrp.errors import SettingError
from halrp.method import offers, probe, reach
from halrp.method.bits import BITS, Bits, Choice, choose
from halrp.method.cross_fit import CrossFit, features_of
from halrp.method.front import Front
from halrp.method.method import Halrp, StartRule
from halrp.method.protocols import LayerOptions
from halrp.method.start import Least, Start, Starts
from halrp.method.task_costs import Costs, part_bytes, part_precision, stored_parts
from halrp.method.weight_gradients import Components, factors_along, new_gradient, options_of, recovered_of
from halrp.model import codec
from halrp.model.base import Base
from halrp.model.codec import Precision
from halrp.model.commit_check import CommitCheck
from halrp.model.delta import Recovered
from halrp.model.factors import Factors, identity_factors
from halrp.model.layers.registry import family_for
from halrp.model.plan import trained_buffers
from halrp.model.size import Size
from halrp.training import held_out
from halrp.training.batches import Loaded
from halrp.training.groups import Group
from halrp.training.recipe import LATER
from halrp.training.run import TaskRun

NOT_USED = ("scales", "decompose", "importance", "initial")
"""The fields of `Halrp` that say how a warmed-up network is decomposed, of which there is none here."""
OFFERS = ("rows", "columns", "norms", "biases", "others", "components")
"""The kinds of parts that a task may store besides its head."""
NO_COMPONENTS = Recovered(importance=0.0, predicted=0.0, share=1.0)
"""Of a weight that is offered no components, such as a table of which few rows are read."""


@dataclass(frozen=True)
class FromProbe(StartRule):
    """Choose a start at the probe, with the memory of a delta's training, at the price of one pass over the data."""

    head: Literal["probe", "random"] = "probe"
    """Whether the head is fitted first, or drawn."""
    parts: tuple[str, ...] = OFFERS
    """What may be stored besides the head."""
    precision: Precision = "int8"
    """How scales, norms, biases and the head are stored, as differences to the base's."""
    redundant: bool = False
    """Whether row scales and biases are offered also where a norm with its own scale and shift follows."""
    reach: float = 0.5
    """The share of the adapted weights, counted from the output and at least eight, that a task may change with what
    lies between them; the layers before stay the base's, which saves their gradients and activations. 1 is all."""
    folds: int = 5
    """Each training example is trained on by a head that was fitted without its fold, which does not train; in the end
    the task's head is fitted again (`cross_fit`). 0: the task's head trains along, and has seen every example."""
    held_out: float = 0.2
    """Without validation data: the share of the training examples on which a first training is compared with the probe.
    Unless it is clearly worse, all examples are trained on; if it is, the probe is committed. 0 trusts training."""
    examples: int = 4096
    """The most examples whose gradients are taken, in batches spread over one pass."""
    components: int = 64
    """The most components of a layer that are considered."""
    bits: Bits | None = field(default=None, metadata=LATER)
    """How components and dense weights are stored: None is the method's precision, and "mixed" is int4 or int8 for each
    weight, whichever is worth more."""
    statistics: Literal["base", "own"] = field(default="base", metadata=LATER)
    """Whether norms normalise by the running statistics of the base, or by those of the batch, and the task stores its
    own, which the budget then pays for in any case."""

    def __post_init__(self) -> None:
        """Refuse what is not known, and numbers that leave nothing."""
        object.__setattr__(self, "parts", tuple(self.parts))
        for name in ("examples", "components"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 1):
                raise SettingError(f"FromProbe({name}={value!r}) must be a whole number of at least 1")
        if not is_whole(self.folds, 0) or self.folds == 1:
            raise SettingError(f"FromProbe(folds={self.folds!r}) must be a whole number of at least 2, or 0 for none")
        if not (is_number(self.held_out, 0) and self.held_out <= 0.5):
            raise SettingError(
                f"FromProbe(held_out={self.held_out!r}) must be a share of at most 0.5; 0 holds out none"
            )
        if not (is_number(self.reach, 0) and 0 < self.reach <= 1):
            raise SettingError(f"FromProbe(reach={self.reach!r}) must be a share of more than 0; 1 reaches all layers")
        unknown = [part for part in self.parts if part not in OFFERS]
        if unknown:
            raise SettingError(f"FromProbe(parts={self.parts!r}) has {unknown[0]!r}; choose from {', '.join(OFFERS)}")
        choices = {"head": ("probe", "random"), "precision": codec.PART_PRECISIONS, "bits": (None, *BITS)}
        choices["statistics"] = ("base", "own")
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise SettingError(
                    f"FromProbe({name}={getattr(self, name)!r}) is unknown; choose one of {', '.join(map(repr, known))}"
                )

    @property
    def reports(self) -> bool:
        """The probe is a solution of its own."""
        return True

    def rehearsal(self, run: TaskRun) -> TaskRun | None:
        """The task with a part of its training data held out, if it has no validation data."""
        if run.data.val is not None:
            return None
        data = held_out.split(run.data, self.held_out, *run.seed_key)
        return None if data is None else run.rehearsal(data)

    def check(self, method: Halrp) -> None:
        """Refuse choices that would have no effect."""
        if unused := other_than_default(method):
            raise SettingError(
                f"Halrp({', '.join(unused)}) with start={self!r}: a start at the probe decomposes no warmed-up "
                "network and would not use it; leave it at its default, or give start=WarmUp()"
            )

    def least(self, base: Base, costs: Costs, classes: int, view: str) -> Least:
        """The head, and the task's own statistics."""
        return Least(self._with_statistics(base, costs).parts(view, classes, self.precision), {})

    def _with_statistics(self, base: Base, costs: Costs) -> Costs:
        """The costs of a task that stores its own statistics, if it does."""
        stored = trained_buffers(base.module) if self.statistics == "own" else frozenset()
        return replace(costs, redrawn=costs.redrawn | stored)

    def __call__(self, base: Base, method: Halrp, run: TaskRun, check: CommitCheck, costs: Costs) -> Starts:
        """Return where fine-tuning starts, and what the task owns in any case: its head."""
        net, costs = base.owning_copy(run.data.width, *run.seed_key), self._with_statistics(base, costs)
        weights, size = base.adapted_weights(), Size(base.parameter_count, base.size.bytes)
        near = reach.reached(net, base.call, check.first, weights, self.reach)
        front = Front.of(net, run, near) if self.statistics == "base" else None
        with nullcontext() if front is None else front.installed(net):
            run = run if front is None else front.run(run)
            cross_fit, step = self._fit_head(base, net, run)
        head = {n: t for n, t in base.owned_tensors(net).items() if base.plan.role(n) == "head"}
        kernels = {n: p.kernel for n, p in base.plan.named("adapted").items()}
        views = method.views(any(kernels.values()), validation=True)
        covered = frozenset() if self.redundant else offers.followed_by_norm(net, base.call, check.first)
        tried = {n: views if kernel else ("full",) for n, kernel in kernels.items()}
        wanted = self._wanted(base, method, run, covered, tried, near)
        with nullcontext() if front is None else front.installed(net):
            vectors, missing = offers.collect(net, wanted, run, self.examples)
        parameters = dict(net.named_parameters())
        check.gradients({n: parameters[n] for n in weights}, [parameters[n] for n in missing])
        itemsize = {name: tensor.element_size() for name, tensor in base.tensors.items()}
        head_parts = {f"plain/{name}" for name in head}
        small = {
            key: self._small_options(vector, itemsize[key.partition("/")[2]], method)
            for key, vector in vectors.items()
            if key not in head_parts
        }
        precisions = dict.fromkeys(small, self.precision)
        best: tuple[float, str, Start] | None = None
        for view in views:
            layers = {n: g.components(view if kernels[n] else "full") for n, g in wanted.weights.items()}

            def allocated(matrices: Mapping[str, Precision], view: str = view, layers: Any = layers) -> Choice:
                large = {n: options_of(c, weights[n], method.allocate, matrices[n]) for n, c in layers.items()}
                priced = costs.parts(view, run.data.width, self.precision, precisions, large, matrices)
                options = {**small, **large}
                return Choice(method.allocate.allocate(options, priced, size), options, matrices)

            choice = choose(self.bits, method.precision, layers, allocated)
            allocation, large = choice.allocation, {name: choice.options[name] for name in layers}
            chosen = {*stored_parts((key for key in small if allocation.ranks.get(key)), allocation.dense)}
            factors: dict[str, Factors] = {}
            for name, weight in weights.items():
                rank = allocation.ranks.get(name, 0)
                if name in allocation.dense or not (rank or {f"r/{name}", f"s/{name}"} & chosen):
                    continue
                factors[name] = factors_along(layers[name].v[:, :rank], weight) if rank else identity_factors(weight)
            start = Start(
                factors,
                {n: weights[n].clone() for n in allocation.dense},
                dict.fromkeys(weights, NO_COMPONENTS)
                | {n: recovered_of(o, wanted.weights[n].importance, allocation.ranks.get(n)) for n, o in large.items()},
                {n: o.scores for n, o in (large | small).items()},
                parts=dict.fromkeys(sorted(chosen), self.precision)
                | {
                    f"plain/{n}": part_precision(base.layout.by_name[n], self.precision)
                    for n in sorted(head.keys() | costs.redrawn)
                },
                small={key[6:]: parameters[key[6:]].detach().clone() for key in sorted(chosen) if key[:6] == "plain/"},
                is_solution=True,
                freezes_statistics=self.statistics == "base",
                units={key: step * unit for key, unit in _units(layers, vectors, factors).items()},
                matrices=choice.precisions,
                cross_fit=cross_fit,
                front=front,
            )
            if best is None or choice.worth > best[0]:
                best = choice.worth, view, start
        assert best is not None
        return Starts({best[1]: best[2]}, head)

    # ---- the head -------------------------------------------------------------------------------------------------

    def _fit_head(self, base: Base, net: nn.Module, run: TaskRun) -> tuple[CrossFit | None, float]:
        """Fit the head of a network in place, or train it where its outputs are not the model's.

        Also fit heads without each fold, where fine-tuning can use them. The number is what steps are to be shortened
        by: curvature is measured under the task's head, which is nearly right about the examples that it was fitted
        to, so it seems far smaller there than under heads that have not seen them.
        """
        path = base.plan.head
        if not path or self.head == "random":
            return None, 1.0
        net.eval()
        train, val = features_of(net, path, run)
        if train is None:
            self._train_head(base, net, run)
            return None, 1.0
        if run.processes is not None and isinstance(run.data.train, Loaded):  # each has read its own part
            train = probe.Features(*map(run.processes.rows, train))
        head, single = net.get_submodule(path), base.plan.output == path
        fitted = probe.fit(head, run.data.objective, train, val, from_zero=single)
        probe.copy_into(head, fitted.head)
        if run.processes is not None:
            run.processes.take_first(list(head.parameters()), "the fitted head")
        if not single:
            return None, 1.0
        objective = run.data.objective
        cross_fit = CrossFit.of(net, path, fitted.penalty, run, train, self.folds)
        unseen = cross_fit.error if cross_fit is not None else None if val is None else fitted.error(objective, val)
        if not unseen:
            return cross_fit, 1.0
        halvings = round(math.log2(max(1.0, unseen / (fitted.error(objective, train) + 1e-30))))
        return cross_fit, 2 ** (-(halvings if run.processes is None else run.processes.first(halvings)) / 2)

    def _train_head(self, base: Base, net: nn.Module, run: TaskRun) -> None:
        """Train the head through the network: one epoch, over frozen features that are computed every time."""
        head = [p for n, p in net.named_parameters() if base.plan.role(n) == "head"]
        for parameter in net.parameters():
            parameter.requires_grad_(False)
        for parameter in head:
            parameter.requires_grad_(True)
        run.training("warm-up", net, [Group(head)], 1, is_final=False, frozen_statistics=True).run()

    # ---- the other parts ------------------------------------------------------------------------------------------

    def _wanted(
        self,
        base: Base,
        method: Halrp,
        run: TaskRun,
        covered: Container[str],
        views: Mapping[str, tuple[str, ...]],
        near: Container[str],
    ) -> offers.Wanted:
        """The parts of modules that are `near` the output; norms do what scales and biases of `covered` ones would."""
        lowest = method.precision if self.bits is None else "int8" if self.bits == "int8" else "int4"
        holders, size = dict(base.module.named_modules()), Size(base.parameter_count, base.size.bytes)
        adapted = {n: weight for n, weight in base.adapted_weights().items() if n.rpartition(".")[0] in near}
        tables = {n for n in adapted if family_for(holders[n.rpartition(".")[0]]).reads_few_rows}
        rows = {n for n in adapted if n not in tables and n.rpartition(".")[0] not in covered}
        kinds = {"norm": "norms", "bias": "biases"}
        vectors = {
            n
            for n, p in base.plan.named("owned").items()
            if p.role != "head"
            and n.rpartition(".")[0] in near
            and kinds.get(p.role, "others") in self.parts
            and not (p.role == "bias" and n.rpartition(".")[0] in covered)
        }
        weights = {
            n: new_gradient(n, weight, views[n], self.components, method.allocate, lowest, size, run.seed_key)
            for n, weight in adapted.items()
            if "components" in self.parts and n not in tables
        }
        return offers.Wanted(
            weights,
            frozenset(rows if "rows" in self.parts else ()),
            frozenset(adapted if "columns" in self.parts else ()),
            frozenset(vectors | {n for n, p in base.plan.named("owned").items() if p.role == "head"}),
        )

    def _small_options(self, vector: offers.VectorGradient, element: int, method: Halrp) -> LayerOptions:
        """A part that is stored or not: like a weight that has one component."""
        size = Size(math.prod(vector.shape), part_bytes(vector.shape, self.precision, element))
        return LayerOptions(
            vector.score.reshape(1),
            component=method.allocate.price(size),
            scales=0,
            weight=0,
            rest=torch.zeros(()),
            may_be_dense=False,
        )


def _units(
    layers: Mapping[str, Components], vectors: Mapping[str, offers.VectorGradient], factors: Mapping[str, Factors]
) -> dict[str, float]:
    """By part, the step of its entries after which the loss has changed by about one, if all of them take it.

    Rows q have no gradient as long as p is zero; their unit is such that they turn as fast as p grows.
    """
    units = {key: vector.rate for key, vector in vectors.items()}
    for name, part in factors.items():
        if part.rank:
            length = part.q.shape[1] ** 0.25
            units[f"p/{name}"] = layers[name].rate / (length * math.sqrt(part.rank))
            units[f"q/{name}"] = length / math.sqrt(part.q.shape[1])
    return units


def other_than_default(method: Halrp) -> list[str]:
    """The choices of a method that a start at the probe would not use, as text; those at their defaults are none."""
    defaults = {field.name: field.default for field in fields(method) if field.default is not MISSING}
    return [f"{name}={getattr(method, name)!r}" for name in NOT_USED if getattr(method, name) != defaults[name]]
