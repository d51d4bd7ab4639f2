"""The proof that a delta is active: inputs that anyone can draw again, and what the task gave for them.

A task that is loaded beside another base, or whose delta is not applied, answers without an error, and wrongly. So a
task's file says what its inputs look like, and holds a few numbers that sum up the outputs of the committed task for
inputs drawn from that description. Whoever loads the task can compute both again. Nothing of the training data is
stored but the shapes, types and the range of its first rows.

In a file these are two tensors, `probe/inputs`, a text in JSON padded with spaces, and `probe/outputs`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from halrp import seeding
from halrp.checks import is_whole
from halrp.errors import DamagedError, InactiveError
from halrp.model import batch as tree
from halrp.model.base import Base
from halrp.model.batch import Batch
from halrp.model.copies import held
from halrp.model.delta import Delta
from halrp.model.file_size import PROOF_INPUTS, PROOF_NUMBERS
from halrp.model.layout import DTYPES, dtype_name
from halrp.model.precision import forward_precision

ROWS = 2
"""Rows of inputs that are drawn."""
MOST_NUMBERS = 2**24
"""Of a row of drawn inputs, at most."""
_DRAWN = {"F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"}
"""The types of inputs that are drawn."""
TOLERANCE, LOW_TOLERANCE = 1e-3, 5e-2
"""How far a number may be from the stored one, as a share of the largest, on another device or in another batch; the
second where the task computes in less than float32."""


def described(x: Batch) -> bytes | None:
    """The text that describes a batch's rows, or None if it would not fit."""
    try:
        text = _text(_described(x))
    except (KeyError, ValueError, RuntimeError):  # a type that files do not know, or no range
        return None
    return text if len(text) == PROOF_INPUTS else None


def _text(facts: Any) -> bytes:
    return json.dumps(facts, separators=(",", ":"), allow_nan=False).encode().ljust(PROOF_INPUTS)


def _described(x: Batch) -> Any:
    if isinstance(x, Tensor):
        if dtype_name(x.dtype) not in _DRAWN or x.shape[1:].numel() > MOST_NUMBERS:
            raise ValueError(x.dtype)
        low, high = (float(f"{float(bound):.4g}") if x.is_floating_point() else int(bound) for bound in x.aminmax())
        return [dtype_name(x.dtype), list(x.shape[1:]), low, high]
    if isinstance(x, Mapping):
        return {key: _described(value) for key, value in x.items()}
    return {"": [_described(value) for value in x]}


def refuse_misfits(probe: Mapping[str, Tensor]) -> None:
    """Raise `DamagedError` for a proof that no task could have been written with."""
    if probe.keys() != {"inputs", "outputs"}:
        return
    inputs, outputs = probe["inputs"], probe["outputs"]
    if inputs.dtype != torch.uint8 or inputs.shape != (PROOF_INPUTS,):
        raise DamagedError(f"its probe has inputs of shape {tuple(inputs.shape)} and type {inputs.dtype}")
    if outputs.dtype != torch.float32 or outputs.shape != (PROOF_NUMBERS,):
        raise DamagedError(f"its probe has outputs of shape {tuple(outputs.shape)} and type {outputs.dtype}")
    _facts(bytes(inputs.tolist()))


def _facts(text: bytes) -> Any:
    """What a text describes: for a tensor, type, shape of a row, lowest and highest number."""
    try:
        facts = json.loads(text.decode("ascii"))
        same = _text(facts) == text
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"the inputs of its probe are not described ({error})") from error
    if not same:
        raise DamagedError("the inputs of its probe are described in another way than files are written")
    for part in _tensors(facts):
        _refuse_no_tensor(part)
    return facts


def _tensors(facts: Any) -> Iterator[Any]:
    """The descriptions of tensors in that of a batch."""
    if isinstance(facts, Mapping) and facts:
        parts = facts[""] if facts.keys() == {""} and isinstance(facts[""], list) else facts.values()
        for part in parts:
            yield from _tensors(part)
    else:
        yield facts


def _refuse_no_tensor(facts: Any) -> None:
    good = isinstance(facts, list) and len(facts) == 4 and facts[0] in _DRAWN and isinstance(facts[1], list)
    good = good and all(is_whole(size, 0, MOST_NUMBERS) for size in facts[1]) and math.prod(facts[1]) <= MOST_NUMBERS
    if good and DTYPES[facts[0]].is_floating_point:
        good = all(isinstance(bound, float) and math.isfinite(bound) for bound in facts[2:])
    elif good:
        bits = torch.iinfo(DTYPES[facts[0]]) if facts[0] != "BOOL" else None
        least, most = (0, 1) if bits is None else (bits.min, bits.max)
        good = all(is_whole(bound, least, most + 1) for bound in facts[2:])
    if not (good and facts[2] <= facts[3]):
        raise DamagedError(f"its probe describes inputs as {str(facts)[:40]!r}")


def drawn(text: bytes, device: torch.device, fingerprint: str) -> Batch:
    """Inputs of `ROWS` rows, uniform in the described ranges; `DamagedError` if the text describes none."""
    return _drawn(_facts(text), "", device, fingerprint)


