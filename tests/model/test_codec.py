"""How matrices are written: what each precision keeps, when zeros are left out, and what damaged parts say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from halrp.errors import DamagedError, SettingError
from halrp.model.codec import PRECISIONS, Coded, Precision, decode, encode, pack, row_bytes, unpack

DTYPES = [torch.float32, torch.float64]


def matrix(rows: int, columns: int, seed: int = 0, dtype: torch.dtype = torch.float32, zeros: float = 0.0) -> Tensor:
    """A random matrix whose rows have very different sizes, with a share of exact zeros."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator, dtype=dtype)
    values = values * torch.logspace(-6, 3, rows, dtype=dtype).unsqueeze(1)
    return values.masked_fill(torch.rand(rows, columns, generator=generator) < zeros, 0)


@pytest.mark.parametrize("zeros", [0.0, 0.9])
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bfloat16])
def test_float32_loses_nothing_of_any_floating_type(dtype: torch.dtype, zeros: float) -> None:
    original = matrix(9, 50, zeros=zeros).to(dtype)
    coded = encode(original, "float32")
    assert ("mask" in coded.parts) == (zeros > 0)
    assert coded.parts["values"].dtype == dtype
    read = decode(coded, dtype)
    assert read.dtype == dtype
    assert torch.equal(read, original)


@pytest.mark.parametrize("zeros", [0.0, 0.9])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bfloat16_keeps_eight_bits_and_is_idempotent(dtype: torch.dtype, zeros: float) -> None:
    original = matrix(9, 100, dtype=dtype, zeros=zeros)
    coded = encode(original, "bfloat16")
    read = decode(coded, dtype)
    assert read.dtype == dtype
    # Rounding to a mantissa of 8 bits, the leading one included, is off by at most 2⁻⁸ of the value.
    assert bool(((read - original).abs() <= original.abs() * 2**-8).all())
    assert not torch.equal(read, original)
    again = encode(read, "bfloat16")
    assert torch.equal(decode(again, dtype), read)
    assert coded.parts.keys() == again.parts.keys()
    assert all(torch.equal(coded.parts[part], again.parts[part]) for part in coded.parts)


@pytest.mark.parametrize("zeros", [0.0, 0.9])
@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_is_within_half_a_step_of_its_row(dtype: torch.dtype, zeros: float) -> None:
    original = matrix(12, 400, dtype=dtype, zeros=zeros)
    coded = encode(original, "int8")
    assert coded.parts["values"].dtype == torch.int8
    assert coded.parts["scale"].dtype == torch.float32
    read = decode(coded, dtype)
    assert read.dtype == dtype
    step = original.abs().amax(1, keepdim=True).double() / 127
    # The scale is a float32 number and so is its product with up to 127 steps: a relative 2⁻²³ of the largest entry.
    assert bool(((read - original).double().abs() <= step * (0.5 + 127 * 2**-23)).all())
    # The largest entry of each row is met exactly, but for that rounding; exact zeros stay zeros.
    torch.testing.assert_close(read.abs().amax(1), original.abs().amax(1), rtol=2**-22, atol=0)
    assert bool((read[original == 0] == 0).all())


