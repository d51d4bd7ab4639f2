"""Stores to serve, servers as processes, and requests to an application without a network."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from torch import Tensor, nn

from tests.helpers import net, tiny_task

ROOT = Path(__file__).parents[2]
X: Tensor = tiny_task("mlp", 9)[0]
TOLERANCE = 1e-5
"""Of rows that share a batch with others: rounding of float32."""


def build() -> nn.Module:
    """The model of the stores."""
    return net("mlp")


@contextmanager
def server(
    store: Path, *options: str, port: int = 0, descriptors: int | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server process on a free port of this machine: its address, and the process, which is ended afterwards.

    `descriptors` are the files and connections that it may have open.
    """
    command = [
        sys.executable,
        "-m",
        "halrp",
        "serve",
        str(store),
        "--model",
        "tests.server.asking:build",
        "--port",
        str(port),
        *options,
    ]
    if descriptors is not None:
        command = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *command]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert " on http://" in line, (line, process.stderr.read() if process.stderr else "")
        yield line.split()[-1].removeprefix("http://"), process
    finally:
        process.terminate()
        process.communicate()


@dataclass(frozen=True)
class Reply:
    """What an application answers."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    app: Starlette,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    chunks: list[bytes] | None = None,
) -> Reply:
    """One request; `chunks` instead of a body come one after another, and if the last is empty, no more comes."""
    parts = [body] if chunks is None else chunks
    given = {"host": "localhost", **(headers or {})}
    if chunks is None:
        given.setdefault("content-length", str(len(body)))
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        "scheme": "http",
        "server": ("localhost", 80),
        "client": ("localhost", 1),
        "root_path": "",
        "http_version": "1.1",
    }
    messages = [{"type": "http.request", "body": part, "more_body": n + 1 < len(parts)} for n, part in enumerate(parts)]
    sent: list[Any] = []

    async def receive() -> Any:
        if messages:
            message = messages.pop(0)
            if message["body"] or not message["more_body"]:
                return message
        return await asyncio.get_running_loop().create_future()  # nothing more comes

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = next(message for message in sent if message["type"] == "http.response.start")
    content = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    return Reply(start["status"], {k.decode(): v.decode() for k, v in start["headers"]}, content)


def asked(app: Starlette, method: str, path: str, **options: Any) -> Reply:
    """The same, from ordinary code."""
    return asyncio.run(ask(app, method, path, **options))


def infer_body(x: Tensor, tasks: list[str] | None = None, outputs: list[str] | None = None, **more: Any) -> bytes:
    """A request in JSON."""
    inputs: list[dict[str, Any]] = [
        {"name": "input", "shape": list(x.shape), "datatype": "FP32", "data": x.reshape(-1).tolist()}
    ]
    if tasks is not None:
        inputs.append({"name": "task", "shape": [len(tasks)], "datatype": "BYTES", "data": tasks})
    wanted = {} if outputs is None else {"outputs": [{"name": name} for name in outputs]}
    return json.dumps({"inputs": inputs, **wanted, **more}).encode()
