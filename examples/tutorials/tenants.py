"""A text encoder with many tenants: one base, a file for each tenant, and one batch for all of them.

Run it: python examples/tutorials/tenants.py  (needs pip install 'halrp[sklearn,text]')
The encoder is all-MiniLM-L6-v2, which transformers downloads once; with ENCODER=FOLDER it is read from there.
"""

# %% [markdown]
# # A text encoder with many tenants
#
# Four tenants sort short texts, each into classes of its own, and all share one
# sentence encoder. A tenant costs one small file and learns without the others, and
# rows of all tenants are answered in one batch.
#
# The texts are those that are wherever Python is: the first sentence that functions and
# classes say about themselves. A tenant is a library, its classes are parts of that
# library, and each class has 20 texts to learn from.

# %%
import copy
import importlib
import inspect
import os
import random

import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer

from halrp import Halrp, Learner, Recipe
from halrp.tools.inspect import summary

TENANTS = {
    "scipy": ("stats", "signal", "linalg", "ndimage", "interpolate", "optimize", "sparse"),
    "sklearn": ("datasets", "linear_model", "metrics"),
    "torch": ("cuda", "distributions", "nn"),
    "python": ("ast", "asyncio", "math", "os"),
}


def sentences(module):
    """The first sentences of what a module's public functions and classes say."""
    public = [thing for name, thing in vars(module).items() if not name.startswith("_")]
    about = [inspect.getdoc(thing) or "" for thing in public if not inspect.ismodule(thing)]
    texts = [text.partition("\n\n")[0].split() for text in about]
    return {" ".join(words) for words in texts if len(words) > 3 and "->" not in words}


data = {}
for tenant, parts in TENANTS.items():
    prefix = "" if tenant == "python" else f"{tenant}."
    texts = [sentences(importlib.import_module(prefix + part)) for part in parts]
    for label, part in enumerate(parts):
        others = texts[:label] + texts[label + 1 :]
        chosen = sorted(
            texts[label].difference(*others)
        )  # a text of two parts is of neither
        random.Random(part).shuffle(chosen)
        data[tenant, part] = chosen
print(data["scipy", "stats"][0], data["python", "os"][0], sep="\n")

# %% [markdown]
# ## The base
#
# The encoder gives a state for each token; their mean is what a sentence encoder is
# trained to compare. It is the base as it is. The table of words is half of it, and
# tenants share it.

# %%
ENCODER = os.environ.get("ENCODER", "sentence-transformers/all-MiniLM-L6-v2")


class Sentences(nn.Module):
    """The mean of an encoder's last states."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.encoder.embeddings.requires_grad_(False)

    def forward(self, input_ids, attention_mask, token_type_ids=None):
        """Features (N, width) of tokens (N, length)."""
        states = self.encoder(input_ids, attention_mask, token_type_ids).last_hidden_state
        weights = attention_mask.unsqueeze(2).to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1)


tokenizer = AutoTokenizer.from_pretrained(ENCODER)
encoder = Sentences(AutoModel.from_pretrained(ENCODER, add_pooling_layer=False))


def tokens(texts):
    """A batch for the encoder."""
    return tokenizer(
        texts, padding=True, truncation=True, max_length=32, return_tensors="pt"
    )


def examples(tenant, start, stop):
    """Tokens and labels of some texts of each class, as `learn` takes them."""
    chosen = [data[tenant, part][start:stop] for part in TENANTS[tenant]]
    labels = [label for label, texts in enumerate(chosen) for _ in texts]
    return tokens([text for texts in chosen for text in texts]), torch.tensor(labels)


# %% [markdown]
# ## A file for each tenant
#
# The head is put on top of the encoder, with the width of each tenant. A task starts at
# the probe, a head fitted on frozen features, and whatever else it stores must pay for
# its bytes on the validation texts. To see how many texts a tenant needs, copies of the
# learner learn from 5 and 10 texts a class first: a copy shares the base in memory and
# commits nothing.

# %%
learner = Learner(
    encoder,
    head=nn.Linear(encoder.encoder.config.hidden_size, 2),
    method=Halrp.budget(bytes_per_task=60_000),
    recipe=Recipe.auto(epochs=6),
    base="given",
    store="tenants",
    progress=None,
)
accuracy = {}
for tenant, parts in TENANTS.items():
    val, (x, y) = examples(tenant, 20, 28), examples(tenant, 28, 58)
    for count in (5, 10, 20):
        learning = learner if count == 20 else copy.deepcopy(learner)
        learning.learn(tenant, examples(tenant, 0, count), val, class_names=parts)
        right = learning.answer(x, tenant).indices == y
        accuracy[tenant, count] = 100 * float(right.float().mean())
    curve = ", ".join(f"{accuracy[tenant, count]:.1f} %" for count in (5, 10, 20))
    print(f"{tenant}: {len(parts)} classes, {len(y)} test texts, {curve}")

# %% [markdown]
# ![Test accuracy of each tenant, from 5, 10 and 20 texts a class](../../docs/figures/tutorial-tenants.svg)
#
# ## What a tenant stores
#
# The bound is 60,000 bytes. A file is smaller where nothing but the head helped on the
# validation texts: then the head is all that is stored, and `halrp inspect tenants`
# says so.

# %%
stored = summary("tenants")
for task in stored["tasks"]:
    print(f"{task['name']}: {task['bytes']:,} bytes, {task['outcome']['text']}")
files = sum(task["bytes"] for task in stored["tasks"])
print(
    f"{len(stored['tasks'])} tenants {files:,} bytes, their base {stored['base_bytes']:,}"
)

# %% [markdown]
# ## One batch for all
#
# Rows of all tenants go through the encoder together. A new process opens the store
# with `Learner.load("tenants", encoder)`, or serves it:
# [serving](../../docs/serving.md) has the server and its clients.

# %%
asked = [
    ("scipy", "Filters a signal with a window in the frequency domain."),
    ("sklearn", "Downloads a collection of labelled pictures."),
    ("torch", "A layer that normalises its inputs."),
    ("python", "The path of the current working directory."),
]
tenants, texts = map(list, zip(*asked, strict=True))
answer = learner.answer(tokens(texts), tenants)
for tenant, text, label in zip(tenants, texts, answer.labels, strict=True):
    print(f"{tenant}.{label}: {text}")

# %% [markdown]
# [With transformers](../../docs/transformers.md) has the other shapes of text tasks:
# loaders, collators, tokens and language models. `python examples/text_tenants.py`
# interrupts a tenant and resumes it.
