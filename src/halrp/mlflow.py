"""Tasks as models of MLflow: the task's file and the fingerprint of its base are logged, the base is not.

>>> halrp.mlflow.log_model(learner, "birds", "my_models:build", registered_model_name="birds")
>>> mlflow.pyfunc.load_model("models:/birds/1", model_config={"base": "store/"}).predict(x)

A logged model names the function that builds the network, and nothing is pickled. Whoever loads it says where the base
is; one with another fingerprint is a `WrongBaseError`. Needs MLflow (`pip install 'halrp[mlflow]'`), which nothing else
in the library imports but the callback `halrp.callbacks.MLflow`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from halrp._version import __version__
from halrp.errors import MissingPackageError
from halrp.model.batch import Batch
from halrp.objectives.classification import Answer as Labels
from halrp.serve.answers import answers
from halrp.serve.follow import Follower
from halrp.serve.opening import as_base, base_elsewhere
from halrp.serve.store_predictor import StorePredictor
from halrp.store.store import Store
from halrp.tools.importing import build_model, call_options

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of MLflow about itself
        import mlflow.pyfunc as _pyfunc
        from mlflow.models import Model as _Model
except ImportError as error:
    raise MissingPackageError("halrp.mlflow needs MLflow; run: pip install 'halrp[mlflow]'") from error

if TYPE_CHECKING:
    from halrp.learner import Learner

__all__ = ["load_model", "log_model", "save_model"]

FLAVOR = "halrp"


def save_model(
    path: str | os.PathLike[str],
    source: Learner | Store | str | os.PathLike[str],
    task: str,
    model: str,
    *,
    head: str | None = None,
    output: str | int | None = None,
    transform: str | None = None,
    mlflow_model: Any = None,
    **options: Any,
) -> None:
    """Save a task of a learner or of a store, without the base, as a model of MLflow in a folder.

    `model` is a reference to the function that builds the network, "package.module:function"; `head`, `output` and
    `transform`, if tasks were learned with them, are references too (an output may be a key or a position). What was
    saved is loaded once, beside the base at hand, before the folder is written. Other options, such as `signature`,
    `input_example`, `code_paths` and `pip_requirements`, are those of `mlflow.pyfunc.save_model`.
    """
    # Every key that may be given when the model is loaded must be there.
    config = {"model": model, "head": head, "output": output, "transform": transform, "base": None, "verify_key": None}
    with tempfile.TemporaryDirectory() as work:
        store = _store_of(source, task, Path(work) / "store")
        alone = store.extract(task, Path(work) / "task")
        opened = _opened(alone.folder, {**config, "base": str(store.folder)})
        facts = mlflow_model or _Model()
        facts.add_flavor(
            FLAVOR,
            task=task,
            base=opened.fingerprint,
            bytes=opened.predictor.tasks[task].bytes,
            halrp_version=__version__,
        )
        torch_version = torch.__version__.partition("+")[0]
        _pyfunc.save_model(
            os.fspath(path),
            loader_module=__name__,
            data_path=str(alone.folder),
            mlflow_model=facts,
            model_config=config,
            **{"pip_requirements": [f"halrp[mlflow]=={__version__}", f"torch=={torch_version}"], **options},
        )


def log_model(
    source: Learner | Store | str | os.PathLike[str],
    task: str,
    model: str,
    *,
    name: str | None = None,
    head: str | None = None,
    output: str | int | None = None,
    transform: str | None = None,
    registered_model_name: str | None = None,
    **options: Any,
) -> Any:
    """Log a task of a learner or of a store, without the base, to the active run of MLflow; return its `ModelInfo`.

    The model's name is the task's, unless one is given. Arguments are those of `save_model`; other options are also
    those of `mlflow.models.Model.log`, such as `metadata` and `tags`.
    """
    return _Model.log(
        artifact_path=None,
        name=name or task,
        flavor=sys.modules[__name__],
        registered_model_name=registered_model_name,
        source=source,
        task=task,
        model=model,
        head=head,
        output=output,
        transform=transform,
        **options,
    )


def load_model(
    model_uri: str,
    base: str | os.PathLike[str] | None = None,
    *,
    verify_key: str | os.PathLike[str] | None = None,
) -> StorePredictor:
    """A logged task as a predictor with that task alone.

    `base` is a store of the same base, or a base's file; without it, the weights with which the model is built are the
    base. One with another fingerprint is a `WrongBaseError`, and a task that does not give the outputs that its file
    proves an `InactiveError`. With `verify_key`, the task must have been logged from a store with that key.
    """
    given = {"base": base, "verify_key": verify_key}
    config = {name: os.fspath(value) for name, value in given.items() if value is not None}
    return cast(StorePredictor, _pyfunc.load_model(model_uri, model_config=config).get_raw_model())


class _Served:
    """A task as MLflow calls it."""

    def __init__(self, predictor: StorePredictor, task: str, fingerprint: str) -> None:
        self.predictor, self.task, self.fingerprint = predictor, task, fingerprint

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
        """The outputs of the server: `output`, and for classifications `label` and `probability`."""
        outputs = self.predictor.predict(_batch(model_input, next(self.predictor.base.module.parameters())), self.task)
        given = {"output": _array(outputs)}
        decoded = answers(self.predictor.delta, outputs, self.task)
        if isinstance(decoded, Labels):
            given |= {"label": np.array(decoded.labels), "probability": _array(decoded.probabilities)}
        return given

    def get_raw_model(self) -> StorePredictor:
        """What predicts."""
        return self.predictor


def _load_pyfunc(data_path: str, model_config: Mapping[str, Any] | None = None) -> _Served:
    """What `mlflow.pyfunc.load_model` calls."""
    return _opened(Path(data_path), model_config or {})


def _opened(folder: Path, config: Mapping[str, Any]) -> _Served:
    """The task of a folder that `Store.extract` has written, beside a base."""
    store = Store(folder, verify_key=config.get("verify_key"))
    follower = Follower(store, every=float("inf"))  # the folder belongs to MLflow and never changes
    options = call_options(config.get("head"), config.get("output"), config.get("transform"))
    like = as_base(store, follower.present, build_model(config["model"]), **options)
    predictor = StorePredictor(store, follower, base_elsewhere(like, follower.present, config.get("base")), check=True)
    [task] = follower.present.manifest.tasks
    predictor.pin(task)
    return _Served(predictor, task, predictor.base.fingerprint)


def _store_of(source: Learner | Store | str | os.PathLike[str], task: str, folder: Path) -> Store:
    """The store that holds a task: the source's, or a new one if a learner has none."""
    if isinstance(source, Store):
        return source
    if isinstance(source, (str, os.PathLike)):
        return Store(source)
    committed = source._committed
    if committed.store is not None:
        return committed.store
    store = Store(folder)
    store.commit(committed.ready, [committed.predictor.delta(task)])
    return store


def _batch(given: Any, like: Tensor) -> Batch:
    """The inputs of MLflow as a batch: arrays, mappings of them, and data frames of numbers or of lists."""
    if hasattr(given, "to_numpy") and hasattr(given, "columns"):
        if all(dtype.kind in "biuf" for dtype in given.dtypes):
            return _tensor(given.to_numpy(), like)
        given = {str(name): np.array(given[name].tolist()) for name in given.columns}
    if isinstance(given, Mapping):
        return {name: _tensor(array, like) for name, array in given.items()}
    return _tensor(given, like)


def _tensor(array: Any, like: Tensor) -> Tensor:
    """A tensor of its own; numbers with a point in the precision of the model, as JSON does not say which they have."""
    made = torch.tensor(np.asarray(array))
    return made.to(like.dtype) if made.is_floating_point() else made


def _array(tensor: Tensor) -> np.ndarray:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(force=True)
