"""Methods on a pretrained base: each task is fitted alone and leaves one file, from which it predicts.

What is stored is the base and the bytes of these files, and what is measured is what comes back from them.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor, nn

from halrp import seeding
from halrp.errors import TaskError
from halrp.lab.methods import features, network
from halrp.lab.methods.protocol import Context, Method, Size, State
from halrp.lab.streams import Split, Task
from halrp.objectives import Classification

Predictor = Callable[[Tensor], Tensor]
"""Inputs → logits."""


class TaskFile(NamedTuple):
    """What a task left."""

    classes: int
    content: bytes
    numbers: int
    """How many numbers it holds."""

    @classmethod
    def of(cls, classes: int, content: bytes) -> TaskFile:
        """A file; each bit of a packed tensor is a number."""
        tensors = safetensors.torch.load(content).values()
        return cls(classes, content, sum(t.numel() * (8 if t.dtype == torch.uint8 else 1) for t in tensors))


class OnBase(Method):
    """A frozen base, and a file for each task."""

    frozen = True
    first_decides = True

    def __init__(self, context: Context) -> None:
        """Take the run's context; the base is what it builds."""
        super().__init__(context)
        self.files: list[TaskFile] = []
        self._current: tuple[int, Predictor] | None = None

    @abstractmethod
    def fit(self, task: Task) -> bytes:
        """Learn a task and return the content of its file."""

    @abstractmethod
    def opened(self, content: bytes, classes: int) -> Predictor:
        """The network of a task, from its file."""

    def learn(self, task: Task) -> None:
        """Fit the task, and keep its file."""
        if not isinstance(task.objective, Classification):
            raise TaskError(f"{task.name!r} is no classification, which {type(self).__name__} is for; leave it out")
        self._current = None
        self.files.append(TaskFile.of(task.classes, self.fit(task)))

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits of the network that the task's file holds; the last one stays open."""
        if self._current is None or self._current[0] != task:
            file = self.files[task]
            self._current = task, self.opened(file.content, file.classes)
        with torch.no_grad():
            return self._current[1](x)

    def stored(self) -> Size:
        """The base, and all files."""
        base = Size.of(network.contents(self.body).values())
        numbers = sum(file.numbers for file in self.files)
        return Size(base.parameters + numbers, base.bytes + sum(len(file.content) for file in self.files))

    def details(self) -> dict[str, Any]:
        """The bytes of the newest file."""
        return {"file_bytes": len(self.files[-1].content)}

    def state(self) -> State:
        """The files."""
        tensors = {f"file/{i}": as_tensor(file.content) for i, file in enumerate(self.files)}
        return State(tensors, {"classes": [file.classes for file in self.files]})

    def restore(self, state: State) -> None:
        """Take the files as they are."""
        classes = state.values["classes"]
        self.files = [TaskFile.of(n, as_bytes(state.tensors[f"file/{i}"])) for i, n in enumerate(classes)]
        self._current = None

    # ---- the base ------------------------------------------------------------------------------------------------

    @cached_property
    def base(self) -> tuple[nn.Module, int]:
        """The base without its head, and the number of its features."""
        net = self.context.build(2, self.context.seed).requires_grad_(False).eval()
        width: Any = net.get_submodule(network.HEAD).in_features
        setattr(net, network.HEAD, nn.Identity())
        return net, width

    @property
    def body(self) -> nn.Module:
        """The base without its head: inputs → features."""
        return self.base[0]

    @cached_property
    def device(self) -> torch.device:
        """The device of the base."""
        return next(self.body.parameters()).device

    @cached_property
    def identity(self) -> str:
        """A hash of the base: of its tensors, and of its layers with their settings."""
        content = f"{seeding.fingerprint(network.contents(self.body))}{self.body!r}"
        return hashlib.sha256(content.encode()).hexdigest()

    def features(self, x: Tensor) -> Tensor:
        """The features of inputs, (rows, width), from the cache if they are there."""
        return features.features(self.body, self.identity, x)

    def featured(self, split: Split) -> Split:
        """Examples as features."""
        return Split(self.features(split.x), split.y.to(self.device))

    def linear(self, tensors: dict[str, Tensor]) -> Predictor:
        """A head on the features."""
        weight, bias = (tensors[name].to(self.device) for name in ("weight", "bias"))
        return lambda x: nn.functional.linear(self.features(x), weight, bias)


def as_tensor(content: bytes) -> Tensor:
    """Bytes as a tensor."""
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def as_bytes(tensor: Tensor) -> bytes:
    """The bytes of a tensor."""
    return tensor.cpu().numpy().tobytes()
