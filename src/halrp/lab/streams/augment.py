"""Augmentation of training images: random crops and flips."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from halrp.errors import DataError, SettingError
from halrp.lab.streams.stream import Normal


@dataclass(frozen=True)
class CropFlip:
    """A random crop of the padded image, as large as the image itself, mirrored half of the time.

    Each image of a batch (batch, channels, height, width) is shifted by −padding … padding pixels in both directions;
    pixels from outside the image have the value `fill`. Device and memory format of the batch are kept.
    """

    padding: int = 4
    """Pixels added on each of the four sides."""
    fill: tuple[float, ...] = (0.0,)
    """The value of the padding, by channel or one for all channels."""

    def __post_init__(self) -> None:
        """Check the settings."""
        if not isinstance(self.padding, int) or self.padding < 0:
            raise SettingError(f"CropFlip(padding={self.padding!r}) is out of range; give a whole number of at least 0")
        if not self.fill:
            raise SettingError("CropFlip(fill=()) has no value; give one for all channels, or one for each")

    @classmethod
    def black(cls, normal: Normal, padding: int = 4) -> CropFlip:
        """Pad normalised images with black, which is −mean / deviation."""
        pairs = zip(normal.mean, normal.deviation, strict=True)
        return cls(padding, tuple(-mean / deviation for mean, deviation in pairs))

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """Return a new batch of the same shape; all random numbers come from the generator, which is on the CPU."""
        if x.dim() != 4 or len(self.fill) not in (1, x.shape[1]):
            raise DataError(
                f"CropFlip(fill={self.fill}) cannot pad a batch of shape {tuple(x.shape)}; give images (batch, "
                "channels, height, width) and one value of fill, or one for each channel"
            )
        count, _, height, width = x.shape
        shifts = torch.randint(-self.padding, self.padding + 1, (2, count, 1), generator=generator)
        mirrored = torch.rand(count, 1, generator=generator) < 0.5
        across = torch.arange(width)
        rows = (torch.arange(height) + shifts[0]).to(x.device)
        columns = (torch.where(mirrored, across.flip(0), across) + shifts[1]).to(x.device)
        inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
        # Pixels are gathered with channels last: (batch, height, width, channels).
        index = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None, :]
        index += torch.arange(count, device=x.device)[:, None, None] * (height * width)
        pixels = x.movedim(1, -1).reshape(-1, x.shape[1]).index_select(0, index.flatten())
        pixels = torch.where(inside.flatten()[:, None], pixels, x.new_tensor(self.fill))
        images = pixels.view(count, height, width, -1).movedim(-1, 1)
        return images if x.is_contiguous(memory_format=torch.channels_last) else images.contiguous()
