"""Models that take and give more than a tensor: commands know what tasks were learned with by references."""

from __future__ import annotations

import http.client
import json
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from halrp import Learner
from halrp.cli.app import app
from halrp.errors import SettingError
from halrp.tools.importing import call_options
from tests.commands import invoke
from tests.helpers import CLASSES, FAST, drawn, tiny_task
from tests.server.asking import infer_body, server
from tests.store.stores import roomy
from tests.timing import PATIENCE

ran = partial(invoke, app)
HERE = "tests.cli.test_called_models"
CALLED = ("--head", f"{HERE}:build_head", "--outputs", "features", "--transform", f"{HERE}:halved")
X, Y = tiny_task("mlp", 3)


class Features(nn.Module):
    """Gives features under a name."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 12))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"features": self.layers(x)}


def build() -> nn.Module:
    return drawn(Features)


def build_head() -> nn.Module:
    """A head that no layout describes."""
    return drawn(lambda: nn.Sequential(nn.ReLU(), nn.Linear(12, CLASSES)))


def halved(x: Tensor) -> Tensor:
    return x / 2


def first(given: tuple[Tensor, ...]) -> Tensor:
    return given[0]


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    # The functions of the module that commands import, which is another object than this one if pytest runs it.
    options = call_options(f"{HERE}:build_head", "features", f"{HERE}:halved")
    folder = tmp_path_factory.mktemp("called") / "store"
    learner = Learner(build(), base="given", method=roomy(), recipe=FAST, store=folder, **options)
    learner.learn("birds", (X, Y))
    return learner


@pytest.fixture
def store(learner: Learner) -> Path:
    assert learner._committed.store is not None
    return learner._committed.store.folder


def test_verify_runs_tasks_as_they_were_learned(store: Path) -> None:
    result = ran("verify", store, "--model", f"{HERE}:build", *CALLED)
    assert (result.code, "fits the model, active" in result.out) == (0, True)
    for options in (CALLED[:2], CALLED[:4]):
        result = ran("verify", store, "--model", f"{HERE}:build", *options)
        assert result.code == 0
        assert "not run: 'birds' was learned with" in result.out


def test_export_writes_a_model_that_takes_what_the_task_does(store: Path, learner: Learner, tmp_path: Path) -> None:
    path = tmp_path / "birds.pt2"
    options = ("--model", f"{HERE}:build", *CALLED, "--input", "1,10")
    result = ran("export", store, "birds", "-o", path, *options)
    assert result.code == 0, result.error
    module = torch.export.load(path).module()
    torch.testing.assert_close(module(X), learner.predict(X, "birds"))


def test_the_server_calls_the_model_as_tasks_were_learned(store: Path, learner: Learner) -> None:
    with server(store, "--model", f"{HERE}:build", *CALLED, "--text", "1", "--bodies", "2") as (address, _):
        connection = http.client.HTTPConnection(address, timeout=PATIENCE)
        connection.request("POST", "/v2/models/birds/infer", infer_body(X[:2]))
        answer = json.loads(connection.getresponse().read())
        outputs = torch.tensor(answer["outputs"][0]["data"]).view(2, -1)
        assert torch.equal(outputs, learner.predict(X[:2], "birds"))
        connection.request("POST", "/v2/models/birds/infer", b" " * (2 << 20))
        reply = connection.getresponse()
        assert (reply.status, b"send binary tensors" in reply.read()) == (413, True)
        connection.close()


@pytest.mark.parametrize(
    ("given", "expected"),
    [("features", "features"), ("1", 1), ("-1", -1), (2, 2), (None, None), (f"{HERE}:first", None)],
)
def test_outputs_are_a_key_a_position_or_a_function(given: str | int | None, expected: object) -> None:
    picked = call_options(output=given)["output"]
    if isinstance(given, str) and ":" in given:
        assert picked((1, 2)) == 1
    else:
        assert picked == expected
        assert type(picked) is type(expected)


def test_a_reference_to_nothing_is_named() -> None:
    with pytest.raises(SettingError, match=r"the transform '.+:missing'"):
        call_options(transform=f"{HERE}:missing")
