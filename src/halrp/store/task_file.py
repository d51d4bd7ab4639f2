"""A task's file: `write` makes it, `read` parses it, `check` compares what was read with a base.

The format is described in `docs/format.md`. Reading trusts nothing: every mistake, by accident or by intent, is one
`DamagedError` (or `FormatError`, `WrongBaseError`) that names it, and nothing is allocated beyond what the file holds.
Files of format 1 are read too (`format_1`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from halrp.checks import is_whole
from halrp.errors import DamagedError, FormatError, StoreError, WrongBaseError
from halrp.model import codec, file_size
from halrp.model.base import Base
from halrp.model.codec import PRECISIONS, Coded
from halrp.model.delta import Delta, Recovered
from halrp.model.description import DEFAULTS, FORMAT, REQUIRED, Description, described
from halrp.model.file_size import INDEX, METADATA, RECOVERED, Piece, TensorEntry
from halrp.model.layout import DTYPES, Layout, Slot, dtype_name
from halrp.store import format_1
from halrp.store.fitting import check
from halrp.store.requirements import require

__all__ = ["check", "load", "read", "write"]

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_AUTOCAST = (None, "bfloat16", "float16", "float32", "float64")
_MOST_EXTRA = 64
"""Tensors of a probe and statistics that a file may have."""
_ERRORS = (SafetensorError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, OverflowError)


# ---- writing ----------------------------------------------------------------------------------------------------


def write(delta: Delta) -> bytes:
    """The file of a task. The same delta gives the same bytes."""
    text = delta.text(delta.layout.fingerprint, delta.layout.digest)
    tensors = _tensors(delta)
    return b"".join([file_size.header(text, delta.entries), *(_raw(tensors[name]) for name in delta.entries)])


def _tensors(delta: Delta) -> dict[str, list[Tensor]]:
    """What each tensor of the file is joined from."""
    if delta.is_base:
        return {}
    streams: dict[str, list[Tensor]] = {dtype: [] for dtype in DTYPES}
    ranks = delta.ranks
    for piece in file_size.pieces(delta.layout, delta, ranks, set(delta.plain)):
        for tensor in _parts(delta, piece):
            streams[dtype_name(tensor.dtype)].append(tensor)
    streams |= {name: [tensor] for name, tensor in delta.extra_tensors.items()}
    if delta.recovered:
        rows = [delta.recovered[slot.name] for slot in delta.layout.adapted]
        streams[RECOVERED] = [torch.tensor([[r.importance, r.predicted, r.share] for r in rows], dtype=torch.float32)]
    streams[INDEX] = [_index(delta)]
    return streams


def _parts(delta: Delta, piece: Piece) -> list[Tensor]:
    name = piece.slot.name
    if piece.part in "rs":
        return [delta.scales[name]["rs".index(piece.part)]]
    if not piece.matrix:
        return [delta.plain[name]]
    parts = delta.coded[piece.key].parts
    return [parts[part] for part in ("mask", "scale", "values") if part in parts]


def _index(delta: Delta) -> Tensor:
    """Ranks, −1 for a dense weight, and flags: which matrices have a mask, and which buffers the task owns."""
    ranks = [delta.ranks.get(slot.name, -1) for slot in delta.layout.adapted]
    flags: list[bool] = []
    for slot in delta.layout.slots:
        if slot.kind == "buffer":
            flags.append(slot.name in delta.plain)
        keys = _matrix_keys(slot, slot.name in delta.scales)
        flags += [key is not None and "mask" in delta.coded[key].parts for key in keys]
    packed = codec.pack(torch.tensor(flags, dtype=torch.bool))
    words = torch.nn.functional.pad(packed, (0, -packed.numel() % 4)).view(torch.int32)
    return torch.cat([torch.tensor(ranks, dtype=torch.int32), words])


def _matrix_keys(slot: Slot, factored: bool) -> tuple[str | None, ...]:
    """The matrices that the flags of a slot are for: two flags for an adapted weight; if it is dense, one is unused."""
    if not slot.encoded:
        return ()
    if factored:
        return f"p/{slot.name}", f"q/{slot.name}"
    return (f"dense/{slot.name}", None) if slot.kind == "adapted" else (f"dense/{slot.name}",)


def _raw(tensors: list[Tensor]) -> bytes:
    return b"".join(
        tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for tensor in tensors
        if tensor.numel()
    )


# ---- reading ----------------------------------------------------------------------------------------------------


def load(content: bytes, base: Base, source: str) -> Delta:
    """Read a task's file and compare it with its base; `source` names the file in errors."""
    return check(read(content, {base.layout.digest: base.layout}, source), base, source)


