"""Tasks as models of MLflow, in a local file store: without the base, without pickle, and never beside another base."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when it is imported
pytest.importorskip("mlflow")

import mlflow
import pandas
from torch import Tensor, nn

import halrp.mlflow
from halrp import Learner, Recipe, Store, StorePredictor
from halrp.callbacks import MLflow
from halrp.errors import (
    DamagedError,
    MissingPackageError,
    SettingError,
    SignatureError,
    UnknownTaskError,
    WrongBaseError,
)
from halrp.store.signing import new_key, write_key
from tests.helpers import FAST, drawn, net, tiny_task
from tests.store.stores import X, learned, roomy

MODEL = "tests.test_mlflow:build"
TEXT = "tests.test_mlflow:build_text"


def build() -> nn.Module:
    return net("mlp")


class TextNet(nn.Module):
    """Takes named inputs, and gives its outputs under a name."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden, self.fc = nn.Embedding(20, 8), nn.Linear(8, 12), nn.Linear(12, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        rows = (self.embedding(ids) * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True)
        return {"scores": self.fc(self.hidden(rows).relu())}


def build_text() -> nn.Module:
    return drawn(TextNet)


def doubled(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return batch | {"mask": 2 * batch["mask"]}


@pytest.fixture(autouse=True)
def tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file store of this test alone."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(f"file:{tmp_path / 'runs'}")
    yield tmp_path / "runs"
    mlflow.set_tracking_uri(before)


@pytest.fixture(scope="module")
def learner(tmp_path_factory: pytest.TempPathFactory) -> Learner:
    """Tasks t0 to t2 on a base that the first made, so that only the store has its weights."""
    return learned("mlp", tasks=3, store=tmp_path_factory.mktemp("mlflow") / "store")


def folder_of(learner: Learner) -> Path:
    assert learner._committed.store is not None
    return learner._committed.store.folder


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_logged_task_predicts_with_the_bits_of_the_learner_beside_the_base(learner: Learner) -> None:
    with mlflow.start_run():
        mlflow.log_param("model", "ours")  # a name of the caller's own
        info = halrp.mlflow.log_model(learner, "t1", MODEL, registered_model_name="birds", tags={"team": "north"})
    store = folder_of(learner)
    for uri in (info.model_uri, "models:/birds/1"):
        model = mlflow.pyfunc.load_model(uri, model_config={"base": str(store)})
        given, answer = model.predict(X.numpy()), learner.answer(X, "t1")
        assert torch.equal(torch.from_numpy(given["output"]), learner.predict(X, "t1"))
        assert given["label"].tolist() == list(answer.labels)
        np.testing.assert_array_equal(given["probability"], answer.probabilities.numpy())
    base_file = store / Store(store).manifest().base.file
    predictor = halrp.mlflow.load_model("models:/birds/1", base_file)
    assert isinstance(predictor, StorePredictor)
    assert list(predictor.tasks) == ["t1"]
    assert torch.equal(predictor.predict(X, "t1"), learner.predict(X, "t1"))


def test_what_is_saved_is_the_task_and_the_fingerprint_of_the_base(learner: Learner, tmp_path: Path) -> None:
    halrp.mlflow.save_model(tmp_path / "model", learner, "t2", MODEL)
    facts = yaml.safe_load((tmp_path / "model" / "MLmodel").read_text())
    manifest = Store(folder_of(learner)).manifest()
    entry = manifest.tasks["t2"]
    assert facts["flavors"]["halrp"] == {
        "task": "t2",
        "base": manifest.fingerprint,
        "bytes": entry.bytes,
        "halrp_version": halrp.__version__,
    }
    python = facts["flavors"]["python_function"]
    assert (python["loader_module"], python["config"]["model"]) == ("halrp.mlflow", MODEL)
    data = tmp_path / "model" / python["data"]
    [layout] = manifest.layouts.values()
    assert files(data) == {"manifest.json", layout.file, entry.file}
    assert not [name for name in files(tmp_path / "model") if name.endswith((".pkl", ".pickle", ".pt"))]
    # The task can be brought from a registry into any store of the same base.
    other = tmp_path / "other"
    Store(other).commit(learner._committed.ready, [learner.tasks["t0"]])
    assert Store(other).merge(data) == ("t2",)
    assert torch.equal(StorePredictor.open(other, build()).predict(X, "t2"), learner.predict(X, "t2"))


def test_another_base_is_refused(learner: Learner, tmp_path: Path) -> None:
    halrp.mlflow.save_model(tmp_path / "model", learner, "t1", MODEL)
    uri, other = str(tmp_path / "model"), tmp_path / "other"
    learned("mlp", tasks=1, base="given", store=other)
    other_file = other / Store(other).manifest().base.file
    for base in (other, other_file, None):
        with pytest.raises(WrongBaseError, match="fingerprint"):
            halrp.mlflow.load_model(uri, base)
    with pytest.raises(WrongBaseError):
        mlflow.pyfunc.load_model(uri, model_config={"base": str(other)})
    wider = tmp_path / "wider"
    learned("conv", tasks=1, store=wider)
    with pytest.raises(WrongBaseError, match="does not fit the model"):
        halrp.mlflow.load_model(uri, wider / Store(wider).manifest().base.file)
    with pytest.raises(DamagedError, match="missing"):
        halrp.mlflow.load_model(uri, tmp_path / "nowhere")


def test_a_given_base_is_the_model_as_it_is_built(tmp_path: Path) -> None:
    learner = learned("mlp", tasks=2, base="given")  # without a store
    halrp.mlflow.save_model(tmp_path / "model", learner, "t1", MODEL)
    predictor = halrp.mlflow.load_model(str(tmp_path / "model"))
    assert torch.equal(predictor.predict(X, "t1"), learner.predict(X, "t1"))


@pytest.mark.parametrize("kind", ["array", "frame", "lists"])
def test_tables_and_lists_are_inputs_too(learner: Learner, tmp_path: Path, kind: str) -> None:
    halrp.mlflow.save_model(tmp_path / "model", learner, "t1", MODEL)
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"), model_config={"base": str(folder_of(learner))})
    rows = X.double().numpy()
    given: Any = {"array": rows, "frame": pandas.DataFrame(rows), "lists": rows.tolist()}[kind]
    assert torch.equal(torch.from_numpy(model.predict(given)["output"]), learner.predict(X, "t1"))


def test_named_inputs_an_output_and_a_transform_are_given_by_name(tmp_path: Path) -> None:
    ids = torch.arange(48).reshape(12, 4) % 20
    batch = {"ids": ids, "mask": torch.ones(12, 4)}
    settings: dict[str, Any] = {"output": "scores", "transform": doubled}
    learner = Learner(build_text(), base="given", method=roomy(), recipe=FAST, **settings)
    learner.learn("tickets", (batch, torch.arange(12) % 3))
    names = {"output": "scores", "transform": "tests.test_mlflow:doubled"}
    halrp.mlflow.save_model(tmp_path / "model", learner, "tickets", TEXT, **names)
    model = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    expected = learner.predict(batch, "tickets")
    arrays = {name: tensor.numpy() for name, tensor in batch.items()}
    frame = pandas.DataFrame({name: tensor.tolist() for name, tensor in batch.items()})
    for given in (arrays, frame):
        assert torch.equal(torch.from_numpy(model.predict(given)["output"]), expected)
    with pytest.raises(SettingError, match="was learned with transform"):
        halrp.mlflow.save_model(tmp_path / "other", learner, "tickets", TEXT, output="scores")
    assert not (tmp_path / "other").exists()


def test_a_signed_task_is_verified_when_it_is_loaded(learner: Learner, tmp_path: Path) -> None:
    key, path = new_key("hmac-sha256"), tmp_path / "key"
    write_key(path, key)
    signed = Store(tmp_path / "signed", signing_key=key)
    signed.commit(learner._committed.ready, [learner.tasks["t0"], learner.tasks["t1"]])
    for name, source in (("signed", signed), ("plain", folder_of(learner))):
        halrp.mlflow.save_model(tmp_path / f"model-{name}", source, "t1", MODEL)
    predictor = halrp.mlflow.load_model(str(tmp_path / "model-signed"), signed.folder, verify_key=path)
    assert torch.equal(predictor.predict(X, "t1"), learner.predict(X, "t1"))
    with pytest.raises(SignatureError):
        halrp.mlflow.load_model(str(tmp_path / "model-plain"), signed.folder, verify_key=path)


@pytest.mark.parametrize(
    ("task", "model", "error"),
    [
        ("cars", MODEL, UnknownTaskError),
        ("t1", "tests.test_mlflow:nothing", SettingError),
        ("t1", "lambda: None", SettingError),
        ("t1", TEXT, WrongBaseError),
    ],
)
def test_what_cannot_be_loaded_is_not_saved(
    learner: Learner, tmp_path: Path, task: str, model: str, error: type[Exception]
) -> None:
    for source in (learner, folder_of(learner)):
        with pytest.raises(error):
            halrp.mlflow.save_model(tmp_path / "model", source, task, model)
    assert not (tmp_path / "model").exists()


def test_without_mlflow_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "halrp.mlflow")
    monkeypatch.setitem(sys.modules, "mlflow.pyfunc", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'halrp\[mlflow\]'"):
        importlib.import_module("halrp.mlflow")


def test_a_run_has_the_figures_of_learning_and_the_task(tmp_path: Path) -> None:
    learner = Learner(build(), recipe=Recipe(epochs=2, batch=8, lr=5e-3), progress=MLflow())
    with mlflow.start_run() as run:
        learner.learn("birds", tiny_task("mlp"), val=tiny_task("mlp", 1))
        halrp.mlflow.log_model(learner, "birds", MODEL)
    client = mlflow.MlflowClient()
    assert len(client.get_metric_history(run.info.run_id, "birds/base/loss")) == 2
    [logged] = client.get_run(run.info.run_id).outputs.model_outputs
    assert client.get_logged_model(logged.model_id).name == "birds"
