"""A server process as the client of Triton, many clients at once, and a browser see it."""

from __future__ import annotations

import http.client
import json
import random
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from halrp import Learner
from halrp.store.store import Store
from tests.server.asking import TOLERANCE, X, infer_body, server
from tests.timing import PATIENCE

triton = pytest.importorskip("tritonclient.http")
errors = pytest.importorskip("tritonclient.utils")


@pytest.fixture(scope="module")
def address(store: Path) -> Iterator[str]:
    with server(store, "--input", "FP32:10", "--delay", "20") as (address, _):
        yield address


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    client = triton.InferenceServerClient(address, connection_timeout=PATIENCE, network_timeout=PATIENCE)
    yield client
    client.close()


def tensor(x: torch.Tensor, binary: bool = True, name: str = "input") -> Any:
    made = triton.InferInput(name, list(x.shape), "FP32")
    made.set_data_from_numpy(x.numpy(), binary_data=binary)
    return made


def names(tasks: list[str], binary: bool = True) -> Any:
    made = triton.InferInput("task", [len(tasks)], "BYTES")
    made.set_data_from_numpy(np.array(tasks, dtype=np.object_), binary_data=binary)
    return made


def wanted(*outputs: str, binary: bool = True) -> list[Any]:
    return [triton.InferRequestedOutput(name, binary_data=binary) for name in outputs]


