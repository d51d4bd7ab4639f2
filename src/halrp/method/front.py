"""The front of a network: modules before all that a task changes, computed once for each example.

Fine-tuning passes the same examples through the same frozen modules in every epoch. `Front` finds a chain of them, each
of which takes what the one before it gives, holds what the last one gives for each example, and lets a network go on
from there. The last module of the chain gives those rows then, and the others give something that nothing can be
computed with. A chain around which the model has a shortcut is of no use; if the model takes one only for some inputs,
those are computed as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from halrp import seeding
from halrp.model import batch as tree
from halrp.model.batch import Batch
from halrp.model.call import Call
from halrp.model.layers.norm import freeze_statistics
from halrp.training.batches import InMemory
from halrp.training.beside import Beside, CallBeside, laid_beside
from halrp.training.run import TaskRun

MOST_BYTES = 2**27
"""Of the rows that are held."""
LAST = 12
"""How many modules, from the last before all that a task changes, are tried as the end of the chain."""
EXAMPLES = 4
"""With which a chain is tried."""


@dataclass(frozen=True, eq=False)
class Front:
    """A chain of modules, and what the last of them gives for each example."""

    paths: tuple[str, ...]
    """In the order of their calls."""
    in_tuple: bool
    """Whether a module gives its tensor as the only one of a tuple."""
    train: Tensor
    """(N, …), for the training examples."""
    val: Tensor | None
    """The same for the validation examples."""
    beside: Beside

    @staticmethod
    def of(net: nn.Module, run: TaskRun, near: Collection[str]) -> Front | None:
        """The front of a network of which a task changes no module but those whose paths are `near`.

        None where rows are not the same in every epoch, or would not fit into memory: data that a loader reads, an
        augmentation, several processes; dropout in the front; and in a lower precision, a compiled step, or where
        activations are computed again, which change how modules are called.
        """
        data, recipe = run.data, run.recipe
        train, val = data.train, data.val
        changed = recipe.autocast is not None or recipe.compile or recipe.checkpoint_activations
        if not isinstance(train, InMemory) or data.augment is not None or run.processes is not None or changed:
            return None
        chain = _longest(net.eval(), train, near)
        if chain is None:
            return None
        paths, row, in_tuple = chain
        in_memory = val if isinstance(val, InMemory) else None
        count = train.examples + (0 if in_memory is None else in_memory.examples)
        if count * row.numel() * row.element_size() > MOST_BYTES:
            return None
        last, batch = net.get_submodule(paths[-1]), recipe.batch
        with seeding.isolated(*run.seed_key, "front", device=row.device):
            train_rows, val_rows = (
                None if part is None else _rows_of(net, last, part, batch) for part in (train, in_memory)
            )
            if train_rows is None or not _is_same_in_training(net, paths, train, train_rows):
                return None
        return Front(paths, in_tuple, train_rows, val_rows, Beside())

    def run(self, run: TaskRun) -> TaskRun:
        """The task, with the rows that are held beside its examples."""
        train, val = run.data.train, run.data.val
        assert isinstance(train, InMemory)
        train = self._beside(train, self.train)
        if self.val is not None:
            assert isinstance(val, InMemory)
            val = self._beside(val, self.val)
        return replace(run, data=run.data._replace(train=train, val=val))

    def _beside(self, data: InMemory, rows: Tensor) -> InMemory:
        return laid_beside(data, rows, _FrontCall(data.call.output, data.call.transform, data.call, self.beside))

    @contextmanager
    def installed(self, net: nn.Module) -> Iterator[None]:
        """Let a network continue from these rows, for a block, where its inputs have them beside them."""
        modules = [net.get_submodule(path) for path in self.paths]
        with _replaced(modules, self.beside, self.in_tuple):
            yield


class _UsedError(Exception):
    """A model computes with what a module inside the chain gives."""


class _FrontCall(CallBeside):
    """A call of a network that continues from rows that were computed before, and computes all if it cannot."""

    def given(self, module: nn.Module, batch: Batch) -> object:
        """All that a module gives for x."""
        with suppress(_UsedError):
            return super().given(module, batch)
        return self.inner.given(module, batch[0])


class _Nothing(Tensor):
    """What a module inside the chain gives when it is not computed."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse every use."""
        raise _UsedError


