"""All tasks of a base for ONNX Runtime: one graph, and a small file for each task.

The graph takes what tasks own as inputs that have the base's values by default: for a weight W that tasks adapt it is W
itself and the parts of W_t = r ∘ W ∘ s + p q; for a norm, a bias, a buffer or the head it is the tensor. A task's file
has the format of ONNX Runtime's adapters and holds those inputs that are not the base's. So one session serves every
task, a task per call, with the weights of one network in memory.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from halrp.errors import ConflictError, ModelError, SettingError
from halrp.model import batch as tree
from halrp.model.batch import Batch
from halrp.model.call import Call
from halrp.model.delta import Delta
from halrp.model.layout import Slot
from halrp.model.precision import run_as_called
from halrp.store import atomic
from halrp.store.folder import slug, work_name
from halrp.tools import export

GRAPH = "family.onnx"
ENDING = ".onnx_adapter"
RANK = 1
"""Of the zeros that p and q are by default: ONNX Runtime's kernels have no sum over nothing."""


class Family(NamedTuple):
    """Files that were written."""

    graph: export.Exported
    """`family.onnx`, compared as the base."""
    tasks: Mapping[str, export.Exported]
    """Each task's adapter."""


class Part(NamedTuple):
    """An input of the graph: a tensor that tasks may own, with the base's value."""

    name: str
    value: Tensor
    free: tuple[int, ...] = ()
    """Dimensions whose size differs between tasks."""


def write(
    base: nn.Module,
    tasks: Mapping[str, Delta],
    predict: Callable[[Batch, str | None], Tensor],
    example: Batch,
    folder: Path,
    *,
    call: Call | None = None,
    every: bool = True,
    force: bool = False,
) -> Family:
    """Write the graph and an adapter for each task into a folder, once all were run and agree with `predict`.

    `base` is a plain module of the caller's own, such as `learner.export(None)`; `example` gives names, shapes and
    types of the inputs. The graph has an input for every tensor that a task may own, so that later tasks need no other
    graph; without `every`, for those that one of these tasks owns, which leaves less to compute in each call. Its
    precision is the model's own, also for a task that was learned in a lower one.

    A graph that is there stays, and so do files of tasks that have not changed; with `force` all are written again.
    """
    _refuse(base, tasks, folder)
    run_as_called(base)
    inputs = tree.concatenate([example, tree.take(example, slice(1))]) if tree.rows(example) == 1 else example
    path, is_new = folder / GRAPH, force or not (folder / GRAPH).exists()
    graph = _graph(base, _slots(tasks, every), inputs, call or Call()) if is_new else path.read_bytes()
    session, names = _session(graph, path), list(inputs) if isinstance(inputs, dict) else None
    known = {given.name for given in session.get_overridable_initializers()}
    batches = (inputs, tree.take(inputs, slice(1)))
    difference = _compared(session, names, predict, batches, None, None)
    rows = tuple(map(tree.rows, batches))
    contents, exported = {path: graph} if is_new else {}, dict[str, export.Exported]()
    with tempfile.TemporaryDirectory() as work:
        for name, file in _file_names(tasks).items():
            content = _adapter(tasks[name], known, Path(work) / file)
            off = _compared(session, names, predict, batches, name, Path(work) / file)
            exported[name] = export.Exported(folder / file, len(content), off, rows)
            if force or not (folder / file).exists():
                contents[folder / file] = content
            elif (folder / file).read_bytes() != content:
                raise ConflictError(f"{folder / file} is of another task or version; pass force=True to replace all")
    folder.mkdir(parents=True, exist_ok=True)
    for target, content in contents.items():
        atomic.write(target, content)
    atomic.flush_folder(folder)
    return Family(export.Exported(path, len(graph), difference, rows), exported)


def _refuse(base: nn.Module, tasks: Mapping[str, Delta], folder: Path) -> None:
    export.refuse_path(folder / GRAPH, force=True)
    if not tasks:
        raise SettingError(f"{folder}: there is no task to export; learn one first")
    if folder.is_file():
        raise ConflictError(f"{folder} is a file; name a folder")
    for name, tensor in base.named_parameters():
        if tensor.dtype != torch.float32:
            raise ModelError(f"{folder}: {name} is of {tensor.dtype}; a family is of float32, convert with .float()")


def _file_names(tasks: Collection[str]) -> dict[str, str]:
    """A file for each task, by its name; names that look alike as files have digits."""
    alike = Counter(map(slug, tasks))
    return {task: f"{slug(task) if alike[slug(task)] == 1 else work_name(task)}{ENDING}" for task in tasks}


