"""The front of a network: modules before all that a task changes, computed once for each example.

Fine-tuning passes the same examples through the same frozen modules in every epoch. `Front` finds a chain of them, each
of which takes what the one before it gives, holds what the last one gives for each example, and lets a network go on
from there. The last module of the chain gives those rows then, and the others give something that has a shape and a
type, and that nothing can be computed with. A chain around which the model has a shortcut is of no use; if the model
takes one only for some inputs, those are computed as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

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


METADATA = frozenset(
    (
        *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "is_cuda", "requires_grad")),
        *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__, Tensor.is_floating_point),
    )
)
"""What can be asked of a tensor that is not computed: an encoder makes its mask by the shape of its embeddings."""


class Kind(NamedTuple):
    """What is known of a tensor that is not computed."""

    shape: torch.Size
    """Of an example's row."""
    dtype: torch.dtype


@dataclass(frozen=True)
class Chain:
    """Modules, each of which takes what the one before it gives."""

    paths: tuple[str, ...]
    """In the order of their calls."""
    in_tuple: bool
    """Whether a module gives its tensor as the only one of a tuple."""
    kinds: Mapping[torch.Size, tuple[Kind, ...]]
    """What each module gives for an example, by the shape of what the last one gives."""


@dataclass(frozen=True, eq=False)
class Front:
    """A chain of modules, and what the last of them gives for each example."""

    chain: Chain
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
        longest = _longest(net.eval(), train, near)
        if longest is None:
            return None
        chain, row = longest
        in_memory = val if isinstance(val, InMemory) else None
        count = train.examples + (0 if in_memory is None else in_memory.examples)
        if count * row.numel() * row.element_size() > MOST_BYTES:
            return None
        with seeding.isolated(*run.seed_key, "front", device=row.device):
            held = [None if part is None else _rows_of(net, chain, part, recipe.batch) for part in (train, in_memory)]
            if held[0] is None or not _is_same_in_training(net, chain, train, held[0].tensor):
                return None
        kinds = {rows.tensor.shape[1:]: rows.kinds for rows in held if rows is not None}
        if any(rows is not None and kinds[rows.tensor.shape[1:]] != rows.kinds for rows in held):
            return None
        train_rows, val_rows = (None if rows is None else rows.tensor for rows in held)
        assert train_rows is not None
        return Front(replace(chain, kinds=kinds), train_rows, val_rows, Beside())

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
        with _replaced(net, self.chain, self.beside):
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
        """Refuse every use but questions of what is known."""
        if function in METADATA:
            return super().__torch_function__(function, types, args, kwargs or {})
        raise _UsedError


@contextmanager
def _replaced(net: nn.Module, chain: Chain, beside: Beside) -> Iterator[None]:
    """Let the last module give the rows that lie beside the inputs, and the others nothing, where there are any."""

    def forward(original: Callable[..., Any], number: int, *args: Any, **keywords: Any) -> Any:
        rows = beside.rows
        if rows is None:
            return original(*args, **keywords)
        is_last = number == len(chain.paths) - 1
        given = rows if is_last else _nothing(chain.kinds[rows.shape[1:]][number], rows)
        return (given,) if chain.in_tuple else given

    with ExitStack() as stack:
        for number, path in enumerate(chain.paths):
            module = net.get_submodule(path)
            before = vars(module).get("forward")
            vars(module)["forward"] = partial(forward, module.forward, number)
            stack.callback(_restore, module, before)
        yield


def _nothing(kind: Kind, rows: Tensor) -> Tensor:
    """What a module inside the chain would give for some rows, without a value."""
    element = torch.empty((), dtype=kind.dtype, device=rows.device)
    return element.expand(len(rows), *kind.shape).as_subclass(_Nothing)


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

    @property
    def kind(self) -> Kind:
        """What it gave for an example, if that was one tensor."""
        assert self.tensor is not None
        return Kind(self.tensor.shape[1:], self.tensor.dtype)


