"""The three losses of `prd`, functions of features and prototypes, and its views of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Generator, Tensor

from halrp.errors import DataError
from halrp.lab.streams import Normal
from halrp.lab.streams.augment import CropFlip

Axis = Literal["classes", "samples"]


def contrast(z: Tensor, y: Tensor, temperature: float = 0.1) -> Tensor:
    """Supervised contrastive loss of unit features z (m, k) with labels y (m,); a scalar.

    (τ / 0.07) · mean over i of −1/|P(i)| Σ_{p ∈ P(i)} log( exp(z_i·z_p / τ) / Σ_{a ≠ i} exp(z_i·z_a / τ) ), where P(i)
    are the other examples with i's label. It is never empty, because it has the second view of i.
    """
    diagonal = torch.eye(len(y), dtype=torch.bool, device=y.device)
    positive = (y.unsqueeze(1) == y) & ~diagonal
    similarity = (z @ z.T / temperature).masked_fill(diagonal, -torch.inf)
    log_probability = F.log_softmax(similarity, 1).masked_fill(~positive, 0)
    return -(temperature / 0.07) * (log_probability.sum(1) / positive.sum(1)).mean()


def attract(h: Tensor, y: Tensor, prototypes: Tensor) -> Tensor:
    """Mean of 1 − cos(h, w_y) over features h (m, d) and prototypes (classes, d); only prototypes get a gradient."""
    return (1 - F.cosine_similarity(h.detach(), prototypes[y], dim=1)).mean()


def relations(h: Tensor, prototypes: Sequence[Tensor]) -> list[Tensor]:
    """The relations of features h (m, d) to the prototypes (classes, d) of each task: h·w / ‖w‖, (m, classes)."""
    if not prototypes:
        return []
    together = h @ F.normalize(torch.cat(list(prototypes)), dim=1).T
    return list(together.split([len(p) for p in prototypes], dim=1))


def distil(old: Sequence[Tensor], new: Sequence[Tensor], axis: Axis = "classes") -> Tensor:
    """Σ over tasks of KL(old ‖ new) between relations (m, classes) of a task; a scalar.

    With axis "classes", each example has a distribution over the task's classes, and the mean is over examples; with
    "samples", each class has a distribution over the batch, and the mean is over classes.
    """
    dim = 1 if axis == "classes" else 0
    terms = [
        F.kl_div(F.log_softmax(n, dim), F.log_softmax(o, dim), reduction="sum", log_target=True) / n.shape[1 - dim]
        for o, n in zip(old, new, strict=True)
    ]
    return torch.stack(terms).sum()


class View:
    """A random view of images: brightness, contrast and saturation changed, sometimes grey, cropped and mirrored.

    Brightness, contrast and saturation change with probability 0.8, by factors of 1 − `colour` … 1 + `colour`, on
    pixels in 0 … 1 rather than normalised ones; an image becomes grey with probability 0.2. Crops are of images with
    `padding`, by default an eighth of the image and at most 4 pixels, whose value is 0 after normalisation. Saturation
    and grey have no effect on images of one channel.
    """

    def __init__(self, normal: Normal, x: Tensor, padding: int | None = None, colour: float = 0.4) -> None:
        """Take the normalisation of images x (n, channels, height, width); pixels outside 0 … 1 widen the limits."""
        if x.dim() != 4:
            raise DataError(
                f"prd makes views of images (batch, channels, height, width), not of {tuple(x.shape)}; use views=False"
            )
        padding = min(4, min(x.shape[2:]) // 8) if padding is None else padding
        self.crop, self.colour = CropFlip(padding), colour
        self.mean, self.deviation = (x.new_tensor(value).view(-1, 1, 1) for value in normal)
        pixels = x * self.deviation + self.mean
        self.low, self.high = min(0.0, float(pixels.min())), max(1.0, float(pixels.max()))

    def to(self, device: torch.device) -> View:
        """Move to the device of the images."""
        self.mean, self.deviation = self.mean.to(device), self.deviation.to(device)
        return self

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """A view of images (batch, channels, height, width), of the same shape, drawn with the generator."""
        pixels = self.coloured(x * self.deviation + self.mean, generator)
        return self.crop((pixels - self.mean) / self.deviation, generator)

    def coloured(self, pixels: Tensor, generator: Generator) -> Tensor:
        """Change the colours of images whose pixels are not normalised."""
        count = len(pixels)
        factors = 1 + self.colour * (2 * torch.rand(3, count, 1, 1, 1, generator=generator) - 1)
        uniform = torch.rand(2, count, 1, 1, 1, generator=generator)
        factors = torch.where(uniform[0] < 0.8, factors, 1.0).to(pixels)
        is_grey = (uniform[1] < 0.2).to(pixels.device)
        pixels = self._limited(pixels * factors[0])
        mean = grey(pixels).mean((1, 2, 3), keepdim=True)
        pixels = self._limited(mean + factors[1] * (pixels - mean))
        if pixels.shape[1] == 3:
            luma = grey(pixels)
            pixels = self._limited(luma + factors[2] * (pixels - luma))
            pixels = torch.where(is_grey, grey(pixels), pixels)
        return pixels

    def _limited(self, pixels: Tensor) -> Tensor:
        return pixels.clamp(self.low, self.high)


def grey(pixels: Tensor) -> Tensor:
    """Grey images (batch, 1, height, width): the luma of three channels, else the mean of all channels."""
    if pixels.shape[1] != 3:
        return pixels.mean(1, keepdim=True)
    return (pixels * pixels.new_tensor([0.299, 0.587, 0.114]).view(-1, 1, 1)).sum(1, keepdim=True)