def _drawn(facts: Any, path: str, device: torch.device, fingerprint: str) -> Batch:
    if isinstance(facts, Mapping):
        if facts.keys() == {""}:
            return tuple(_drawn(part, f"{path}[{n}]", device, fingerprint) for n, part in enumerate(facts[""]))
        return {key: _drawn(part, f"{path}.{key}", device, fingerprint) for key, part in facts.items()}
    dtype, shape = DTYPES[facts[0]], (ROWS, *facts[1])
    low, high = facts[2], facts[3]
    random = torch.rand(shape, generator=seeding.generator("probe", fingerprint, path), dtype=torch.float64)
    if dtype.is_floating_point:
        return (low + (high - low) * random).to(device, dtype)
    return (low + ((high - low + 1) * random).floor().clamp(max=high - low)).to(device, dtype)


def summary(outputs: Tensor) -> Tensor:
    """A few numbers (K,) that change if any of the outputs does.

    Number k is the sum of every K-th output from the k-th on, each with a sign drawn for it, over the root of how many
    they are.
    """
    flat = outputs.detach().reshape(-1).to("cpu", torch.float64)
    signs = torch.randint(2, flat.shape, generator=seeding.generator("probe", "signs"), dtype=torch.int8) * 2 - 1
    count = math.ceil(len(flat) / PROOF_NUMBERS)
    sums = torch.zeros(count * PROOF_NUMBERS, dtype=torch.float64)
    sums[: len(flat)] = flat * signs
    return (sums.view(count, PROOF_NUMBERS).sum(0) / math.sqrt(count)).float()


def outputs_of(delta: Delta, base: Base, text: bytes) -> Tensor | None:
    """What a committed task gives for the drawn inputs, or None if it cannot compute them to finite numbers."""
    x = base.prepare_inputs(drawn(text, base.device, base.fingerprint))
    try:
        with torch.no_grad(), forward_precision(delta.autocast, tree.device_of(x)):
            outputs = base.call(base.serving_view(delta), x)
    except (RuntimeError, ValueError, IndexError, TypeError):  # drawn inputs are not the model's kind
        return None
    return outputs if bool(outputs.isfinite().all()) else None


def proven(delta: Delta, base: Base, x: Batch) -> Delta:
    """A delta with its proof, for a task whose inputs are like some rows; as it is if the model refuses drawn inputs.

    A delta that owns something and changes no output raises `InactiveError`.
    """
    text = described(x)
    outputs = None if text is None or not delta.has_parts or delta.is_base else outputs_of(delta, base, text)
    if text is None or outputs is None:
        return delta
    if _are_the_bases(outputs, base, text):
        raise InactiveError(
            f"{delta.task}: what was learned changes no output of the base; train it longer or at a higher rate, with "
            "a larger budget, or use the base itself for this task"
        )
    inputs = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return replace(delta, probe={"inputs": inputs, "outputs": summary(outputs)})


def has_proof(delta: Delta) -> bool:
    """Whether a delta comes with one."""
    return delta.probe.keys() == {"inputs", "outputs"}


class Comparison(NamedTuple):
    """What a delta gives for the inputs of its proof, beside what it gave when it was committed."""

    same_bits: bool
    problem: str = ""
    """Why the delta is not the task that was committed; empty if it is, up to the rounding of another machine."""


def problem(delta: Delta, base: Base) -> str | None:
    """Why a delta on a base is not the task that was committed, or None: it is, or it has no proof."""
    compared = comparison(delta, base)
    return None if compared is None else compared.problem or None


def comparison(delta: Delta, base: Base) -> Comparison | None:
    """What a delta on a base gives now beside what it gave, or None if it has no proof."""
    if not has_proof(delta):
        return None
    stored, text = held(delta.probe)["outputs"], bytes(held(delta.probe)["inputs"].tolist())
    outputs = outputs_of(delta, base, text)
    if outputs is None:
        return Comparison(False, "it gives no finite outputs for the inputs of its probe, as it did when committed")
    if _are_the_bases(outputs, base, text):
        return Comparison(False, "its outputs for the inputs of its probe are the base's: its delta is not applied")
    again, lower = summary(outputs), delta.lowers_precision or outputs.dtype.itemsize < 4
    scale, far = float(stored.abs().max()), float((again - stored).abs().max())
    if far <= (LOW_TOLERANCE if lower else TOLERANCE) * max(scale, 1e-6):
        return Comparison(torch.equal(again, stored))
    return Comparison(
        False,
        f"its outputs for the inputs of its probe are off by {far:.3g}, with numbers up to {scale:.3g}: the model, its "
        "transform or a layer is not what it was when the task was committed",
    )


def check(deltas: Iterable[Delta], base: Base) -> None:
    """Raise `InactiveError` unless deltas on a base are the tasks that were committed, as far as proofs show."""
    for delta in deltas:
        if (reason := problem(delta, base)) is not None:
            raise InactiveError(f"{delta.task}: {reason}")


def _are_the_bases(outputs: Tensor, base: Base, text: bytes) -> bool:
    """Whether outputs of a task are those of the base itself."""
    ours = outputs_of(base.task, base, text)
    return ours is not None and ours.shape == outputs.shape and bool((ours == outputs).all())
