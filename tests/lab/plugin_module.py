"""The source of a user's own module: a method, a composition of HALRP, a stream and a backbone."""

MODULE = '''
"""Experiments of a user."""

import torch
from torch import nn

from halrp import Halrp
from halrp.lab.methods.finetune import FineTune
from halrp.lab.streams import split_by_class


class Mine(FineTune):
    """Fine-tuning, but mine.

    More about it.
    """

    title = "my method"

    def __init__(self, context, boldness: float = 0.5):
        super().__init__(context)
        self.boldness = boldness


def composed(growth_per_task: float = 0.2):
    return Halrp.budget(growth_per_task=growth_per_task)


def load(order, seed, fraction, data):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(120) % 6
    x = torch.randn(6, 1, 8, 8, generator=generator)[y] + 0.1 * torch.randn(120, 1, 8, 8, generator=generator)
    return split_by_class((x, y), 2, name="clicks", order=order, seed=seed, fraction=fraction)


class Net(nn.Module):
    def __init__(self, classes: int, inputs: int, width: int = 16):
        super().__init__()
        self.hidden = nn.Linear(inputs, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.hidden(x.flatten(1)).relu())


def headless(classes):
    return nn.Linear(64, classes)


def no_network(classes):
    return "network"


def no_stream(order, seed, fraction, data):
    return []


class NoMethod:
    def __init__(self, context):
        pass


needs = 3
'''
