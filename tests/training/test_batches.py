"""A task's data in every accepted form: what a pass yields, in which order, and what is refused before training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, TensorDataset

from halrp.errors import BatchOfOneError, DataError, LabelError, SettingError
from halrp.model.inference import batch_sizes
from halrp.objectives import Classification
from halrp.training.batches import InMemory, Loaded, refuse_batch_of_one
from halrp.training.prepare import Source, prepare

CPU = torch.device("cpu")


def ready(source: Any, batch: int = 4, classes: int | None = None, channels_last: bool = False) -> tuple[Any, int]:
    objective = Classification(classes)
    data = prepare(
        source, name="birds: train", device=CPU, batch=batch, objective=objective, channels_last=channels_last
    )
    return data, cast(int, data.objective.outputs)


def rows(count: int) -> tuple[Tensor, Tensor]:
    """Examples that carry their own number."""
    return torch.arange(count, dtype=torch.float32).unsqueeze(1), torch.arange(count) % 3


def order(data: Any, batch: int, seed: int | None) -> list[int]:
    shuffle = None if seed is None else torch.Generator().manual_seed(seed)
    return [int(v) for x, _ in data.batches(batch, shuffle) for v in x.flatten()]


class Pairs(Dataset[tuple[Tensor, int]]):
    """A user's own data set with integer labels."""

    def __init__(self, count: int = 10) -> None:
        self.x, self.y = rows(count)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], int(self.y[index])


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """A data set without a length, which may be readable only once."""

    def __init__(self, once: bool = False) -> None:
        pairs = list(zip(*rows(10), strict=True))
        self.pairs: Any = iter(pairs) if once else pairs

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.pairs)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(
    ("examples", "batch", "sizes"),
    [(8, 4, [4, 4]), (10, 4, [4, 4, 2]), (9, 4, [4, 5]), (3, 8, [3]), (1, 8, [1]), (5, 2, [2, 3])],
)
def test_a_pass_yields_every_row_once_and_a_remainder_of_one_joins(
    examples: int, batch: int, sizes: list[int], seed: int | None
) -> None:
    data, _ = ready(rows(examples))
    shuffle = None if seed is None else torch.Generator().manual_seed(seed)
    batches = list(data.batches(batch, shuffle))
    assert [len(y) for _, y in batches] == sizes
    assert data.steps(batch) == len(sizes)
    seen = torch.cat([x for x, _ in batches]).flatten()
    assert torch.equal(seen.sort().values, rows(examples)[0].flatten())
    assert torch.equal(torch.cat([y for _, y in batches]), seen.long() % 3)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize(("examples", "batch", "sizes"), [(8, 4, [4, 4]), (10, 4, [4, 4]), (9, 4, [4, 4]), (3, 8, [])])
def test_a_pass_can_leave_out_what_does_not_fill_a_batch(
    examples: int, batch: int, sizes: list[int], seed: int | None
) -> None:
    data = replace(ready(rows(examples))[0], drop_last=True)
    shuffle = None if seed is None else torch.Generator().manual_seed(seed)
    assert [len(y) for _, y in data.batches(batch, shuffle)] == sizes
    assert data.steps(batch) == len(sizes)
    assert data.examples == examples
    whole = replace(data, drop_last=False)
    assert order(data, batch, seed) == order(whole, batch, seed)[: sum(sizes)]


def test_a_data_set_can_leave_out_what_does_not_fill_a_batch() -> None:
    data = prepare(Pairs(10), name="birds: train", device=CPU, batch=4, drop_last=True)
    assert (data.steps(4), data.examples) == (2, 8)
    with pytest.raises(SettingError, match=r"birds: train: Recipe\(batch=12, drop_last=True\) .* 10 examples"):
        prepare(Pairs(10), name="birds: train", device=CPU, batch=12, drop_last=True)


