"""The model `auto`: rows are answered by the task that they are found to be of, among those that a client may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from halrp import Halrp, Learner, Prototypes, StorePredictor
from halrp.server.app import make_app
from halrp.server.limits import Limits
from halrp.server.service import Service
from halrp.server.tokens import Tokens, add_token
from tests.helpers import tiny_task
from tests.server.asking import X, asked, build, infer_body
from tests.store.stores import learned

AUTO = "/v2/models/auto/infer"
METHOD = Halrp.budget(prototypes=Prototypes(directions=2))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Learner, Path]:
    """Three tasks with prototypes, and their store."""
    folder = tmp_path_factory.mktemp("store")
    return learned("mlp", tasks=3, method=METHOD, base="given", store=folder), folder


@pytest.fixture
def service(source: tuple[Learner, Path]) -> Iterator[Service]:
    service = Service(StorePredictor.open(source[1], build(), follow_every=0.0), Limits(delay=0.0))
    yield service
    service.close()


def outputs(reply: Any) -> dict[str, Any]:
    assert reply.status == 200, reply.json
    return {output["name"]: output for output in reply.json["outputs"]}


def test_the_task_of_each_row_is_found_and_named(service: Service, source: tuple[Learner, Path]) -> None:
    learner, x = source[0], torch.cat([tiny_task("mlp", n)[0][:3] for n in range(3)] + [40 * torch.ones_like(X[:1])])
    identified = learner.identify(x, top=1)
    assert len(set(identified.tasks)) > 2
    given = outputs(asked(make_app(service), "POST", AUTO, body=infer_body(x, outputs=["output", "label"])))
    assert given["task"]["data"] == [name or "" for name in identified.tasks]
    answer = learner.answer(x, "auto")
    assert given["label"]["data"] == ["" if label is None else str(label) for label in answer.labels]
    numbers = torch.tensor([torch.nan if v is None else v for v in given["output"]["data"]])
    expected = learner.predict(x, "auto").flatten()
    assert torch.allclose(numbers.nan_to_num(-1e9), expected.clamp(min=-1e9), atol=1e-5)
    alone = outputs(asked(make_app(service), "POST", AUTO, body=infer_body(x, outputs=["task"])))
    assert list(alone) == ["task"]


def test_a_client_finds_only_tasks_that_it_may_use(service: Service, tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    tokens = {name: add_token(path, names) for name, names in {"one": ["t1"], "none": ["other"]}.items()}
    app, body = make_app(service, Tokens.load(path)), infer_body(tiny_task("mlp", 0)[0][:4])
    of_t1, of_none = ({"authorization": f"Bearer {tokens[name]}"} for name in ("one", "none"))
    assert set(outputs(asked(app, "POST", AUTO, body=body, headers=of_t1))["task"]["data"]) <= {"t1", ""}
    hidden = asked(app, "POST", AUTO, body=body, headers=of_none)
    assert (hidden.status, hidden.json) == (404, {"error": "there is no model 'auto'"})
    assert asked(app, "GET", "/v2/models/auto", headers=of_none).status == 404


def test_the_model_says_what_it_takes_and_gives(service: Service) -> None:
    reply = asked(make_app(service), "GET", "/v2/models/auto").json
    assert (reply["name"], reply["versions"]) == ("auto", [])
    assert {output["name"] for output in reply["outputs"]} == {"output", "label", "probability", "task"}


@pytest.mark.parametrize(
    ("path", "options", "status"),
    [
        (AUTO, {"tasks": ["t0", "t1"]}, 400),
        ("/v2/models/auto/versions/1/infer", {}, 404),
        ("/v2/models/t0/infer", {"outputs": ["task"]}, 400),
        ("/v2/models/base/infer", {"outputs": ["task"]}, 400),
    ],
)
def test_requests_that_make_no_sense_are_refused(
    service: Service, path: str, options: dict[str, Any], status: int
) -> None:
    assert asked(make_app(service), "POST", path, body=infer_body(X[:2], **options)).status == status


def test_a_store_without_prototypes_says_so(tmp_path: Path) -> None:
    learned("mlp", tasks=1, base="given", store=tmp_path / "store")
    service = Service(StorePredictor.open(tmp_path / "store", build()), Limits(delay=0.0))
    reply = asked(make_app(service), "POST", AUTO, body=infer_body(X[:1]))
    service.close()
    assert (reply.status, "no task has prototypes" in reply.json["error"]) == (400, True)


def test_a_task_of_that_name_is_that_task(tmp_path: Path) -> None:
    learner = learned("mlp", tasks=2, method=METHOD, base="given", store=tmp_path / "store")
    learner.rename("t0", "auto")
    service = Service(StorePredictor.open(tmp_path / "store", build()), Limits(delay=0.0))
    given = outputs(asked(make_app(service), "POST", AUTO, body=infer_body(X[:2])))
    service.close()
    assert list(given) == ["output"]
    assert torch.allclose(torch.tensor(given["output"]["data"]).view(2, -1), learner.predict(X[:2], "auto"), atol=1e-5)
