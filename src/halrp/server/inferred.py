"""The model `auto`: each row is answered by the task that it is found to be of, among those that a client may use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from halrp.errors import SettingError
from halrp.model.batch import Batch
from halrp.serve.identify import AUTO, Identified
from halrp.serve.store_predictor import StorePredictor
from halrp.server.errors import RequestError, unknown
from halrp.server.protocol import LABEL, OUTPUT, PROBABILITY, TASK, InferRequest
from halrp.server.tokens import Access


def is_inferred(predictor: StorePredictor, access: Access, model: str) -> bool:
    """Whether a model stands for the task that is found: unless the client may use a task of that name."""
    return model == AUTO and not (access.may(AUTO) and AUTO in predictor.tasks)


def candidates(predictor: StorePredictor, access: Access) -> list[str]:
    """The tasks that are compared; a client that may use none does not see the model."""
    names = [name for name in predictor.tasks if access.may(name)]
    if not names:
        raise unknown(AUTO)
    return names


def identified(
    predictor: StorePredictor, access: Access, request: InferRequest, version: str | None, x: Batch
) -> Identified:
    """The tasks of a request's rows."""
    if version is not None:
        raise RequestError(404, f"the model {AUTO!r} has no versions")
    if request.tasks is not None:
        raise RequestError(400, f"the model {AUTO!r} finds the task of each row; leave the input `{TASK}` out")
    try:
        return predictor.identify(x, tasks=candidates(predictor, access), top=1)
    except SettingError as error:
        raise RequestError(400, str(error)) from error


def metadata(inputs: Sequence[dict[str, Any]], datatype: str) -> dict[str, Any]:
    """What the model takes and gives."""
    outputs = [
        {"name": OUTPUT, "datatype": datatype, "shape": [-1, -1]},
        {"name": LABEL, "datatype": "BYTES", "shape": [-1]},
        {"name": PROBABILITY, "datatype": "FP64" if datatype == "FP64" else "FP32", "shape": [-1, -1]},
        {"name": TASK, "datatype": "BYTES", "shape": [-1]},
    ]
    return {"name": AUTO, "versions": [], "platform": "halrp", "inputs": list(inputs), "outputs": outputs}
