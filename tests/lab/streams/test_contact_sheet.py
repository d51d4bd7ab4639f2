"""The contact sheet: colours and orientation, what stands where, and what is done about missing images."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from halrp.errors import SettingError
from halrp.lab.streams import load
from halrp.lab.streams.contact_sheet import COLUMNS, FAINT, INK, PAPER, contact_sheet
from halrp.lab.streams.stream import Normal, Split, Stream, Task

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
NORMAL = Normal((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))


def corners() -> Tensor:
    """An image of 3×4×4 in pixels: red at the top left, green at the top right, blue below it, white beside that."""
    image = torch.zeros(3, 4, 4)
    image[0, :2, :2] = 1
    image[1, :2, 2:] = 1
    image[2, 2:, 2:] = 1
    image[:, 2:, :2] = 1
    return image


def stream_of(
    images: Tensor,
    labels: list[int],
    classes: int,
    tasks: int = 1,
    normal: Normal = NORMAL,
    names: tuple[str, ...] = (),
) -> Stream:
    """A stream of equal tasks whose splits all hold the given pixels, normalised."""
    mean, deviation = (torch.tensor(value).view(-1, 1, 1) for value in normal)
    split = Split((images - mean) / deviation, torch.tensor(labels))

    def make(identity: int) -> Task:
        return Task(f"task {identity}", identity, classes, split, split, split, class_names=names, normal=normal)

    channels, height, width = images.shape[1:]
    return Stream("made", "A", 0, 1.0, tuple(range(tasks)), make, (channels, height, width))


def pixels(sheet: Image.Image) -> NDArray[np.uint8]:
    assert sheet.mode == "RGB"
    return np.asarray(sheet)


def box(sheet: Image.Image, colour: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Where a colour is, as left, top, right, bottom."""
    rows, columns = np.nonzero((pixels(sheet) == colour).all(2))
    return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1


def dark(sheet: Image.Image, left: int, top: int, right: int, bottom: int) -> int:
    """How many pixels of a rectangle are as dark as letters are."""
    return int((pixels(sheet)[top:bottom, left:right].max(2) < 100).sum())


def test_colours_and_orientation_survive() -> None:
    sheet = contact_sheet(stream_of(corners()[None], [0], 1), scale=10)
    left, top, right, bottom = box(sheet, RED)
    assert (right - left, bottom - top) == (20, 20)
    assert box(sheet, GREEN) == (left + 20, top, left + 40, top + 20)
    assert box(sheet, BLUE) == (left + 20, top + 20, left + 40, top + 40)
    assert box(sheet, WHITE) == (left, top + 20, left + 20, top + 40)
    assert tuple(pixels(sheet)[0, 0]) == PAPER


def test_small_images_are_enlarged_to_at_least_48_pixels() -> None:
    left, top, right, bottom = box(contact_sheet(stream_of(corners()[None], [0], 1)), RED)
    assert (right - left, bottom - top) == (24, 24)
    large = contact_sheet(stream_of(torch.ones(1, 3, 64, 50), [0], 1))
    left, top, right, bottom = box(large, WHITE)
    assert (right - left, bottom - top) == (50, 64)


def test_names_stand_below_the_pictures_and_tasks_at_the_left() -> None:
    sheet = contact_sheet(stream_of(torch.ones(2, 3, 16, 16), [0, 1], 2, tasks=2, names=("WWW", "")))
    left, top, _, bottom = box(sheet, WHITE)
    middle = left + 48 + 3
    assert dark(sheet, left, top + 48, left + 48, top + 64) > 20  # a name below the first class
    assert dark(sheet, middle, top + 48, sheet.width, top + 64) == 0  # and none below the second
    for first in (top, bottom - 48):
        assert dark(sheet, 0, first, left, first + 48) > 20  # the task's name beside its row
    assert dark(sheet, 0, 0, sheet.width, top) == 0


def test_a_class_without_a_name_shows_its_number_and_a_long_name_stays_in_its_column() -> None:
    number = contact_sheet(stream_of(torch.ones(1, 3, 16, 16), [0], 1))
    left, _, _, bottom = box(number, WHITE)
    assert 0 < dark(number, left, bottom, number.width, number.height) < 50
    long = contact_sheet(stream_of(torch.ones(2, 3, 16, 16), [0, 1], 2, names=("W" * 40, "")))
    left, _, _, bottom = box(long, WHITE)
    assert dark(long, left, bottom, left + 48, long.height) > 50
    assert dark(long, 0, bottom, left, long.height) == dark(long, left + 48, bottom, long.width, long.height) == 0


