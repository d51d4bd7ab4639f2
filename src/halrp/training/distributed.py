"""Learning one task on several processes: what they exchange.

Every process has the model and computes the gradients of its part of each batch. One sum over all processes per step
makes them the gradient of the whole batch, so parameters stay the same everywhere and nothing is wrapped around the
model. What else follows from data is exchanged once per epoch or stage: losses, running statistics, sketches. Processes
that would not take part in an exchange wait for ever, so whatever decides on one is the same everywhere: it is checked
by text (`agreed`, `refuse_differences`), or the first process's word counts (`first`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor, nn

from halrp.errors import HalrpError, ProcessError, SettingError
from halrp.training.batches import Part
from halrp.training.checkpoint import SMALL, Checkpoints


@dataclass(frozen=True)
class Processes:
    """The processes of torch's default group, as one of them sees it."""

    rank: int
    size: int
    device: torch.device
    """Where this process computes, and what it exchanges lies."""

    @staticmethod
    def of(device: torch.device) -> Processes | None:
        """The processes that learn together, or None if this one is alone; refuses what cannot exchange anything."""
        if not (dist.is_available() and dist.is_initialized()):
            raise SettingError(
                "Learner(distributed=True) needs a process group; call torch.distributed.init_process_group() first "
                "and start the script with torchrun, or give distributed=False"
            )
        if dist.get_backend() == "nccl" and device.type != "cuda":
            raise SettingError(
                f"Learner(distributed=True): the process group's backend is nccl and the model lies on {device}; move "
                "it to the process's GPU, or use init_process_group('gloo')"
            )
        size = dist.get_world_size()
        return None if size == 1 else Processes(dist.get_rank(), size, device)

    @property
    def part(self) -> Part:
        """Which rows of every batch are this process's."""
        return Part(self.rank, self.size)

    @property
    def writes(self) -> bool:
        """Whether this process reports progress and writes to the store."""
        return self.rank == 0

    # ---- numbers --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over all processes, in one exchange."""
        flat = _flat(tensors)
        self.add_flat(flat)
        _write(flat, tensors)

    def add_flat(self, tensor: Tensor) -> None:
        """Replace a contiguous tensor by its sum over all processes, which has the same bits everywhere."""
        with _exchange():
            dist.all_reduce(tensor)

    @torch.no_grad()
    def take_first(self, tensors: Sequence[Tensor], label: str) -> None:
        """Replace tensors by those of the first process, where they are others; `label` names them in errors."""
        shapes = str([tuple(tensor.shape) for tensor in tensors])
        self.refuse_differences({f"the shapes of {label}": shapes})
        flat = _flat(tensors)
        with _exchange():
            dist.broadcast(flat, 0)
        _write(flat, tensors)

    @torch.no_grad()
    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their means over all processes; what is the same everywhere keeps its bits."""
        if not tensors:
            return
        mine = _flat(tensors)
        first = mine.clone()
        with _exchange():
            dist.broadcast(first, 0)
        difference = torch.where(mine == first, 0.0, mine - first)  # infinities may be equal, too
        self.add_flat(difference)
        _write(first + difference / self.size, tensors)

    @torch.no_grad()
    def rows(self, tensor: Tensor) -> Tensor:
        """The rows that all processes have of a tensor (N, ...), one process after the other."""
        counts = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        counts[self.rank] = len(tensor)
        self.add_flat(counts)
        whole = tensor.new_zeros(int(counts.sum()), *tensor.shape[1:])
        begin = int(counts[: self.rank].sum())
        whole[begin : begin + len(tensor)] = tensor
        self.add_flat(whole.view(torch.uint8))  # bytes plus zeros: exact in every type
        return whole

    def first(self, number: int) -> int:
        """The first process's number."""
        tensor = torch.tensor([int(number)], device=self.device)
        with _exchange():
            dist.broadcast(tensor, 0)
        return int(tensor)

    # ---- texts ----------------------------------------------------------------------------------------------------

    def first_content(self, content: bytes) -> bytes:
        """The first process's bytes."""
        tensor = torch.empty(self.first(len(content)), dtype=torch.uint8, device=self.device)
        if self.rank == 0 and content:
            tensor.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        with _exchange():
            dist.broadcast(tensor, 0)
        return tensor.cpu().numpy().tobytes()

    def texts(self, text: str) -> list[str]:
        """A text of each process."""
        content = text.encode(errors="surrogatepass")
        lengths = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        lengths[self.rank] = len(content)
        self.add_flat(lengths)
        table = torch.zeros(self.size, max(1, int(lengths.max())), dtype=torch.uint8, device=self.device)
        if content:
            row = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            table[self.rank, : len(content)] = row.to(self.device)
        self.add_flat(table)
        rows = zip(table.cpu(), lengths.tolist(), strict=True)
        return [row[:length].numpy().tobytes().decode(errors="surrogatepass") for row, length in rows]

    def refuse_differences(self, facts: Mapping[str, str]) -> None:
        """Raise in every process if facts, by name, are not the same in all of them."""
        everywhere = [json.loads(text) for text in self.texts(json.dumps(dict(facts)))]
        for rank, theirs in enumerate(everywhere):
            for name in (*everywhere[0], *theirs):
                mine, other = everywhere[0].get(name), theirs.get(name)
                if mine != other:
                    raise ProcessError(
                        f"processes 0 and {rank} differ in {name}: {_short(mine)} and {_short(other)}; processes that "
                        "learn together need the same model, tasks, settings and data"
                    )

    @contextmanager
    def agreed(self, task: str) -> Iterator[None]:
        """Run a block without exchanges; an error in one process is raised there, and a `ProcessError` elsewhere."""
        error: Exception | None = None
        try:
            yield
        except Exception as raised:
            error = raised
        texts = self.texts("" if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, text in enumerate(texts):
            if text:
                raise ProcessError(f"{task}: process {rank} failed, so nothing is learned here either: {text}")


def agreed(processes: Processes | None, task: str) -> AbstractContextManager[None]:
    """`Processes.agreed`, or nothing for a process that is alone."""
    return nullcontext() if processes is None else processes.agreed(task)


class GradientAverage:
    """The gradient of a step over all processes: one sum of weighted gradients and of their weights.

    With gradients g_i of the mean loss of each process's rows, which weigh w_i, it is Σ w_i g_i / Σ w_i: that of all
    rows together. Where some process has a gradient of a parameter, all have one; where none has, there is none.
    """

    def __init__(self, processes: Processes, parameters: Sequence[nn.Parameter]) -> None:
        """Prepare for parameters, which are the same in every process."""
        self._processes, self._parameters = processes, parameters
        numbers = [parameter.numel() for parameter in parameters]
        dtype = torch.float64 if any(p.dtype == torch.float64 for p in parameters) else torch.float32
        self._sum = torch.zeros(sum(numbers) + len(numbers) + 1, dtype=dtype, device=processes.device)
        self._gradients, self._present, self._weight = self._sum.split([sum(numbers), len(numbers), 1])
        parts = self._gradients.split(numbers)
        self._views = [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]

    @torch.no_grad()
    def __call__(self, weight: Tensor | float) -> None:
        """Average the gradients of the parameters; those of this process weigh `weight`."""
        absent = [i for i, parameter in enumerate(self._parameters) if parameter.grad is None]
        self._present.fill_(1)
        for i in absent:
            self._present[i] = 0
        for parameter, view in zip(self._parameters, self._views, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)
        self._gradients.mul_(weight)
        self._weight[0] = weight
        self._processes.add_flat(self._sum)
        # Without weight there is no gradient either: nothing counts if every target is to be ignored.
        self._gradients.div_(self._weight.clamp(min=torch.finfo(self._sum.dtype).tiny))
        # Only a process that lacks a gradient waits for the device, to learn whether others have one.
        elsewhere = {i for i in absent if self._present[i] > 0}
        for i, (parameter, view) in enumerate(zip(self._parameters, self._views, strict=True)):
            if i in elsewhere:
                parameter.grad = torch.empty_like(parameter)
            if parameter.grad is not None:
                parameter.grad.copy_(view)


class SharedCheckpoints(Checkpoints):
    """Checkpoints that the first process reads and writes for all."""

    def __init__(self, processes: Processes, checkpoints: Checkpoints) -> None:
        """Share the checkpoints of the first process."""
        super().__init__(checkpoints.folder, checkpoints.key, checkpoints.every, checkpoints.signing_key)
        self._processes = processes

    def due(self) -> bool:
        """Whether it is time to save; always where nothing is saved, so that nothing waits for it."""
        return not self._processes.writes or super().due()

    def save(self, stage: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Save the state of a stage in the first process."""
        if self._processes.writes:
            super().save(stage, tensors, facts)

    def load(self, stage: str, limit: int = SMALL) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What the first process finds, in every process."""
        saved = super().load(stage, limit) if self._processes.writes else None
        content = b"" if saved is None else safetensors.torch.save(saved[0], {"facts": json.dumps(saved[1])})
        content = self._processes.first_content(content)
        if not content:
            return None
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return safetensors.torch.load(content), json.loads(header["__metadata__"]["facts"])

    def reject(self, stage: str, reason: str) -> None:
        """Set a checkpoint aside in the first process."""
        if self._processes.writes:
            super().reject(stage, reason)

    def clear(self) -> None:
        """Remove the folder in the first process."""
        if self._processes.writes:
            super().clear()


@contextmanager
def _exchange() -> Iterator[None]:
    """Name what went wrong if the other processes do not answer."""
    try:
        yield
    except HalrpError:
        raise
    except RuntimeError as error:
        raise ProcessError(
            f"another process ended or does not answer ({error}); nothing is committed: start all of them again, and "
            "with a store the task resumes at its last checkpoint"
        ) from error


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """All numbers of some tensors, in float32 at least."""
    dtype = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    return torch.cat([tensor.detach().reshape(-1).to(dtype) for tensor in tensors])


def _write(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    """Write numbers back where they are others: what is the same may lie in memory that nothing may write to."""
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        value = part.view(tensor.shape).to(tensor.dtype)
        if not torch.equal(tensor, value):
            tensor.copy_(value)


def _short(text: str | None, limit: int = 80) -> str:
    return "nothing" if text is None else text if len(text) <= limit else f"{text[:limit]}…"