@contextmanager
def _replaced(modules: Sequence[nn.Module], beside: Beside, in_tuple: bool) -> Iterator[None]:
    """Let the last module give the rows that lie beside the inputs, and the others nothing, where there are any."""
    nothing = torch.empty(0).as_subclass(_Nothing)

    def forward(original: Callable[..., Any], is_last: bool, *args: Any, **keywords: Any) -> Any:
        if beside.rows is None:
            return original(*args, **keywords)
        given = beside.rows if is_last else nothing
        return (given,) if in_tuple else given

    with ExitStack() as stack:
        for module in modules:
            before = vars(module).get("forward")
            vars(module)["forward"] = partial(forward, module.forward, module is modules[-1])
            stack.callback(_restore, module, before)
        yield


def _restore(module: nn.Module, before: object) -> None:
    """Give a module the forward that it had as an attribute of its own, or its type's."""
    if before is None:
        del vars(module)["forward"]
    else:
        vars(module)["forward"] = before


# ---- finding a chain -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Called:
    """One call of a module that no task changes, with nothing such around it."""

    path: str
    read: tuple[Tensor, ...]
    given: object
    modules: int
    """How many modules were called in it, itself included."""

    @property
    def tensor(self) -> Tensor | None:
        """The one tensor that it gave."""
        given = self.given[0] if isinstance(self.given, tuple) and len(self.given) == 1 else self.given
        return given if isinstance(given, Tensor) else None


def _longest(net: nn.Module, data: InMemory, near: Collection[str]) -> tuple[tuple[str, ...], Tensor, bool] | None:
    """The paths of the chain with most modules, what its last module gives for an example, and whether in a tuple."""
    x = _some(data)
    with torch.no_grad():
        calls, outputs = _frozen_calls(net, data.call, x, near)
    best: tuple[int, tuple[str, ...], Tensor, bool] | None = None
    for end in range(len(calls) - 1, max(-1, len(calls) - 1 - LAST), -1):
        chain, given = _chain_to(calls, end), calls[end].tensor
        modules = sum(call.modules for call in chain)
        if given is None or (best is not None and modules <= best[0]):
            continue
        paths = tuple(call.path for call in chain)
        if _gives(net, data.call, x, paths, calls[end], outputs):
            best = modules, paths, given[0], isinstance(calls[end].given, tuple)
    return None if best is None else best[1:]


def _some(data: InMemory) -> Batch:
    return next(data.batches(min(EXAMPLES, data.examples), None))[0]


def _frozen_calls(net: nn.Module, call: Call, x: Batch, near: Collection[str]) -> tuple[list[_Called], Tensor]:
    """The outermost calls of modules that no task changes, each of a module that is called once; and the outputs."""
    changing = {id(p) for path, m in net.named_modules() if path in near for p in m.parameters(recurse=False)}
    parts = {path.rsplit(".", count)[0] for path in near for count in range(path.count(".") + 1)}
    frozen = {
        path
        for path, module in net.named_modules()
        if path and path not in parts and not any(id(p) in changing for p in module.parameters())
    }
    calls, counts, inside = list[_Called](), Counter[str](), list[int]()

    def before(_: nn.Module, args: object, keywords: object, path: str) -> None:
        counts[path] += 1
        inside.append(0)

    def after(_: nn.Module, args: object, keywords: object, given: object, path: str) -> None:
        modules = inside.pop() + 1
        if inside:
            inside[-1] += modules
        elif path in frozen:
            read = tuple(leaf for leaf in pytree.tree_leaves((args, keywords)) if isinstance(leaf, Tensor))
            calls.append(_Called(path, read, given, modules))

    with ExitStack() as hooks:
        for path, module in net.named_modules():
            if path in frozen:
                hooks.callback(module.register_forward_pre_hook(partial(before, path=path), with_kwargs=True).remove)
                hooks.callback(module.register_forward_hook(partial(after, path=path), with_kwargs=True).remove)
        outputs = call(net, tree.tree_map(torch.clone, x))
    return [called for called in calls if counts[called.path] == 1], outputs


