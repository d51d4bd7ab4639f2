"""What a model takes, as the server is started with it: `InputSpec`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from halrp.errors import SettingError
from halrp.model.batch import Batch
from halrp.server.errors import RequestError
from halrp.server.protocol import TASK
from halrp.server.tensors import DATATYPES, NAMES

_SPEC = re.compile(r"(?:(?P<name>[^=:]+)=)?(?:(?P<datatype>[A-Z0-9]+):)?(?P<shape>-?\d+(?:,-?\d+)*)")


@dataclass(frozen=True)
class InputSpec:
    """An input: its name, its datatype, and the shape of a row, −1 where any size will do."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @staticmethod
    def parse(text: str) -> InputSpec:
        """Read NAME=DATATYPE:SIZES; the name is `input` and the datatype FP32 by default."""
        match = _SPEC.fullmatch(text)
        datatype = (match["datatype"] or "FP32") if match else ""
        if match is None or datatype not in DATATYPES or match["name"] == TASK:
            raise SettingError(
                f"--input {text} is no input; give NAME=DATATYPE:SIZES of a row, such as pixels=FP32:3,32,32 or "
                f"input_ids=INT64:-1; datatypes are {', '.join(DATATYPES)}, and no input is called {TASK!r}"
            )
        return InputSpec(match["name"] or "input", datatype, tuple(map(int, match["shape"].split(","))))

    @property
    def metadata(self) -> dict[str, Any]:
        """The input in the metadata of a model."""
        return {"name": self.name, "datatype": self.datatype, "shape": [-1, *self.shape]}

    def check(self, tensor: Tensor) -> None:
        """Refuse a tensor of another datatype or shape."""
        sizes = tuple(tensor.shape[1:])
        fits = len(sizes) == len(self.shape) and all(w in (-1, n) for w, n in zip(self.shape, sizes, strict=True))
        if NAMES[tensor.dtype] != self.datatype or not fits:
            raise RequestError(
                400,
                f"input {self.name!r} is {NAMES[tensor.dtype]} of shape {list(tensor.shape)}; the model takes "
                f"{self.datatype} of shape {[-1, *self.shape]}",
            )


def as_batch(inputs: Mapping[str, Tensor], specs: Sequence[InputSpec]) -> Batch:
    """The inputs of a request as a batch: a tensor if there is one input, and otherwise a dict by name."""
    if specs:
        names = [spec.name for spec in specs]
        if set(names) != inputs.keys():
            given = ", ".join(map(repr, inputs))
            raise RequestError(400, f"the inputs are {given}; the model takes {', '.join(map(repr, names))}")
        for spec in specs:
            spec.check(inputs[spec.name])
    return next(iter(inputs.values())) if len(inputs) == 1 else dict(inputs)