@pytest.mark.parametrize(
    ("examples", "batch", "sizes"), [(8, 4, [4, 4]), (9, 4, [4, 5]), (10, 4, [4, 4, 2]), (1, 4, [1]), (3, 1, [1, 1, 1])]
)
def test_batch_sizes_leave_no_single_example_behind(examples: int, batch: int, sizes: list[int]) -> None:
    assert batch_sizes(examples, batch) == sizes


def test_the_order_is_a_function_of_the_generator() -> None:
    data, _ = ready(rows(20))
    assert order(data, 4, None) == list(range(20))
    assert order(data, 4, 1) == order(data, 4, 1)
    assert order(data, 4, 1) != order(data, 4, 2)
    assert order(data, 4, 1) == order(data, 7, 1)


@pytest.mark.parametrize("shuffle", [False, True])
def test_pictures_keep_their_values_and_come_with_channels_last(shuffle: bool) -> None:
    x = torch.randn(7, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    y = torch.arange(7)
    data, _ = ready((x, y), channels_last=True)
    for pictures, labels in data.batches(3, torch.Generator().manual_seed(0) if shuffle else None):
        assert pictures.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(pictures, x[labels])


def test_inputs_without_channels_ignore_the_format() -> None:
    data, _ = ready(rows(6), channels_last=True)
    assert order(data, 3, None) == list(range(6))
    loaded, _ = ready(DataLoader(Pairs(), batch_size=5), channels_last=True)
    assert order(loaded, 5, None) == list(range(10))


def test_pictures_from_a_loader_come_with_channels_last() -> None:
    x = torch.randn(6, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    data, _ = ready(DataLoader(TensorDataset(x, torch.arange(6)), batch_size=3), channels_last=True)
    for pictures, labels in data.batches(3, None):
        assert pictures.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(pictures, x[labels])


def test_the_form_of_the_source_decides_how_it_is_read() -> None:
    x, y = rows(10)
    in_memory: list[Source] = [(x, y), TensorDataset(x, y)]
    for source in [*in_memory, [x, y]]:
        assert isinstance(ready(source)[0], InMemory)
    loaded: list[Source] = [Pairs(), DataLoader(Pairs(), batch_size=4), DataLoader(Stream(), batch_size=4)]
    for source in loaded:
        data, classes = ready(source)
        assert isinstance(data, Loaded)
        assert (data.examples, data.steps(4), classes) == (10, 3, 3)
        assert sorted(order(data, 4, None)) == list(range(10))


def test_a_list_of_examples_is_a_data_set() -> None:
    data, classes = ready(list(zip(*rows(10), strict=True)))
    assert isinstance(data, Loaded)
    assert (data.examples, classes) == (10, 3)


def test_a_tensor_data_set_that_transforms_its_examples_is_read_through_its_own_method() -> None:
    class Shifted(TensorDataset):
        def __getitem__(self, index: int) -> tuple[Tensor, ...]:
            x, y = super().__getitem__(index)
            return x + 100, y

    data, _ = ready(Shifted(*rows(6)))
    assert min(order(data, 2, None)) == 100


def test_a_loader_keeps_its_own_batches_and_drops_what_it_drops() -> None:
    data, _ = ready(DataLoader(Pairs(), batch_size=4, drop_last=True), batch=2)
    assert [len(y) for _, y in data.batches(2, None)] == [4, 4]
    assert data.examples == 8


def test_labels_become_long_and_classes_default_to_the_highest_label() -> None:
    x, y = rows(6)
    data, classes = ready((x, y.to(torch.uint8)))
    assert classes == 3
    assert data.y.dtype == torch.long
    assert ready((x, y), classes=7)[1] == 7
    assert all(labels.dtype == torch.long for _, labels in ready(Pairs())[0].batches(4, None))


X, Y = rows(6)
NAN = X.clone()
NAN[1] = float("nan")
NAN[4] = float("inf")
BAD: dict[str, tuple[Any, type[DataError], str]] = {
    "negative label": ((X, Y - 1), LabelError, r"birds: train: labels run from -1 to 1"),
    "float label": ((X, Y.float()), LabelError, r"1-D tensor of class indices, got torch\.float32"),
    "one-hot label": ((X, torch.eye(6).long()), LabelError, r"shape \(6, 6\)"),
    "boolean label": ((X, Y > 0), LabelError, r"torch\.bool"),
    "not finite": ((NAN, Y), DataError, r"birds: train: 2 of 6 inputs hold NaN or infinity; clean"),
    "empty": ((X[:0], Y[:0]), DataError, r"empty; a task needs at least one example"),
    "lengths": ((X, Y[:4]), DataError, r"6 inputs but 4 targets"),
    "single numbers": ((torch.tensor(1.0), torch.tensor(0)), DataError, r"first dimension"),
    "three parts": ((X, Y, Y), DataError, r"expected a pair"),
    "arrays": ((X.numpy(), Y.numpy()), DataError, r"x is a ndarray; pass a tensor, such as torch\.as_tensor"),
    "empty data set": (Pairs(0), DataError, r"empty"),
    "empty loader": (DataLoader(Pairs(3), batch_size=4, drop_last=True), DataError, r"yields no example"),
    "not finite in a loader": (DataLoader(TensorDataset(NAN, Y), batch_size=3), DataError, r"NaN"),
    "float label in a loader": (DataLoader(TensorDataset(X, Y.float()), batch_size=3), LabelError, r"float32"),
    "no pair in a loader": (DataLoader(TensorDataset(X), batch_size=3), DataError, r"expected a pair"),
    "no length": (Stream(), DataError, r"cannot read data of type Stream; pass \(x, y\) tensors"),
    "number": (3, DataError, r"cannot read data of type int"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_are_refused_with_what_is_wrong(case: str) -> None:
    source, error, message = BAD[case]
    with pytest.raises(error, match=message):
        ready(source)


@pytest.mark.parametrize("source", [(X, Y), DataLoader(TensorDataset(X, Y), batch_size=3)])
def test_a_label_that_does_not_fit_the_number_of_classes_names_the_remedy(source: Any) -> None:
    with pytest.raises(LabelError, match=r"label 2 does not fit classes=2.*pass classes=3"):
        prepare(source, name="birds: train", device=CPU, batch=4, objective=Classification(2), identify=True)


def test_a_loader_that_changes_between_passes_is_checked_again() -> None:
    changing = TensorDataset(X.clone(), Y.clone())
    data, _ = ready(DataLoader(changing, batch_size=3))
    changing.tensors[1][0] = 9
    with pytest.raises(LabelError, match="label 9 does not fit"):
        list(data.batches(3, None))


def test_a_loader_that_can_be_read_only_once_is_refused() -> None:
    data, _ = ready(DataLoader(Stream(once=True), batch_size=4))
    with pytest.raises(DataError, match="several passes"):
        list(data.batches(4, None))


@pytest.mark.parametrize(
    ("source", "batch"),
    [
        (rows(1), 4),
        (rows(6), 1),
        (DataLoader(Pairs(9), batch_size=4), 4),
        (DataLoader(Pairs(4), batch_size=1), 4),
        (Pairs(9), 4),
        (DataLoader(Pairs(9), batch_sampler=BatchSampler(range(9), 4, drop_last=False)), 4),
    ],
)
def test_a_batch_of_one_is_refused(source: Any, batch: int) -> None:
    data, _ = ready(source, batch)
    with pytest.raises(BatchOfOneError, match="batches of two or more"):
        refuse_batch_of_one(data, batch, "birds: train")


@pytest.mark.parametrize(
    "source",
    [rows(9), Pairs(10), DataLoader(Pairs(9), batch_size=4, drop_last=True), DataLoader(Stream(), batch_size=4)],
)
def test_larger_batches_pass(source: Any) -> None:
    refuse_batch_of_one(ready(source)[0], 4, "birds: train")