def _chain_to(calls: Sequence[_Called], end: int) -> list[_Called]:
    """The longest chain that ends with a call: each reads the very tensor that the one before it gave."""
    chain = [calls[end]]
    kind = isinstance(chain[0].given, tuple)
    for call in reversed(calls[:end]):
        given = call.tensor
        if given is None or isinstance(call.given, tuple) != kind or not any(given is t for t in chain[0].read):
            break
        chain.insert(0, call)
    return chain


def _gives(net: nn.Module, call: Call, x: Batch, paths: Sequence[str], last: _Called, outputs: Tensor) -> bool:
    """Whether a network has the same outputs when it continues from what the chain's last module gives."""
    rows, beside = last.tensor, Beside()
    if rows is None or rows.dim() < 2 or rows.shape[0] != tree.rows(x) or rows.requires_grad:
        return False
    modules = [net.get_submodule(path) for path in paths]
    with torch.no_grad(), suppress(_UsedError), _replaced(modules, beside, isinstance(last.given, tuple)):
        again = CallBeside(call.output, call.transform, call, beside)(net, (tree.tree_map(torch.clone, x), rows))
        return _is_close(again, outputs)
    return False


def _is_close(a: Tensor, b: Tensor) -> bool:
    """Whether tensors agree up to rounding."""
    if a.shape != b.shape:
        return False
    scale = float(b.abs().max()) if b.numel() else 0.0
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4 * scale)


# ---- what the chain gives --------------------------------------------------------------------------------------------


class _ReachedError(Exception):
    """The chain's last module has given what is wanted; the rest of the network need not be computed."""


def _given(net: nn.Module, last: nn.Module, call: Call, x: Batch) -> list[object]:
    """What a module gives for a batch, with no more of the network computed than that takes."""
    seen = list[object]()

    def hook(_: nn.Module, args: object, given: object) -> None:
        seen.append(given)
        raise _ReachedError

    handle = last.register_forward_hook(hook)
    try:
        with torch.no_grad(), suppress(_ReachedError):
            call.given(net, x)
    finally:
        handle.remove()
    return seen


def _rows_of(net: nn.Module, last: nn.Module, data: InMemory, batch: int) -> Tensor | None:
    """What a module gives for each example, or None if not of one shape."""
    parts = list[Tensor]()
    for x, y in replace(data, drop_last=False).batches(batch, None):
        (given,) = _given(net.eval(), last, data.call, x)
        tensor = given[0] if isinstance(given, tuple) else given
        if (
            not isinstance(tensor, Tensor)
            or len(tensor) != len(y)
            or (parts and tensor.shape[1:] != parts[0].shape[1:])
        ):
            return None
        parts.append(tensor.detach().clone())
    return torch.cat(parts)


def _is_same_in_training(net: nn.Module, paths: Sequence[str], data: InMemory, held: Tensor) -> bool:
    """Whether the chain gives the held rows in training mode, for other rows together, and without a random draw."""
    index = torch.arange(0, data.examples, max(1, data.examples // EXAMPLES), device=data.y.device)
    states = list[Tensor]()

    def note(*_: object) -> None:
        cuda = [torch.cuda.get_rng_state(held.device)] if held.device.type == "cuda" else []
        states.extend([torch.get_rng_state(), *cuda])

    first, last = (net.get_submodule(paths[number]) for number in (0, -1))
    handle = first.register_forward_pre_hook(note)
    freeze_statistics(net.train())
    try:
        (given,) = _given(net, last, data.call, tree.tree_map(lambda t: t[index], data.x))
        note()
    finally:
        handle.remove()
        net.eval()
    half = len(states) // 2
    drawn = not all(torch.equal(a, b) for a, b in zip(states[:half], states[half:], strict=True))
    tensor = given[0] if isinstance(given, tuple) else given
    return not drawn and isinstance(tensor, Tensor) and _is_close(tensor, held[index])
