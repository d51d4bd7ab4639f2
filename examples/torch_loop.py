"""Training loops of your own around the library: one makes the base before it, one learns from its tasks after it.

`learner.module(task)` is an `nn.Module` like any other: a loop of plain PyTorch takes it, and so does Lightning's or
Accelerate's. It reads the base's memory, and nothing that a loop does to it changes what is committed. Here the modules
of three tasks teach one small network that answers all three questions at once.

Run it: python examples/torch_loop.py  (needs scikit-learn, for its bundled digits)
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from halrp import Halrp, Learner, Recipe

TASKS = {"even or odd": 2, "above four": 2, "rest of three": 3}


def pretrained(x: Tensor, digit: Tensor) -> nn.Sequential:
    """A base from a loop of one's own; a Lightning module or a network from a hub is given in the same way."""
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimiser = torch.optim.Adam(base.parameters(), lr=2e-3)
    for _ in range(8):
        for rows in torch.randperm(len(x)).split(32):
            optimiser.zero_grad()
            functional.cross_entropy(base(x[rows]), digit[rows]).backward()
            optimiser.step()
    return base


class Student(nn.Module):
    """A small network with the outputs of all tasks side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, sum(TASKS.values())))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Logits by task."""
        return dict(zip(TASKS, self.body(x).split(list(TASKS.values()), dim=1), strict=True))


def distilled(teachers: dict[str, nn.Module], x: Tensor) -> Student:
    """A student of the modules of all tasks; images need no labels for it."""
    student = Student()
    optimiser = torch.optim.Adam(student.parameters(), lr=3e-3)
    for _ in range(30):
        for rows in torch.randperm(len(x)).split(64):
            batch = x[rows] + 0.1 * torch.randn(len(rows), 64)
            optimiser.zero_grad()
            loss = torch.zeros(())
            for task, logits in student(batch).items():
                with torch.no_grad():
                    target = teachers[task](batch).softmax(1)
                loss = loss + functional.cross_entropy(logits, target)
            loss.backward()
            optimiser.step()
    return student.eval()


def main() -> None:
    x, digit = (torch.tensor(array) for array in load_digits(return_X_y=True))
    x, train, test = x.float() / 16, slice(0, 1300), slice(1300, None)
    answers = {"even or odd": digit % 2, "above four": (digit > 4).long(), "rest of three": digit % 3}

    base = pretrained(x[train], digit[train])
    recipe = Recipe.auto(epochs=6)
    learner = Learner(base, method=Halrp.budget(8_000), recipe=recipe, base="given", progress=None)
    for task, y in answers.items():
        learner.learn(task, (x[:900], y[:900]), (x[900:1300], y[900:1300]))
    before = {task: learner.predict(x[test], task) for task in TASKS}

    student = distilled({task: learner.module(task) for task in TASKS}, x[train])
    with torch.no_grad():
        taught = student(x[test])
    for task, logits in taught.items():
        teacher, small = ((part.argmax(1) == answers[task][test]).float().mean() for part in (before[task], logits))
        print(f"{task}: {teacher:.1%} right, the student {small:.1%}")
    same = all(torch.equal(learner.predict(x[test], task), before[task]) for task in TASKS)
    print(f"tasks unchanged, bit for bit: {same}")


if __name__ == "__main__":
    main()