def read(content: bytes, layouts: Mapping[str, Layout], source: str) -> Delta:
    """Parse a task's file; `layouts` are those of its store, by their digests."""
    try:
        header, text, data = _split(content)
        facts = json.loads(text)
        version = facts["format"]
        if version == format_1.FORMAT:
            return format_1.read(content, text)
        if version != FORMAT:
            raise FormatError(f"{source} has format {version!r}; this version reads formats 1 and {FORMAT}")
        unknown = facts.keys() - {*REQUIRED, *DEFAULTS}
        if unknown:
            raise FormatError(f"it has unknown fields: {', '.join(sorted(unknown)[:3])}; a later version wrote it")
        facts = {**DEFAULTS, **facts}
        layout = _layout_of(facts, layouts)
        delta = _delta(facts, layout, _entries(header, len(data)), data)
        written = file_size.header(delta.text(layout.fingerprint, layout.digest), delta.entries)
        require(content.startswith(written), "its header is not written as this library writes it")
        return delta
    except StoreError as error:
        message = str(error)
        raise type(error)(message if message.startswith(source) else f"{source}: {message}") from error
    except _ERRORS as error:
        raise DamagedError(f"{source} is damaged or not a task's file ({type(error).__name__}: {error})") from error


def _split(content: bytes) -> tuple[dict[str, Any], str, bytes]:
    """The header, its metadata and the tensors' bytes."""
    length = int.from_bytes(content[:8], "little")
    require(len(content) >= 8 and length <= len(content) - 8, "its header is longer than the file")
    header = json.loads(content[8 : 8 + length])
    require(isinstance(header, dict), "its header is not a mapping")
    metadata = header.pop("__metadata__")
    require(metadata.keys() == {METADATA} and isinstance(metadata[METADATA], str), "its metadata are not a task's")
    return header, metadata[METADATA], content[8 + length :]


def _layout_of(facts: Mapping[str, Any], layouts: Mapping[str, Layout]) -> Layout:
    base, digest = facts["base"], facts["layout"]
    require(isinstance(base, str) and isinstance(digest, str), "its base has no fingerprint or no layout")
    if not any(layout.fingerprint == base for layout in layouts.values()):
        others = ", ".join(f"{layout.fingerprint[:12]}…" for layout in layouts.values()) or "none"
        raise WrongBaseError(
            f"it belongs to a base with fingerprint {base[:12]}…, not to {others}; load it with the base it was "
            "learned on"
        )
    if digest not in layouts or layouts[digest].fingerprint != base:
        raise WrongBaseError(
            f"its base has the layout {digest[:16]}, not {', '.join(layouts)}: the same weights, but other layers are "
            "adapted, owned or frozen; load it through its store, or freeze the layers that were frozen"
        )
    return layouts[digest]


def _entries(header: Mapping[str, Any], size: int) -> dict[str, tuple[TensorEntry, int]]:
    """The tensors that a header names, each with its beginning: one after the other, and together all of the data."""
    entries, end = {}, 0
    for name, facts in header.items():
        shape, (start, stop) = facts["shape"], facts["data_offsets"]
        require(facts["dtype"] in DTYPES, f"{name} has an unknown type")
        require(isinstance(shape, list) and all(is_whole(n, 0, 2**40) for n in shape), f"{name} has a bad shape")
        entry = TensorEntry(facts["dtype"], tuple(shape))
        good = is_whole(start) and is_whole(stop) and start == end and stop - start == entry.bytes and stop <= size
        require(good, f"{name} has offsets that do not fit its shape or the file")
        entries[name], end = (entry, start), stop
    require(end == size, f"it holds {size:,} bytes of numbers, its header names {end:,}")
    return entries


