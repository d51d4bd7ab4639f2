"""The rows of a mixed batch: the task of each, and how each meets what its task owns.

Rows are sorted by task, so that a task's rows are a slice. A context variable holds the rows of the call that is under
way in a thread, so layers need no state of their own and calls in several threads do not interfere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from contextvars import ContextVar
from functools import cached_property
from itertools import groupby

import torch
from torch import Tensor


class NotRowWise(Exception):  # noqa: N818  (a reason to compute task by task, not a failure)
    """A part of the model cannot be shown to treat the rows of a batch independently."""


class Rows:
    """The task of each row of a batch, in ascending order."""

    def __init__(self, tasks: Sequence[int], device: torch.device) -> None:
        """Group rows by the index of each row's task; the indices ascend."""
        self.tasks = torch.tensor(tasks, device=device)
        """(N,)"""
        groups, start = [], 0
        for task, members in groupby(tasks):
            stop = start + len(list(members))
            groups.append((task, range(start, stop)))
            start = stop
        self.groups = tuple(groups)
        """Each task that is present, and its rows."""

        self._repeated: dict[int, Rows] = {1: self}

    def __len__(self) -> int:
        return len(self.tasks)

    def repeated(self, times: int) -> Rows:
        """The same rows, each several times in succession: the windows or frames of one row are of its task."""
        if times not in self._repeated:
            tasks = [task for task, members in self.groups for _ in range(times * len(members))]
            self._repeated[times] = Rows(tasks, self.tasks.device)
        return self._repeated[times]

    def of(self, stack: Tensor) -> Tensor:
        """Each row's entry of a stack (T, ...) over tasks: (N, ...)."""
        return stack.index_select(0, self.tasks)

    def of_groups(self, values: Sequence[Tensor]) -> Tensor:
        """Each row's tensor (...) of one for each task that is present: (N, ...)."""
        return torch.stack(list(values)).index_select(0, self._group_of_row)

    @cached_property
    def _group_of_row(self) -> Tensor:
        numbers = [number for number, (_, members) in enumerate(self.groups) for _ in members]
        return torch.tensor(numbers, device=self.tasks.device)

    def last(self, stack: Tensor, x: Tensor) -> Tensor:
        """Each row's entry of a stack (T, *shape), to broadcast against x (N, ..., *shape)."""
        ones = (1 for _ in range(x.dim() - stack.dim()))
        return self.of(stack).view(len(self), *ones, *stack.shape[1:])

    def channels(self, stack: Tensor, x: Tensor) -> Tensor:
        """Each row's entry of a stack (T, C), to broadcast against x (N, C, *space)."""
        return self.of(stack).view(len(self), -1, *(1 for _ in x.shape[2:]))

    def times(self, x: Tensor, *matrices: Tensor) -> Tensor:
        """Multiply each row of x (N, ..., I) by its own task's matrices (T, J, I), one after another: (N, ..., J).

        A matrix fetched for every row would be used once, and fetching it costs more than all the rest of a layer.
        One product with the matrices of all tasks, of which each row keeps its own part, grows with the number of
        tasks. Here rows are laid out in chunks of equal length, each of one task. A length of N over the number of
        tasks, rounded up, bounds the waste however uneven the tasks are: there are at most twice as many chunks as
        tasks, and at most 4 N slots, including those that only fill a chunk.
        """
        tasks, row_of_slot, slot_of_row = self._chunks
        y = x.index_select(0, row_of_slot).reshape(len(tasks), -1, x.shape[-1])
        for matrix in matrices:
            y = y @ matrix.index_select(0, tasks).mT
        return y.view(len(row_of_slot), *x.shape[1:-1], y.shape[-1]).index_select(0, slot_of_row)

    @cached_property
    def _chunks(self) -> tuple[Tensor, Tensor, Tensor]:
        """The task of each chunk, the row in each slot of the chunks, and the slot of each row."""
        length = math.ceil(len(self) / len(self.groups))
        tasks: list[int] = []
        row_of_slot: list[int] = []
        slot_of_row: list[int] = []
        for task, members in self.groups:
            for start in range(0, len(members), length):
                chunk = members[start : start + length]
                tasks.append(task)
                slot_of_row += range(len(row_of_slot), len(row_of_slot) + len(chunk))
                row_of_slot += [*chunk, *[chunk[-1]] * (length - len(chunk))]
        device = self.tasks.device
        return (
            torch.tensor(tasks, device=device),
            torch.tensor(row_of_slot, device=device),
            torch.tensor(slot_of_row, device=device),
        )


ROWS: ContextVar[Rows] = ContextVar("ROWS")
"""The rows of the call that is under way in this thread."""


def rows_of(x: Tensor, layer: str, dims: int | None = None) -> Rows:
    """The rows of this call, if x has entries for each of them (and `dims` dimensions, if given)."""
    rows = ROWS.get()
    each, rest = divmod(x.shape[0], len(rows)) if x.dim() > 1 else (0, 1)
    if rest or not each or (dims is not None and x.dim() != dims):
        raise NotRowWise(f"{layer} sees an input of shape {tuple(x.shape)} in a batch of {len(rows)} rows")
    return rows.repeated(each)


def compute_apart(
    x: Tensor,
    rows: Rows,
    alone: Container[int],
    one_task: Callable[[Tensor, int], Tensor],
    together: Callable[[Tensor, Rows], Tensor],
) -> Tensor:
    """Compute the rows of the tasks in `alone` task by task with `one_task`, all others at once with `together`.

    Indexing is by brackets, which keep the memory format.
    """
    groups = [(task, members) for task, members in rows.groups if task in alone]
    if not groups:
        return together(x, rows)
    pieces = [one_task(x[members.start : members.stop], task) for task, members in groups]
    if len(groups) == len(rows.groups):
        return torch.cat(pieces)
    others = [(task, row) for task, members in rows.groups if task not in alone for row in members]
    index = torch.tensor([row for _, row in others], device=x.device)
    rest = together(x[index], Rows([task for task, _ in others], x.device))
    order = torch.cat([index, *(torch.arange(m.start, m.stop, device=x.device) for _, m in groups)])
    return torch.cat([rest, *pieces])[order.argsort()]
