"""A model of your own in twenty lines: three questions about the same digits, one base, and at most 8,000 bytes each.

Run it: python examples/twenty_lines.py  (needs scikit-learn, for its bundled digits)
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from halrp import Halrp, Learner, Recipe

x, digit = (torch.tensor(array) for array in load_digits(return_X_y=True))
x, train, test = x.float() / 16, slice(0, 1300), slice(1300, None)
tasks = {"which digit": digit, "even or odd": digit % 2, "above four": (digit > 4).long()}

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
learner = Learner(model, method=Halrp.budget(bytes_per_task=8_000), recipe=Recipe(epochs=8, batch=32), progress=None)
for name, y in tasks.items():
    learner.learn(name, (x[train], y[train]))  # the first task trains the base, each of the others adds a delta

for name, y in tasks.items():
    right = learner.answer(x[test], name).indices == y[test]
    print(f"{name}: {right.float().mean():.1%} right, {learner.tasks[name].bytes:,} bytes")
