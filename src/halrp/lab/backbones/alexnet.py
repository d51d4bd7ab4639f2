"""`alexnet`: the small AlexNet of the Five-dataset and TinyImageNet benchmarks, with batch norm and dropout.

Kernels of 4, 3 and 2 pixels without padding, each followed by pooling, then two linear layers of 2048 features.
"""

from torch import Tensor, nn
from torch.nn import functional

from halrp.lab.backbones.settings import Norms, Statistics, refuse_size


class AlexNet(nn.Module):
    """An AlexNet of 6,533,450 parameters for 32-pixel images, 23,310,666 for 64-pixel ones, with a 10-way head.

    Shapes, for `batch` images of 32 (64) pixels; every layer is followed by norm, ReLU and dropout, a convolution by
    pooling after that:
    3×32×32 → conv 4×4 → 64×14×14 (64×30×30) → conv 3×3 → 128×6×6 (128×14×14) → conv 2×2 → 256×2×2 (256×6×6)
    → linear → 2048 → linear → 2048 → head → classes.
    Batch norms use the statistics of the batch, as in the authors' released model.
    """

    def __init__(
        self,
        classes: int = 10,
        channels: int = 3,
        pixels: int = 32,
        statistics: Statistics = "batch",
        bias: bool = True,
    ) -> None:
        """Make the network for square images of `pixels`; without `bias` no layer has one, the head neither."""
        super().__init__()
        side = pixels
        for kernel in (4, 3, 2):
            side = (side - kernel + 1) // 2
        why = "three convolutions and poolings leave nothing of images of less than 19 pixels"
        refuse_size("AlexNet", channels >= 1 and side >= 1, why, channels=channels, pixels=pixels)
        norms = Norms("AlexNet", statistics)
        self.conv1 = nn.Conv2d(channels, 64, kernel_size=4, bias=bias)
        self.norm1 = norms.image(64)
        self.conv2 = nn.Conv2d(64, 128, kernel_size=3, bias=bias)
        self.norm2 = norms.image(128)
        self.conv3 = nn.Conv2d(128, 256, kernel_size=2, bias=bias)
        self.norm3 = norms.image(256)
        self.linear1 = nn.Linear(256 * side**2, 2048, bias=bias)
        self.norm4 = norms.flat(2048)
        self.linear2 = nn.Linear(2048, 2048, bias=bias)
        self.norm5 = norms.flat(2048)
        self.weak, self.strong = nn.Dropout(0.2), nn.Dropout(0.5)
        self.head = nn.Linear(2048, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (batch, classes), of images (batch, channels, pixels, pixels)."""
        x = functional.max_pool2d(self.weak(functional.relu(self.norm1(self.conv1(x)))), 2)
        x = functional.max_pool2d(self.weak(functional.relu(self.norm2(self.conv2(x)))), 2)
        x = functional.max_pool2d(self.strong(functional.relu(self.norm3(self.conv3(x)))), 2)
        x = x.flatten(1)
        x = self.strong(functional.relu(self.norm4(self.linear1(x))))
        x = self.strong(functional.relu(self.norm5(self.linear2(x))))
        logits: Tensor = self.head(x)
        return logits
