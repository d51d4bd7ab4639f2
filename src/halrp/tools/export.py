"""A task as a file for other runtimes: ONNX, or torch's own `.pt2`.

The file is made in memory, run in the runtime it is meant for, and compared with what the library predicts. Only then
is it written, atomically. It holds merged weights and nothing of this library.
"""

from __future__ import annotations

import importlib.util
import inspect
import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from halrp.errors import ConflictError, ModelError, SettingError
from halrp.model import batch as tree
from halrp.model.batch import Batch
from halrp.model.call import Call
from halrp.model.precision import run_as_called
from halrp.store import atomic

ENDINGS = (".onnx", ".pt2")
"""Formats, by the ending of the file's name."""
_NEEDED = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Exported:
    """A file that was written."""

    path: Path
    bytes: int
    difference: float
    """The largest difference between its logits and the library's."""
    rows: tuple[int, ...]
    """The sizes of the batches that were compared."""


def refuse_path(path: Path, force: bool = False) -> None:
    """Refuse a file that exists, or whose format is unknown or cannot be made here."""
    if path.suffix not in ENDINGS:
        raise SettingError(f"{path}: the name must end in {' or '.join(ENDINGS)}, which says the format")
    missing = [name for name in _NEEDED if path.suffix == ".onnx" and importlib.util.find_spec(name) is None]
    if missing:
        raise SettingError(f"{path}: ONNX needs {', '.join(missing)}; run: pip install 'halrp[onnx]'")
    if path.is_dir():
        raise ConflictError(f"{path} is a folder; name a file")
    if path.exists() and not force:
        raise ConflictError(f"{path} exists; choose another name, or pass --force to replace it")


def write(
    module: nn.Module,
    predict: Callable[[Batch], Tensor],
    example: Batch,
    path: Path,
    *,
    dynamic: bool = True,
    force: bool = False,
    call: Call | None = None,
) -> Exported:
    """Write a plain module to a file and return how far its logits are from those of `predict`.

    `example` gives names, shapes and types of the inputs; those of a dict keep their names in the file. `call` says how
    they reach the module. With `dynamic` the file takes any number of rows, otherwise that of the example. `module`
    must be the caller's own: its tensors get another memory layout. ONNX knows no autocast, so such a file computes in
    the model's own precision, also for a task that was learned in a lower one.
    """
    refuse_path(path, force)
    if path.suffix == ".onnx":
        run_as_called(module)
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = tensor.data.contiguous()
    if dynamic and tree.rows(example) == 1:  # one row would be taken for a constant
        example = tree.concatenate([example, tree.tree_map(lambda t: t.flip(-1) if t.dim() > 1 else t, example)])
    first = tree.take(example, slice(1))
    inputs = [example, first, tree.concatenate([example, first])] if dynamic else [example]
    call = call or Call()
    if _refuse_input(module, call, example, path):
        module = OutputsAlone(module, call, example)
    content = _content(module, example, path, dynamic)
    difference = 0.0
    for x, logits in zip(inputs, _run(content, inputs, path), strict=True):
        expected = predict(x)
        gap = (logits - expected).abs().max().item() if logits.shape == expected.shape else float("inf")
        # Merging the weights and fusing the layers round differently: half the digits must agree.
        allowed = torch.finfo(expected.dtype).eps ** 0.5 * max(1.0, expected.abs().max().item())
        if not gap <= allowed:
            raise ModelError(
                f"{path} was not written: on {tree.rows(x)} rows its logits differ from predict by {gap:.1e}, more "
                f"than {allowed:.1e}; does the model behave differently when traced, or draw random numbers?"
            )
        difference = max(difference, gap)
    atomic.write(path, content)
    atomic.flush_folder(path.parent)
    return Exported(path, len(content), difference, tuple(map(tree.rows, inputs)))


