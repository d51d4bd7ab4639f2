"""A stream from a folder of pictures, learned by three methods: what each remembers after every task.

Run it: python examples/tutorials/folder_stream.py  (needs pip install 'halrp[lab]')
"""

# %% [markdown]
# # A stream from a folder of pictures
#
# Pictures in `pictures/<task>/<class>/` are a benchmark of your own. This page reads
# such a folder as a stream, learns it with three methods of the laboratory, and shows
# what each remembers after every task.
#
# The pictures are handwritten digits that come with scikit-learn: as they are, on their
# side, and upside down, 0 to 4 and 5 to 9 apart.

# %%
from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_digits

from halrp import Recipe
from halrp.lab import backbones, metrics
from halrp.lab.methods import Context, make
from halrp.lab.streams import stream_from_folder

images, digits = load_digits().images, load_digits().target
TURNS = {
    "1 upright": None,
    "2 on its side": Image.Transpose.ROTATE_90,
    "3 upside down": Image.Transpose.ROTATE_180,
}
for name, turn in TURNS.items():
    for number in range(600):
        picture = Image.fromarray((images[number] * 255 / 16).astype("uint8"))
        half = "low" if digits[number] < 5 else "high"
        folder = Path("pictures", f"{name}, {half}", str(digits[number]))
        folder.mkdir(parents=True, exist_ok=True)
        turned = picture if turn is None else picture.transpose(turn)
        turned.save(folder / f"{number}.png")

# %% [markdown]
# ## The stream
#
# Tasks are in the order of their folders' names. Pictures are divided for training,
# validation and test by a seed, and each task's division depends on its own pictures
# alone. Without `tasks="folders"` the folders are classes, which are dealt into tasks.

# %%
stream = stream_from_folder("pictures", tasks="folders", size=8, grey=True, test_share=0.4)
for task in stream:
    print(task, task.class_names)

# %% [markdown]
# ## Three methods
#
# A method of the laboratory has two calls: `learn` takes the next task, `predict`
# answers for any task so far. Plain fine-tuning changes one network again and again,
# `be` owns two vectors for each layer and task, `halrp-budget` a delta within a bound.
# After each task, all tasks so far are tested.

# %%


def network(classes, seed):
    """The small convolutional network of the laboratory's own digits."""
    return backbones.build("digits-net", classes, seed=seed, shape=stream.shape)


METHODS = {"finetune": {}, "be": {}, "halrp-budget": {"growth_per_task": 0.15}}
context = Context(network, Recipe(epochs=8, batch=32, lr=2e-3), tasks=len(stream))
accuracy = {}
for name, settings in METHODS.items():
    method = make(name, context, **settings)
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
# ![Mean accuracy on all tasks so far, after each task](../../docs/figures/tutorial-folder-stream.svg)
#
# Fine-tuning forgets; the other two change nothing that was learned, and differ in what
# they can express for their bytes.
#
# ## As a benchmark
#
# A function `load(order, seed, fraction, data)` that returns the stream makes the
# folder a benchmark by name: with several orders and seeds, runs that resume, records,
# tables and a page. [The laboratory](../../docs/lab.md) has the commands,
# [data and streams](../../docs/data.md#custom-streams) the function, and
# [adding a method](../../docs/tutorials/new_method.md) puts one of your own beside
# these.
