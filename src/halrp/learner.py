"""Learn a stream of tasks on one model: `Learner`.

`_learn_delta` is Algorithm 1 of the paper, one call per step. A task depends on the base and on its own data and on
nothing else, a committed task never changes, and a call that fails or is interrupted leaves the learner as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from halrp import draws, importance, views
from halrp.budget import Fixed
from halrp.data import Data, Source, prepare, refuse_batch_of_one
from halrp.decompose import Whitened
from halrp.delta import Delta
from halrp.errors import DataError, HeadError, ModelError, SettingError, TaskError, UnknownTaskError
from halrp.layers import Factors
from halrp.method import Halrp
from halrp.plan import BATCH_NORMS, plan
from halrp.prune import Keep
from halrp.train import Group, Notify, Recipe, Training, autocast, evaluate
from halrp.truncate import Start, truncate


class Learner:
    """Learns tasks on a model of yours, one small delta each, and predicts for any of them.

    The model is copied and never changed. With `base="first"` the first task trains the base, starting from the
    model's weights; with `base="given"` the model's weights are the base and every task is a delta.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        head: str | None = None,
        method: Halrp | None = None,
        recipe: Recipe | None = None,
        seed: int = 0,
        base: Literal["first", "given"] = "first",
        progress: Notify | None = None,
    ) -> None:
        """Take a model and settings.

        `head` names the classifier layer (found if it is the last one), `method` defaults to `Halrp.budget()`,
        `progress` is called as training goes on.
        """
        if base not in ("first", "given"):
            raise SettingError(f"Learner(base={base!r}) is unknown; choose 'first' or 'given'")
        self.method = Halrp.budget() if method is None else method
        self.recipe = Recipe() if recipe is None else recipe
        self.seed = seed
        self.progress = progress
        if self.recipe.epochs <= self.method.warm_up:
            raise SettingError(
                f"Recipe(epochs={self.recipe.epochs}) leaves nothing to fine-tune after "
                f"Halrp(warm_up={self.method.warm_up}); give more epochs"
            )
        self._plan = plan(model, head)
        self._channels_last = self.recipe.channels_last and any(isinstance(m, nn.Conv2d) for m in model.modules())
        self._base = _frozen(views.clone(model), self._channels_last)
        self._fingerprint: str | None = _identify(self._base) if base == "given" else None
        self._tasks: dict[str, Delta] = {}
        self._modules: dict[str | None, nn.Module] = {}

    @property
    def tasks(self) -> Mapping[str, Delta]:
        """What each learned task owns, in the order of learning. Read-only."""
        return MappingProxyType(self._tasks)

    @property
    def head(self) -> str:
        """The name of the head."""
        return self._plan.head

    @property
    def base_parameters(self) -> int:
        """The number of parameters of the base, with the head it was trained with."""
        return sum(parameter.numel() for parameter in self._base.parameters())

    @property
    def base_size(self) -> tuple[int, int]:
        """The numbers and bytes of the base, buffers and the head it was trained with included."""
        tensors = [*self._base.parameters(), *self._base.buffers()]
        return sum(t.numel() for t in tensors), sum(t.numel() * t.element_size() for t in tensors)

    @property
    def device(self) -> torch.device:
        """Where the base lies; tasks follow it."""
        return next(self._base.parameters()).device

    def learn(self, name: str, train: Source, val: Source | None = None, classes: int | None = None) -> Delta:
        """Learn a task and commit it.

        `train` and `val` are `(x, y)` tensors, a `Dataset` or a `DataLoader`; labels are 0 … classes−1, and `classes`
        defaults to the largest label plus one. Validation data, if given, decide importance and view.
        """
        if not isinstance(name, str) or not name:
            raise TaskError(f"a task's name must be a non-empty string, got {name!r}")
        if name in self._tasks:
            raise TaskError(f"task {name!r} is already learned and never changes; choose another name")
        with torch.enable_grad(), draws.isolated(self.seed, self._fingerprint, name, device=self.device):
            data, classes = self._prepare(name, "train", train, classes)
            held_out = None if val is None else self._prepare(name, "val", val, classes)[0]
            if any(isinstance(module, BATCH_NORMS) for module in self._base.modules()):
                refuse_batch_of_one(data, self.recipe.batch, f"{name}: train")
            if self._fingerprint is None:
                return self._learn_base(name, data, classes)
            return self._learn_delta(name, data, held_out, classes)

    def _learn_base(self, name: str, data: Data, classes: int) -> Delta:
        net = self._new_net(name, data, classes)
        adapted = self._plan.named("adapted")
        weights = [parameter for n, parameter in net.named_parameters() if n in adapted]
        others = [p for n, p in net.named_parameters() if n not in adapted and p.requires_grad]
        groups = [Group(weights, l2=self.method.base_l2), Group(others)]
        self._training(name, "base", net, groups, data, self.recipe.epochs).run()
        base = _frozen(net, self._channels_last)
        fingerprint = _identify(base)
        delta = Delta(name, classes, fingerprint, {}, {}, {}, {})
        # Commit last and at once, so that a base never exists without its task.
        self._base, self._fingerprint, self._tasks = base, fingerprint, {name: delta}
        return delta

    def _learn_delta(self, name: str, data: Data, val: Data | None, classes: int) -> Delta:
        method, recipe = self.method, self.recipe
        # Warm up: train a copy of the base freely, to see where the task wants to go.
        net = self._new_net(name, data, classes)
        everything = Group([parameter for parameter in net.parameters() if parameter.requires_grad])
        self._training(name, "warm-up", net, [everything], data, method.warm_up).run()
        # Importance: what an error in each free weight costs.
        free = {n: p for n, p in net.named_parameters() if n in self._plan.named("adapted")}
        judge = data if val is None else val
        with _evaluating(net):
            weight_of = method.importance(net, free, judge, recipe.batch)
            curvature = (
                importance.curvature(net, free, judge, recipe.batch) if isinstance(method.decompose, Whitened) else {}
            )
        # Scales, decomposition, allocation: one start for each view of convolutions that is tried.
        owned = self._owned(net)
        base = {n: p.detach() for n, p in self._base.named_parameters() if n in free}
        starts = {
            view: truncate(
                {n: p.detach() for n, p in free.items()},
                base,
                weight_of,
                curvature,
                method,
                {n: view if self._plan.treatments[n].kernel else "full" for n in free},
                self._fixed(owned),
                self.base_parameters,
                draws.generator(self.seed, self._fingerprint, name, "truncate", view),
            )
            for view in self._views(val)
        }
        # Fine-tune: each start for a while, then the one that validation data prefer to the end.
        runs = [self._fine_tuning(name, view, start, owned, data, classes) for view, start in starts.items()]
        best = runs[0]
        if len(runs) > 1 and val is not None:
            trial = max(1, round(method.trial * best.training.epochs))
            losses = [evaluate(run.net, val, recipe.batch, recipe.autocast)[0] for run in _run(runs, trial)]
            best = runs[losses.index(min(losses))]
        best.training.run()
        # Compress and commit.
        delta = self._delta(name, classes, best, starts[best.view])
        tasks = self._compress({**self._tasks, name: delta})
        self._modules = {n: m for n, m in self._modules.items() if n is None or tasks[n] is self._tasks[n]}
        self._tasks = tasks
        return tasks[name]

    def predict(self, x: Tensor, task: str | None, batch: int = 512) -> Tensor:
        """Logits (N, classes) of a task, in evaluation mode and without gradient; `None` is the base's own task."""
        module = self._module(task)
        x = x.to(self.device)
        if x.shape[0] == 0:
            raise DataError("predict: x has no rows; pass at least one example")
        if self._channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.no_grad(), autocast(self.recipe.autocast, self.device):
            return torch.cat([module(rows) for rows in x.split(batch)])

    def module(self, task: str | None) -> nn.Module:
        """A task as an `nn.Module` in evaluation mode that shares the base's tensors. Do not train it."""
        if task is None or (task in self._tasks and not self._tasks[task].owned):
            self._require_base()
            return views.shared_copy(self._base).eval()
        delta = self._known(task)
        return views.task_view(self._base, self._plan, delta.factors, delta.owned, delta.classes)

    def export(self, task: str | None) -> nn.Module:
        """A task as a plain module of the model's own classes, with merged weights, that shares nothing."""
        if task is None or not self._known(task).owned:
            self._require_base()
            return views.clone(self._base).eval()
        delta = self._known(task)
        return views.merged_copy(self._base, self._plan, delta.factors, delta.owned, delta.classes)

    # ---- the steps' small parts -------------------------------------------------------------------------------

    def _prepare(self, name: str, part: str, source: Source, classes: int | None) -> tuple[Data, int]:
        return prepare(
            source,
            what=f"{name}: {part}",
            device=self.device,
            batch=self.recipe.batch,
            classes=classes,
            shuffle=self.recipe.shuffle,
            channels_last=self._channels_last,
        )

    def _new_net(self, name: str, data: Data, classes: int) -> nn.Module:
        """A trainable copy of the base with a new head, shown to give one logit per class."""
        with draws.isolated(self.seed, self._fingerprint, name, "head", device=self.device):
            net = views.trainable_copy(self._base, self._plan, classes)
        net = _formatted(net, self._channels_last)
        x, _ = next(iter(data.batches(2, None)))
        buffers = [(n, b, b._version) for n, b in net.named_buffers()]
        try:
            with _evaluating(net), torch.no_grad():
                logits = net(x)
        except (RuntimeError, IndexError) as error:
            raise ModelError(
                f"{name}: with a head of {classes} classes at {self.head!r} the model fails on inputs of shape "
                f"{tuple(x.shape)} and type {x.dtype} ({error}); check the inputs, and that {self.head!r} is the "
                "layer that makes the logits"
            ) from error
        written = [n for n, b, version in buffers if b._version != version]
        if written:
            raise ModelError(
                f"{', '.join(written)}: the model writes to this buffer in evaluation mode, so using one task would "
                "change the others; write to it only if self.training"
            )
        got = f"outputs of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        if not isinstance(logits, Tensor) or logits.shape != (x.shape[0], classes):
            raise HeadError(
                f"{name}: with a head of {classes} classes at {self.head!r} the model gives {got}, not a tensor of "
                f"shape {(x.shape[0], classes)}; name the layer that makes the logits with Learner(..., head=...)"
            )
        return net

    def _training(
        self, name: str, stage: str, net: nn.Module, groups: list[Group], data: Data, epochs: int
    ) -> Training:
        names = (self.seed, self._fingerprint, name, stage.split(":")[0])
        return Training(
            net, groups, data, self.recipe, epochs=epochs, names=names, task=name, stage=stage, notify=self.progress
        )

    def _views(self, val: Data | None) -> tuple[str, ...]:
        """The views of convolutions to try: both only if there is something to choose and data to choose by."""
        if self.method.view != "validation":
            return (self.method.view,)
        kernels = any(t.kernel for t in self._plan.named("adapted").values())
        return ("mean", "full") if kernels and val is not None else ("mean",)

    def _owned(self, net: nn.Module) -> dict[str, Tensor]:
        """Copies of all that a task owns besides adapted weights: owned parameters, its head, changed buffers."""
        ours = self._plan.named("owned")
        owned = {n: p.detach().clone() for n, p in net.named_parameters() if n in ours or self._plan.role(n) == "head"}
        return owned | self._changed_buffers(net)

    def _changed_buffers(self, net: nn.Module) -> dict[str, Tensor]:
        old = dict(self._base.named_buffers())
        return {
            n: b.detach().clone()
            for n, b in net.named_buffers()
            if n in old and (b.shape != old[n].shape or not torch.equal(b, old[n]))
        }

    def _fixed(self, owned: Mapping[str, Tensor]) -> list[Fixed]:
        return [Fixed(n, t.numel(), t.numel() * t.element_size()) for n, t in owned.items()]

    def _fine_tuning(
        self, name: str, view: str, start: Start, owned: Mapping[str, Tensor], data: Data, classes: int
    ) -> _Run:
        """A network with the base frozen and everything that the task owns trainable."""

        def parameter(tensor: Tensor) -> Tensor:
            return nn.Parameter(tensor.clone()) if tensor.is_floating_point() else tensor.clone()

        factors = {n: f.map(parameter) for n, f in start.factors.items()}
        buffers = dict(self._base.named_buffers())
        own = {n: t.clone() if n in buffers else parameter(t) for n, t in {**owned, **start.owned}.items()}
        net = views.task_view(self._base, self._plan, factors, own, classes, private_buffers=True)
        method = self.method
        groups = [
            Group(_parameters(t for f in factors.values() for t in (f.r, f.s)), l2=method.l2),
            Group(
                _parameters(t for f in factors.values() for t in (f.p, f.q) if t.numel()), l1=method.l1, l2=method.l2
            ),
            Group(_parameters(t for n, t in own.items() if n in start.owned), l2=method.l2),
            Group(_parameters(t for n, t in own.items() if n not in start.owned)),
        ]
        epochs = self.recipe.epochs - method.warm_up
        return _Run(view, net, factors, own, self._training(name, f"fine-tune: {view}", net, groups, data, epochs))

    def _delta(self, name: str, classes: int, run: _Run, start: Start) -> Delta:
        owned = {n: t.detach() for n, t in run.owned.items() if isinstance(t, nn.Parameter)}
        owned |= self._changed_buffers(run.net)
        return Delta(
            task=name,
            classes=classes,
            base=str(self._fingerprint),
            factors={n: f.map(lambda tensor: tensor.detach()) for n, f in run.factors.items()},
            owned=owned,
            roles={n: self._plan.role(n) for n in owned},
            bought=start.bought,
            view=run.view,
        )

    def _compress(self, tasks: dict[str, Delta]) -> dict[str, Delta]:
        """Apply the method's pruning to the newest task, and to committed ones only if the method says so."""
        newest = next(reversed(tasks))
        if isinstance(self.method.compress, Keep):
            return tasks
        later = {n: d for n, d in tasks.items() if d.owned}
        increment = sum(delta.paper_count(dense=True) for delta in later.values()) / self.base_parameters
        before = {n: {layer: (f.p, f.q) for layer, f in d.factors.items()} for n, d in later.items()}
        after = self.method.compress(before, increment, newest)
        return tasks | {
            n: d.with_factors(
                {layer: replace(f, p=after[n][layer][0], q=after[n][layer][1]) for layer, f in d.factors.items()}
            )
            for n, d in later.items()
            if any(
                new is not old for layer in after[n] for new, old in zip(after[n][layer], before[n][layer], strict=True)
            )
        }

    def _module(self, task: str | None) -> nn.Module:
        if task not in self._modules:
            self._modules[task] = self.module(task)
        return self._modules[task]

    def _known(self, task: str) -> Delta:
        if task not in self._tasks:
            known = ", ".join(map(repr, self._tasks)) or "none yet"
            raise UnknownTaskError(f"no task named {task!r} has been learned; learned: {known}")
        return self._tasks[task]

    def _require_base(self) -> None:
        if self._fingerprint is None:
            raise UnknownTaskError("there is no base yet: learn a first task, or use Learner(..., base='given')")


