"""Requests and answers of the Open Inference Protocol (V2), with its extension for binary tensors.

A request is JSON; with the header `Inference-Header-Content-Length` that JSON is followed by the bytes of those tensors
that have a `binary_data_size`. The protocol is the one of Triton, KServe and MLServer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from halrp.checks import is_whole
from halrp.server import tensors
from halrp.server.errors import RequestError
from halrp.server.tensors import check_shape

HEADER = "inference-header-content-length"
"""The name of the header with the length of the JSON before binary tensors."""
TASK = "task"
"""The input that names a task for each row."""
OUTPUT, LABEL, PROBABILITY = "output", "label", "probability"
OUTPUTS = (OUTPUT, LABEL, PROBABILITY, TASK)
"""What can be asked for; the task of each row only of the model that finds it."""
MOST_INPUTS = 32


@dataclass(frozen=True)
class InferRequest:
    """What a client asks."""

    inputs: Mapping[str, Tensor]
    tasks: list[str] | None = None
    """A name for each row, in a mixed request."""
    outputs: Mapping[str, bool] = field(default_factory=lambda: {OUTPUT: False})
    """The outputs that are asked for, and whether each is sent as bytes."""
    id: str | None = None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.inputs.values())))


def parse(body: bytes, header: str | None, most: int = 1 << 30) -> InferRequest:
    """Read a request, trusting nothing; its JSON may have `most` bytes."""
    facts, binary = _split(body, header, most)
    given = facts.get("inputs")
    if not isinstance(given, list) or not 0 < len(given) <= MOST_INPUTS:
        raise RequestError(400, f"a request has a list `inputs` of 1 to {MOST_INPUTS} tensors")
    inputs: dict[str, Tensor] = {}
    tasks: list[str] | None = None
    names: set[str] = set()
    for facts_of_input in given:
        name, datatype, shape, content = _input(facts_of_input, binary)
        if name in names:
            raise RequestError(400, f"input {name!r} is given twice")
        names.add(name)
        if datatype == "BYTES":
            if name != TASK or len(shape) > 2 or (len(shape) == 2 and shape[1] != 1):
                raise RequestError(400, f"input {name!r}: only `{TASK}` is BYTES, with a name for each row")
            is_bytes = isinstance(content, memoryview)
            tasks = (tensors.texts_from_bytes if is_bytes else tensors.texts_from_json)(content, shape, name)  # type: ignore[arg-type]
        elif isinstance(content, memoryview):
            inputs[name] = tensors.from_bytes(content, datatype, shape, name)
        else:
            inputs[name] = tensors.from_json(content, datatype, shape, name)
    if binary.rest:
        raise RequestError(400, f"the body has {binary.rest} bytes that belong to no input")
    return _checked(InferRequest(inputs, tasks, _outputs(facts), _id(facts)))


class _Binary:
    """The bytes after the JSON, taken by one input after another."""

    def __init__(self, content: memoryview) -> None:
        self._content, self._position = content, 0

    @property
    def rest(self) -> int:
        return len(self._content) - self._position

    def take(self, size: object, name: str) -> memoryview:
        if not is_whole(size, 0, self.rest + 1):
            raise RequestError(400, f"input {name!r} has a binary_data_size of {size!r}; {self.rest} bytes are left")
        start = self._position
        self._position += size  # type: ignore[operator]
        return self._content[start : self._position]


def _split(body: bytes, header: str | None, most: int) -> tuple[dict[str, Any], _Binary]:
    length = len(body)
    if header is not None:
        if not header.isascii() or not header.isdecimal() or int(header[:20]) > len(body):
            raise RequestError(400, f"{HEADER} is {header[:40]!r}, but the body has {len(body)} bytes")
        length = int(header)
    if length > most:
        raise RequestError(
            413, f"the request has {length} bytes of JSON; this server takes {most}: send binary tensors"
        )
    try:
        facts = json.loads(body[:length])
    except (ValueError, RecursionError) as error:
        raise RequestError(400, "the request is not JSON") from error
    if not isinstance(facts, dict):
        raise RequestError(400, "the request is no JSON object")
    return facts, _Binary(memoryview(body)[length:])


def _input(facts: object, binary: _Binary) -> tuple[str, object, tuple[int, ...], object]:
    if not isinstance(facts, dict) or not isinstance(facts.get("name"), str):
        raise RequestError(400, "an input is an object with name, shape, datatype and data")
    name, parameters = facts["name"], facts.get("parameters") or {}
    shape = check_shape(facts.get("shape"), name)
    if isinstance(parameters, dict) and "binary_data_size" in parameters:
        return name, facts.get("datatype"), shape, binary.take(parameters["binary_data_size"], name)
    if isinstance(parameters, dict) and "shared_memory_region" in parameters:
        raise RequestError(400, f"input {name!r}: this server has no shared memory; send the data")
    if "data" not in facts:
        raise RequestError(400, f"input {name!r} has no data")
    return name, facts.get("datatype"), shape, facts["data"]


def _outputs(facts: Mapping[str, Any]) -> dict[str, bool]:
    parameters = facts.get("parameters") or {}
    default = isinstance(parameters, dict) and parameters.get("binary_data_output") is True
    asked = facts.get("outputs")
    if asked is None or asked == []:
        return {OUTPUT: default}
    outputs = {}
    for output in asked if isinstance(asked, list) else [None]:
        facts_of_output = output if isinstance(output, dict) else {}
        name = facts_of_output.get("name")
        if name not in OUTPUTS:
            raise RequestError(400, f"there is no output {name!r}; a model has {', '.join(OUTPUTS[:-1])}")
        of_output = facts_of_output.get("parameters") or {}
        wanted = of_output.get("binary_data", default) if isinstance(of_output, dict) else default
        outputs[name] = wanted is True
    return outputs


def _id(facts: Mapping[str, Any]) -> str | None:
    given = facts.get("id")
    if given is not None and (not isinstance(given, str) or len(given) > 1024):
        raise RequestError(400, "the id of a request is a text of at most 1024 characters")
    return given


def _checked(request: InferRequest) -> InferRequest:
    if not request.inputs:
        raise RequestError(400, f"a request has an input besides `{TASK}`")
    sizes = {name: len(tensor) for name, tensor in request.inputs.items()}
    if request.tasks is not None:
        sizes[TASK] = len(request.tasks)
    if len(set(sizes.values())) > 1 or not request.rows:
        raise RequestError(400, f"inputs have {sizes} rows; all have the same number, and at least one")
    return request


@dataclass(frozen=True)
class Answer:
    """What a client gets."""

    model: str
    version: str
    """Empty for a mixed request, whose tasks have a version each."""
    outputs: Mapping[str, Tensor | list[str]]
    id: str | None = None

    def encode(self, binary: Mapping[str, bool]) -> tuple[bytes, int | None]:
        """The body, and the length of its JSON if bytes follow; `binary` says which outputs are sent as bytes."""
        described, chunks = [], []
        for name, values in self.outputs.items():
            is_texts = isinstance(values, list)
            facts: dict[str, Any] = {"name": name}
            facts["datatype"] = "BYTES" if is_texts else tensors.NAMES[values.dtype]  # type: ignore[union-attr]
            facts["shape"] = [len(values)] if is_texts else list(values.shape)  # type: ignore[union-attr]
            if binary.get(name):
                chunk = tensors.texts_to_bytes(values) if isinstance(values, list) else tensors.to_bytes(values)
                facts["parameters"] = {"binary_data_size": len(chunk)}
                chunks.append(chunk)
            else:
                facts["data"] = values if isinstance(values, list) else tensors.to_json(values)
            described.append(facts)
        answer: dict[str, Any] = {"model_name": self.model, "outputs": described}
        if self.version:
            answer["model_version"] = self.version
        if self.id is not None:
            answer["id"] = self.id
        text = json.dumps(answer, allow_nan=False, separators=(",", ":")).encode()
        return b"".join([text, *chunks]), len(text) if chunks else None
