"""From bytes to images: resizing as Pillow does, padding, normalising, local labels."""

from pathlib import Path

import numpy as np
import pytest
import torch

from halrp.lab.data import Images
from halrp.lab.streams import Normal
from halrp.lab.streams.pixels import local_labels, normalised, padded, resized, split, taken
from tests.lab.streams.made import normal


@pytest.mark.parametrize("kind", ["noise", "strokes"])
@pytest.mark.parametrize(("before", "after"), [(28, 32), (105, 32)])
def test_resizing_is_pillows_to_the_last_step_of_255(kind: str, before: int, after: int) -> None:
    image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    if kind == "noise":
        pixels = random.integers(0, 256, (20, before, before), dtype=np.uint8)
    else:
        pixels = np.where(random.random((20, before, before)) < 0.1, 0, 255).astype(np.uint8)
    ours = resized(torch.from_numpy(pixels).unsqueeze(1), after)
    theirs = [np.asarray(image.fromarray(item).resize((after, after), image.Resampling.BILINEAR)) for item in pixels]
    assert ours.dtype == torch.uint8
    difference = np.abs(ours.squeeze(1).numpy().astype(int) - np.stack(theirs))
    assert difference.max() <= 1  # both round, with weights of different precision
    assert (difference > 0).mean() < 0.01


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not tell what is in memory")
def test_pages_of_a_mapped_file_are_given_back_when_they_are_copied(tmp_path: Path) -> None:
    stored = np.random.default_rng(0).integers(0, 256, (64, 64, 64, 3), dtype=np.uint8)
    np.save(tmp_path / "images.npy", stored)
    mapped = np.load(tmp_path / "images.npy", "r")

    def resident() -> int:
        after = Path("/proc/self/smaps").read_text().partition(str(tmp_path / "images.npy"))[2]
        return int(after.partition("Rss:")[2].split()[0])

    assert int(mapped.sum()) == int(stored.sum())
    assert resident() >= stored.nbytes // 1024
    for _ in range(2):
        x = taken(Images(mapped, np.zeros(64, dtype=np.int64)), np.arange(64))
        assert torch.equal(x, torch.from_numpy(stored).permute(0, 3, 1, 2))
        assert resident() == 0


def test_a_changed_copy_of_a_mapped_file_keeps_its_changes(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.zeros((4, 8, 8, 1), dtype=np.uint8))
    mine = np.load(tmp_path / "images.npy", "c")
    mine[:] = 7
    for _ in range(2):
        assert bool((taken(Images(mine, np.zeros(4, dtype=np.int64)), np.arange(4)) == 7).all())


def test_padding_is_black_on_every_side() -> None:
    x = padded(torch.full((2, 1, 28, 28), 7, dtype=torch.uint8), 2)
    assert x.shape == (2, 1, 32, 32)
    assert torch.equal(x[:, :, 2:-2, 2:-2], torch.full((2, 1, 28, 28), 7, dtype=torch.uint8))
    assert int(x.sum()) == 2 * 28 * 28 * 7


def test_normalising_is_by_channel_and_gives_contiguous_floats() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 6, 3), dtype=np.uint8)
    mean, deviation = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    made = split(Images(images, np.array([7, 3, 3, 7, 9])), np.array([4, 0, 2]), [3, 7, 9], Normal(mean, deviation))
    # float32 against float64: values up to 2.5, a few roundings of 6e-8 each.
    np.testing.assert_allclose(made.x.numpy(), normal(images[[4, 0, 2]], mean, deviation), atol=2e-6)
    assert made.x.is_contiguous()
    assert made.y.tolist() == [2, 1, 0]


def test_one_grey_channel_copied_without_memory_is_normalised_as_three() -> None:
    grey = torch.arange(32, dtype=torch.uint8).view(2, 1, 4, 4)
    x = normalised(grey.expand(-1, 3, -1, -1), Normal((0.5,), (0.25,)))
    assert x.shape == (2, 3, 4, 4)
    assert x.is_contiguous()
    assert torch.equal(x[:, 0], x[:, 2])
    # A quotient, a difference and another quotient, each rounded once.
    assert float(x[1, 1, 0, 0]) == pytest.approx((16 / 255 - 0.5) / 0.25, abs=1e-6)


def test_local_labels_are_positions_in_the_list_of_classes() -> None:
    assert local_labels(np.array([90, 4, 55, 4]), [4, 55, 90]).tolist() == [2, 0, 1, 0]
