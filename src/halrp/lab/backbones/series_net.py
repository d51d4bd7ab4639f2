"""A small convolutional network for series of measurements."""

from torch import Tensor, nn
from torch.nn import functional

from halrp.lab.backbones.settings import Norms, Statistics, refuse_size


class SeriesNet(nn.Module):
    """Three convolutions along time with batch norm and pooling, and the mean over time.

    Its inputs are (batch, channels, steps).
    """

    def __init__(
        self,
        classes: int = 10,
        shape: tuple[int, ...] = (12, 128),
        width: int = 32,
        statistics: Statistics = "running",
        bias: bool = True,
    ) -> None:
        """Make the network; without `bias` no layer has one, the head neither.

        `width` are the channels of the first convolution, and later ones have twice as many.
        """
        super().__init__()
        channels, steps = shape if len(shape) == 2 else (0, 0)
        good = channels >= 1 and steps >= 8 and width >= 1
        refuse_size("SeriesNet", good, "it takes series of shape (channels, steps)", channels=channels, steps=steps)
        norms = Norms("SeriesNet", statistics)
        self.conv1 = nn.Conv1d(channels, width, 7, padding=3, bias=bias)
        self.norm1 = norms.flat(width)
        self.conv2 = nn.Conv1d(width, 2 * width, 5, padding=2, bias=bias)
        self.norm2 = norms.flat(2 * width)
        self.conv3 = nn.Conv1d(2 * width, 2 * width, 3, padding=1, bias=bias)
        self.norm3 = norms.flat(2 * width)
        self.head = nn.Linear(2 * width, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (batch, classes)."""
        x = functional.max_pool1d(functional.relu(self.norm1(self.conv1(x))), 2)
        x = functional.max_pool1d(functional.relu(self.norm2(self.conv2(x))), 2)
        x = functional.relu(self.norm3(self.conv3(x))).mean(2)
        logits: Tensor = self.head(x)
        return logits