def starts(sheet: Image.Image, colour: tuple[int, int, int]) -> list[int]:
    """Where pictures of 48×48 in one colour begin, as columns."""
    full = (pixels(sheet) == colour).all(2).sum(0) >= 48  # letters are not so high
    return [column for column in np.flatnonzero(full).tolist() if not full[column - 1]]


def test_the_first_images_of_each_class_are_shown_and_missing_ones_left_blank() -> None:
    images = torch.stack([torch.full((1, 48, 48), value) for value in (0.2, 0.4, 0.6, 0.8)])
    sheet = contact_sheet(stream_of(images, [2, 0, 2, 2], 3, normal=Normal((0.5,), (0.5,))), per_class=2)
    (first,) = starts(sheet, (102, 102, 102))
    step = 48 + 6
    assert starts(sheet, FAINT) == [first + step, first + 2 * step, first + 3 * step]
    assert starts(sheet, (51, 51, 51)) == [first + 4 * step]
    assert starts(sheet, (153, 153, 153)) == [first + 5 * step]
    assert starts(sheet, (204, 204, 204)) == []


def test_one_channel_is_grey_and_values_are_clipped() -> None:
    ramp = torch.linspace(-0.5, 1.5, 48).expand(1, 1, 48, 48)
    shown = pixels(contact_sheet(stream_of(ramp, [0], 1, normal=Normal((0.1,), (0.5,)))))
    row = shown[10, -56:-8].astype(int)
    assert (row == row[:, :1]).all()
    assert row[:, 0].tolist() == (ramp[0, 0, 0] * 255).round().clamp(0, 255).int().tolist()


def test_floats_of_unknown_origin_are_stretched_over_the_whole_stream() -> None:
    plain = Normal((0.0,), (1.0,))
    images = torch.stack([torch.full((1, 48, 48), value) for value in (-3.0, 0.0, 5.0)])
    sheet = contact_sheet(stream_of(images, [0, 1, 2], 3, normal=plain))
    black, grey, white = (starts(sheet, (value,) * 3) for value in (0, round(255 * 3 / 8), 255))
    assert len(black) == 1
    assert black < grey < white
    selected = contact_sheet(stream_of(images[1:2] + 0.2, [0], 1, normal=plain))  # already in 0 … 1: shown as it is
    assert len(starts(selected, (51, 51, 51))) == 1


def test_long_and_wide_streams_stay_of_a_reasonable_size() -> None:
    labels = list(range(12))
    many = stream_of(torch.ones(12, 1, 32, 32), labels, 12, tasks=100, normal=Normal((0.5,), (0.5,)))
    sheet = contact_sheet(many)
    assert sheet.width < 1200
    assert sheet.height < 100 * 100
    assert contact_sheet(many, tasks=10).height < sheet.height / 9
    wide = stream_of(torch.ones(100, 1, 48, 48), list(range(100)), 100, tasks=2)
    assert contact_sheet(wide).width < (COLUMNS + 4) * 60
    assert (pixels(contact_sheet(wide)) == 255).all(2).sum() >= 200 * 48 * 48


def test_only_the_shown_tasks_are_made() -> None:
    stream = stream_of(torch.ones(1, 3, 8, 8), [0], 1, tasks=5)
    made: list[int] = []

    def make(identity: int) -> Task:
        made.append(identity)
        return stream.make(identity)

    contact_sheet(replace(stream, make=make), tasks=2)
    assert made == [0, 1]


def test_a_benchmark_is_shown_the_same_way_every_time() -> None:
    stream = load("digits")
    sheet = contact_sheet(stream, tasks=3)
    assert sheet.tobytes() == contact_sheet(stream, tasks=3).tobytes()
    assert sheet.tobytes() != contact_sheet(stream, tasks=3, part="train").tobytes()
    assert (pixels(sheet) == INK).all(2).any()


@pytest.mark.parametrize("settings", [{"tasks": 0}, {"per_class": 0}, {"scale": 0}, {"part": "tests"}])
def test_settings_out_of_range_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(SettingError, match=next(iter(settings))):
        contact_sheet(stream_of(corners()[None], [0], 1), **settings)  # type: ignore[arg-type]
