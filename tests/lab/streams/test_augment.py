"""`CropFlip` against the plain way: pad one image, cut a window, mirror it."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Generator, Tensor

from halrp.errors import DataError, SettingError
from halrp.lab.streams.augment import CropFlip
from halrp.lab.streams.stream import Normal
from halrp.provenance import describe

FILL = (-2.0, 0.5, 3.0)


def seeded(seed: int = 0) -> Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = 5, channels: int = 3, height: int = 6, width: int = 7) -> Tensor:
    return torch.randn(count, channels, height, width, generator=seeded(9))


def cropped(image: Tensor, top: int, left: int, mirrored: bool, padding: int, fill: tuple[float, ...]) -> Tensor:
    """One image (channels, height, width), padded channel by channel."""
    sides = (padding,) * 4
    padded = torch.stack([F.pad(c, sides, value=v) for c, v in zip(image, fill, strict=True)])
    window = padded[:, top : top + image.shape[1], left : left + image.shape[2]]
    return window.flip(-1) if mirrored else window


def found_in(image: Tensor, result: Tensor, padding: int, fill: tuple[float, ...]) -> tuple[int, int, bool]:
    """The offsets and the mirroring that make the result of an image; there is one way only for noise."""
    positions = range(2 * padding + 1)
    ways = [
        (top, left, mirrored)
        for top, left, mirrored in itertools.product(positions, positions, (False, True))
        if torch.equal(cropped(image, top, left, mirrored, padding, fill), result)
    ]
    assert len(ways) == 1
    return ways[0]


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("fill", "channels"), [(FILL, 3), ((1.5,), 3), ((1.5,), 1)])
def test_every_result_is_a_window_of_the_padded_image(
    fill: tuple[float, ...], channels: int, channels_last: bool, padding: int
) -> None:
    x = images(channels=channels)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    before = x.clone()
    result = CropFlip(padding, fill)(x, seeded())
    assert torch.equal(x, before)
    assert result.dtype == x.dtype
    wanted = torch.channels_last if channels_last else torch.contiguous_format
    assert result.is_contiguous(memory_format=wanted)
    for image, new in zip(x, result, strict=True):
        found_in(image, new, padding, fill if len(fill) == channels else fill * channels)


def test_every_offset_and_both_directions_occur_as_often_as_they_should() -> None:
    # The image of one mark in the middle tells its offset; an uneven pair of marks tells the direction.
    x = torch.zeros(4000, 1, 9, 9)
    x[:, :, 4, 4], x[:, :, 4, 5] = 2.0, 1.0
    result = CropFlip(padding=3)(x, seeded())
    where = (result == 2).flatten(1).float().argmax(1)
    rows, columns = (where // 9).bincount(minlength=9), (where % 9).bincount(minlength=9)
    assert rows.nonzero().flatten().tolist() == columns.nonzero().flatten().tolist() == list(range(1, 8))
    # 4000 draws from seven places: 571 ± 22 each, and five deviations are 111.
    for counts in (rows[1:8], columns[1:8]):
        assert counts.min() > 460
        assert counts.max() < 683
    together = ((where // 9) * 9 + where % 9).unique()
    assert len(together) == 49
    mirrored = (result[:, 0, :, :-1] - result[:, 0, :, 1:] == -1).any(dim=(1, 2))
    # 2000 ± 32, and five deviations are 160.
    assert 1840 < int(mirrored.sum()) < 2160


def test_draws_come_from_the_generator_alone() -> None:
    x, augment, state = images(50), CropFlip(), torch.get_rng_state()
    first = augment(x, seeded(1))
    torch.testing.assert_close(augment(x, seeded(1)), first, rtol=0, atol=0)
    assert not torch.equal(augment(x, seeded(2)), first)
    assert torch.equal(torch.get_rng_state(), state)
    generator = seeded(1)
    augment(x, generator)
    assert not torch.equal(augment(x, generator), first)


def test_the_same_draws_shift_images_of_any_format_and_type_alike() -> None:
    x, augment = images(8), CropFlip(2, FILL)
    expected = augment(x, seeded())
    assert torch.equal(augment(x.contiguous(memory_format=torch.channels_last), seeded()), expected)
    assert torch.equal(augment(x.movedim(1, -1).contiguous().movedim(-1, 1), seeded()), expected)
    assert torch.equal(augment(x.double(), seeded()), expected.double())


def test_there_is_no_gradient() -> None:
    assert not CropFlip()(images().requires_grad_(), seeded()).requires_grad


def test_black_pixels_are_what_normalising_made_of_them() -> None:
    normal = Normal((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    augment = CropFlip.black(normal, padding=2)
    assert augment.padding == 2
    bytes_of = torch.randint(0, 256, (20, 3, 5, 5), generator=seeded(3)).float() / 255
    mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in normal)
    # Padding the pixels and then normalising is the same, up to one rounding of float32.
    late = augment((bytes_of - mean) / deviation, seeded())
    early = (CropFlip(2)(bytes_of, seeded()) - mean) / deviation
    torch.testing.assert_close(late, early, rtol=1e-6, atol=1e-6)
    assert CropFlip.black(Normal((0.0,), (1.0,))).fill == (0.0,)


def test_it_is_a_frozen_setting_that_can_be_told() -> None:
    assert len({CropFlip(), CropFlip(4), CropFlip(3)}) == 2
    assert describe(CropFlip(2, (0.5,))) == {"type": "CropFlip", "padding": 2, "fill": [0.5]}


@pytest.mark.parametrize("settings", [{"padding": -1}, {"padding": 1.5}, {"fill": ()}])
def test_impossible_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(SettingError, match=next(iter(settings))):
        CropFlip(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("x", [torch.zeros(5, 6), torch.zeros(2, 1, 4, 4), torch.zeros(2, 4, 4, 4)])
def test_batches_that_do_not_fit_are_refused(x: Tensor) -> None:
    with pytest.raises(DataError, match=r"fill=\(-2.0, 0.5, 3.0\).*shape"):
        CropFlip(fill=FILL)(x, seeded())
