"""Matrices in four bits: nothing is clipped, nothing is off by more than half a scale, and the bytes are as counted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from halrp.errors import DamagedError
from halrp.model import int4
from halrp.model.codec import Coded, decode, encode, row_bytes

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def matrix(rows: int, columns: int, seed: int, size: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return size * torch.randn(rows, columns, generator=generator, dtype=torch.float64)


@given(st.integers(0, 5), st.integers(0, 100), st.integers(0, 1000), st.sampled_from(FLOATS), st.integers(-4, 3))
@settings(deadline=None, max_examples=150)
def test_every_entry_is_within_half_a_scale_of_its_group(
    rows: int, columns: int, seed: int, dtype: torch.dtype, power: int
) -> None:
    original = matrix(rows, columns, seed, 10.0**power).to(dtype)
    coded = encode(original, "int4")
    assert coded.bytes == rows * row_bytes(columns, "int4") == rows * (-(-columns // 2) + 2 * -(-columns // 32))
    scale = coded.parts["scale"].double().repeat_interleave(32, dim=1)[:, :columns]
    assert bool((original.double().abs() <= 7 * scale).all())  # nothing is clipped
    read = decode(coded, torch.float64)
    # A quotient in float32 may round to the other side of a half: 7 steps are known to 7 · 2⁻²⁴ of a scale.
    assert bool(((read - original.double()).abs() <= scale * (0.5 + 2**-20)).all())
    assert bool((read[original == 0] == 0).all())
    again = encode(read.to(torch.float64), "int4")
    assert torch.equal(decode(again, torch.float64), read)


@pytest.mark.parametrize("dtype", FLOATS)
def test_scales_are_the_smallest_that_clip_nothing(dtype: torch.dtype) -> None:
    original = matrix(1, 32 * 200, 0).to(dtype)
    scale = encode(original, "int4").parts["scale"].reshape(-1)
    below = (scale.view(torch.int16) - 1).view(torch.bfloat16)
    largest = original.reshape(-1, 32).abs().amax(1).double()
    assert bool((7 * scale.double() >= largest).all())
    assert bool((7 * below.double() < largest).all())


def test_two_entries_share_a_byte_the_first_in_the_lower_bits() -> None:
    coded = encode(torch.tensor([[7.0, -7.0, 1.0], [-1.0, 0.0, 2.0]]), "int4")
    # Scales are 1 and the bfloat16 number just above 2/7, of which 1 is a little less than 3.5.
    assert coded.parts["values"].tolist() == [[0x97, 0x01], [0x0D, 0x07]]
    assert coded.parts["scale"].dtype == torch.bfloat16
    assert coded.parts["scale"].shape == (2, 1)


def test_a_group_of_zeros_has_the_scale_zero_and_disturbs_no_other() -> None:
    original = matrix(2, 70, 1).float()
    original[0, 32:64] = 0
    coded = encode(original, "int4")
    assert (coded.parts["scale"] == 0).tolist() == [[False, True, False], [False, False, False]]
    read = decode(coded, torch.float32)
    assert not read[0, 32:64].any()
    assert torch.equal(read[0, 64:], decode(encode(original[:1, 64:], "int4"), torch.float32)[0])


def test_the_smallest_numbers_are_not_clipped_and_not_divided_by_zero() -> None:
    original = torch.full((1, 32), 1e-45)
    assert bool(decode(encode(original, "int4"), torch.float32).isfinite().all())


def test_zeros_are_never_left_out() -> None:
    assert encode(torch.zeros(40, 400), "int4").parts.keys() == {"scale", "values"}


@pytest.mark.parametrize("part", ["scale", "values"])
def test_parts_that_do_not_fit_are_damaged(part: str) -> None:
    coded = encode(torch.ones(2, 40), "int4")
    cut = Coded(2, 40, {**coded.parts, part: coded.parts[part][:, :-1]})
    with pytest.raises(DamagedError, match="2 × 40"):
        decode(cut, torch.float32)


def test_bytes_that_encoding_never_writes_are_found() -> None:
    values = encode(matrix(3, 33, 2), "int4").parts["values"]
    assert int4.problem(values, 33) == ""
    stray, eight = values.clone(), values.clone()
    stray[1, -1] |= 0x10
    eight[2, 0] = 0x80
    assert "after the last entry" in int4.problem(stray, 33)
    assert "−8" in int4.problem(eight, 33)
