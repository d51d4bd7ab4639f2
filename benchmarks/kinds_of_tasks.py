"""Streams of three kinds of tasks on real data that scikit-learn brings: numbers, sets of labels, and masks.

Each is a function of a seed, which splits the data, and has the network that the first task trains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn

from halrp import Recipe
from halrp.objectives import MultiLabel, Objective, Regression, Segmentation

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """A name and three parts of data."""

    name: str
    train: Pair
    val: Pair
    test: Pair


@dataclass(frozen=True)
class Stream:
    """Tasks of one kind, and all that learning them needs."""

    title: str
    score: str
    """What the objective's score is, in words."""
    objective: Objective
    recipe: Recipe
    bytes_per_task: int
    network: Callable[[], nn.Module]
    """A new network whose head is called `head`, and its features are what the head takes."""
    tasks: Callable[[int], list[Task]]


def _parts(rows: Tensor) -> list[Tensor]:
    """Half for training, a fifth for validation, the rest for the test."""
    train, val = round(0.5 * len(rows)), round(0.2 * len(rows))
    return list(rows.split([train, val, len(rows) - train - val]))


def _split(x: Tensor, y: Tensor, name: str, generator: torch.Generator) -> Task:
    order = torch.randperm(len(x), generator=generator)
    return Task(name, *((x[part], y[part]) for part in _parts(order)))


# ---- regression: the progress of diabetes after a year, for four groups of patients ---------------------------------


def _diabetes(seed: int) -> list[Task]:
    bundled: Any = load_diabetes()
    x = torch.tensor(bundled.data, dtype=torch.float32) * len(bundled.data) ** 0.5  # columns of variance 1
    y = torch.tensor(bundled.target, dtype=torch.float32)
    older, second_sex = x[:, 0] > x[:, 0].median(), x[:, 1] > 0
    generator = torch.Generator().manual_seed(seed)
    groups = {
        "younger, first sex": ~older & ~second_sex,
        "older, first sex": older & ~second_sex,
        "younger, second sex": ~older & second_sex,
        "older, second sex": older & second_sex,
    }
    return [_split(x[rows], y[rows], name, generator) for name, rows in groups.items()]


class Columns(nn.Module):
    """Two hidden layers over a row of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number for each row (N, 10)."""
        values: Tensor = self.head(self.body(x))
        return values


# ---- several labels: four questions about a digit, in four kinds of pictures ----------------------------------------

QUESTIONS = {"loop": (0, 6, 8, 9), "even": (0, 2, 4, 6, 8), "prime": (2, 3, 5, 7), "above four": (5, 6, 7, 8, 9)}


def _digits() -> Pair:
    bundled: Any = load_digits()
    return torch.tensor(bundled.images, dtype=torch.float32) / 16, torch.tensor(bundled.target)


def _member(digits: Tensor, members: tuple[int, ...]) -> Tensor:
    return torch.isin(digits, torch.tensor(members))


def _questions(seed: int) -> list[Task]:
    images, digits = _digits()
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator)
    y = torch.stack([_member(digits, members) for members in QUESTIONS.values()], 1).float()
    noise = torch.rand(images.shape, generator=generator) - 0.5
    kinds = {
        "as written": images,
        "a quarter turn": images.rot90(1, (1, 2)),
        "in noise": images + noise,
        "white on black, mirrored": 1 - images.flip(2),
    }
    parts = order.chunk(len(kinds))  # a picture belongs to one task
    return [
        _split(x[part].unsqueeze(1), y[part], name, generator)
        for (name, x), part in zip(kinds.items(), parts, strict=True)
    ]


class Pictures(nn.Module):
    """Two convolutions and a hidden layer over pictures of 8 × 8."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 64),
            nn.ReLU(),
        )
        self.head = nn.Linear(64, len(QUESTIONS))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the questions for pictures (N, 1, 8, 8)."""
        logits: Tensor = self.head(self.body(x))
        return logits


# ---- segmentation: the pixels of some digits among others -----------------------------------------------------------

FOREGROUND = {"primes": (2, 3, 5, 7), "with a loop": (0, 6, 8, 9), "above four": (5, 6, 7, 8, 9)}
HEIGHT, WIDTH = 16, 24


def _canvases(seed: int) -> list[Task]:
    images, digits = _digits()
    generator = torch.Generator().manual_seed(seed)
    parts = torch.randperm(len(images), generator=generator).chunk(len(FOREGROUND))
    tasks = []
    for (name, members), part in zip(FOREGROUND.items(), parts, strict=True):
        made = [  # a digit is in the pictures of one part
            _canvas(images[rows], _member(digits[rows], members), count, generator)
            for rows, count in zip(_parts(part), (240, 60, 120), strict=True)
        ]
        tasks.append(Task(name, *made))
    return tasks


def _canvas(images: Tensor, wanted: Tensor, count: int, generator: torch.Generator) -> Pair:
    """Three digits on each of some noisy canvases, and the mask of those that are wanted, by their ink."""
    x = 0.3 * torch.rand(count, 1, HEIGHT, WIDTH, generator=generator)
    y = torch.zeros(count, HEIGHT, WIDTH, dtype=torch.long)
    for canvas, mask in zip(x[:, 0], y, strict=True):
        for column in range(3):
            number = int(torch.randint(len(images), (), generator=generator))
            top = int(torch.randint(HEIGHT - 7, (), generator=generator))
            square = slice(top, top + 8), slice(8 * column, 8 * column + 8)
            canvas[square] += images[number]
            mask[square] = (images[number] > 0.5).long() * int(wanted[number])
    return x, y


class Pixels(nn.Module):
    """Four convolutions whose last one sees 31 × 31 pixels, and logits for every pixel."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, dilation in ((1, 1), (24, 2), (24, 4), (24, 8)):
            layers += [nn.Conv2d(inputs, 24, 3, padding=dilation, dilation=dilation), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Conv2d(24, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, 2, H, W) of pictures (N, 1, H, W)."""
        logits: Tensor = self.head(self.body(x))
        return logits


STREAMS = {
    "regression": Stream(
        "diabetes, four groups of patients",
        "explained share of the variance",
        Regression(),
        Recipe(epochs=60, batch=16, lr=2e-3),
        4_000,
        Columns,
        _diabetes,
    ),
    "multi-label": Stream(
        "digits, four questions in four kinds of pictures",
        "F1",
        MultiLabel(),
        Recipe(epochs=40, batch=32, lr=3e-3),
        12_000,
        Pictures,
        _questions,
    ),
    "segmentation": Stream(
        "digits on a canvas, three kinds of foreground",
        "intersection over union",
        Segmentation(error="both"),
        Recipe(epochs=40, batch=16, lr=4e-3),
        9_000,
        Pixels,
        _canvases,
    ),
}
