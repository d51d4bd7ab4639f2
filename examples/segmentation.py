"""Which pixels belong to some digits? Three tasks on one base, each with its own kind of foreground.

Run it: python examples/segmentation.py  (needs scikit-learn, for its bundled digits)
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from halrp import Halrp, Learner, Recipe
from halrp.objectives import Segmentation

TASKS = {"primes": (2, 3, 5, 7), "with a loop": (0, 6, 8, 9), "above four": (5, 6, 7, 8, 9)}


def pictures(foreground: tuple[int, ...], count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pairs of digits side by side in noise, (N, 1, 8, 16), and masks of those in the foreground, (N, 8, 16)."""
    bundled = load_digits()
    images, digits = torch.tensor(bundled.images, dtype=torch.float32) / 16, torch.tensor(bundled.target)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(images), (count, 2), generator=generator)
    wanted = torch.isin(digits[rows], torch.tensor(foreground))
    masks = (images[rows] > 0.5) & wanted[:, :, None, None]
    x, y = (torch.cat([part[:, 0], part[:, 1]], dim=2) for part in (images[rows], masks))
    return x.unsqueeze(1) + 0.2 * torch.rand(count, 1, 8, 16, generator=generator), y.long()


def main() -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, dilation in ((1, 1), (32, 2), (32, 3)):
        layers += [nn.Conv2d(inputs, 32, 3, padding=dilation, dilation=dilation), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(32, 2, 1))
    objective = Segmentation(classes=2, error="both")  # cross-entropy and dice
    method, recipe = Halrp.budget(bytes_per_task=12_000), Recipe(epochs=20, batch=16, lr=0.01, schedule="cosine")
    learner = Learner(model, head="6", method=method, recipe=recipe, progress=None)  # a convolution is the head
    for number, (name, foreground) in enumerate(TASKS.items()):
        names = ("background", name)
        delta = learner.learn(name, pictures(foreground, 300, number), objective=objective, class_names=names)
        x, y = pictures(foreground, 60, 100 + number)
        overlap = objective.score(learner.predict(x, name), y)
        nothing = objective.score(torch.tensor([1.0, 0.0])[None, :, None, None].expand(60, 2, 8, 16), y)
        print(f"{name}: overlap {overlap:.2f}, of an empty mask {nothing:.2f}, {delta.bytes:,} bytes")
    x, _ = pictures((), 1, 200)
    print(
        "one picture, for every task:",
        *("".join(" .#"[int(2 * ink)] for ink in row) for row in x[0, 0].tolist()),
        sep="\n  ",
    )
    for name, masks in zip(TASKS, learner.answer(x.expand(3, -1, -1, -1), list(TASKS)), strict=True):
        print(f"{name}:", *("".join(" #"[pixel] for pixel in row) for row in masks.indices[0].tolist()), sep="\n  ")


if __name__ == "__main__":
    main()