def _refuse_input(module: nn.Module, call: Call, example: Batch, path: Path) -> bool:
    """Say that inputs do not fit in the model's own words, before torch's exporter says it in many more.

    Returns whether the module must be wrapped, since it takes or gives more than its inputs and outputs.
    """
    try:
        with torch.no_grad():
            given = call.given(module, example)
            call.pick(given)
    except Exception as error:
        raise ModelError(
            f"{path} was not written: the model fails on inputs of {tree.describe(example)} ({_first_line(error)}); "
            "check the shape, and pass --tokens if inputs are token ids"
        ) from error
    return call != Call() or not isinstance(given, Tensor)


class OutputsAlone(nn.Module):
    """A model that takes what users pass and gives its outputs alone, under the names that its inputs have."""

    def __init__(self, model: nn.Module, call: Call, example: Batch) -> None:
        """Hold a model and its call; names come from a dict of inputs, or from the model."""
        super().__init__()
        self.model, self._call, self._single = model, call, isinstance(example, Tensor)
        names = list(example) if isinstance(example, dict) else self._names(1 if self._single else len(example))
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self._signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])

    def _names(self, count: int) -> list[str]:
        names = list(inspect.signature(self.model.forward).parameters)
        plain = self._call.transform is None and len(names) >= count
        return names[:count] if plain else [f"x{number}" for number in range(count)] if count > 1 else ["x"]

    @property
    def forward(self) -> Callable[..., Any]:  # type: ignore[override]
        """A function with named parameters, as torch.export names inputs by them."""

        def forward(*inputs: Any, **named: Any) -> Tensor:
            return self._call(self.model, named or (inputs[0] if self._single else inputs))

        cast(Any, forward).__signature__ = self._signature
        return forward


def _content(module: nn.Module, example: Batch, path: Path, dynamic: bool) -> bytes:
    """The file of a module."""
    shapes = tree.tree_map(lambda _: {0: torch.export.Dim.DYNAMIC}, example) if dynamic else None
    args, kwargs = ((), example) if isinstance(example, dict) else (example, {})
    if isinstance(example, Tensor):
        args, shapes = (example,), (shapes,) if dynamic else None
    if path.suffix == ".onnx" and any(t.dtype == torch.bfloat16 for t in tree.leaves(example)):
        raise ModelError(f"{path}: a bfloat16 model cannot be checked as ONNX; convert it with .float(), or write .pt2")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch about itself
            if path.suffix == ".onnx":
                program = torch.onnx.export(
                    module,
                    args,
                    kwargs=kwargs,
                    dynamo=True,
                    dynamic_shapes=shapes,
                    input_names=list(kwargs) or None,
                    output_names=["logits"],
                    verbose=False,
                )
                return cast(bytes, cast(Any, program).model_proto.SerializeToString())
            buffer = io.BytesIO()
            torch.export.save(torch.export.export(module, args, kwargs, dynamic_shapes=shapes), buffer)
            return buffer.getvalue()
    except Exception as error:
        advice = "; if it depends on the number of rows, pass --batch fixed" if dynamic else ""
        raise ModelError(
            f"{path} was not written: torch cannot export the model ({_first_line(error)}){advice}"
        ) from error


def _first_line(error: BaseException) -> str:
    """What an error says first, where it began."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _run(content: bytes, inputs: Sequence[Batch], path: Path) -> list[Tensor]:
    """The logits of a file, computed by the runtime it is meant for."""
    if path.suffix == ".onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        names = [given.name for given in session.get_inputs()]
        return [torch.from_numpy(session.run(None, _feed(x, names))[0]) for x in inputs]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        module = torch.export.load(io.BytesIO(content)).module()
        return [Call()(module, x) for x in inputs]


def _feed(batch: Batch, names: Sequence[str]) -> dict[str, Any]:
    """The inputs of a session: by name if the batch has names, or else one after the other."""
    named = batch if isinstance(batch, dict) else dict(zip(names, tree.leaves(batch), strict=False))
    return {name: named[name].numpy() for name in names}
