"""Parts of batches: together they are the batches of one process, and no process is left with a single row."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from halrp.errors import DataError
from halrp.objectives import Classification
from halrp.training.batches import Data, InMemory, Loaded, Part
from halrp.training.shared_data import SharedDataset, exactly, whole
from tests.helpers import Pairs

CPU = torch.device("cpu")


def parts(examples: int, size: int, kind: str) -> list[Data]:
    """The data of each process; inputs and labels are the numbers of the examples."""
    rows = torch.arange(examples)
    if kind == "memory":
        data = InMemory(rows, rows, objective=Classification(examples))
        return [replace(data, part=Part(rank, size)) for rank in range(size)]
    loaded = Loaded(DataLoader(Pairs(rows, rows), 8), CPU, Classification(examples), (examples,))
    return [SharedDataset(loaded, Part(rank, size)) for rank in range(size)]


def batches(data: Data, batch: int, shuffled: bool) -> list[Tensor]:
    return [y for _, y in data.batches(batch, torch.Generator().manual_seed(1) if shuffled else None)]


@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("kind", ["memory", "data set"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_parts_together_are_all_examples_once_and_each_has_two_rows_of_every_batch(
    size: int, kind: str, shuffled: bool
) -> None:
    for examples in range(2 * size, 40):
        for batch in (2 * size, 8):
            divided = [batches(data, batch, shuffled) for data in parts(examples, size, kind)]
            steps = {len(mine) for mine in divided}
            assert steps == {parts(examples, size, kind)[0].steps(batch)}
            assert min(len(rows) for mine in divided for rows in mine) >= 2
            together = [torch.cat(rows) for rows in zip(*divided, strict=True)]
            assert max(len(rows) for rows in together) < batch + 2 * size
            assert torch.cat(together).sort().values.tolist() == list(range(examples))
            if not shuffled:
                assert together[0].sort().values.tolist() == list(range(len(together[0])))


@pytest.mark.parametrize("kind", ["memory", "data set"])
def test_the_whole_of_a_part_is_everything(kind: str) -> None:
    for data in parts(10, 2, kind):
        assert torch.cat(batches(whole(data), 4, shuffled=False)).tolist() == list(range(10))


@pytest.mark.parametrize(("count", "reason"), [(2, "more than 2 batches.* had 2 before"), (4, "has 3 batches.* had 4")])
def test_a_pass_of_another_length_is_refused_before_others_wait_for_it(count: int, reason: str) -> None:
    data = parts(12, 1, "memory")[0]
    assert len(list(exactly(data.batches(4, None), 3, "a"))) == 3
    passed = exactly(data.batches(4, None), count, "a")
    for _ in range(min(count, 3)):
        next(passed)
    with pytest.raises(DataError, match=reason):
        next(passed)
