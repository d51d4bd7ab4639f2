"""A server under faults: processes that are killed, a store that is changed, damaged and taken away, rude clients.

Every answer is compared with the module of its task's version, made without the code that serves. What cannot be
answered is a status that says why, and when a fault is over, the server answers again without a restart.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from halrp import Learner, Store
from halrp.store.manifest import Entry
from tests.server.asking import X, infer_body, server
from tests.server.loading import Load, children, outputs_of
from tests.store.stores import learned
from tests.timing import PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc, as Linux has it"),
]
STEPS = 40
FIXED = ("t0", "t3")
"""Tasks that nobody changes, though somebody damages their files."""


class Chaos:
    """Changes of a store, each from a good state, and what makes it good again."""

    def __init__(self, folder: Path, learner: Learner, other: Path) -> None:
        self.store, self.base, self.other = Store(folder), learner._committed.ready, other
        self.folder = folder
        self.versions = [replace(learner.tasks[f"t{n}"], task="a") for n in (1, 2, 4)]
        self.fresh = [replace(version, task="b") for version in self.versions]

    def commit(self) -> None:
        """A task that comes and goes."""
        if "b" in self.store.manifest().tasks:
            self.store.remove("b")
        else:
            self.store.commit(self.base, [self.fresh[self.store.manifest().generation % 3]])

    def replace(self) -> None:
        """A task that gets another version."""
        present = self.store.read("a", self.base)
        number = next(n for n, version in enumerate(self.versions) if version.classes == present.classes)
        new = self.versions[(number + 1) % 3]
        if new != present:
            self.store.commit(self.base, [new], replaced={"a": present})

    def damage(self) -> Callable[[], None]:
        """A file that is cut, changed or gone."""
        manifest = self.store.manifest()
        entry: Entry = manifest.tasks[random.Random(manifest.generation).choice(list(manifest.tasks))]
        path = self.folder / entry.file
        content = path.read_bytes()
        path.unlink()
        if entry.bytes % 2:
            path.write_bytes(content[:-7] + b"garbage")
        return lambda: _put(path, content)

    def damage_manifest(self) -> Callable[[], None]:
        """A manifest that is no JSON."""
        path = self.folder / "manifest.json"
        content = path.read_bytes()
        _put(path, content[: len(content) // 2])
        return lambda: _put(path, content)

    def take_away(self) -> Callable[[], None]:
        """A store that is gone, and another one in its place."""
        away = self.folder.with_name("away")
        self.folder.rename(away)
        shutil.copytree(self.other, self.folder)

        def back() -> None:
            shutil.rmtree(self.folder)
            away.rename(self.folder)

        return back


def _put(path: Path, content: bytes) -> None:
    part = path.with_name("part")
    part.write_bytes(content)
    os.replace(part, path)


def answers(address: str, name: str) -> int:
    """The status of one request."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    try:
        connection.request("POST", f"/v2/models/{name}/infer", infer_body(X[:1]))
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def until_answered(address: str, names: list[str]) -> None:
    """Wait until every worker, as far as some requests meet them, answers for all tasks."""
    end = time.monotonic() + PATIENCE
    while any(answers(address, name) != 200 for name in names for _ in range(4)):
        assert time.monotonic() < end


def test_no_answer_is_wrong_while_processes_are_killed_and_the_store_changes(tmp_path: Path) -> None:
    learner = learned("mlp", tasks=5)
    other = tmp_path / "other"
    learned("mlp", tasks=2, base="given", store=other)
    folder = tmp_path / "store"
    chaos = Chaos(folder, learner, other)
    fixed = [learner.tasks[name] for name in FIXED]
    Store(folder).commit(chaos.base, [*fixed, chaos.versions[0]])
    expected = outputs_of(chaos.base, [*fixed, *chaos.versions, *chaos.fresh])
    draw, seen = random.Random(0), set[int]()
    with ExitStack() as running:
        address, process = running.enter_context(server(folder, "--workers", "2"))
        port = int(address.rpartition(":")[2])
        load = Load(address, expected, [*FIXED, "a", "b"])
        for step in range(STEPS):
            kind = draw.choice(["commit", "replace", "damage", "damage_manifest", "take_away", "kill", "kill"])
            if step == STEPS // 2:
                # All at once: the supervisor too, and a server takes its place.
                workers = children(process.pid)
                for each in (process.pid, *workers):
                    os.kill(each, signal.SIGKILL)
                process.wait(PATIENCE)
                address, process = running.enter_context(server(folder, "--workers", "2", port=port))
            elif kind == "kill":
                for worker in children(process.pid)[:1]:
                    os.kill(worker, signal.SIGKILL)
            else:
                repair = getattr(chaos, kind)()
                if repair is not None:
                    seen.add(answers(address, draw.choice([*FIXED, "a"])))
                    repair()
            until_answered(address, [*FIXED, "a"])
            load.wait(10)
        load.stop()
        assert set(load.statuses) <= {0, 200, 404, 503}, load.statuses
        assert load.statuses[200] >= 10 * STEPS
        assert seen <= {0, 200, 503}


def test_rude_clients_do_not_keep_the_server_from_others(store: Path, learner: Learner) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = 10_000 if hard == resource.RLIM_INFINITY else min(10_000, hard - 500)
    expected = outputs_of(learner._committed.ready, list(learner.tasks.values()))
    try:
        with server(store, "--timeout", "60") as (address, _), ExitStack() as open_ones:
            host, _, port = address.partition(":")

            def connection(start: bytes = b"") -> socket.socket:
                made = open_ones.enter_context(socket.create_connection((host, int(port)), PATIENCE))
                made.sendall(start)
                return made

            load = Load(address, expected, ["t0", "t1", "t2"], threads=2)
            load.wait(10)
            head = b"POST /v2/models/t1/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n{"
            for number in range(most):
                connection((b"", b"POST /v2/mod", head)[number % 3])
            load.wait(50)
            body = infer_body(X)
            whole = head.replace(b"999", str(len(body)).encode())[:-1] + body
            slow = [connection(whole * 20) for _ in range(50)]  # they never read what they are answered
            load.wait(50)
            # A body of a gigabyte, announced and in chunks, which comes as fast as it is taken.
            for announced in (b"Content-Length: 1073741824", b"Transfer-Encoding: chunked"):
                huge = connection(head.replace(b"Content-Length: 999", announced)[:-1])
                part = b"x" * (1 << 20)
                if b"chunked" in announced:
                    part = b"%x\r\n%s\r\n" % (len(part), part)
                with suppress(ConnectionError):
                    for _ in range(1024):
                        huge.sendall(part)
                assert b" 413 " in huge.recv(4096).splitlines()[0]
                load.wait(20)
            for each in slow:
                each.close()
            load.stop()
            assert set(load.statuses) == {200}, load.statuses
            status = http.client.HTTPConnection(address, timeout=PATIENCE)
            status.request("GET", "/status")
            assert json.loads(status.getresponse().read())["load"]["waiting"] == 0
            status.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
