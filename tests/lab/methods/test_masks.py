"""Masks of many tasks: symbols, codes that lose nothing, and their bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from halrp import seeding
from halrp.errors import DamagedError
from halrp.lab.methods import masks
from halrp.lab.methods.masks import CODERS, TASKS, Bits, Masks, bits_of, decode, encode, symbols_of


def independent(tasks: int, weights: int, share: float) -> Bits:
    return np.random.RandomState(0).rand(tasks, weights) < share


def drifting(tasks: int, weights: int, share: float, moves: float) -> Bits:
    """Each task's mask is the one before it, drawn again at a few positions."""
    generator = np.random.RandomState(1)
    result = [generator.rand(weights) < share]
    for _ in range(tasks - 1):
        result.append(np.where(generator.rand(weights) < moves, generator.rand(weights) < share, result[-1]))
    return np.stack(result)


def entropy(bits: Bits) -> float:
    """Bits per symbol, one symbol for each weight."""
    counts = np.unique(bits, axis=1, return_counts=True)[1] / bits.shape[1]
    return float(-(counts * np.log2(counts)).sum())


def test_a_symbol_has_a_bit_per_task_and_neighbours_fill_a_byte() -> None:
    bits = np.array([[1, 0, 1], [1, 1, 0], [0, 0, 1]], bool)
    assert symbols_of(bits).tolist() == [0b010_011, 0b101], "two weights of three tasks to a byte, the last one alone"
    seven = independent(7, 20, 0.5)
    assert symbols_of(seven).tolist() == [sum(int(b) << t for t, b in enumerate(column)) for column in seven.T]
    item = np.array([[1, 0, 0, 0, 0, 0, 0, 1, 1]], bool)
    assert symbols_of(item).tolist() == [0b1000_0001, 1]


@pytest.mark.parametrize("tasks", range(1, TASKS + 1))
@pytest.mark.parametrize("weights", [1, 7, 1000])
def test_symbols_and_codes_give_the_masks_back(tasks: int, weights: int) -> None:
    for share in (0.0, 0.1, 0.5, 1.0):
        bits = independent(tasks, weights, share)
        assert np.array_equal(bits_of(symbols_of(bits), tasks, weights), bits)
        assert np.array_equal(decode(encode(bits), tasks, weights), bits)
        content = symbols_of(bits).tobytes()
        assert all(back(code(content), len(content)) == content for code, back in CODERS.values())


def test_huffmans_code_lies_between_the_entropy_and_one_bit_more() -> None:
    bits = independent(7, 10_000, 0.1)
    length = 8 * len(CODERS["huffman"][0](symbols_of(bits).tobytes())) / 10_000
    assert entropy(bits) <= length < entropy(bits) + 0.1, "the table of the code included"


@pytest.mark.parametrize("tasks", [1, 7])
def test_a_mask_of_a_tenth_costs_about_half_a_bit_per_weight(tasks: int) -> None:
    bits = independent(tasks, 350_000 // tasks, 0.1)
    assert 0.465 < 8 * len(encode(bits)) / bits.size < 0.485, "the entropy is 0.469, that of Huffman's code 0.473"


def test_what_cannot_be_coded_costs_its_bits_and_a_byte() -> None:
    assert len(encode(independent(7, 8000, 0.5))) == 7 * 1000 + 1


def test_overlap_between_tasks_is_won() -> None:
    bits = drifting(7, 50_000, 0.5, 0.05)
    rate = 8 * len(encode(bits)) / bits.size
    assert entropy(bits) / 7 <= rate < (entropy(bits) + 1) / 7 < 0.5, "Huffman's code wastes at most a bit per symbol"


def test_the_shortest_way_is_taken() -> None:
    for bits in (independent(7, 9000, 0.5), independent(7, 9000, 0.1), drifting(7, 9000, 0.1, 0.01)):
        content = symbols_of(bits).tobytes()
        ways = [np.packbits(bits).nbytes, *(len(code(content)) for code, _ in CODERS.values())]
        coded = encode(bits)
        assert len(coded) == 1 + min(ways)
        assert ways[coded[0]] == min(ways)
    assert encode(drifting(7, 9000, 0.1, 0.01))[0] == 1 + list(CODERS).index("lzma"), "fractions of a bit"


@pytest.mark.parametrize("damage", [b"", b"\x07abc", b"\x00ab", b"\x01\xff\xff", b"\x02\xff\xff\xff"])
def test_damaged_masks_are_refused(damage: bytes) -> None:
    with pytest.raises(DamagedError, match="3 tasks and 100 weights"):
        decode(damage, 3, 100)


def test_a_code_that_is_cut_or_too_long_is_refused() -> None:
    coded = encode(independent(7, 5000, 0.1))
    for content in (coded[: len(coded) // 2], encode(independent(7, 5001, 0.1))):
        with pytest.raises(DamagedError):
            decode(content, 7, 5000)


def made(tasks: int) -> tuple[Masks, list[dict[str, torch.Tensor]]]:
    generator = seeding.generator("masks")
    shapes = {"conv": (8, 3, 3, 3), "linear": (10, 12)}
    given = [{n: torch.rand(shape, generator=generator) < 0.3 for n, shape in shapes.items()} for _ in range(tasks)]
    result = Masks()
    for mask in given:
        result.add(mask)
    return result, given


@pytest.mark.parametrize("tasks", [1, 7, 8, 15])
def test_every_task_gets_its_masks_back(tasks: int) -> None:
    result, given = made(tasks)
    for i, masks_of_task in enumerate(given):
        assert all(torch.equal(result.of(i)[n], mask) for n, mask in masks_of_task.items())
    for n, used in result.used().items():
        assert torch.equal(used, torch.stack([g[n] for g in given]).any(0))


def test_coded_masks_decode_to_every_tasks_mask() -> None:
    result, given = made(9)
    for group, tasks in ((0, 7), (1, 2)):
        for n, content in result.coded(group).items():
            bits = decode(content, tasks, given[0][n].numel())
            for i in range(tasks):
                assert torch.equal(torch.from_numpy(bits[i]).view_as(given[0][n]), given[7 * group + i][n])
    assert result.bytes() == sum(len(c) for group in (0, 1) for c in result.coded(group).values())


def test_a_full_group_is_coded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    result, given = made(8)
    before = result.bytes()
    calls: list[int] = []

    def observed(bits: Bits) -> bytes:
        calls.append(len(bits))
        return encode(bits)

    monkeypatch.setattr(masks, "encode", observed)
    assert result.bytes() == before
    assert not calls
    result.add(given[0])
    assert result.bytes() > before
    assert calls == [2, 2], "two layers of the second group, which now has two tasks"


def test_restored_masks_are_the_same_in_the_layout_of_the_weights() -> None:
    result, _ = made(9)
    like = {
        "conv": torch.zeros(8, 3, 3, 3).contiguous(memory_format=torch.channels_last),
        "linear": torch.zeros(10, 12),
    }
    again = Masks.restored({n: t.clone() for n, t in result.tensors().items()}, 9, like)
    assert again.tasks == 9
    assert again.bytes() == result.bytes()
    for i in range(9):
        assert all(torch.equal(again.of(i)[n], mask) for n, mask in result.of(i).items())
    assert again.groups[0]["conv"].stride() == like["conv"].stride()
