"""A convolutional network small enough to learn ten tasks of 8×8 digits in seconds on one core.

It has every kind of layer that LeNet has, convolution, linear layer and both batch norms, so what the demo
shows on it is the whole method.
"""

from torch import Tensor, nn
from torch.nn import functional

from halrp.lab.backbones.settings import Norms, Statistics, refuse_size


class DigitsNet(nn.Module):
    """The network of the `digits` stream: 38,181 parameters with a 5-way head.

    Shapes, for `batch` images of the default size:
    1×8×8 → conv 3×3, norm, ReLU → 16×8×8 → conv 3×3, norm, ReLU, pool → 32×4×4 = 512
    → linear, norm, ReLU → 64 → head → classes.
    """

    def __init__(
        self,
        classes: int = 10,
        channels: int = 1,
        pixels: int = 8,
        statistics: Statistics = "running",
        bias: bool = True,
    ) -> None:
        """Make the network for square images of `pixels`; without `bias` no layer has one, the head neither."""
        super().__init__()
        good = channels >= 1 and pixels >= 2
        refuse_size("DigitsNet", good, "it halves images once", channels=channels, pixels=pixels)
        norms = Norms("DigitsNet", statistics)
        self.conv1 = nn.Conv2d(channels, 16, kernel_size=3, padding=1, bias=bias)
        self.norm1 = norms.image(16)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1, bias=bias)
        self.norm2 = norms.image(32)
        self.linear = nn.Linear(32 * (pixels // 2) ** 2, 64, bias=bias)
        self.norm3 = norms.flat(64)
        self.head = nn.Linear(64, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (batch, classes), of images (batch, channels, pixels, pixels)."""
        x = functional.relu(self.norm1(self.conv1(x)))
        x = functional.max_pool2d(functional.relu(self.norm2(self.conv2(x))), 2)
        x = functional.relu(self.norm3(self.linear(x.flatten(1))))
        logits: Tensor = self.head(x)
        return logits
