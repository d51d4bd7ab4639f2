"""Limits, tokens and errors of the server, asked without a network."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from halrp import Learner
from halrp.errors import SettingError
from halrp.server import page
from halrp.server.app import LOOPBACK, make_app
from halrp.server.limits import Limits
from halrp.server.run import Address
from halrp.server.service import Service
from halrp.server.tokens import Tokens, add_token
from tests.server.asking import X, ask, asked, infer_body

INFER = "/v2/models/t1/infer"


def test_a_request_is_answered(service: Service, learner: Learner) -> None:
    reply = asked(make_app(service), "POST", INFER, body=infer_body(X[:3]))
    assert reply.status == 200
    assert torch.equal(torch.tensor(reply.json["outputs"][0]["data"]).view(3, 4), learner.predict(X[:3], "t1"))
    assert reply.json["outputs"][0]["shape"] == [3, 4]


def test_bodies_and_rows_beyond_the_limits_are_refused_with_413(service: Service) -> None:
    app, limits = make_app(service), service.limits
    assert asked(app, "POST", INFER, headers={"content-length": str(1 << 40)}).status == 413
    assert asked(app, "POST", INFER, chunks=[b" " * 9000] * 3).status == 413
    text = asked(app, "POST", INFER, body=b" " * 12_001)
    assert (text.status, "send binary tensors" in text.json["error"]) == (413, True)
    reply = asked(app, "POST", INFER, body=infer_body(X[:1].expand(limits.rows + 1, -1).round()))
    assert reply.status == 413
    assert "33 rows" in reply.json["error"]
    assert asked(app, "POST", INFER, body=infer_body(X[:1])).status == 200  # nothing is left of them


def test_bodies_that_are_too_large_together_are_refused_with_429(service: Service) -> None:
    app = make_app(service)

    async def both() -> tuple[int, int]:
        slow = asyncio.create_task(ask(app, "POST", INFER, chunks=[b" " * 19_000, b"", b""]))
        await asyncio.sleep(0)
        second = await ask(app, "POST", INFER, chunks=[b" " * 8000, b" " * 8000])
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        return second.status, (await ask(app, "POST", INFER, body=infer_body(X[:1]))).status

    assert asyncio.run(both()) == (429, 200)


class Stuck:
    """A computation that takes until it is released."""

    def __init__(self, service: Service) -> None:
        self.predictor, self.release = service.predictor, Future[None]()
        self.begun = Future[None]()

    def compute(self, *arguments: Any) -> torch.Tensor:
        if not self.begun.done():
            self.begun.set_result(None)
        self.release.result()
        return self.predictor.compute(*arguments)

    def narrowed(self, *arguments: Any) -> torch.Tensor:
        return self.predictor.narrowed(*arguments)


def test_a_full_queue_is_429_and_a_late_answer_503(service: Service) -> None:
    stuck = Stuck(service)
    service.fusion._predictor = stuck
    app, body = make_app(service), infer_body(X[:1])

    async def run() -> list[int]:
        first = asyncio.create_task(ask(app, "POST", INFER, body=body))
        await asyncio.wrap_future(stuck.begun)
        waiting = [asyncio.create_task(ask(app, "POST", INFER, body=body)) for _ in range(service.limits.queue)]
        while service.fusion.waiting < service.limits.queue:
            await asyncio.sleep(0)
        refused = await ask(app, "POST", INFER, body=body)
        assert refused.headers["retry-after"] == "1"
        service.fusion._limits = replace(service.limits, queue=99)
        service.limits = replace(service.limits, seconds=0.05)
        late = await ask(app, "POST", INFER, body=body)
        stuck.release.set_result(None)
        others = await asyncio.gather(first, *waiting)
        return [refused.status, late.status, *(each.status for each in others)]

    assert asyncio.run(run()) == [429, 503, 200, 200, 200]


def test_a_request_that_does_not_come_is_408(service: Service) -> None:
    service.limits = replace(service.limits, seconds=0.05)
    assert asked(make_app(service), "POST", INFER, chunks=[b"{", b"", b""]).status == 408


def test_compressed_bodies_are_refused(service: Service) -> None:
    reply = asked(make_app(service), "POST", INFER, body=b"", headers={"content-encoding": "gzip"})
    assert reply.status == 415


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v2/nothing", 404), ("DELETE", "/v2", 405)])
def test_a_path_or_a_method_that_is_not_there_is_answered_in_json(
    service: Service, method: str, path: str, status: int
) -> None:
    reply = asked(make_app(service), method, path)
    assert reply.status == status
    assert reply.json["error"]
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert ("allow" in reply.headers) is (status == 405)


def test_after_shutting_down_requests_are_refused_with_503(service: Service) -> None:
    service.close()
    assert asked(make_app(service), "POST", INFER, body=infer_body(X[:1])).status == 503


def test_a_damaged_task_is_503_for_its_clients_alone_and_says_nothing_of_files(
    service: Service, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app, path = make_app(service), store / service.predictor.tasks["t2"].file
    content = path.read_bytes()
    try:
        path.write_bytes(content[:-1])
        reply = asked(app, "POST", "/v2/models/t2/infer", body=infer_body(X[:1]))
        assert reply.status == 503
        assert str(store) not in reply.body.decode()
        assert str(path) in caplog.text
        assert asked(app, "POST", INFER, body=infer_body(X[:1])).status == 200
    finally:
        path.write_bytes(content)
    assert asked(app, "POST", "/v2/models/t2/infer", body=infer_body(X[:1])).status == 200


# ---- tokens -----------------------------------------------------------------------------------------------------


@pytest.fixture
def tokens(tmp_path: Path) -> tuple[Tokens, dict[str, str]]:
    path = tmp_path / "tokens.toml"
    made = {"t1": add_token(path, ["t1"]), "both": add_token(path, ["t1", "base"]), "all": add_token(path, ["*"])}
    assert not any(token in path.read_text() for token in made.values())
    return Tokens.load(path), {name: f"Bearer {token}" for name, token in made.items()}


def test_without_a_token_only_health_and_the_empty_page_are_open(
    service: Service, tokens: tuple[Tokens, dict[str, str]]
) -> None:
    app = make_app(service, tokens[0])
    for path in ("/", "/v2", "/v2/health/live", "/v2/health/ready"):
        assert asked(app, "GET", path).status == 200
    for method, path in (
        ("GET", "/metrics"),
        ("GET", "/status"),
        ("GET", "/v2/models/t1"),
        ("GET", "/v2/models/t1/ready"),
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/t1/load"),
        ("POST", "/v2/repository/models/t1/unload"),
        ("POST", INFER),
    ):
        for header in ({}, {"authorization": "Bearer x"}, {"authorization": "Basic eA=="}):
            reply = asked(app, method, path, body=infer_body(X[:1]), headers=header)
            assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
            assert "t1" not in reply.body.decode()


def test_a_token_sees_its_tasks_only_and_others_look_as_if_they_were_not_there(
    service: Service, tokens: tuple[Tokens, dict[str, str]]
) -> None:
    app, headers = make_app(service, tokens[0]), {"authorization": tokens[1]["t1"]}

    def reply(method: str, path: str, body: bytes = b"") -> Any:
        return asked(app, method, path, body=body, headers=headers)

    assert reply("POST", INFER, infer_body(X[:1])).status == 200
    assert [each["name"] for each in reply("POST", "/v2/repository/index").json] == ["t1"]
    assert [each["name"] for each in reply("GET", "/status").json["tasks"]] == ["t1"]
    assert "load" not in reply("GET", "/status").json
    assert reply("GET", "/metrics").status == 404
    for method, pattern in (
        ("GET", "/v2/models/{}"),
        ("GET", "/v2/models/{}/ready"),
        ("POST", "/v2/models/{}/infer"),
        ("POST", "/v2/repository/models/{}/load"),
        ("POST", "/v2/repository/models/{}/unload"),
    ):
        there, absent = (reply(method, pattern.format(name), infer_body(X[:1])) for name in ("t2", "tx"))
        assert there.status == absent.status == 404
        assert there.body.replace(b"t2", b"tx") == absent.body
    mixed = {"authorization": tokens[1]["both"]}
    for other in ("t2", "tx"):
        refused = asked(app, "POST", "/v2/models/base/infer", body=infer_body(X[:2], ["t1", other]), headers=mixed)
        assert (refused.status, refused.json["error"]) == (404, f"there is no model {other!r}")
    served = asked(app, "POST", "/v2/models/base/infer", body=infer_body(X[:2], ["t1", ""]), headers=mixed)
    assert served.status == 200
    everything = {"authorization": tokens[1]["all"]}
    assert asked(app, "GET", "/metrics", headers=everything).status == 200
    assert len(asked(app, "POST", "/v2/repository/index", headers=everything).json) == 4


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tokens = 3",
        "[[tokens]]\nsha256 = 'x'\ntasks = ['a']",
        "[[tokens]]\nsha256 = '%s'" % ("0" * 64),
        "tokens = []",
    ],
)
def test_a_file_that_holds_no_tokens_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokens.toml").write_text(text)
    with pytest.raises(SettingError, match=r"tokens\.toml"):
        Tokens.load(tmp_path / "tokens.toml")


def test_names_of_any_text_can_have_a_token(tmp_path: Path) -> None:
    name = 'a "b"\\ \x1b\x7f ü \U0001f600'
    token = add_token(tmp_path / "tokens.toml", [name])
    access = Tokens.load(tmp_path / "tokens.toml").access(f"bearer {token}")
    assert access is not None
    assert access.may(name)
    assert not access.may("base")


# ---- the rest ---------------------------------------------------------------------------------------------------


def test_names_that_a_foreign_page_could_give_this_machine_are_refused(service: Service) -> None:
    app = make_app(service, None, LOOPBACK)
    assert asked(app, "GET", "/v2", headers={"host": "localhost:8000"}).status == 200
    assert asked(app, "GET", "/v2", headers={"host": "evil.example"}).status == 400


def test_other_machines_are_let_in_on_purpose_only(tokens: tuple[Tokens, dict[str, str]]) -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        assert Address(host).is_loopback
    with pytest.raises(SettingError, match="lets other machines connect"):
        Address("0.0.0.0").check(None)
    Address("0.0.0.0").check(tokens[0])
    Address("0.0.0.0", anyone=True).check(None)
    assert not Address("example.org").is_loopback


def test_the_page_runs_nothing_but_its_own_script(service: Service) -> None:
    reply = asked(make_app(service), "GET", "/")
    policy = reply.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert reply.body.decode() == page.CONTENT
    assert re.search(r"(?i)\b(src|href|on\w+)=", page.CONTENT) is None


def test_figures_are_in_the_format_of_prometheus(service: Service) -> None:
    app = make_app(service)
    asked(app, "POST", INFER, body=infer_body(X[:2]))
    asked(app, "POST", "/v2/models/tx/infer", body=infer_body(X[:2]))
    text = asked(app, "GET", "/metrics").body.decode()
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) \w+ .+|\w+(\{\w+=\"[^\"]*\"(,\w+=\"[^\"]*\")*\})? [-+.\de]+", line), line
    assert 'halrp_requests_total{endpoint="infer",status="200"} 1' in text
    assert 'halrp_requests_total{endpoint="infer",status="404"} 1' in text
    assert 'halrp_infer_seconds_bucket{le="+Inf"} 2' in text
    assert "halrp_rows_total 2" in text
    assert "t1" not in text


def test_limits_that_bound_nothing_are_refused() -> None:
    for change in ({"body": 0}, {"queue": -1}, {"rows": 2.5}, {"seconds": float("nan")}, {"delay": "2"}):
        with pytest.raises(SettingError, match=next(iter(change))):
            Limits(**change)


def test_status_shows_tasks_bytes_and_load(service: Service) -> None:
    app = make_app(service)
    asked(app, "POST", INFER, body=infer_body(X[:2]))
    status = json.loads(asked(app, "GET", "/status").body)
    assert [task["name"] for task in status["tasks"]] == ["t0", "t1", "t2"]
    assert status["tasks"][1]["resident"] > 0
    assert status["load"]["rows"] == 2
