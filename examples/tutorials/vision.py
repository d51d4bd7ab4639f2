"""A pretrained vision network: pictures in folders, a weights file of timm, and what a delta brings beside a head.

Run it: python examples/tutorials/vision.py  (needs pip install 'halrp[lab,vision]')
"""

# %% [markdown]
# # A pretrained vision network
#
# Most tasks come with few pictures, and most networks come with weights. This page
# takes a network of timm with a file of weights, reads tasks from folders of pictures,
# and compares a delta with the strongest simple rival: a head on frozen features.
#
# Nothing is downloaded, so the weights are made here: a small network learns the
# handwritten digits 0 to 4, and stands for one that learned ImageNet. The tasks are
# about 5 to 9, which it has not seen. In your program `PRETRAINED` is a file of yours,
# or the model is `timm.create_model("resnet50", pretrained=True)`; the rest stays as it
# is.

# %%
import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image, ImageOps
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import nn

from halrp import FromProbe, Halrp, Learner, Recipe, explain
from halrp.lab.streams import Normal, stream_from_folder

NAME, PRETRAINED = "test_resnet", "pretrained.safetensors"
images, digits = load_digits().images, load_digits().target


def as_picture(image):
    """A digit of 8×8 pixels as a picture of 32×32."""
    grey = Image.fromarray((image * 255 / 16).astype("uint8"))
    return grey.resize((32, 32), Image.Resampling.BICUBIC)


# %% [markdown]
# ## Pictures in folders
#
# A folder for each task, in it a folder for each class: `pictures/east/7/12.png`. Here
# they are three sites that see the same five digits, each with a camera of its own.

# %%
CAMERAS = {
    "north": lambda picture: picture,
    "east": lambda picture: picture.transpose(Image.Transpose.ROTATE_90),
    "south": lambda picture: ImageOps.invert(picture),
}
for name, camera in CAMERAS.items():
    for number in (digits > 4).nonzero()[0][:400]:
        folder = Path("pictures", name, str(digits[number]))
        folder.mkdir(parents=True, exist_ok=True)
        camera(as_picture(images[number])).save(folder / f"{number}.png")

# %% [markdown]
# ## Weights
#
# A plain loop of PyTorch makes the weights file. This cell is the only one that a real
# pretrained network makes superfluous.

# %%
torch.manual_seed(0)
low = digits < 5
pixels = np.stack([np.asarray(as_picture(image)) for image in images[low]])
network = timm.create_model(NAME, num_classes=5)
normal = Normal(network.pretrained_cfg["mean"], network.pretrained_cfg["std"])
mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in normal)
x = (torch.tensor(pixels).unsqueeze(1) / 255 - mean) / deviation
y = torch.tensor(digits[low])
optimiser = torch.optim.AdamW(network.parameters(), lr=2e-3)
for _ in range(3):
    for rows in torch.randperm(len(x)).split(32):
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
        optimiser.step()
save_file(network.state_dict(), PRETRAINED)

# %%
model = timm.create_model(NAME, num_classes=5, checkpoint_path=PRETRAINED)
head = model.pretrained_cfg["classifier"]  # every model of timm names its head
explained = explain(model, head=head, classes=5)
least = explained.fixed_bytes
print(f"{explained.parameters:,} parameters; a task has {least:,} bytes or more")

# %% [markdown]
# ## Learn the folders
#
# `stream_from_folder` reads every task, normalised as the network was trained, and
# divides its pictures: some twelve a class to train on, four for validation, the others
# test. `learn` takes the tensors of any program, a `Dataset` or a `DataLoader` as well:
# [with timm and torchvision](../../docs/vision.md) has these, augmentation, and
# pictures that stay in bytes.

# %%
stream = stream_from_folder(
    "pictures",
    tasks="folders",
    size=32,
    normal=normal,
    test_share=0.6,
    fraction=0.5,
    validation=0.3,
)
learner = Learner(
    model,
    head=head,
    method=Halrp.budget(bytes_per_task=40_000),
    recipe=Recipe.auto(epochs=6),
    base="given",
    store="tasks",
    progress=None,
)
for site in stream:
    if site.name not in learner.tasks:  # after a restart, finished tasks are skipped
        learner.learn(site.name, site.train, site.val, class_names=site.class_names)
    print(site, f"{learner.tasks[site.name].bytes:,} bytes")

# %% [markdown]
# ## Beside a head alone
#
# A head on frozen features is the smallest solution there is, and where a task starts.
# With `parts=()` a task is offered nothing else; a copy of the learner tries it, and
# commits nothing.

# %%
alone = copy.deepcopy(learner)
alone.method = replace(learner.method, start=FromProbe(parts=()))
accuracy = {}
for site in stream:
    small = alone.learn(f"{site.name}, head alone", site.train, site.val)
    both = ("head alone", alone, small.task), ("delta", learner, site.name)
    for kind, chosen, name in both:
        right = chosen.predict(site.test.x, name).argmax(1) == site.test.y
        accuracy[site.name, kind] = 100 * float(right.float().mean())
        shown = f"{accuracy[site.name, kind]:.1f} % right"
        print(f"{site.name}, {kind}: {shown}, {chosen.tasks[name].bytes:,} bytes")

# %% [markdown]
# ![Test accuracy of three sites, with a head alone and with a delta](../../docs/figures/tutorial-vision.svg)
#
# A file that has 2,727 bytes is the head and nothing else: more did not help on that
# site's validation pictures, and then the head is what is committed. The other two pay
# for a delta within the bound. [Pretrained networks](../../docs/pretrained.md) compares
# both, LoRA and fine-tuning, on real pretrained networks.
#
# ## Answer
#
# Pictures of all sites go through the network together, each row with its site.
# `halrp serve` does the same over HTTP: [serving](../../docs/serving.md).

# %%
rows = torch.cat([site.test.x[::120] for site in stream])
names = [site.name for site in stream for _ in site.test.y[::120]]
labels = [site.class_names[label] for site in stream for label in site.test.y[::120]]
print("answered", learner.answer(rows, names).labels, "for", tuple(labels))
