"""`ridge`: ridge regression onto one-hot targets, on frozen features.

With `memory="task"` each task has its own regression, whose λ has the best accuracy on the task's validation data. With
"stream" all classes of the stream share one, from sums over all examples that are stored (features × features), so that
classes of different tasks can be compared; every later task then changes the outputs of earlier ones a little.
"""

from __future__ import annotations

from typing import Literal

import safetensors.torch
import torch
from torch import Tensor

from halrp.lab.methods import rounding
from halrp.lab.methods.least_squares import PENALTIES, Moments, fitted
from halrp.lab.methods.on_base import OnBase, Predictor
from halrp.lab.methods.protocol import Context, Size, State
from halrp.lab.methods.rounding import Form, check_form
from halrp.lab.methods.settings import check_choice
from halrp.lab.streams import Split, Task

Memory = Literal["task", "stream"]


class Ridge(OnBase):
    """Weights for each task, or sums for the stream."""

    def __init__(self, context: Context, form: Form = "float32", memory: Memory = "task") -> None:
        """Take the precision of files, and what is stored: the task's weights, or the stream's sums."""
        super().__init__(context)
        check_form("ridge", form)
        check_choice("ridge", "memory", memory, ("task", "stream"))
        self.form, self.memory = form, memory
        self.frozen = self.first_decides = memory == "task"
        self.moments: Moments | None = None
        self.penalty = 0.0
        self._weights: Tensor | None = None

    def mapped(self, x: Tensor) -> Tensor:
        """What the regression is on."""
        return self.features(x)

    def fit(self, task: Task) -> bytes:
        """Fit the task's weights; or add its examples to the sums, and choose λ on its validation data."""
        train, val = (Split(self.mapped(part.x), part.y.to(self.device)) for part in (task.train, task.val))
        if self.memory == "task":
            return rounding.encode(fitted(train, val, task.classes), self.form)
        if self.moments is None:
            self.moments = Moments(train.x.shape[1], self.device)
        self.moments.add(train, task.classes)
        self.penalty = max(PENALTIES, key=lambda penalty: self._right(val, task.classes, penalty))
        self._weights = self.moments.solved(self.penalty)
        return safetensors.torch.save({})

    def _right(self, val: Split, classes: int, penalty: float) -> float:
        assert self.moments is not None
        outputs = _outputs(val.x, self.moments.solved(penalty)[-classes:])
        return float((outputs.argmax(1) == val.y).double().mean())

    def opened(self, content: bytes, classes: int) -> Predictor:
        """The task's weights."""
        tensors = {name: tensor.to(self.device) for name, tensor in rounding.decode(content).items()}
        return lambda x: torch.nn.functional.linear(self.mapped(x), tensors["weight"], tensors["bias"])

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits of the task's classes."""
        if self.memory == "task":
            return super().predict(x, task)
        first = sum(file.classes for file in self.files[:task])
        return self._all(x)[:, first : first + self.files[task].classes]

    @torch.no_grad()
    def _all(self, x: Tensor) -> Tensor:
        """Logits of all classes of the stream."""
        assert self._weights is not None, "learn a task first"
        return _outputs(self.mapped(x), self._weights)

    def identify(self, x: Tensor) -> Tensor:
        """The task whose largest output is the largest."""
        return torch.stack([self.predict(x, task).amax(1) for task in range(len(self.files))], 1).argmax(1)

    def stored(self) -> Size:
        """The base with the files, or with the sums: half of the symmetric one."""
        size = super().stored()
        if self.moments is None:
            return size
        width = len(self.moments.gram)
        numbers = width * (width + 1) // 2 + self.moments.cross.numel()
        return Size(size.parameters + numbers, size.bytes + 8 * numbers)

    def state(self) -> State:
        """The files, or the sums."""
        state = super().state()
        if self.moments is None:
            return state
        sums = {"gram": self.moments.gram, "cross": self.moments.cross}
        return State(state.tensors | sums, state.values | {"penalty": self.penalty})

    def restore(self, state: State) -> None:
        """Take the files, or the sums."""
        files = {name: tensor for name, tensor in state.tensors.items() if name.startswith("file/")}
        super().restore(State(files, state.values))
        self.moments = self._weights = None
        if "gram" in state.tensors:
            self.moments = Moments(0, self.device)
            self.moments.gram, self.moments.cross = (state.tensors[n].to(self.device) for n in ("gram", "cross"))
            self.penalty = state.values["penalty"]
            self._weights = self.moments.solved(self.penalty)


def _outputs(x: Tensor, weights: Tensor) -> Tensor:
    return (x.double() @ weights[:, :-1].T + weights[:, -1]).float()