def test_health_and_metadata(client: Any, store: Path) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data", "model_repository"]
    version = Store(store).manifest().tasks["t1"].sha256
    assert client.is_model_ready("t1")
    assert client.is_model_ready("t1", version)
    assert not client.is_model_ready("t1", "1" * 64)
    assert not client.is_model_ready("cars")
    metadata = client.get_model_metadata("t1")
    assert metadata["versions"] == [version]
    assert metadata["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 10]}]
    assert metadata["outputs"][0] == {"name": "output", "datatype": "FP32", "shape": [-1, 4]}
    assert [each["name"] for each in client.get_model_metadata("base")["inputs"]] == ["input", "task"]


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("name", ["t0", "t1", "t2", "base"])
def test_a_task_is_inferred_with_the_bits_of_the_learner(
    client: Any, learner: Learner, name: str, binary: bool
) -> None:
    result = client.infer(name, [tensor(X, binary)], outputs=wanted("output", binary=binary), request_id="7")
    expected = learner.predict(X, None if name == "base" else name)
    assert torch.equal(torch.tensor(result.as_numpy("output")), expected)
    assert result.get_response()["id"] == "7"
    assert result.get_response()["model_name"] == name


@pytest.mark.parametrize("binary", [True, False])
def test_labels_and_probabilities_are_outputs_too(client: Any, learner: Learner, binary: bool) -> None:
    result = client.infer("t1", [tensor(X)], outputs=wanted("label", "probability", binary=binary))
    answer = learner.answer(X, "t1")
    texts = [each.decode() if isinstance(each, bytes) else each for each in result.as_numpy("label").tolist()]
    assert texts == [str(label) for label in answer.labels]
    torch.testing.assert_close(torch.tensor(result.as_numpy("probability")), answer.probabilities)


@pytest.mark.parametrize("binary", [True, False])
def test_a_request_with_a_task_for_each_row(client: Any, learner: Learner, binary: bool) -> None:
    tasks = [("t0", "t1", "base", "t2")[n % 4] for n in range(len(X))]
    result = client.infer("base", [tensor(X, binary), names(tasks, binary)], outputs=wanted("output", binary=binary))
    expected = learner.predict(X, [None if task == "base" else task for task in tasks])
    outputs = torch.tensor(result.as_numpy("output").astype(np.float32))
    if not binary:  # JSON has no infinity
        outputs = outputs.nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    torch.testing.assert_close(outputs, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_versions_are_the_hashes_of_files(client: Any, learner: Learner, store: Path) -> None:
    version = Store(store).manifest().tasks["t2"].sha256
    result = client.infer("t2", [tensor(X[:2])], model_version=version)
    assert result.get_response()["model_version"] == version
    with pytest.raises(errors.InferenceServerException, match="has no version"):
        client.infer("t2", [tensor(X[:2])], model_version="1")


def test_the_repository(client: Any, store: Path) -> None:
    index = client.get_model_repository_index()
    manifest = Store(store).manifest()
    assert {each["name"]: each["version"] for each in index} == {
        "base": manifest.base.sha256,
        **{name: entry.sha256 for name, entry in manifest.tasks.items()},
    }
    assert {each["state"] for each in index} == {"READY"}
    client.load_model("t2")
    assert client.is_model_ready("t2")
    client.unload_model("t2")
    assert client.is_model_ready("t2")  # it is read again when somebody asks
    for action in (client.load_model, client.unload_model):
        with pytest.raises(errors.InferenceServerException, match="no model 'cars'"):
            action("cars")
    with pytest.raises(errors.InferenceServerException, match="stays"):
        client.unload_model("base")


def test_mistakes_are_answered_with_their_reasons(client: Any) -> None:
    for name, inputs, reason in (
        ("cars", [tensor(X)], "no model 'cars'"),
        ("t1", [tensor(X[:, :4])], "takes FP32 of shape"),
        ("t1", [tensor(X, name="pixels")], "the model takes 'input'"),
        ("t1", [tensor(X), names(["t1"] * len(X))], "is sent to the model 'base'"),
        ("base", [tensor(X), names(["t1", "cars"] * (len(X) // 2))], "no model 'cars'"),
    ):
        with pytest.raises(errors.InferenceServerException, match=reason):
            client.infer(name, inputs)


def test_tasks_that_others_commit_and_remove_are_followed(client: Any, learner: Learner) -> None:
    learner.rename("t2", "a/b: ü")
    result = client.infer("a/b: ü", [tensor(X)])
    assert torch.equal(torch.tensor(result.as_numpy("output")), learner.predict(X, "a/b: ü"))
    learner.rename("a/b: ü", "t2")
    assert torch.equal(torch.tensor(client.infer("t2", [tensor(X)]).as_numpy("output")), learner.predict(X, "t2"))


def test_requests_of_many_clients_share_batches_and_get_their_own_answers(address: str, learner: Learner) -> None:
    expected = {name: learner.predict(X, name) for name in ("t0", "t1", "t2")}
    wrong: list[str] = []
    done: list[int] = []

    def ask(seed: int) -> None:
        draw = random.Random(seed)
        connection = http.client.HTTPConnection(address, timeout=PATIENCE)
        for _ in range(12):
            name, row = draw.choice(["t0", "t1", "t2"]), draw.randrange(len(X))
            connection.request("POST", f"/v2/models/{name}/infer", infer_body(X[row : row + 1]))
            answer = json.loads(connection.getresponse().read())
            outputs = torch.tensor(answer["outputs"][0]["data"])
            if not torch.allclose(outputs, expected[name][row], rtol=TOLERANCE, atol=TOLERANCE):
                wrong.append(f"{name} {row}: {outputs}")
            done.append(seed)
        connection.close()

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert wrong == []
    assert len(done) == 96
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(figures["halrp_batches_total"]) < float(figures["halrp_fused_requests_total"])
    assert int(figures['halrp_requests_total{endpoint="infer",status="200"}']) >= 96


def test_half_requests_huge_bodies_and_idle_connections_do_not_keep_the_server_from_others(
    address: str, learner: Learner
) -> None:
    host, _, port = address.partition(":")
    starts = (
        b"",
        b"POST /v2/models/t1/infer HTTP/1.1\r\nHost: localh",
        b"POST /v2/models/t1/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n{",
    )
    connections = [socket.create_connection((host, int(port)), PATIENCE) for _ in range(150)]
    try:
        for number, connection in enumerate(connections):
            connection.sendall(starts[number % 3])
        huge = http.client.HTTPConnection(address, timeout=PATIENCE)
        huge.putrequest("POST", "/v2/models/t1/infer")
        huge.putheader("Content-Length", str(1 << 30))
        huge.endheaders()
        assert huge.getresponse().status == 413
        huge.close()
        client = http.client.HTTPConnection(address, timeout=PATIENCE)
        client.request("POST", "/v2/models/t1/infer", infer_body(X[:1]))
        answer = json.loads(client.getresponse().read())
        client.close()
    finally:
        for connection in connections:
            connection.close()
    assert torch.equal(torch.tensor(answer["outputs"][0]["data"]), learner.predict(X[:1], "t1")[0])


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium or google-chrome to open the page with")
def test_the_page_shows_tasks_and_lets_a_person_try_one(address: str, learner: Learner) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as run:
        browser = run.chromium.launch(executable_path=BROWSER, args=["--headless", "--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.set_default_timeout(1000 * PATIENCE)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.goto(f"http://{address}/")
        page.wait_for_selector("#tasks tr:nth-child(3)")
        assert page.locator("#tasks tr td:first-child").all_inner_texts() == ["t0", "t1", "t2"]
        page.select_option("#task", "t1")
        page.fill("#data", json.dumps(X[:1].tolist()))
        page.click("button")
        page.locator("#answer", has_text="label").wait_for()
        label = str(learner.answer(X[:1], "t1").labels[0])
        assert f'label [1]: ["{label}"]' in page.inner_text("#answer")
        assert "bytes in memory" in page.inner_text("#load")
        browser.close()
    assert [text for text in problems if "favicon" not in text] == []


def test_a_server_that_is_terminated_answers_the_requests_under_way(store: Path, learner: Learner) -> None:
    with server(store, "--delay", "600000", "--timeout", "600") as (address, process):
        under_way, other = (http.client.HTTPConnection(address, timeout=PATIENCE) for _ in range(2))
        under_way.request("POST", "/v2/models/t1/infer", infer_body(X[:2]))  # it waits for others to share its batch
        waiting = "0"
        while waiting != "1":
            other.request("GET", "/status")
            waiting = str(json.loads(other.getresponse().read())["load"]["waiting"])
        process.send_signal(signal.SIGTERM)
        answer = json.loads(under_way.getresponse().read())
        assert torch.equal(torch.tensor(answer["outputs"][0]["data"]).view(2, 4), learner.predict(X[:2], "t1"))
        under_way.close()
        other.close()
        _, error = process.communicate(timeout=PATIENCE)
        assert process.returncode in (0, -signal.SIGTERM)
        assert "Traceback" not in error
