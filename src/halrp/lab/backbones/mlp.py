"""A multilayer perceptron with two hidden layers of 256 units, for inputs of any shape."""

from torch import Tensor, nn
from torch.nn import functional

from halrp.lab.backbones.settings import refuse_size


class MLP(nn.Module):
    """The network of the twenty-task benchmarks: inputs → 256 → 256 → classes, with ReLU and no norm layers.

    269,322 parameters for 784 inputs and 10 classes. Inputs are flattened, so that `inputs` is the product of an
    example's dimensions: 784 for MNIST, 3072 for CIFAR.
    """

    def __init__(self, classes: int = 10, inputs: int = 784, bias: bool = True) -> None:
        """Make the network; without `bias` no layer has one, the head neither."""
        super().__init__()
        refuse_size("MLP", inputs >= 1, "it needs an input", inputs=inputs)
        self.linear1 = nn.Linear(inputs, 256, bias=bias)
        self.linear2 = nn.Linear(256, 256, bias=bias)
        self.head = nn.Linear(256, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (batch, classes), of examples (batch, …) with `inputs` values each."""
        x = functional.relu(self.linear1(x.flatten(1)))
        x = functional.relu(self.linear2(x))
        logits: Tensor = self.head(x)
        return logits