def _delta(
    facts: Mapping[str, Any], layout: Layout, entries: Mapping[str, tuple[TensorEntry, int]], data: bytes
) -> Delta:
    description = _description(facts)
    if not entries:  # the base's own task
        return Delta(**described(description), layout=layout)
    reading = _Reading(entries, data)
    index = reading.whole(INDEX)
    require(index.dtype == torch.int32 and index.numel() == file_size.index_length(layout), "its index is too short")
    ranks = _ranks(index[: len(layout.adapted)].tolist(), layout, description)
    masked, buffers = _flags(index[len(layout.adapted) :], layout, ranks)
    recovered = reading.recovered(layout)
    scales: dict[str, list[Tensor]] = {}
    coded, plain = {}, {}
    for piece in file_size.pieces(layout, description, ranks, buffers):
        if piece.matrix:
            coded[piece.key] = reading.matrix(piece, piece.key in masked, description.precision == "int8")
        elif piece.part == "plain":
            plain[piece.slot.name] = reading.tensor(piece.dtype, piece.shape, piece.key)
        else:
            scales.setdefault(piece.slot.name, []).append(reading.tensor(piece.dtype, piece.shape, piece.key))
    probe, statistics = reading.named("probe/"), reading.named("statistics/")
    reading.finish()
    require(not probe or "outputs" in probe, "its probe has no outputs")
    return Delta(
        **described(description),
        layout=layout,
        scales={name: (r, s) for name, (r, s) in scales.items()},
        coded=coded,
        plain=plain,
        recovered=recovered,
        probe=probe,
        statistics=statistics,
    )


def _description(facts: Mapping[str, Any]) -> Description:
    classes, names, objective, parents = (facts[n] for n in ("classes", "class_names", "objective", "parents"))
    require(isinstance(facts["task"], str) and facts["task"] != "", "its task has no name")
    require(is_whole(classes, 1, 2**40), f"it has {classes!r} classes")
    named = isinstance(names, list) and all(isinstance(n, str) for n in names)
    counted = named and (len(names) == classes or objective != DEFAULTS["objective"])
    require(names is None or counted, "its class names do not fit its classes")
    require(facts["view"] in ("", "mean", "full"), f"its view is {facts['view']!r}")
    require(facts["precision"] in PRECISIONS, f"its precision is {facts['precision']!r}")
    require(facts["autocast"] in _AUTOCAST, f"its forward passes are in {facts['autocast']!r}")
    require(isinstance(objective, dict) and isinstance(objective.get("name"), str), "its objective has no name")
    good = objective.keys() <= {"name", "settings"} and isinstance(objective.get("settings", {}), dict)
    require(good, "its objective has more than a name and settings")
    hashes = isinstance(parents, list) and all(isinstance(p, str) and _DIGEST.fullmatch(p) for p in parents)
    require(hashes, "its parents are not content hashes")
    require(isinstance(facts["provenance"], dict), "its provenance is not a mapping")
    return Description(
        task=facts["task"],
        classes=classes,
        class_names=None if names is None else tuple(names),
        view=facts["view"],
        precision=facts["precision"],
        objective=objective,
        autocast=facts["autocast"],
        parents=tuple(parents),
        provenance=facts["provenance"],
    )


def _ranks(numbers: list[int], layout: Layout, description: Description) -> dict[str, int]:
    ranks = {}
    for slot, rank in zip(layout.adapted, numbers, strict=True):
        most = min(slot.shape[0], slot.columns(description.view))
        require(rank <= most, f"{slot.name} has rank {rank}, above {most}")
        require(rank >= -1, f"{slot.name} has rank {rank}, below 0")
        if rank >= 0:
            ranks[slot.name] = rank
    return ranks


def _flags(words: Tensor, layout: Layout, ranks: Mapping[str, int]) -> tuple[set[str], set[str]]:
    """The keys of matrices with a mask, and the names of buffers that the task owns."""
    flags: Iterator[bool] = iter(codec.unpack(words.view(torch.uint8), 32 * words.numel()).tolist())
    masked, buffers = set(), set()
    for slot in layout.slots:
        if slot.kind == "buffer" and next(flags):
            buffers.add(slot.name)
        for key in _matrix_keys(slot, slot.name in ranks):
            if next(flags):
                if key is None:
                    raise DamagedError(f"{slot.name} has a flag without a matrix")
                masked.add(key)
    require(not any(flags), "its index has flags without a meaning")
    return masked, buffers


