"""A store shared by two machines: both learn tasks on the same base, apart from each other, and merge them later.

Here the machines are two folders. Between real ones a store travels as any folder does; what arrives is checked.

Run it: python examples/shared_store.py  (needs scikit-learn, for its bundled digits)
"""

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from halrp import Halrp, Learner, Recipe, Store
from halrp.errors import ConflictError


def build() -> nn.Module:
    """The architecture, which both machines know; weights come from the store."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def main(folder: Path) -> None:
    x, digit = (torch.tensor(array) for array in load_digits(return_X_y=True))
    x, train, test = x.float() / 16, slice(0, 1300), slice(1300, None)
    method, recipe = Halrp.budget(bytes_per_task=8_000), Recipe(epochs=6, batch=32)

    def learn(learner: Learner, name: str, y: Tensor) -> None:
        bytes_ = learner.learn(name, (x[train], y[train])).bytes
        right = (learner.answer(x[test], name).indices == y[test]).float().mean()
        print(f"  {name}: {right:.1%} right, {bytes_:,} bytes")

    torch.manual_seed(0)
    print("the office makes the base, and the laptop gets a copy")
    office = Learner(build(), method=method, recipe=recipe, store=folder / "office", progress=None)
    learn(office, "which digit", digit)
    Store(folder / "laptop").merge(folder / "office")  # an empty folder becomes a copy

    print("without a connection, each learns a task of its own")
    laptop = Learner.load(folder / "laptop", build(), progress=None)
    learn(office, "even or odd", digit % 2)
    learn(laptop, "above four", (digit > 4).long())

    print("they meet")
    added = Store(folder / "office").merge(folder / "laptop")
    print(f"  the office's store has {', '.join(added)} as well; its learner sees {office.refresh().added}")
    same = torch.equal(office.predict(x[test], "above four"), laptop.predict(x[test], "above four"))
    print(f"  outputs bit-identical on both: {same}")

    print("a name that means two things is refused, and nothing changes")
    laptop.learn("even or odd", (x[train], 1 - digit[train] % 2))
    try:
        Store(folder / "office").merge(folder / "laptop")
    except ConflictError as error:
        print(f"  {error}")
    laptop.rename("even or odd", "odd or even")
    print(f"  renamed on the laptop, it is merged: {Store(folder / 'office').merge(folder / 'laptop')}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
