"""Text tasks with transformers: a tokenizer's batches, padded by its collator, on one shared encoder.

Run it: python examples/transformers_text.py [folder or name of a pretrained model]  (needs transformers)
Without an argument the model is tiny and random, and nothing is downloaded.
"""

import sys
from typing import Any

import torch
from torch.utils.data import DataLoader

from halrp import Halrp, Learner, Recipe

try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):  # one that was built for another torch; transformers does without it
    sys.modules["torchvision"] = None  # type: ignore[assignment]

SUBJECTS = ("the last invoice", "my payment", "the refund", "the app", "the update", "the login page")
MOODS = {"asks": ("never arrived, why", "is it ready", "what happened"), "thanks": ("works now", "is great", "came")}
TEXTS = [(f"{subject} {text}", subject, mood) for subject in SUBJECTS for mood in MOODS for text in MOODS[mood]]
TASKS = {  # rows as datasets.Dataset gives them
    "team": [{"text": text, "label": int(SUBJECTS.index(subject) > 2)} for text, subject, _ in TEXTS],
    "mood": [{"text": text, "label": list(MOODS).index(mood)} for text, _, mood in TEXTS],
}
NAMES = {"team": ("billing", "technical"), "mood": tuple(MOODS)}


def tiny(hf: Any) -> tuple[Any, Any]:
    """A random model of two layers, and a tokenizer of the words above."""
    vocabulary = {
        word: i for i, word in enumerate(["[PAD]", "[UNK]", *sorted({w for t, *_ in TEXTS for w in t.split()})])
    }
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    model = hf.BertForSequenceClassification(hf.BertConfig(vocab_size=len(vocabulary), **sizes))
    return hf.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]"), model


def main(*weights: str) -> None:
    import transformers as hf

    torch.manual_seed(0)
    pretrained: Any = (hf.AutoTokenizer, hf.AutoModelForSequenceClassification)
    tokenizer, model = (kind.from_pretrained(*weights) for kind in pretrained) if weights else tiny(hf)
    method, recipe = Halrp.budget(bytes_per_task=60_000), Recipe(epochs=20, lr=3e-3)
    learner = Learner(model, head="classifier", method=method, recipe=recipe, base="given", progress=None)
    for name, rows in TASKS.items():
        tokens: Any = [{**tokenizer(row["text"]), "label": row["label"]} for row in rows]
        loader = DataLoader(tokens, batch_size=8, shuffle=True, collate_fn=hf.DataCollatorWithPadding(tokenizer))
        print(f"{name}: {learner.learn(name, loader, class_names=NAMES[name]).bytes:,} bytes")
    texts = ["my payment is great", "the app what happened"]
    batch = tokenizer([text for text in texts for _ in TASKS], padding=True, return_tensors="pt")  # a BatchEncoding
    print(texts, learner.answer(batch, list(TASKS) * len(texts)).labels)


if __name__ == "__main__":
    main(*sys.argv[1:2])
