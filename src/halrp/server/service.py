"""What the server does, apart from HTTP: `Service`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from halrp._version import __version__
from halrp.errors import UnknownTaskError
from halrp.model.batch import Batch
from halrp.model.delta import Delta
from halrp.model.inference import normalises_by_batch
from halrp.objectives.classification import Answer as Labels
from halrp.serve.answers import answers
from halrp.serve.identify import AUTO, Identified, answers_of, without_unknown
from halrp.serve.loaded import LoadedTask
from halrp.serve.store_predictor import StorePredictor
from halrp.server import inferred, protocol
from halrp.server.errors import RequestError, unknown
from halrp.server.fusion import Fusion
from halrp.server.inputs import InputSpec, as_batch
from halrp.server.limits import Limits
from halrp.server.protocol import LABEL, OUTPUT, PROBABILITY, TASK, Answer, InferRequest
from halrp.server.tensors import NAMES
from halrp.server.tokens import Access

BASE = "base"
"""The name of the model that is the base's own task, and that takes mixed requests."""


@dataclass(frozen=True)
class Prepared:
    """A request whose tasks are in memory, in the versions that it is answered with."""

    request: InferRequest
    model: str
    names: Sequence[str | None]
    """Of each row."""
    tasks: Mapping[str | None, LoadedTask]
    x: Batch
    identified: Identified | None = None
    """What the tasks of the rows were found by, if the request did not name them."""

    @property
    def rows(self) -> list[LoadedTask]:
        """The task of each row."""
        return [self.tasks[name] for name in self.names]

    @property
    def version(self) -> str:
        """Of the model that was asked for."""
        named = self.request.tasks is None and self.identified is None
        return self.tasks[self.names[0]].version if named else ""


