"""A task as a file for other runtimes: ONNX, or torch's own `.pt2`.

The file is made in memory, run in the runtime it is meant for, and compared with what the library predicts. Only then
is it written, atomically. It holds merged weights and nothing of this library.
"""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from halrp.errors import ConflictError, ModelError, SettingError
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
    predict: Callable[[Tensor], Tensor],
    example: Tensor,
    path: Path,
    *,
    dynamic: bool = True,
    force: bool = False,
) -> Exported:
    """Write a plain module to a file and return how far its logits are from those of `predict`.

    `example` (N, ...) gives shape and type of the inputs. With `dynamic` the file takes any number of rows, otherwise
    N. `module` must be the caller's own: its tensors get another memory layout. ONNX knows no autocast, so such a file
    computes in the model's own precision, also for a task that was learned in a lower one.
    """
    refuse_path(path, force)
    if path.suffix == ".onnx":
        run_as_called(module)
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = tensor.data.contiguous()
    if dynamic and len(example) == 1:
        example = torch.cat([example, example.flip(-1)])  # one row would be taken for a constant
    inputs = [example, example[:1], torch.cat([example, example[:1]])] if dynamic else [example]
    _refuse_input(module, example, path)
    content = _content(module, example, path, dynamic)
    difference = 0.0
    for x, logits in zip(inputs, _run(content, inputs, path), strict=True):
        expected = predict(x)
        gap = (logits - expected).abs().max().item() if logits.shape == expected.shape else float("inf")
        # Merging the weights and fusing the layers round differently: half the digits must agree.
        allowed = torch.finfo(expected.dtype).eps ** 0.5 * max(1.0, expected.abs().max().item())
        if not gap <= allowed:
            raise ModelError(
                f"{path} was not written: on {len(x)} rows its logits differ from predict by {gap:.1e}, more than "
                f"{allowed:.1e}; does the model behave differently when traced, or use random numbers in evaluation?"
            )
        difference = max(difference, gap)
    atomic.write(path, content)
    atomic.flush_folder(path.parent)
    return Exported(path, len(content), difference, tuple(len(x) for x in inputs))


def _refuse_input(module: nn.Module, example: Tensor, path: Path) -> None:
    """Say that inputs do not fit in the model's own words, before torch's exporter says it in many more."""
    try:
        with torch.no_grad():
            module(example)
    except Exception as error:
        raise ModelError(
            f"{path} was not written: the model fails on inputs of shape {tuple(example.shape)} and type "
            f"{example.dtype} ({_first_line(error)}); check the shape, and pass --tokens if inputs are token ids"
        ) from error


def _content(module: nn.Module, example: Tensor, path: Path, dynamic: bool) -> bytes:
    """The file of a module."""
    shapes = ({0: torch.export.Dim.DYNAMIC},) if dynamic else None
    if path.suffix == ".onnx" and example.dtype == torch.bfloat16:
        raise ModelError(f"{path}: a bfloat16 model cannot be checked as ONNX; convert it with .float(), or write .pt2")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch about itself
            if path.suffix == ".onnx":
                program = torch.onnx.export(
                    module, (example,), dynamo=True, dynamic_shapes=shapes, output_names=["logits"], verbose=False
                )
                return cast(bytes, cast(Any, program).model_proto.SerializeToString())
            buffer = io.BytesIO()
            torch.export.save(torch.export.export(module, (example,), dynamic_shapes=shapes), buffer)
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


def _run(content: bytes, inputs: Sequence[Tensor], path: Path) -> list[Tensor]:
    """The logits of a file, computed by the runtime it is meant for."""
    if path.suffix == ".onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        return [torch.from_numpy(session.run(None, {name: x.numpy()})[0]) for x in inputs]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        module = torch.export.load(io.BytesIO(content)).module()
        return [module(x) for x in inputs]