class _Reading:
    """The tensors of a file, each read from its beginning to its end."""

    def __init__(self, entries: Mapping[str, tuple[TensorEntry, int]], data: bytes) -> None:
        self._tensors = {name: _tensor(entry, data, start) for name, (entry, start) in entries.items()}
        self._position = dict.fromkeys(DTYPES, 0)

    def whole(self, name: str) -> Tensor:
        """A tensor with a name of its own."""
        require(name in self._tensors, f"it has no tensor {name!r}")
        return self._tensors.pop(name)

    def named(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with a prefix, by the rest of their names."""
        names = [name for name in self._tensors if name.startswith(prefix)]
        require(len(names) <= _MOST_EXTRA, f"it has {len(names)} tensors {prefix}…")
        tensors = {name.removeprefix(prefix): self._tensors.pop(name) for name in sorted(names)}
        require(all(_NAME.fullmatch(name) for name in tensors), f"it has a tensor {prefix}… with a strange name")
        finite = all(bool(t.isfinite().all()) for t in tensors.values() if t.is_floating_point())
        require(finite, f"a tensor {prefix}… holds NaN or infinity")
        return tensors

    def recovered(self, layout: Layout) -> dict[str, Recovered]:
        """What the allocation predicted, if the file has it."""
        if RECOVERED not in self._tensors:
            return {}
        numbers = self.whole(RECOVERED)
        require(numbers.dtype == torch.float32, "what it recovered is not float32")
        require(numbers.numel() == 3 * len(layout.adapted), "what it recovered is not three numbers for each weight")
        require(bool(numbers.isfinite().all()), "what it recovered is not finite")
        rows = numbers.reshape(-1, 3).tolist()
        return {slot.name: Recovered(*row) for slot, row in zip(layout.adapted, rows, strict=True)}

    def tensor(self, dtype: str, shape: tuple[int, ...], key: str) -> Tensor:
        """The next tensor among the numbers of a type."""
        start, count = self._position[dtype], math.prod(shape)
        stream = self._tensors.get(dtype)
        held = 0 if stream is None else stream.numel() - start
        require(count <= held, f"{key} needs {count} more numbers of type {dtype}, the file has {held}")
        self._position[dtype] = start + count
        return torch.empty(shape, dtype=DTYPES[dtype]) if stream is None else stream[start : start + count].view(shape)

    def matrix(self, piece: Piece, masked: bool, scaled: bool) -> Coded:
        """The next matrix: its mask, the scales of its rows and its entries, whichever it has."""
        rows, columns = piece.shape
        parts: dict[str, Tensor] = {}
        shape: tuple[int, ...] = piece.shape
        if masked:
            parts["mask"] = self.tensor("U8", ((rows * columns + 7) // 8,), f"mask of {piece.key}")
            present = codec.unpack(parts["mask"], rows * columns)
            require(bool((codec.pack(present) == parts["mask"]).all()), f"{piece.key} has a mask with stray bits")
            shape = (int(present.sum()),)
        if scaled:
            parts["scale"] = self.tensor("F32", (rows,), f"scale of {piece.key}")
        parts["values"] = self.tensor(piece.dtype, shape, piece.key)
        return Coded(rows, columns, parts)

    def finish(self) -> None:
        """Refuse a file with numbers that nothing has read."""
        for name, tensor in self._tensors.items():
            require(name in DTYPES, f"it holds an unknown tensor {name!r}")
            left = tensor.numel() - self._position[name]
            require(left == 0, f"it holds {left} numbers of type {name} too many")


def _tensor(entry: TensorEntry, data: bytes, start: int) -> Tensor:
    if not entry.bytes:
        return torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
    raw = bytearray(data[start : start + entry.bytes])  # its own memory: aligned, and not the caller's
    tensor = torch.frombuffer(raw, dtype=torch.uint8)
    require(entry.dtype != "BOOL" or int(tensor.max()) <= 1, "a truth value is neither 0 nor 1")
    return tensor.view(DTYPES[entry.dtype]).reshape(entry.shape)
