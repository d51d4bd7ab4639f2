"""Your own model: what a task would cost, what a budget brings, and tasks that stay as they are.

Run it: python examples/tutorials/your_model.py  (needs pip install 'halrp[sklearn]', for the digits)
"""

# %% [markdown]
# # Your own model
#
# A small network of your own, a first task that trains it, and two tasks that each add
# one small file. On the way: what a task costs before anything is trained, what more
# bytes bring, and how to see that an old task has not changed.
#
# The data are the 1,797 handwritten digits that come with scikit-learn: as they are,
# turned by a quarter, and upside down.

# %%
import copy

import torch
from sklearn.datasets import load_digits
from torch import nn

from halrp import Halrp, Learner, Recipe, explain

x, digit = (torch.tensor(array) for array in load_digits(return_X_y=True))
x = x.float().reshape(-1, 1, 8, 8) / 16
views = {"upright": x, "a quarter turn": x.rot90(1, (2, 3)), "upside down": x.flip(2)}
train, val, test = slice(0, 600), slice(600, 900), slice(900, None)


def data(name, rows):
    """Images of a view and their digits, as `learn` takes them."""
    return views[name][rows], digit[rows]


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(512, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
)

# %% [markdown]
# ## Look before you learn
#
# `explain` reads the model and trains nothing. Each weight is *adapted* (a low-rank
# delta), *owned* (a private copy for each task) or *shared* (the base's), and has a
# price. The first task will train the base here, so `base="first"`:

# %%
print(explain(model, classes=10, base="first"))

# %% [markdown]
# ## Learn
#
# The first task trains the whole network, which is frozen from then on. Validation data
# are optional, and decide what an error in each layer costs.

# %%
learner = Learner(model, recipe=Recipe(epochs=8, batch=32, lr=3e-3), progress=None)
for name in ("upright", "upside down"):
    delta = learner.learn(name, data(name, train), data(name, val))
    right = learner.answer(views[name][test], name).indices == digit[test]
    share = f"{right.float().mean():.1%} right"
    print(f"{name}: {share}, {delta.bytes:,} bytes, ranks {delta.ranks}")

# %% [markdown]
# The first task adds nothing: its weights are the base. The second one was learned
# without a bound, so its file has at most 2 % of the base's bytes, or twice what it
# needs without a component if that is more.
#
# ## Choose a budget
#
# A bound holds for the file, in bytes. To see what more of them bring, learn the same
# task under several bounds, in copies of the learner: a copy shares the base in memory
# and commits nothing.

# %%
budgets = (4_000, 8_000, 20_000)
accuracy = {}
for name in ("a quarter turn", "upside down"):
    for budget in budgets:
        trial = copy.deepcopy(learner)
        trial.method = Halrp.budget(bytes_per_task=budget)
        trial.learn("trial", data(name, train), data(name, val))
        right = trial.answer(views[name][val], "trial").indices == digit[val]
        accuracy[name, budget] = 100 * float(right.float().mean())
        print(f"{name} in {budget:,} bytes: {accuracy[name, budget]:.1f} % right")

# %% [markdown]
# ![Validation accuracy of two tasks under three bounds on a task's file](../../docs/figures/tutorial-your-model.svg)
#
# These are the validation images: what chooses a budget must not be what measures it in
# the end. A bound that is too small for what every task must own is refused, with the
# smallest that would do, before anything is trained.
#
# ## Old tasks stay as they are
#
# With the chosen budget the third task is learned and committed. What the others answer
# has the same bits before and after:

# %%
before = {name: learner.predict(views[name][test], name) for name in learner.tasks}
learner.method = Halrp.budget(bytes_per_task=20_000)
learner.learn("a quarter turn", data("a quarter turn", train), data("a quarter turn", val))
for name, logits in before.items():
    assert torch.equal(learner.predict(views[name][test], name), logits)

# %% [markdown]
# Rows of different tasks go through the network together, and a task leaves as a plain
# module of PyTorch, free of this library:

# %%
rows = torch.cat([views[name][test][:2] for name in learner.tasks])
names = [name for name in learner.tasks for _ in range(2)]
print(learner.answer(rows, names).labels, "are", tuple(digit[test][:2].tolist()) * 3)

x = views["upside down"][test]
plain = learner.export("upside down")
torch.testing.assert_close(plain(x), learner.predict(x, "upside down"))
print([type(layer).__name__ for layer in plain])

# %% [markdown]
# ## Keep it
#
# A store is a folder: the base once, and a file for each task. Anything that learns
# later is committed there too, atomically, and an interrupted task resumes.

# %%
learner.save("tasks")
again = Learner.load("tasks", model)
print(", ".join(f"{name} {delta.bytes:,} bytes" for name, delta in again.tasks.items()))

# %% [markdown]
# Next: [a pretrained network](../../docs/tutorials/vision.md) as the base,
# [how training is controlled](../../docs/training.md), and
# [the guide](../../docs/guide.md).
