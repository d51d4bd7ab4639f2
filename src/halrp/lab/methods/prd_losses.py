"""The three losses of `prd`, functions of features and prototypes, and the views of images they are taken on."""

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
    """Supervised contrastive loss of features z (m, k) of length 1 with labels y (m,); a number.

    (τ / 0.07) · mean over i of −1/|P(i)| Σ_{p ∈ P(i)} log( exp(z_i·z_p / τ) / Σ_{a ≠ i} exp(z_i·z_a / τ) ), where P(i)
    are the others with i's label. Every example needs one, which its second view is.
    """
    itself = torch.eye(len(y), dtype=torch.bool, device=y.device)
    alike = (y.unsqueeze(1) == y) & ~itself
    similar = (z @ z.T / temperature).masked_fill(itself, -torch.inf)
    chances = F.log_softmax(similar, 1).masked_fill(~alike, 0)
    return -(temperature / 0.07) * (chances.sum(1) / alike.sum(1)).mean()


def attract(h: Tensor, y: Tensor, prototypes: Tensor) -> Tensor:
    """Mean of 1 − cos(h, w_y) over features h (m, d) and prototypes (classes, d); only prototypes get a gradient."""
    return (1 - F.cosine_similarity(h.detach(), prototypes[y], dim=1)).mean()


def relations(h: Tensor, prototypes: Sequence[Tensor]) -> list[Tensor]:
    """How features h (m, d) lie to the prototypes (classes, d) of each task: h·w / ‖w‖, (m, classes) for each."""
    if not prototypes:
        return []
    together = h @ F.normalize(torch.cat(list(prototypes)), dim=1).T
    return list(together.split([len(p) for p in prototypes], dim=1))


def distil(old: Sequence[Tensor], new: Sequence[Tensor], axis: Axis = "classes") -> Tensor:
    """Σ over tasks of KL(old ‖ new) between relations (m, classes) of a task; a number.

    A relation is a distribution over the task's classes for each example, and the mean over examples is taken, or over
    the batch's samples for each class, and the mean over classes is taken.
    """
    dim = 1 if axis == "classes" else 0
    terms = [
        F.kl_div(F.log_softmax(n, dim), F.log_softmax(o, dim), reduction="sum", log_target=True) / n.shape[1 - dim]
        for o, n in zip(old, new, strict=True)
    ]
    return torch.stack(terms).sum()


class View:
    """A view of images: other brightness, contrast and saturation or none, now and then grey, cropped and mirrored.

    Colours are changed in pixels of 0 … 1, not in normalised ones, by factors of 1 − `colour` … 1 + `colour`, for four
    images out of five; one out of five becomes grey. Crops are of images with `padding`, by default an eighth of the
    image and at most 4 pixels, which is 0 after normalisation. Images of one channel have no saturation and are grey
    already.
    """

    def __init__(self, normal: Normal, x: Tensor, padding: int | None = None, colour: float = 0.4) -> None:
        """Take how images x (n, channels, height, width) were normalised; pixels outside 0 … 1 widen the limits."""
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
        """Let images on a device be changed."""
        self.mean, self.deviation = self.mean.to(device), self.deviation.to(device)
        return self

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: Generator) -> Tensor:
        """A view of images (batch, channels, height, width), as many and as large; draws come from the generator."""
        pixels = self.coloured(x * self.deviation + self.mean, generator)
        return self.crop((pixels - self.mean) / self.deviation, generator)

    def coloured(self, pixels: Tensor, generator: Generator) -> Tensor:
        """Change the colours of images that are not normalised."""
        count = len(pixels)
        factors = 1 + self.colour * (2 * torch.rand(3, count, 1, 1, 1, generator=generator) - 1)
        chances = torch.rand(2, count, 1, 1, 1, generator=generator)
        factors = torch.where(chances[0] < 0.8, factors, 1.0).to(pixels)
        is_grey = (chances[1] < 0.2).to(pixels.device)
        pixels = self._limited(pixels * factors[0])
        mean = grey(pixels).mean((1, 2, 3), keepdim=True)
        pixels = self._limited(mean + factors[1] * (pixels - mean))
        if pixels.shape[1] == 3:
            dull = grey(pixels)
            pixels = self._limited(dull + factors[2] * (pixels - dull))
            pixels = torch.where(is_grey, grey(pixels), pixels)
        return pixels

    def _limited(self, pixels: Tensor) -> Tensor:
        return pixels.clamp(self.low, self.high)


def grey(pixels: Tensor) -> Tensor:
    """How bright images (batch, channels, height, width) are, (batch, 1, height, width): luma of three channels."""
    if pixels.shape[1] != 3:
        return pixels.mean(1, keepdim=True)
    return (pixels * pixels.new_tensor([0.299, 0.587, 0.114]).view(-1, 1, 1)).sum(1, keepdim=True)
