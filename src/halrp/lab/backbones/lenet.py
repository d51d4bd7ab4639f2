"""LeNet as the paper uses it for 32×32 colour images: two convolutions, two linear layers, batch norm after each.

The paper writes its widths as 20-20-50-800-500, where the first two numbers are the same 20 channels, once as
the output of the first convolution and once as the input of the second.
"""

from torch import Tensor, nn
from torch.nn import functional


class LeNet(nn.Module):
    """The network of the CIFAR-100 and permuted-MNIST benchmarks: 2,995,620 parameters with a 10-way head.

    Shapes, for `batch` images:
    3×32×32 → conv 5×5, norm, ReLU, pool → 20×16×16 → conv 5×5, norm, ReLU, pool → 50×8×8 = 3200
    → linear, norm, ReLU → 800 → linear, norm, ReLU → 500 → head → classes.
    Batch norm tracks running statistics.
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 20, kernel_size=5, padding=2)
        self.norm1 = nn.BatchNorm2d(20)
        self.conv2 = nn.Conv2d(20, 50, kernel_size=5, padding=2)
        self.norm2 = nn.BatchNorm2d(50)
        self.linear1 = nn.Linear(50 * 8 * 8, 800)
        self.norm3 = nn.BatchNorm1d(800)
        self.linear2 = nn.Linear(800, 500)
        self.norm4 = nn.BatchNorm1d(500)
        self.head = nn.Linear(500, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (batch, classes), of images (batch, 3, 32, 32)."""
        x = functional.max_pool2d(functional.relu(self.norm1(self.conv1(x))), 2)
        x = functional.max_pool2d(functional.relu(self.norm2(self.conv2(x))), 2)
        x = x.flatten(1)
        x = functional.relu(self.norm3(self.linear1(x)))
        x = functional.relu(self.norm4(self.linear2(x)))
        logits: Tensor = self.head(x)
        return logits
