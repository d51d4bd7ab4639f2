"""LeNet as the paper uses it: two convolutions, two linear layers, batch norm after each; and a larger one.

The paper writes the widths of the first as 20-20-50-800-500, where the first two numbers are the same 20 channels, once
as the output of the first convolution and once as the input of the second.
"""

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional

from halrp.lab.backbones.settings import Norms, Statistics, refuse_size


class LeNet(nn.Module):
    """The network of the CIFAR-100 and permuted-MNIST benchmarks: 2,995,620 parameters with a 10-way head.

    Shapes, for `batch` images of the default size:
    3×32×32 → conv 5×5, norm, ReLU, pool → 20×16×16 → conv 5×5, norm, ReLU, pool → 50×8×8 = 3200
    → linear, norm, ReLU → 800 → linear, norm, ReLU → 500 → head → classes.
    """

    widths: ClassVar[tuple[int, int, int, int]] = (20, 50, 800, 500)

    def __init__(
        self,
        classes: int = 10,
        channels: int = 3,
        pixels: int = 32,
        statistics: Statistics = "running",
        bias: bool = True,
    ) -> None:
        """Make the network for square images of `pixels`; without `bias` no layer has one, the head neither."""
        super().__init__()
        name = type(self).__name__
        refuse_size(name, channels >= 1 and pixels >= 4, "it halves images twice", channels=channels, pixels=pixels)
        first, second, third, fourth = self.widths
        norms = Norms(name, statistics)
        self.conv1 = nn.Conv2d(channels, first, kernel_size=5, padding=2, bias=bias)
        self.norm1 = norms.image(first)
        self.conv2 = nn.Conv2d(first, second, kernel_size=5, padding=2, bias=bias)
        self.norm2 = norms.image(second)
        self.linear1 = nn.Linear(second * (pixels // 4) ** 2, third, bias=bias)
        self.norm3 = norms.flat(third)
        self.linear2 = nn.Linear(third, fourth, bias=bias)
        self.norm4 = norms.flat(fourth)
        self.head = nn.Linear(fourth, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (batch, classes), of images (batch, channels, pixels, pixels)."""
        x = functional.max_pool2d(functional.relu(self.norm1(self.conv1(x))), 2)
        x = functional.max_pool2d(functional.relu(self.norm2(self.conv2(x))), 2)
        x = x.flatten(1)
        x = functional.relu(self.norm3(self.linear1(x)))
        x = functional.relu(self.norm4(self.linear2(x)))
        logits: Tensor = self.head(x)
        return logits


class LeNetLarge(LeNet):
    """The network of the Omniglot benchmark: 24,466,988 parameters with a 12-way head.

    The same layers with 64 and 128 channels, 2500 and 1500 features, for images of one channel.
    """

    widths: ClassVar[tuple[int, int, int, int]] = (64, 128, 2500, 1500)

    def __init__(
        self,
        classes: int = 12,
        channels: int = 1,
        pixels: int = 32,
        statistics: Statistics = "running",
        bias: bool = True,
    ) -> None:
        """Make the network for square images of `pixels`."""
        super().__init__(classes, channels, pixels, statistics, bias)