def _longest(net: nn.Module, data: InMemory, near: Collection[str]) -> tuple[Chain, Tensor] | None:
    """The chain with most modules, and what its last module gives for an example."""
    x = _some(data)
    with torch.no_grad():
        calls, outputs = _frozen_calls(net, data.call, x, near)
    best: tuple[int, Chain, Tensor] | None = None
    for end in range(len(calls) - 1, max(-1, len(calls) - 1 - LAST), -1):
        linked, rows = _chain_to(calls, end, tree.rows(x)), calls[end].tensor
        modules = sum(call.modules for call in linked)
        if rows is None or rows.dim() < 2 or (best is not None and modules <= best[0]):
            continue
        kinds = {rows.shape[1:]: tuple(call.kind for call in linked)}
        chain = Chain(tuple(call.path for call in linked), isinstance(calls[end].given, tuple), kinds)
        if _gives(net, data.call, x, chain, rows, outputs):
            best = modules, chain, rows[0]
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


def _chain_to(calls: Sequence[_Called], end: int, rows: int) -> list[_Called]:
    """The longest chain that ends with a call: each reads the very tensor of some rows that the one before it gave."""
    chain = [calls[end]]
    kind = isinstance(chain[0].given, tuple)
    for call in reversed(calls[:end]):
        given = call.tensor
        if given is None or isinstance(call.given, tuple) != kind or not any(given is t for t in chain[0].read):
            break
        if given.shape[:1] != (rows,):
            break
        chain.insert(0, call)
    return chain


def _gives(net: nn.Module, call: Call, x: Batch, chain: Chain, rows: Tensor, outputs: Tensor) -> bool:
    """Whether a network has the same outputs when it continues from what the chain's last module gives."""
    if rows.shape[0] != tree.rows(x) or rows.requires_grad:
        return False
    beside = Beside()
    with torch.no_grad(), suppress(_UsedError), _replaced(net, chain, beside):
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


def _given(net: nn.Module, chain: Chain, call: Call, x: Batch) -> list[object]:
    """What the modules of a chain give for a batch, with no more of the network computed than that takes."""
    seen = list[object]()

    def hook(_: nn.Module, args: object, given: object) -> None:
        seen.append(given[0] if isinstance(given, tuple) else given)
        if len(seen) == len(chain.paths):
            raise _ReachedError

    with torch.no_grad(), suppress(_ReachedError), ExitStack() as hooks:
        for path in chain.paths:
            hooks.callback(net.get_submodule(path).register_forward_hook(hook).remove)
        call.given(net, x)
    return seen


class _Rows(NamedTuple):
    """What a chain gives for some examples."""

    tensor: Tensor
    """(N, …), of its last module."""
    kinds: tuple[Kind, ...]


def _rows_of(net: nn.Module, chain: Chain, data: InMemory, batch: int) -> _Rows | None:
    """What a chain gives for each example, or None if not of one shape."""
    parts, kinds = list[Tensor](), set[tuple[Kind, ...]]()
    for x, y in replace(data, drop_last=False).batches(batch, None):
        given = [tensor for tensor in _given(net.eval(), chain, data.call, x) if isinstance(tensor, Tensor)]
        if len(given) < len(chain.paths) or any(tensor.shape[:1] != y.shape[:1] for tensor in given):
            return None
        parts.append(given[-1].detach().clone())
        kinds.add(tuple(Kind(tensor.shape[1:], tensor.dtype) for tensor in given))
    return _Rows(torch.cat(parts), kinds.pop()) if len(kinds) == 1 else None


def _is_same_in_training(net: nn.Module, chain: Chain, data: InMemory, held: Tensor) -> bool:
    """Whether the chain gives the held rows in training mode, for other rows together, and without a random draw."""
    index = torch.arange(0, data.examples, max(1, data.examples // EXAMPLES), device=data.y.device)
    states = list[Tensor]()

    def note(*_: object) -> None:
        cuda = [torch.cuda.get_rng_state(held.device)] if held.device.type == "cuda" else []
        states.extend([torch.get_rng_state(), *cuda])

    handle = net.get_submodule(chain.paths[0]).register_forward_pre_hook(note)
    freeze_statistics(net.train())
    try:
        tensor = _given(net, chain, data.call, tree.tree_map(lambda t: t[index], data.x))[-1]
        note()
    finally:
        handle.remove()
        net.eval()
    half = len(states) // 2
    drawn = not all(torch.equal(a, b) for a, b in zip(states[:half], states[half:], strict=True))
    return not drawn and isinstance(tensor, Tensor) and _is_close(tensor, held[index])
