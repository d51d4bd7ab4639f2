"""A regression for each of four groups of patients, on one base: numbers in, numbers in the targets' own units out.

Run it: python examples/regression.py  (needs scikit-learn, for its bundled diabetes data)
"""

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

from halrp import Halrp, Learner, Recipe
from halrp.objectives import Regression

Pair = tuple[Tensor, Tensor]


def groups() -> dict[str, tuple[Pair, Pair]]:
    """Training and test data by sex and age; the target is how far the disease has progressed after a year."""
    columns, progress = load_diabetes(return_X_y=True)
    x = torch.tensor(columns, dtype=torch.float32) * len(columns) ** 0.5  # columns of variance 1
    y = torch.tensor(progress, dtype=torch.float32)
    tasks = {}
    for sex in (0, 1):
        for age in ("younger", "older"):
            rows = ((x[:, 1] > 0) == bool(sex)) & ((x[:, 0] > x[:, 0].median()) == (age == "older"))
            half = int(rows.sum()) * 2 // 3
            tasks[f"{age}, sex {sex + 1}"] = ((x[rows][:half], y[rows][:half]), (x[rows][half:], y[rows][half:]))
    return tasks


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    recipe = Recipe(epochs=40, batch=16, lr=2e-3)
    learner = Learner(model, method=Halrp.budget(bytes_per_task=4_000), recipe=recipe, progress=None)
    for name, (train, (x, y)) in groups().items():
        delta = learner.learn(name, train, objective=Regression(error="huber"))  # the first task makes the base
        answered = learner.answer(x, name).values.squeeze(1)
        error, by_mean = (answered - y).abs().mean(), (train[1].mean() - y).abs().mean()
        print(f"{name}: mean error {error:.1f}, of the training mean {by_mean:.1f}, {delta.bytes:,} bytes")
    names = list(learner.tasks)
    rows = torch.cat([test[0][:1] for _, test in groups().values()])
    values = [f"{answer.values.item():.0f}" for answer in learner.answer(rows, names)]  # one row of each task, one pass
    print(f"a patient of each group: {', '.join(values)}")


if __name__ == "__main__":
    main()
