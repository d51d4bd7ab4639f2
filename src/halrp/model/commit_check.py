"""Whether what is committed is what was trained: `CommitCheck`.

A task is stored as parameters and buffers and comes back in a copy of the model as the user passed it. A model that
keeps something else (a moving average in a plain attribute, a cache), that draws random numbers in evaluation mode, or
that computes with parameters of another model would come back as something else, silently. So a few rows of the task
are evaluated in both forms, and twice, and the results must be the same bits. Most of it is done before anything is
trained, on a copy that is thrown away, and all of it again before the commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from halrp import seeding
from halrp.errors import DataError, HalrpError, HeadError, ModelError, SettingError
from halrp.model import attributes, views
from halrp.model import batch as tree
from halrp.model.base import Base
from halrp.model.batch import Batch
from halrp.model.call import Call
from halrp.model.factors import Factors
from halrp.model.precision import forward_precision
from halrp.model.usable import base_problem
from halrp.objectives import Classification, Objective


@dataclass(frozen=True)
class CommitCheck:
    """The check of one task: its name, a few of its rows, and the precision of its forward passes."""

    task: str
    width: int
    """That of the task's head."""
    first: Batch
    second: Batch
    """Other rows, of the same shape."""
    targets: Tensor
    """Of the first rows."""
    autocast: str | None
    call: Call
    objective: Objective

    @staticmethod
    def of(
        task: str,
        width: int,
        batch: tuple[Batch, Tensor],
        autocast: str | None,
        call: Call | None = None,
        objective: Objective | None = None,
    ) -> CommitCheck:
        """Take two rows, and two others if there are any, from a batch of the task."""
        x, y = batch
        count = min(2, tree.rows(x))
        first, second = (tree.tree_map(torch.clone, tree.take(x, part)) for part in (slice(count), slice(-count, None)))
        if tree.rows(x) < 2 * count:
            second = tree.tree_map(lambda t: t.flip(-1) if t.dim() > 1 else t, first)
        return CommitCheck(
            task, width, first, second, y[:count], autocast, call or Call(), objective or Classification(width)
        )

    def before_training(self, base: Base, val: tuple[Batch, Tensor] | None, *seed_key: object) -> None:
        """Refuse a model that cannot be treated correctly, as far as that shows without training it.

        `val` are rows of the validation data, which the model must be able to take too, and their targets.
        """
        problem = base_problem(base.tensors, dict(base.module.named_buffers()))
        if problem:
            raise ModelError(
                f"{self.task}: {problem}: the model cannot be learned on; initialise it, or load its weights"
            )
        net = base.owning_copy(self.width, *seed_key).eval()
        self._refuse_outside_parameters(net)
        for part, rows in (("train", (self.first, self.targets)), ("val", val)):
            if rows is not None:
                self._refuse_outputs(net, base.plan.output, *rows, f"{self.task}: {part}")
        if base.plan.head:
            self._refuse_unused_head(net, base.plan.output)
        self._refuse_changes(net)
        with seeding.isolated("commit check", device=base.device), torch.no_grad():
            plain, training = (self._given(net.train(mode)) for mode in (False, True))
        if training is None:
            return  # training will show the error, with the whole batch
        if isinstance(plain, Tensor) and not isinstance(training, Tensor):
            raise ModelError(
                f"{self.task}: in training mode the model gives a {type(training).__name__}, not the logits alone; "
                "switch its auxiliary outputs off (such as aux_logits=False), or wrap it so that it returns the logits"
            )
        self.call.pick(training)
        self._compare(net.eval(), restored(base, net, self.width))

    def base(self, initial: Base, net: nn.Module) -> None:
        """Refuse a trained base that would come back from a store as another network."""
        self._check(net, restored(initial, net, self.width))

    def delta(self, base: Base, net: nn.Module, factors: Mapping[str, Factors], owned: Mapping[str, Tensor]) -> None:
        """Refuse a task whose factors and owned tensors do not make the network that was fine-tuned."""
        self._check(net, views.task_view(base.module, base.plan, factors, owned, self.width))

    def gradients(self, weights: Mapping[str, Tensor], without: Iterable[Tensor]) -> None:
        """Refuse weights that training never reached; `without` are the parameters that never had a gradient."""
        missing = {id(tensor) for tensor in without}
        unused = [name for name, weight in weights.items() if id(weight) in missing]
        if unused:
            raise ModelError(
                f"{self.task}: {', '.join(unused[:3])}{', …' * (len(unused) > 3)} had no gradient in training: the "
                "model does not use it, or not in a way that can be trained; remove the layer, call it, or share it "
                "between all tasks by requires_grad_(False)"
            )

    # ---- the parts ------------------------------------------------------------------------------------------------

    def _check(self, trained: nn.Module, form: nn.Module) -> None:
        self._compare(trained.eval(), form)
        self._refuse_changes(form)

    def _given(self, net: nn.Module) -> Any:
        """All that a network gives for the first rows, or None if it fails."""
        try:
            with forward_precision(self.autocast, tree.device_of(self.first)):
                return self.call.given(net, tree.tree_map(torch.clone, self.first))
        except (RuntimeError, ValueError, IndexError):
            return None

    def _outputs(self, net: nn.Module, x: Batch) -> Tensor:
        with torch.no_grad(), forward_precision(self.autocast, tree.device_of(x)):
            return self.call(net, tree.tree_map(torch.clone, x))

    def _refuse_outside_parameters(self, net: nn.Module) -> None:
        """Raise if a network computes with parameters that are not its own, before they are computed with."""
        guard = _OutsideParameters(net)
        try:
            with guard:
                self._outputs(net, self.first)
        except Exception:  # the next check reports what the model itself raises
            if guard.outside is None:
                return
        if guard.outside is not None:
            holder = attributes.holder_of(net, guard.outside)
            where = f"through {holder}, " if holder else ""
            raise ModelError(
                f"{self.task}: the model computes, {where}with a parameter of shape {tuple(guard.outside.shape)} that "
                "is not among its own, so a copy of the model would still use the original's; hold the layer as an "
                "attribute (nn.ModuleList for several) and call it from forward"
            )

    def _refuse_outputs(self, net: nn.Module, head: str, x: Batch, y: Tensor, name: str) -> None:
        """Raise unless a network gives outputs for rows that the objective can compare with targets."""
        try:
            outputs = self._outputs(net, x)
        except HalrpError as error:
            raise type(error)(f"{name}: {error}") from error
        except (RuntimeError, IndexError, TypeError, KeyError) as error:
            self._refuse_type(net, x, name, error)
            raise ModelError(
                f"{name}: with a head of {self.width} classes at {head!r} the model fails on inputs of "
                f"{tree.describe(x)} ({error}); check the inputs, and that {head!r} is the layer that makes the logits"
            ) from error
        problem = self.objective.refuse_outputs(outputs, tree.rows(x), self.width)
        if problem:
            raise HeadError(
                f"{name}: with a head of {self.width} classes at {head!r} the model gives {problem}; name the layer "
                "that makes the logits with Learner(..., head=...), or the part of its outputs with output=..."
            )
        try:
            loss, score = (f(outputs, y) for f in (self.objective.loss, self.objective.score))
        except HalrpError:
            raise
        except Exception as error:
            raise DataError(
                f"{name}: {self.objective!r} cannot compare outputs of shape {tuple(outputs.shape)} with targets of "
                f"shape {tuple(y.shape)} and type {y.dtype} ({type(error).__name__}: {error})"
            ) from error
        for label, value in (("loss", loss), ("score", score)):
            if not isinstance(value, Tensor) or value.dim() != 0:
                raise SettingError(f"{self.objective!r}: its {label} gives {value!r}, not a tensor with one number")

    def _refuse_unused_head(self, net: nn.Module, head: str) -> None:
        """Raise if the outputs do not depend on the layer that is built for each task."""
        parameters = list(net.get_submodule(head).parameters())
        with torch.enable_grad(), forward_precision(self.autocast, tree.device_of(self.first)):
            outputs = self.call(net, tree.tree_map(torch.clone, self.first))
            reached = outputs.requires_grad and torch.autograd.grad(outputs.sum(), parameters, allow_unused=True)
        if not reached or all(gradient is None for gradient in reached):
            raise HeadError(
                f"{self.task}: the model's outputs do not depend on its head {head!r}, so replacing it for every task "
                "changes nothing; name the layer that makes the logits with Learner(..., head=...)"
            )

    def _refuse_type(self, net: nn.Module, x: Batch, name: str, error: Exception) -> None:
        """Raise if the inputs are of another floating type than the model, which is why it fails."""
        types = sorted({str(p.dtype) for p in net.parameters() if p.is_floating_point()})
        given = {str(t.dtype) for t in tree.leaves(x) if t.is_floating_point()}
        if self.call.transform is None and types and given - set(types):
            raise DataError(
                f"{name}: the inputs are {' and '.join(sorted(given))}, the model computes in {' and '.join(types)} "
                f"({error}); convert them, such as x.to({types[0]})"
            ) from error

    def _refuse_changes(self, net: nn.Module) -> None:
        """Raise if evaluating a network changes its buffers, or what it gives for the same rows later."""
        buffers = [(n, b, b._version) for n, b in net.named_buffers()]
        expected = self._outputs(net, self.first)
        before = views.shared_copy(net)
        self._outputs(net, self.second)
        names = attributes.differences(before, net)
        again = self._outputs(net, self.first)
        after = dict(net.named_buffers())
        written = [n for n, b, version in buffers if after.get(n) is not b or b._version != version]
        if written:
            raise ModelError(
                f"{', '.join(written)}: the model writes to this buffer in evaluation mode, so using one task would "
                "change the others; write to it only if self.training"
            )
        if not _same(again, expected):
            reason = (
                f"{', '.join(names)} changed meanwhile; write to it only if self.training, or do not read it in forward"
                if names
                else "does it draw random numbers in evaluation mode? F.dropout needs training=self.training"
            )
            raise ModelError(f"{self.task}: the model gives other outputs when it sees the same rows again: {reason}")

    def _compare(self, trained: nn.Module, form: nn.Module) -> None:
        """Raise if the form that is committed gives other outputs than the trained network."""
        with _frozen(trained):  # recurrent layers round differently if a weight wants a gradient
            expected = self._outputs(trained, self.first)
        got = self._outputs(form, self.first)
        if not _same(got, expected):
            names = attributes.differences(form, trained)
            reason = (
                f"{', '.join(names)} changed in training and is neither parameter nor buffer; make it an nn.Buffer"
                if names
                else "the model keeps something besides parameters and buffers"
            )
            raise ModelError(f"{self.task}: what training made of the model cannot be stored: {reason}")