class _Run(NamedTuple):
    """A fine-tuning in progress: the network, and the tensors in it that belong to the task."""

    view: str
    net: nn.Module
    factors: Mapping[str, Factors]
    owned: Mapping[str, Tensor]
    training: Training


def _run(runs: list[_Run], epochs: int) -> list[_Run]:
    for run in runs:
        run.training.run(until=epochs)
    return runs


def _parameters(tensors: Iterator[Tensor]) -> list[nn.Parameter]:
    return [tensor for tensor in tensors if isinstance(tensor, nn.Parameter)]


def _frozen(net: nn.Module, channels_last: bool) -> nn.Module:
    net.zero_grad(set_to_none=True)
    return _formatted(net, channels_last).requires_grad_(False).eval()


def _formatted(net: nn.Module, channels_last: bool) -> nn.Module:
    if channels_last:
        for tensor in (*net.parameters(), *net.buffers()):
            if tensor.dim() == 4:
                tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return net


def _identify(base: nn.Module) -> str:
    return draws.fingerprint(dict(base.named_parameters()) | dict(base.named_buffers()))


@contextmanager
def _evaluating(net: nn.Module) -> Iterator[None]:
    """Evaluate a network of ours for a while, then let it train again."""
    net.eval()
    try:
        yield
    finally:
        net.train()
