"""Requests in JSON and in bytes: what is right comes through, and what is not is refused with 400."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from halrp.errors import SettingError
from halrp.server import protocol, tensors
from halrp.server.errors import RequestError
from halrp.server.inputs import InputSpec, as_batch
from halrp.server.protocol import Answer, parse

VALUES: dict[str, list[Any]] = {
    "BOOL": [True, False, True, True],
    "UINT8": [0, 1, 254, 255],
    "INT8": [-128, 0, 1, 127],
    "INT16": [-32768, 0, 1, 32767],
    "INT32": [-(2**31), 0, 1, 2**31 - 1],
    "INT64": [-(2**63), 0, 1, 2**63 - 1],
    "FP16": [0.5, -1.0, 2.0, 0.0],
    "BF16": [0.5, -1.0, 2.0, 0.0],
    "FP32": [0.5, -1.0, 1e30, 3],
    "FP64": [0.5, -1.0, 1e300, 3],
}


def tensor(name: str = "x", shape: Any = (2, 2), datatype: Any = "FP32", **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": list(shape), "datatype": datatype, **more}


def body(*inputs: Any, **more: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **more}).encode()


@pytest.mark.parametrize("datatype", VALUES)
def test_numbers_come_through_in_json_and_in_bytes_and_go_back(datatype: str) -> None:
    values = VALUES[datatype]
    expected = torch.tensor(values, dtype=tensors.DATATYPES[datatype]).view(2, 2)
    raw = tensors.to_bytes(expected)
    head = body(tensor(datatype=datatype, parameters={"binary_data_size": len(raw)}))
    nested = [values[:2], values[2:]]
    for content, header in (
        (body(tensor(datatype=datatype, data=values)), None),
        (body(tensor(datatype=datatype, data=nested)), None),
        (head + raw, str(len(head))),
    ):
        request = parse(content, header)
        assert request.inputs["x"].dtype == expected.dtype
        assert torch.equal(request.inputs["x"], expected)
        assert request.outputs == {"output": False}
    assert torch.tensor(tensors.to_json(expected), dtype=expected.dtype).tolist() == expected.view(-1).tolist()


def test_names_of_tasks_come_through_in_json_and_in_bytes() -> None:
    names = ["birds", "ü/\U0001f600", "", "base"]
    raw = tensors.texts_to_bytes(names)
    x = tensor(shape=(4, 1), data=[1, 2, 3, 4])
    head = body(x, tensor("task", (4, 1), "BYTES", parameters={"binary_data_size": len(raw)}))
    assert parse(head + raw, str(len(head))).tasks == names
    assert parse(body(x, tensor("task", (4,), "BYTES", data=names)), None).tasks == names


def test_outputs_and_ids_are_those_that_are_asked_for() -> None:
    outputs = [{"name": "label"}, {"name": "output", "parameters": {"binary_data": True}}]
    request = parse(body(tensor(data=[1, 2, 3, 4]), outputs=outputs, id="a"), None)
    assert (request.outputs, request.id, request.rows) == ({"label": False, "output": True}, "a", 2)
    binary = body(tensor(data=[1, 2, 3, 4]), parameters={"binary_data_output": True})
    assert parse(binary, None).outputs == {"output": True}
    left_out = parse(body(tensor(data=[1, 2, 3, 4]), outputs=None, id=None), None)
    assert (left_out.outputs, left_out.id) == ({"output": False}, None)


def test_an_answer_has_json_first_and_bytes_behind_it() -> None:
    outputs = torch.tensor([[0.5, -torch.inf], [1.5, 2.0]])
    answer = Answer("base", "", {"output": outputs, "label": ["a", "ü"]}, "7")
    content, length = answer.encode({})
    facts = json.loads(content)
    assert length is None
    assert "model_version" not in facts
    assert facts["outputs"][0] == tensor("output", data=[0.5, None, 1.5, 2.0])
    assert facts["outputs"][1] == tensor("label", (2,), "BYTES", data=["a", "ü"])
    content, length = answer.encode({"output": True, "label": True})
    assert length is not None
    sizes = [each["parameters"]["binary_data_size"] for each in json.loads(content[:length])["outputs"]]
    assert sizes == [16, 4 + 1 + 4 + 2]
    assert content[length : length + 16] == tensors.to_bytes(outputs)


GOOD = tensor(data=[1, 2, 3, 4])
BAD: dict[str, tuple[bytes, str | None]] = {
    "no JSON": (b"{", None),
    "no object": (b"[]", None),
    "deep": (b"[" * 100_000, None),
    "no inputs": (b"{}", None),
    "many inputs": (body(*[tensor(f"x{n}", (1,), data=[1]) for n in range(99)]), None),
    "input no object": (body(3), None),
    "no name": (body({"shape": [1]}), None),
    "no shape": (body({"name": "x", "datatype": "FP32", "data": [1]}), None),
    "negative size": (body(tensor(shape=(-1, 2), data=[1, 2])), None),
    "size of a fraction": (body(tensor(shape=(1.0, 2), data=[1, 2])), None),
    "many dimensions": (body(tensor(shape=(1,) * 20, data=[1])), None),
    "huge shape": (body(tensor(shape=(2**39, 2**39), data=[1, 2])), None),
    "no data": (body(tensor()), None),
    "text for data": (body(tensor(data="1234")), None),
    "few data": (body(tensor(data=[1, 2, 3])), None),
    "uneven data": (body(tensor(data=[[1, 2], 3, 4])), None),
    "texts in numbers": (body(tensor(data=[1, 2, 3, "4"])), None),
    "truth in numbers": (body(tensor(datatype="INT64", data=[1, 2, 3, True])), None),
    "fractions in integers": (body(tensor(datatype="INT64", data=[1, 2, 3, 4.5])), None),
    "beyond the range": (body(tensor(datatype="INT8", data=[1, 2, 3, 4000])), None),
    "unknown datatype": (body(tensor(datatype="FP8", data=[1, 2, 3, 4])), None),
    "datatype no text": (body(tensor(datatype=[1], data=[1, 2, 3, 4])), None),
    "no rows": (body(tensor(shape=(0, 2), data=[])), None),
    "different rows": (body(GOOD, tensor("y", (3,), data=[1, 2, 3])), None),
    "twice": (body(GOOD, GOOD), None),
    "only tasks": (body(tensor("task", (1,), "BYTES", data=["a"])), None),
    "other bytes": (body(GOOD, tensor("y", (2,), "BYTES", data=["a", "b"])), None),
    "tasks that are no texts": (body(GOOD, tensor("task", (2,), "BYTES", data=["a", 3])), None),
    "unknown output": (body(GOOD, outputs=[{"name": "logits"}]), None),
    "outputs no list": (body(GOOD, outputs={"name": "output"}), None),
    "outputs an empty object": (body(GOOD, outputs={}), None),
    "id no text": (body(GOOD, id=3), None),
    "shared memory": (body(tensor(parameters={"shared_memory_region": "a"})), None),
    "header no number": (body(GOOD), "x"),
    "header too large": (body(GOOD), "9" * 30),
    "header before the end": (body(GOOD), "3"),
    "bytes of nobody": (body(GOOD) + b"1234", str(len(body(GOOD)))),
    "more bytes than there are": (body(tensor(parameters={"binary_data_size": 16})), "91"),
    "negative bytes": (body(tensor(parameters={"binary_data_size": -1})), None),
    "wrong number of bytes": (body(tensor(parameters={"binary_data_size": 4})) + b"1234", None),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_refused_with_400(case: str) -> None:
    content, header = BAD[case]
    with pytest.raises(RequestError) as refused:
        parse(content, header)
    assert refused.value.status == 400


@pytest.mark.parametrize("raw", [b"\1\0\0\0", b"\xff\xff\xff\xffaaaa", b"\1\0\0\0a\0\0", b"\1\0\0\0\xff"])
def test_texts_that_do_not_fit_their_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(RequestError):
        tensors.texts_from_bytes(memoryview(raw), (1,), "task")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
KEYS = ("name", "shape", "datatype", "data", "parameters")


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), JSON), JSON, st.binary(max_size=12))
def test_no_request_is_an_error_of_another_kind(changes: dict[str, Any], more: Any, binary: bytes) -> None:
    head = json.dumps({"inputs": [{**GOOD, **changes}], "outputs": more, "parameters": more}).encode()
    try:
        status = 200 if parse(head + binary, str(len(head))).rows > 0 else 0
    except RequestError as error:
        status = error.status
    assert status in (200, 400)


def test_inputs_that_are_declared_are_checked() -> None:
    spec = InputSpec.parse("pixels=UINT8:3,-1")
    assert spec == InputSpec("pixels", "UINT8", (3, -1))
    assert InputSpec.parse("10") == InputSpec("input", "FP32", (10,))
    good = torch.zeros(2, 3, 7, dtype=torch.uint8)
    assert as_batch({"pixels": good}, [spec]) is good
    for wrong in ({"pixels": good.float()}, {"pixels": good[:, :2]}, {"x": good}, {"pixels": good, "x": good}):
        with pytest.raises(RequestError):
            as_batch(wrong, [spec])
    assert as_batch({"a": good, "b": good}, []) == {"a": good, "b": good}
    for text in ("", "x=", "task=FP32:3", "x=FP8:3", "x=FP32:a", "FP32"):
        with pytest.raises(SettingError, match="is no input"):
            InputSpec.parse(text)


def test_the_header_is_the_one_of_the_protocol() -> None:
    assert "Inference-Header-Content-Length".lower() == protocol.HEADER