class Service:
    """Answers requests about the tasks of a store. Its methods may block; all but `submit` belong into threads."""

    def __init__(self, predictor: StorePredictor, limits: Limits, inputs: Sequence[InputSpec] = ()) -> None:
        """Take what predicts; requests share batches unless the model would let rows depend on each other."""
        self.predictor, self.limits, self.inputs = predictor, limits, tuple(inputs)
        self.fusion = Fusion(predictor, limits, together=not normalises_by_batch(predictor.base.module))

    # ---- inference --------------------------------------------------------------------------------------------------

    def prepare(self, access: Access, model: str, version: str | None, body: bytes, header: str | None) -> Prepared:
        """Read a request, and the tasks that it asks for."""
        request = protocol.parse(body, header, self.limits.text)
        if request.rows > self.limits.rows:
            raise RequestError(413, f"the request has {request.rows} rows; this server takes {self.limits.rows}")
        if inferred.is_inferred(self.predictor, access, model):
            x = as_batch(request.inputs, self.inputs)
            identified = inferred.identified(self.predictor, access, request, version, x)
            return Prepared(request, model, identified.best, self._select(access, identified.best), x, identified)
        if TASK in request.outputs:
            raise RequestError(400, f"only the model {AUTO!r} has an output `{TASK}`")
        names: list[str | None] = [_task(model)] * request.rows
        if request.tasks is not None:
            if model != BASE or version is not None:
                raise RequestError(400, f"a request with an input `{TASK}` is sent to the model {BASE!r}")
            names = [_task(name) for name in request.tasks]
        tasks = self._select(access, names)
        prepared = Prepared(request, model, names, tasks, as_batch(request.inputs, self.inputs))
        _check_version(model, version, prepared.version)
        return prepared

    def submit(self, prepared: Prepared, deadline: float) -> Future[Tensor]:
        """Put a request into the queue."""
        return self.fusion.submit(prepared.x, prepared.rows, deadline)

    def encode(self, prepared: Prepared, outputs: Tensor) -> tuple[bytes, int | None]:
        """The body of the answer, and the length of its JSON if bytes follow."""
        asked, given = dict(prepared.request.outputs), dict[str, Tensor | list[str]]()
        if prepared.identified is not None:
            outputs = without_unknown(outputs, prepared.identified)
            asked = {TASK: False} | asked
            given[TASK] = [name or "" for name in prepared.identified.tasks]
        if LABEL in asked or PROBABILITY in asked:
            labels = self._labels(prepared, outputs)
            given |= {LABEL: ["" if label is None else str(label) for label in labels.labels]}
            given |= {PROBABILITY: labels.probabilities}
        given[OUTPUT] = outputs
        chosen = {name: given[name] for name in asked}
        return Answer(prepared.model, prepared.version, chosen, prepared.request.id).encode(asked)

    def _labels(self, prepared: Prepared, outputs: Tensor) -> Labels:
        deltas = {name: task.delta for name, task in prepared.tasks.items()}
        decoded = answers(deltas.__getitem__, outputs, list(prepared.names))
        if not isinstance(decoded, Labels):
            raise RequestError(400, f"only classifications have {LABEL} and {PROBABILITY}; ask for {OUTPUT!r}")
        return decoded if prepared.identified is None else answers_of(decoded, prepared.identified)

    def _select(self, access: Access, names: Sequence[str | None]) -> Mapping[str | None, LoadedTask]:
        """Tasks by name; one that the client may not see is answered as one that is not there."""
        wanted = list(dict.fromkeys(names))
        for name in wanted:
            if not access.may(BASE if name is None else name):
                raise unknown(BASE if name is None else name)
        try:
            return self.predictor.select(wanted)
        except UnknownTaskError as error:
            present = self.predictor.tasks
            missing = next((name for name in wanted if name is not None and name not in present), None)
            raise unknown(missing or str(wanted[0])) from error

    # ---- models -----------------------------------------------------------------------------------------------------

    def server_metadata(self) -> dict[str, Any]:
        """What the server is."""
        return {"name": "halrp", "version": __version__, "extensions": ["binary_tensor_data", "model_repository"]}

    def metadata(self, access: Access, model: str, version: str | None) -> dict[str, Any]:
        """What a model takes and gives."""
        inputs = [spec.metadata for spec in self.inputs]
        datatype = NAMES[next(self.predictor.base.module.parameters()).dtype]
        if version is None and inferred.is_inferred(self.predictor, access, model):
            inferred.candidates(self.predictor, access)
            return inferred.metadata(inputs, datatype)
        task = self.loaded(access, model, version)
        if model == BASE and inputs:
            inputs.append({"name": TASK, "datatype": "BYTES", "shape": [-1], "parameters": {"optional": True}})
        outputs = _outputs(task.delta, datatype)
        return {"name": model, "versions": [task.version], "platform": "halrp", "inputs": inputs, "outputs": outputs}

    def loaded(self, access: Access, model: str, version: str | None) -> LoadedTask:
        """A model, read and verified if it is not in memory."""
        task = self._select(access, [_task(model)])[_task(model)]
        _check_version(model, version, task.version)
        return task

    def unload(self, access: Access, model: str) -> None:
        """Give a model's memory back; the next request for it reads it again."""
        if not access.may(model):
            raise unknown(model)
        if model == BASE:
            raise RequestError(400, f"the model {BASE!r} is the base of all others and stays")
        try:
            self.predictor.drop(model)
        except UnknownTaskError as error:
            raise unknown(model) from error

    def index(self, access: Access) -> list[dict[str, Any]]:
        """The models that a client may use."""
        versions = {BASE: self.predictor.base_version}
        versions |= {name: entry.sha256 for name, entry in self.predictor.tasks.items() if name != BASE}
        return [
            {"name": name, "version": version, "state": "READY", "reason": ""}
            for name, version in versions.items()
            if access.may(name)
        ]

    def status(self, access: Access) -> dict[str, Any]:
        """What the page shows: the tasks that a client may use, their bytes, and the load."""
        resident = self.predictor.resident
        tasks = [
            {"name": name, "version": entry.sha256, "bytes": entry.bytes, "resident": resident.get(name, 0)}
            for name, entry in self.predictor.tasks.items()
            if access.may(name)
        ]
        status: dict[str, Any] = {
            "tasks": tasks,
            "base": access.may(BASE),
            "inputs": [spec.metadata for spec in self.inputs],
        }
        if access.everything:
            counts = self.fusion.counts
            status["load"] = {
                "waiting": self.fusion.waiting,
                "requests": counts.requests,
                "rows": counts.rows,
                "batches": counts.batches,
                "resident": sum(resident.values()),
                "memory": self.predictor.memory,
                "problem": str(self.predictor.problem or ""),
            }
        return status

    # ---- figures ----------------------------------------------------------------------------------------------------

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Figures of the moment."""
        resident = self.predictor.resident
        return {
            "halrp_tasks": ("Tasks of the store.", len(self.predictor.tasks)),
            "halrp_resident_tasks": ("Tasks in memory.", len(resident)),
            "halrp_resident_bytes": ("Bytes of tasks in memory.", sum(resident.values())),
            "halrp_memory_limit_bytes": ("Bytes that tasks in memory may take.", self.predictor.memory),
            "halrp_queue": ("Requests that wait.", self.fusion.waiting),
            "halrp_store_generation": ("Commits of the store.", self.predictor.generation),
            "halrp_store_problem": ("1 if the store cannot be followed.", int(self.predictor.problem is not None)),
        }

    def counters(self) -> dict[str, tuple[str, float]]:
        """Figures since the start."""
        counts, statistics = self.fusion.counts, self.predictor.statistics
        return {
            "halrp_batches_total": ("Batches computed.", counts.batches),
            "halrp_rows_total": ("Rows computed.", counts.rows),
            "halrp_fused_requests_total": ("Requests computed.", counts.requests),
            "halrp_batch_tasks_total": ("Distinct tasks of each batch, summed.", counts.tasks),
            "halrp_batches_apart_total": ("Shared batches that failed and were computed one by one.", counts.alone),
            "halrp_compute_seconds_total": ("Seconds of computing batches.", counts.seconds),
            "halrp_task_loads_total": ("Task files read.", statistics["loads"]),
            "halrp_task_evictions_total": ("Tasks dropped to make room.", statistics["evictions"]),
            "halrp_one_pass_total": ("Mixed batches in one pass.", statistics["one_pass"]),
            "halrp_task_by_task_total": ("Mixed batches task by task.", statistics["task_by_task"]),
        }

    def close(self) -> None:
        """Answer what waits, and take no more."""
        self.fusion.close()


def deadline(limits: Limits) -> float:
    """When a request that begins now is given up."""
    return time.monotonic() + limits.seconds


def _task(model: str) -> str | None:
    """The task of a model; an empty name of a row is the base's too."""
    return None if model in (BASE, "") else model


def _check_version(model: str, asked: str | None, present: str) -> None:
    if asked is not None and asked != present:
        raise RequestError(404, f"the model {model!r} has no version {asked!r}; its version is {present}")


def _outputs(delta: Delta, datatype: str) -> list[dict[str, Any]]:
    shape = [-1, delta.classes]
    if delta.objective.get("name") != "classification":
        return [{"name": OUTPUT, "datatype": datatype, "shape": [-1]}]
    return [
        {"name": OUTPUT, "datatype": datatype, "shape": shape},
        {"name": LABEL, "datatype": "BYTES", "shape": [-1]},
        {"name": PROBABILITY, "datatype": "FP64" if datatype == "FP64" else "FP32", "shape": shape},
    ]
