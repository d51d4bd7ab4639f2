"""A method of your own in the laboratory: written, checked, and compared with two others on the same stream.

Run it: python examples/tutorials/new_method.py  (needs pip install 'halrp[lab]')
"""

# %% [markdown]
# # Adding a method
#
# A method of the laboratory learns a stream of tasks and predicts for any of them. This
# page writes one, lets the package check that it keeps the contract, and compares it
# with two others on the same tasks.
#
# The idea: after the first task has trained a network, it is frozen, and each task
# keeps the mean of its features for each class. A row belongs to the class whose mean
# is nearest. Nothing of a task depends on later ones.

# %%
import torch
from torch import nn

from halrp import Recipe
from halrp.lab import backbones, metrics, streams
from halrp.lab.methods import Context, Method, Size, State, make, network
from halrp.lab.methods.check import check_method

# %% [markdown]
# ## The method
#
# `learn` and `predict` are the method; `stored` counts all that prediction needs;
# `state` and `restore` are for runs that are killed and resumed. Settings are keyword
# arguments with defaults. `network.fit` is the training loop that all methods share, so
# there is none to write.

# %%


class NearestMean(Method):
    """Means of the classes' features, in a network that the first task trains."""

    title = "nearest mean"
    frozen = True  # old tasks never change; the check below tests it
    first_decides = True

    def __init__(self, context, power=0.5):
        """Take the power of features; below 1, none of them outweighs all others."""
        super().__init__(context)
        self.power = power
        self.net = None
        self.means = []

    def learn(self, task):
        """Train the network on the first task; of every task, keep the means."""
        if self.net is None:
            context, seed_key = self.context, network.first_seed_key(self.context, task)
            net, plan = network.fresh(context, task)
            groups = network.weight_groups(net, plan, l2=1e-4)
            network.fit(context, task, net, groups, seed_key, "base")
            self.net = without_head(net)
        features, labels = self.features(task.train.x), task.train.y
        means = [features[labels == label].mean(0) for label in range(task.classes)]
        self.means.append(torch.stack(means))

    def features(self, x):
        """Features of length one."""
        with torch.no_grad():
            return nn.functional.normalize(self.net(x).relu() ** self.power, dim=1)

    def predict(self, x, task):
        """Logits: the nearer a mean, the higher."""
        return -torch.cdist(self.features(x), self.means[task])

    def stored(self):
        """The network, and a mean for each class of each task."""
        return Size.of([*self.net.state_dict().values(), *self.means])

    def state(self):
        """All that was learned."""
        means = {f"mean.{task}": mean for task, mean in enumerate(self.means)}
        return State({**self.net.state_dict(prefix="net."), **means}, {})

    def restore(self, state):
        """Go back to what `state` gave."""
        means = {key: t for key, t in state.tensors.items() if key.startswith("mean.")}
        rest = {key[4:]: t for key, t in state.tensors.items() if key not in means}
        self.means = [means[f"mean.{task}"] for task in range(len(means))]
        self.net = without_head(self.context.build(1, self.context.seed))
        self.net.load_state_dict(rest)


def without_head(net):
    """The network's features, frozen."""
    net.head = nn.Identity()
    return net.requires_grad_(False).eval()


# %% [markdown]
# ## The check
#
# `check_method` learns three tiny tasks with it, and looks at what a method promises:
# logits of the right shape, a resumed run with the same bits, old tasks unchanged if it
# is `frozen`, and no global state left changed. A failure names the promise.

# %%
report = check_method(NearestMean)
print(", ".join(report.passed))

# %% [markdown]
# ## Beside others
#
# Six tasks of the stream `digits`: five digits each, turned further with every pair of
# tasks. Plain fine-tuning is the lower reference, `halrp-budget` the paper's recipe
# under a bound.

# %%
stream = streams.load("digits")[:6]


def build(classes, seed):
    """The network of every method."""
    return backbones.build("digits-net", classes, seed=seed, shape=stream.shape)


context = Context(build, Recipe(epochs=6, batch=32, lr=2e-3), tasks=len(stream))
methods = {
    "nearest mean": NearestMean(context),
    "finetune": make("finetune", context),
    "halrp-budget": make("halrp-budget", context, growth_per_task=0.1),
}
accuracy = {}
for name, method in methods.items():
    matrix = torch.full((len(stream), len(stream)), torch.nan)
    for position, task in enumerate(stream):
        method.learn(task)
        for earlier in range(position + 1):
            test = stream[earlier].test
            right = method.predict(test.x, earlier).argmax(1) == test.y
            matrix[position, earlier] = right.float().mean()
    accuracy[name] = matrix
    average = metrics.average_accuracy(matrix)
    change = metrics.backward_transfer(matrix)
    size = f"{method.stored().bytes:,} bytes"
    print(f"{name}: {average:.1%} on all tasks, {change:+.1%} since learned, {size}")

# %% [markdown]
# ![Accuracy on each task after the last one was learned, by method](../../docs/figures/tutorial-new-method.svg)
#
# Means are tiny and nothing is forgotten, but every later task has to do with the
# features of the first, which costs it about a fifth of its digits. Fine-tuning knows best
# what it learned last.
#
# ## On the command line
#
# With the class in `my_method.py`, every command takes it by name, and writes records
# that resume and end in tables and a page:
#
# ```sh
# halrp run --method my_method:NearestMean --stream digits --backbone digits-net --set power=1
# halrp results results
# halrp report results -o report.html
# ```
#
# [Contributing](../../CONTRIBUTING.md#add-a-method) says what a method needs to become
# a part of the package.
