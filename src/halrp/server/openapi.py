"""The protocol as the server speaks it, described for tools: `description` is an OpenAPI document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from halrp._version import __version__
from halrp.server.inputs import InputSpec
from halrp.server.protocol import HEADER, MOST_INPUTS, OUTPUTS, TASK
from halrp.server.tensors import DATATYPES, MOST_DIMENSIONS

Schema = dict[str, Any]
SHAPE = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "maxItems": MOST_DIMENSIONS}
TEXT: Schema = {"type": "string"}
DATATYPE: Schema = {"type": "string", "enum": [*DATATYPES, "BYTES"]}


def _object(required: Sequence[str], **properties: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": properties}


def _list(items: Schema, **bounds: int) -> Schema:
    return {"type": "array", "items": items, **bounds}


def _described_tensor(**more: Schema) -> Schema:
    return _object(
        ["name", "datatype", "shape"],
        name=TEXT,
        datatype=DATATYPE,
        shape=_list({"type": "integer", "minimum": -1}),
        **more,
    )


_PARAMETERS: Schema = {"type": "object"}
SCHEMAS: dict[str, Schema] = {
    "Error": _object(["error"], error=TEXT),
    "Server": _object(["name", "version", "extensions"], name=TEXT, version=TEXT, extensions=_list(TEXT)),
    "Model": _object(
        ["name", "platform", "inputs", "outputs"],
        name=TEXT,
        versions=_list(TEXT),
        platform=TEXT,
        inputs=_list(_described_tensor(parameters=_PARAMETERS)),
        outputs=_list(_described_tensor()),
    ),
    "Index": _list(
        _object(["name"], name=TEXT, version=TEXT, state={"type": "string", "enum": ["READY"]}, reason=TEXT)
    ),
    "InferRequest": _object(
        ["inputs"],
        id={"type": ["string", "null"], "maxLength": 1024},  # clients send null for what they leave out
        inputs=_list(
            _object(
                ["name", "datatype", "shape", "data"], name=TEXT, datatype=DATATYPE, shape=SHAPE, data={"type": "array"}
            ),
            minItems=1,
            maxItems=MOST_INPUTS,
        ),
        outputs=_list(_object(["name"], name={"type": "string", "enum": list(OUTPUTS)})) | {"type": ["array", "null"]},
    ),
    "InferAnswer": _object(
        ["model_name", "outputs"],
        model_name=TEXT,
        model_version=TEXT,
        id=TEXT,
        outputs=_list(
            _object(
                ["name", "datatype", "shape", "data"],
                name={"type": "string", "enum": list(OUTPUTS)},
                datatype=DATATYPE,
                shape=SHAPE,
                data={"type": "array"},
            )
        ),
    ),
}
REASONS = {
    "400": "The request makes no sense; the reason is in `error`.",
    "401": "A token is needed, or this one is not known.",
    "404": "There is nothing of this name, or this token may not see it.",
    "408": "The request did not come in time.",
    "413": "The request is larger than this server takes.",
    "415": "The body is compressed, which this server does not take.",
    "429": "Too much is waiting; try again later.",
    "503": "The model cannot be served at present, or not in time.",
}


def description(inputs: Sequence[InputSpec]) -> dict[str, Any]:
    """The OpenAPI document; the inputs that the server was started with make an example."""
    version = {"name": "version", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    paths: dict[str, Any] = {
        "/v2": {"get": _operation("server", "What the server is.", "Server", private=False)},
        "/v2/health/live": {"get": _operation("live", "That the server answers.", None, private=False)},
        "/v2/health/ready": {"get": _operation("ready", "That the server answers.", None, private=False)},
        "/v2/repository/index": {"post": _operation("index", "The tasks, and the base.", "Index")},
    }
    for prefix, of_version in (("/v2/models/{model}", []), ("/v2/models/{model}/versions/{version}", [version])):
        named = {"parameters": [MODEL, *of_version]}
        suffix = "Version" if of_version else ""
        missing = ("404", "503")
        metadata = _operation(f"metadata{suffix}", "What a model takes and gives.", "Model", missing)
        paths[prefix] = {**named, "get": metadata}
        ready = _operation(f"modelReady{suffix}", "Whether a model can be asked.", None, missing)
        paths[f"{prefix}/ready"] = {**named, "get": ready}
        infer = _operation(f"infer{suffix}", "Outputs of a task, or of a task for each row.", "InferAnswer", REASONS)
        infer["requestBody"] = {"required": True, "content": _json("InferRequest", _example(inputs))}
        infer["description"] = f"With the header {HEADER.title()}, bytes of tensors follow the JSON of that length."
        infer["responses"]["200"]["content"]["application/octet-stream"] = {}
        paths[f"{prefix}/infer"] = {**named, "post": infer}
    for action, meaning in (("load", "Read a task in advance."), ("unload", "Give the memory of a task back.")):
        operation = _operation(action, meaning, None, ("400", "404", "503"))
        operation["responses"]["200"]["content"] = {"application/json": {"schema": {"type": "object"}}}
        paths[f"/v2/repository/models/{{model}}/{action}"] = {"parameters": [MODEL], "post": operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "halrp: Open Inference Protocol (V2)", "version": __version__},
        "paths": paths,
        "components": {"schemas": SCHEMAS, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


MODEL: dict[str, Any] = {
    "name": "model",
    "in": "path",
    "required": True,
    "description": "A task, or `base`; to `base` a request may have an input `task` with a task for each row.",
    "schema": {"type": "string", "minLength": 1},
    "example": "base",
}


def _operation(
    name: str, meaning: str, answer: str | None, statuses: Sequence[str] | Mapping[str, str] = (), private: bool = True
) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": meaning}}
    if answer is not None:
        responses["200"]["content"] = _json(answer)
    for status in dict.fromkeys((*(("401",) if private else ()), *statuses)):
        responses[status] = {"description": REASONS[status], "content": _json("Error")}
    operation: dict[str, Any] = {"operationId": name, "summary": meaning, "responses": responses}
    # A server that was started without tokens asks for none.
    return operation | ({"security": [{}, {"token": []}]} if private else {"security": []})


def _json(schema: str, example: object = None) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{schema}"}}
    return {"application/json": content if example is None else content | {"example": example}}


def _example(inputs: Sequence[InputSpec]) -> dict[str, Any] | None:
    """A request of one row of zeros, if it is known what a row is."""
    tensors = []
    for spec in inputs:
        shape = [1, *(max(size, 1) for size in spec.shape)]
        zero: object = False if spec.datatype == "BOOL" else 0
        data = [zero] * math.prod(shape)
        tensors.append({"name": spec.name, "datatype": spec.datatype, "shape": shape, "data": data})
    return {"inputs": tensors} if tensors and all(spec.name != TASK for spec in inputs) else None
