"""Tasks learned in parallel: each in a process of its own, with the bits of learning one after the other.

Run it: python examples/parallel_tasks.py  (needs scikit-learn, for its bundled digits)
"""

import copy
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from sklearn.datasets import load_digits
from torch import nn

from halrp import Halrp, Learner, Recipe


def main(workers: int = 2) -> None:
    x, digit = (torch.tensor(array) for array in load_digits(return_X_y=True))
    x, train, test = x.float() / 16, slice(0, 1300), slice(1300, None)
    questions = {f"is it a {number}?": (digit == number).long() for number in range(4)}

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    learner = Learner(model, method=Halrp.budget(8_000), recipe=Recipe(epochs=6, batch=32), progress=None)
    learner.learn("which digit", (x[train], digit[train]))  # the base; the others depend on it and on their own data
    alone = copy.deepcopy(learner)

    # Workers are started without the threads of this process; each gets the base, and learns one task at a time.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as engine:  # or a dask.distributed Client
        learner.learn_many({name: ((x[train], y[train]), None) for name, y in questions.items()}, engine=engine)

    for name, y in questions.items():
        right = (learner.answer(x[test], name).indices == y[test]).float().mean()
        alone.learn(name, (x[train], y[train]))
        same = torch.equal(learner.predict(x[test], name), alone.predict(x[test], name))
        print(f"{name} {right:.1%} right; bit-identical to learning it here: {same}")


if __name__ == "__main__":
    main()