def _slots(tasks: Mapping[str, Delta], every: bool) -> list[Slot]:
    """What becomes an input: all that tasks may own, or that one of these does."""
    layout = next(iter(tasks.values())).layout
    owned = {name for delta in tasks.values() for name in (*delta.held_factors, *delta.held_owned)}
    return [slot for slot in layout.slots if slot.dtype == "F32" and (every or slot.name in owned)]


# ---- the graph -------------------------------------------------------------------------------------------------------


class _WithInputs(nn.Module):
    """A model some of whose tensors are inputs."""

    def __init__(self, model: nn.Module, names: list[str], call: Call) -> None:
        super().__init__()
        self.called, self._names = _Called(model, call), names

    def forward(self, x: Any, tensors: list[Tensor]) -> Tensor:
        """Outputs for a batch."""
        given = {f"model.{name}": tensor for name, tensor in zip(self._names, tensors, strict=True)}
        return cast(Tensor, functional_call(self.called, given, (x,)))


class _Called(nn.Module):
    """A model as it is called."""

    def __init__(self, model: nn.Module, call: Call) -> None:
        super().__init__()
        self.model, self._call = model, call

    def forward(self, x: Any) -> Tensor:
        """Outputs for a batch."""
        return self._call(self.model, x)


def _graph(base: nn.Module, slots: list[Slot], x: Batch, call: Call) -> bytes:
    """The model in ONNX, with inputs that have values by default, and the weights made from them."""
    import onnx

    tensors = {n: t.detach().contiguous() for n, t in (*base.named_parameters(), *base.named_buffers())}
    names = [slot.name for slot in slots]
    keys = list(x) if isinstance(x, dict) else None
    axes = {slot.name: slot.output_axis for slot in slots if slot.is_head and slot.output_axis >= 0}
    rows = tree.tree_map(lambda _: {0: torch.export.Dim.DYNAMIC}, x)
    free = [{axes[name]: torch.export.Dim.DYNAMIC} if name in axes else None for name in names]
    given = [_wide(tensors[name], axes.get(name)) for name in names]
    count = len(tree.leaves(x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        try:
            program = torch.onnx.export(
                _WithInputs(base, names, call),
                (x, given),
                dynamo=True,
                dynamic_shapes=(rows, free),
                input_names=[*(keys or (["x"] if count == 1 else [f"x{n}" for n in range(count)])), *names],
                output_names=["logits"],
                verbose=False,
            )
        except Exception as error:
            raise ModelError(f"{GRAPH} was not written: torch cannot export the model ({error})") from error
    model = cast(Any, program).model_proto
    used = {name for node in model.graph.node for name in node.input}
    for slot in slots:
        if slot.name not in used:
            _remove_input(model.graph, slot.name)
            continue
        _add_default(model.graph, Part(slot.name, tensors[slot.name]), has_input=True)
        if slot.kind == "adapted":
            _merge(model.graph, slot, tensors[slot.name])
    onnx.checker.check_model(model)
    return cast(bytes, model.SerializeToString())


def _wide(tensor: Tensor, axis: int | None) -> Tensor:
    """A tensor with more than one entry along an axis: a single one would be taken for a constant."""
    if axis is None or tensor.shape[axis] > 1:
        return tensor
    return torch.cat([tensor, tensor], axis)


def parts(slot: Slot, weight: Tensor) -> Iterator[Part]:
    """The inputs of which an adapted weight (J, I, *kernel) is made, by default those that leave it as it is."""
    rows, columns = weight.shape[0], weight.shape[1]
    yield Part(f"r/{slot.name}", torch.ones(rows))
    yield Part(f"s/{slot.name}", torch.ones(columns))
    yield Part(f"p/{slot.name}", torch.zeros(rows, RANK), free=(1,))
    yield Part(f"q/{slot.name}", torch.zeros(RANK, columns), free=(0, 1) if weight.dim() > 2 else (0,))


def _add_default(graph: Any, part: Part, has_input: bool = False) -> None:
    from onnx import TensorProto, helper, numpy_helper

    if not has_input:
        shape = [f"{part.name}:{n}" if n in part.free else size for n, size in enumerate(part.value.shape)]
        graph.input.append(helper.make_tensor_value_info(part.name, TensorProto.FLOAT, shape))
    graph.initializer.append(numpy_helper.from_array(part.value.numpy(), part.name))


def _remove_input(graph: Any, name: str) -> None:
    graph.input.remove(next(given for given in graph.input if given.name == name))


def _merge(graph: Any, slot: Slot, weight: Tensor) -> None:
    """Compute r ∘ W ∘ s + p q before the nodes that read W, and let them read that."""
    from onnx import helper, numpy_helper

    name, merged = slot.name, f"merged/{slot.name}"
    for node in graph.node:
        for number, read in enumerate(node.input):
            if read == name:
                node.input[number] = merged
    for part in parts(slot, weight):
        _add_default(graph, part)
    rows, columns = weight.shape[:2]
    shapes = {
        "r": np.array([rows, 1, 1]),
        "s": np.array([1, columns, 1]),
        "W": np.array([rows, columns, weight[0, 0].numel()]),
        "pq": np.array([rows, columns, -1]),  # the last is the number of positions of a kernel, or 1 for all of them
        "shape": np.array(weight.shape),
    }
    for key, shape in shapes.items():
        graph.initializer.append(numpy_helper.from_array(shape.astype(np.int64), f"{merged}/{key}"))

    def at(key: str) -> str:
        return f"{merged}:{key}"

    nodes = [
        helper.make_node("Reshape", [f"r/{name}", f"{merged}/r"], [at("r")]),
        helper.make_node("Reshape", [f"s/{name}", f"{merged}/s"], [at("s")]),
        helper.make_node("Reshape", [name, f"{merged}/W"], [at("W")]),
        helper.make_node("Mul", [at("W"), at("r")], [at("rW")]),
        helper.make_node("Mul", [at("rW"), at("s")], [at("rWs")]),
        helper.make_node("MatMul", [f"p/{name}", f"q/{name}"], [at("product")]),
        helper.make_node("Reshape", [at("product"), f"{merged}/pq"], [at("pq")]),
        helper.make_node("Add", [at("rWs"), at("pq")], [at("sum")]),
        helper.make_node("Reshape", [at("sum"), f"{merged}/shape"], [merged]),
    ]
    for number, node in enumerate(nodes):
        graph.node.insert(number, node)


# ---- the tasks -------------------------------------------------------------------------------------------------------


def _adapter(delta: Delta, known: Collection[str], path: Path) -> bytes:
    """The file of a task: those inputs of the graph that are not the base's."""
    import onnxruntime

    values = dict(delta.held_owned)
    for name, factors in delta.held_factors.items():
        values |= {f"r/{name}": factors.r, f"s/{name}": factors.s}
        if factors.rank:
            values |= {f"p/{name}": factors.p, f"q/{name}": factors.q}
    file = onnxruntime.AdapterFormat()
    file.set_adapter_version(1)
    file.set_model_version(1)
    arrays = {n: t.detach().cpu().float().contiguous().numpy() for n, t in values.items() if n in known}
    file.set_parameters({n: onnxruntime.OrtValue.ortvalue_from_numpy(array) for n, array in arrays.items()})
    file.export_adapter(str(path))
    return path.read_bytes()


def _session(graph: bytes, path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"{path}: ONNX Runtime cannot run it ({error}); write it again with force=True") from error


def _compared(
    session: Any,
    names: list[str] | None,
    predict: Callable[[Batch, str | None], Tensor],
    batches: tuple[Batch, ...],
    task: str | None,
    file: Path | None,
) -> float:
    """How far ONNX Runtime's logits are from those of `predict`; `ModelError` if that is not rounding alone."""
    import onnxruntime

    options, difference = onnxruntime.RunOptions(), 0.0
    if file is not None:
        adapter = onnxruntime.LoraAdapter()
        adapter.Load(str(file))
        options.add_active_adapter(adapter)
    for x in batches:
        leaves = tree.leaves(x)
        keys = names or [given.name for given in session.get_inputs()][: len(leaves)]
        feed = {key: leaf.numpy() for key, leaf in zip(keys, leaves, strict=True)}
        logits, expected = torch.from_numpy(session.run(None, feed, options)[0]), predict(x, task).cpu().float()
        gap = (logits - expected).abs().max().item() if logits.shape == expected.shape else float("inf")
        allowed = torch.finfo(torch.float32).eps ** 0.5 * max(1.0, expected.abs().max().item())
        if not gap <= allowed:
            raise ModelError(
                f"nothing was written: with task {task!r} on {tree.rows(x)} rows the logits of {GRAPH} differ from "
                f"predict by {gap:.1e}, more than {allowed:.1e}; if it was there before, write all again with "
                "force=True, and otherwise export each task alone"
            )
        difference = max(difference, gap)
    return difference
