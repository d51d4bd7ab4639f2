"""Tensors of the Open Inference Protocol, as JSON numbers and as bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from halrp.checks import is_whole
from halrp.server.errors import RequestError

DATATYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "BF16": torch.bfloat16,
    "FP32": torch.float32,
    "FP64": torch.float64,
}
"""Datatypes of the protocol that torch has and computes with."""
NAMES = {dtype: name for name, dtype in DATATYPES.items()}
MOST_DIMENSIONS = 8


def check_shape(given: object, name: str) -> tuple[int, ...]:
    """The shape of a tensor in a request."""
    good = isinstance(given, list) and 0 < len(given) <= MOST_DIMENSIONS and all(is_whole(n, 0, 2**40) for n in given)
    if not good:
        raise RequestError(400, f"input {name!r} has the shape {given!r}; give a list of whole numbers, rows first")
    return tuple(given)  # type: ignore[arg-type]


def _dtype(datatype: object, name: str) -> torch.dtype:
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        known = ", ".join((*DATATYPES, "BYTES"))
        raise RequestError(400, f"input {name!r} has the datatype {datatype!r}; this server knows {known}")
    return DATATYPES[datatype]


def from_bytes(content: memoryview, datatype: object, shape: tuple[int, ...], name: str) -> Tensor:
    """A tensor from its numbers, little-endian, row after row."""
    dtype, count = _dtype(datatype, name), math.prod(shape)
    if len(content) != count * dtype.itemsize:
        raise RequestError(
            400,
            f"input {name!r} has {len(content)} bytes, but {datatype} of shape {list(shape)} has "
            f"{count * dtype.itemsize}",
        )
    if not count:
        return torch.empty(shape, dtype=dtype)
    # A copy: it is aligned, and does not keep the body of the request.
    raw = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return (raw != 0 if dtype == torch.bool else raw.view(dtype)).view(shape)


def from_json(data: object, datatype: object, shape: tuple[int, ...], name: str) -> Tensor:
    """A tensor from numbers in a list, flat or nested by its shape."""
    dtype, flat = _dtype(datatype, name), flattened(data, shape, name)
    kinds = (bool,) if dtype == torch.bool else (int, float) if dtype.is_floating_point else (int,)
    if not all(type(value) in kinds for value in flat):
        raise RequestError(400, f"input {name!r} has data that are not {datatype}")
    try:
        return torch.tensor(flat, dtype=dtype).view(shape)
    except (RuntimeError, OverflowError) as error:
        raise RequestError(400, f"input {name!r} has numbers beyond the range of {datatype}") from error


def flattened(data: object, shape: tuple[int, ...], name: str) -> list[Any]:
    """The values of a list that is flat, or nested by the shape."""
    values, depth = data, 0
    while isinstance(values, list) and values and isinstance(values[0], list) and depth < MOST_DIMENSIONS:
        if not all(isinstance(part, list) for part in values):
            raise RequestError(400, f"input {name!r} has data that are nested unevenly")
        values, depth = [value for part in values for value in part], depth + 1
    if not isinstance(values, list) or len(values) != math.prod(shape):
        count = len(values) if isinstance(values, list) else "no list of"
        raise RequestError(400, f"input {name!r} has {count} values, but the shape {list(shape)}")
    return values


def texts_from_bytes(content: memoryview, shape: tuple[int, ...], name: str) -> list[str]:
    """Texts of a BYTES tensor: each is its length in four bytes, and its bytes."""
    texts, position = [], 0
    for _ in range(math.prod(shape) if math.prod(shape) <= len(content) // 4 else 0):
        if position + 4 > len(content):
            break
        (length,) = struct.unpack_from("<I", content, position)
        texts.append(_decoded(bytes(content[position + 4 : position + 4 + length]), name))
        position += 4 + length
    if position != len(content) or len(texts) != math.prod(shape):
        raise RequestError(400, f"input {name!r} has bytes that do not hold {math.prod(shape)} texts")
    return texts


def texts_from_json(data: object, shape: tuple[int, ...], name: str) -> list[str]:
    """Texts of a BYTES tensor in JSON."""
    values = flattened(data, shape, name)
    if not all(isinstance(value, str) for value in values):
        raise RequestError(400, f"input {name!r} has data that are not texts")
    return values


def _decoded(raw: bytes, name: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise RequestError(400, f"input {name!r} has a text that is not UTF-8") from error


def to_bytes(tensor: Tensor) -> bytes:
    """The numbers of a tensor, little-endian, row after row."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def to_json(tensor: Tensor) -> list[Any]:
    """The numbers of a tensor in a flat list; null where JSON has no number, as for −inf."""
    values: list[Any] = tensor.detach().to("cpu").reshape(-1).tolist()
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        return [value if math.isfinite(value) else None for value in values]
    return values


def texts_to_bytes(texts: Sequence[str]) -> bytes:
    """A BYTES tensor as bytes."""
    encoded = [text.encode() for text in texts]
    return b"".join(len(raw).to_bytes(4, "little") + raw for raw in encoded)