def test_int8_steps_are_the_rows_own() -> None:
    original = torch.tensor([[1e-6, -4e-7], [1e3, -4e2]])
    # 127 and 50.8 steps: the second is off by 0.2 of them.
    torch.testing.assert_close(decode(encode(original, "int8"), torch.float32), original, rtol=0.3 / 50.8, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_of_zeros_stay_zeros_and_disturb_no_other_row(precision: Precision, dtype: torch.dtype) -> None:
    original = matrix(4, 30, dtype=dtype)
    original[[0, 2]] = 0
    read = decode(encode(original, precision), dtype)
    assert not read[[0, 2]].any()
    assert bool(read.isfinite().all())
    nonzero = original[[1, 3]]
    assert torch.equal(read[[1, 3]], decode(encode(nonzero, precision), dtype))
    nothing = torch.zeros(4, 30, dtype=dtype)
    assert torch.equal(decode(encode(nothing, precision), dtype), nothing)


@pytest.mark.parametrize("shape", [(0, 7), (0, 0), (5, 0)])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_matrices_of_rank_zero_or_without_columns_have_no_entries(precision: Precision, shape: tuple[int, int]) -> None:
    coded = encode(torch.zeros(shape), precision)
    assert (coded.rows, coded.columns) == shape
    assert "mask" not in coded.parts
    assert coded.bytes == (4 * shape[0] if precision == "int8" else 0)
    assert decode(coded, torch.float32).shape == shape


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_dense_matrix_has_the_bytes_of_its_rows(precision: Precision, dtype: torch.dtype) -> None:
    original = matrix(6, 17, dtype=dtype)
    assert encode(original, precision).bytes == 6 * row_bytes(17, precision, original.element_size())
    assert row_bytes(17, precision) == {"float32": 68, "bfloat16": 34, "int8": 21}[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_zeros_are_left_out_only_if_that_is_smaller(precision: Precision) -> None:
    dense = encode(torch.ones(10, 400), precision)
    forms = set()
    for zeros in range(0, 4001, 50):
        original = torch.ones(4000)
        original[:zeros] = 0
        coded = encode(original.reshape(10, 400), precision)
        assert coded.bytes <= dense.bytes
        size = coded.parts["values"].element_size()
        scale = 40 if precision == "int8" else 0
        sparse = "mask" in coded.parts
        forms.add(sparse)
        assert coded.bytes == scale + (500 + (4000 - zeros) * size if sparse else 4000 * size)
        # A mask of 500 bytes pays from here on, with what naming it in a file costs.
        assert sparse == (zeros * size > 500 + 96)
        assert torch.equal(decode(coded, torch.float32).reshape(-1), original)
    assert forms == {True, False}


@pytest.mark.parametrize("entries", range(240, 257))
def test_a_mask_pays_from_the_first_byte_that_it_saves(entries: int) -> None:
    mask = -(-entries // 8)  # a bit for each entry, in whole bytes
    fewest = (mask + 96) // 4 + 1  # zeros of four bytes each, which must save more than the mask and its name cost
    for zeros in (fewest - 1, fewest):
        original = torch.ones(1, entries)
        original[0, :zeros] = 0
        assert ("mask" in encode(original, "float32").parts) == (zeros == fewest)


def test_a_coded_matrix_is_frozen_and_equal_to_itself_alone() -> None:
    original = matrix(3, 4)
    coded = encode(original, "float32")
    with pytest.raises(dataclasses.FrozenInstanceError):
        coded.rows = 2  # type: ignore[misc]
    # Comparing tensors entry by entry has no single answer.
    assert coded != encode(original, "float32")
    assert len({coded, encode(original, "float32")}) == 2


def test_entries_that_a_low_precision_rounds_to_zero_are_left_out_too() -> None:
    original = torch.full((2, 2000), 1e-3)
    original[:, 0] = 1.0
    coded = encode(original, "int8")
    assert coded.parts["values"].numel() == 2
    assert "mask" in coded.parts
    assert int(decode(coded, torch.float32).count_nonzero()) == 2


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_memory_format_of_a_matrix_does_not_matter(precision: Precision) -> None:
    original = matrix(5, 8, zeros=0.3)
    coded, other = encode(original, precision), encode(original.T.contiguous().T, precision)
    assert all(torch.equal(coded.parts[part], other.parts[part]) for part in coded.parts)


def test_what_was_encoded_is_not_changed() -> None:
    for precision in PRECISIONS:
        original = matrix(5, 300, zeros=0.8)
        copy = original.clone()
        decode(encode(original, precision), torch.float32)
        assert torch.equal(original, copy)


def test_an_unknown_precision_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(SettingError, match=r"'int2'.*'float32', 'bfloat16', 'int8', 'int4'"):
        encode(torch.ones(2, 2), cast(Any, "int2"))


@pytest.mark.parametrize("entries", [0, 1, 7, 8, 9, 16, 1001])
def test_packed_booleans_come_back(entries: int) -> None:
    generator = torch.Generator().manual_seed(entries)
    present = torch.rand(entries, generator=generator) < 0.5
    packed = pack(present)
    assert packed.dtype == torch.uint8
    assert packed.shape == ((entries + 7) // 8,)
    assert torch.equal(unpack(packed, entries), present)


def test_the_lowest_bit_is_the_first_entry() -> None:
    assert pack(torch.tensor([[True, False, False, False], [False, True, False, False], [True] * 4])).tolist() == [
        33,
        15,
    ]
    assert unpack(torch.tensor([33, 15], dtype=torch.uint8), 12).nonzero().flatten().tolist() == [0, 5, 8, 9, 10, 11]


@pytest.mark.parametrize(("size", "dtype"), [(2, torch.uint8), (4, torch.uint8), (3, torch.int8), (3, torch.float32)])
def test_a_mask_of_another_length_or_type_is_damaged(size: int, dtype: torch.dtype) -> None:
    with pytest.raises(DamagedError, match="does not fit 20 entries"):
        unpack(torch.zeros(size, dtype=dtype), 20)


Damage = Callable[[dict[str, Tensor]], dict[str, Tensor]]
DENSE: dict[str, Damage] = {
    "an entry is missing": lambda parts: parts | {"values": parts["values"].reshape(-1)[:-1]},
    "an entry too many": lambda parts: parts | {"values": torch.cat([parts["values"], parts["values"][:1]])},
    "a scale is missing": lambda parts: parts | {"scale": parts["scale"][:-1]},
    "a scale for all rows": lambda parts: parts | {"scale": parts["scale"][0]},
    "scales of another shape": lambda parts: parts | {"scale": parts["scale"].unsqueeze(1)},
    "values are missing": lambda parts: {part: t for part, t in parts.items() if part != "values"},
}
SPARSE: dict[str, Damage] = {
    "a value is missing": lambda parts: parts | {"values": parts["values"][:-1]},
    "a value too many": lambda parts: parts | {"values": torch.cat([parts["values"], parts["values"][:1]])},
    "values in two dimensions": lambda parts: parts | {"values": parts["values"].unsqueeze(0)},
    "a mask cut short": lambda parts: parts | {"mask": parts["mask"][:-1]},
    "a mask of another type": lambda parts: parts | {"mask": parts["mask"].float()},
    "a mask that marks nothing": lambda parts: parts | {"mask": torch.zeros_like(parts["mask"])},
    "the mask is missing": lambda parts: {part: t for part, t in parts.items() if part != "mask"},
    "values are missing": lambda parts: {part: t for part, t in parts.items() if part != "values"},
}


@pytest.mark.parametrize(
    ("zeros", "damage"),
    [
        *(pytest.param(0.0, damage, id=f"dense: {name}") for name, damage in DENSE.items()),
        *(pytest.param(0.9, damage, id=f"sparse: {name}") for name, damage in SPARSE.items()),
    ],
)
def test_parts_that_do_not_fit_together_are_damaged(zeros: float, damage: Damage) -> None:
    whole = encode(matrix(6, 100, zeros=zeros), "int8")
    assert ("mask" in whole.parts) == (zeros > 0)
    with pytest.raises(DamagedError):
        decode(Coded(whole.rows, whole.columns, damage(dict(whole.parts))), torch.float32)
