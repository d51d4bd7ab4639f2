"""`resnet18`: the reduced ResNet-18 of the Five-dataset and TinyImageNet benchmarks.

A 3×3 stem of stride 1, four stages of two blocks with 32, 64, 128 and 256 channels (half of the usual width), strides
1, 2, 2, 2, and average pooling over 2×2 positions rather than over all of them, so that the head sees 1024 features of
a 32-pixel image and 4096 of a 64-pixel one. Convolutions have biases, as in the authors' released models.
"""

from typing import cast

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from halrp.lab.backbones.settings import Norms, Statistics, refuse_size


class Block(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norms: Norms, bias: bool) -> None:
        """Make a block that maps `inputs` channels to `outputs`."""
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=bias)
        self.norm1 = norms.image(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=bias)
        self.norm2 = norms.image(outputs)
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Sequential(
            *([nn.Conv2d(inputs, outputs, 1, stride, bias=bias), norms.image(outputs)] if changes else [])
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """The reduced ResNet-18 for square images of `pixels`, a multiple of 16."""

    def __init__(
        self,
        classes: int = 10,
        pixels: int = 32,
        width: int = 32,
        channels: int = 3,
        statistics: Statistics = "running",
        bias: bool = True,
    ) -> None:
        """Make the network; `width` is the number of channels of the first stage.

        Without `bias` no layer has one, the head neither.
        """
        super().__init__()
        good = pixels >= 16 and pixels % 16 == 0 and channels >= 1 and width >= 1
        why = "it halves images four times, so that pixels must be a multiple of 16"
        refuse_size("ResNet18", good, why, channels=channels, pixels=pixels, width=width)
        norms = Norms("ResNet18", statistics)
        self.conv = nn.Conv2d(channels, width, 3, padding=1, bias=bias)
        self.norm = norms.image(width)
        stages: list[nn.Module] = []
        inputs = width
        for stage, stride in enumerate((1, 2, 2, 2)):
            outputs = width * 2**stage
            stages += [Block(inputs, outputs, stride, norms, bias), Block(outputs, outputs, 1, norms, bias)]
            inputs = outputs
        self.blocks = nn.Sequential(*stages)
        self.head = nn.Linear(inputs * (pixels // 16) ** 2, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, channels, pixels, pixels) to logits (N, classes)."""
        x = self.blocks(F.relu(self.norm(self.conv(x))))
        return cast(Tensor, self.head(F.avg_pool2d(x, 2).flatten(1)))