def restored(initial: Base, net: nn.Module, width: int) -> nn.Module:
    """The network that a store would give back: the initial model with the trained network's parameters and buffers."""
    form = views.shared_copy(initial.module)
    views.replace_output(form, initial.module, initial.plan, width, torch.device("meta"))
    trained = [*net.named_parameters(remove_duplicate=False), *net.named_buffers(remove_duplicate=False)]
    ours = [*form.named_parameters(remove_duplicate=False), *form.named_buffers(remove_duplicate=False)]
    other = sorted({name for name, _ in trained} ^ {name for name, _ in ours})
    if other:
        raise ModelError(f"{', '.join(other[:3])}: training adds or removes it; a model's tensors must stay the same")
    for name, tensor in trained:
        views.set_tensor(form, name, tensor.detach())
    return form.eval()


@contextmanager
def _frozen(net: nn.Module) -> Iterator[None]:
    """No parameter of a network wants a gradient inside the block."""
    trains = [parameter for parameter in net.parameters() if parameter.requires_grad]
    net.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trains:
            parameter.requires_grad_(True)


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether outputs are the same bits; on other devices than the processor, up to the rounding of other kernels."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.device.type == "cpu":
        return bool(((a == b) | (a.isnan() & b.isnan())).all())
    scale = float(b.abs().max()) if b.numel() else 0.0
    return torch.allclose(a, b, rtol=0.0, atol=256 * torch.finfo(b.dtype).eps * scale, equal_nan=True)


class _OutsideParameters(TorchDispatchMode):
    """Notices parameters that are not a network's own, and stops before they are used."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.outside: nn.Parameter | None = None
        self._known = {id(parameter) for parameter in net.parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation unless it takes such a parameter."""
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, nn.Parameter) and id(leaf) not in self._known:
                self.outside = leaf
                raise ModelError("a parameter of another model")
        return func(*args, **(kwargs or {}))
