"""A task's file: `write` makes it, `read` parses it, `check` compares what was read with a base.

The format is described in `docs/format.md`. Reading trusts nothing: every mistake, by accident or by intent, is one
`DamagedError` (or `FormatError`, `WrongBaseError`) that names it, and nothing is allocated beyond what the file holds.
Format 2 has one precision for all matrices, format 3 one for each part (`part_codes`). Files of format 1 are read too
(`format_1`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from halrp.checks import is_whole
from halrp.errors import DamagedError, FormatError, StoreError, WrongBaseError
from halrp.model import codec, file_size, proof, prototypes
from halrp.model.base import Base
from halrp.model.codec import PRECISIONS
from halrp.model.copies import held
from halrp.model.delta import Delta
from halrp.model.description import DEFAULTS, FORMAT, PARTS_FORMAT, REQUIRED, Description, described
from halrp.model.file_size import CODES, INDEX, METADATA, RECOVERED, Piece, TensorEntry
from halrp.model.layout import DTYPES, Layout, Slot, dtype_name
from halrp.store import format_1, part_codes
from halrp.store.fitting import check
from halrp.store.requirements import require
from halrp.store.streams import Streams, raw

__all__ = ["check", "load", "read", "write"]

_DIGEST = re.compile(r"[0-9a-f]{64}")
_AUTOCAST = (None, "bfloat16", "float16", "float32", "float64")
_ERRORS = (SafetensorError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, OverflowError)


# ---- writing ----------------------------------------------------------------------------------------------------


def write(delta: Delta) -> bytes:
    """The file of a task. The same delta gives the same bytes."""
    text = delta.text(delta.layout.fingerprint, delta.layout.digest)
    tensors = _tensors(delta)
    return b"".join([file_size.header(text, delta.entries), *(raw(tensors[name]) for name in delta.entries)])


def _tensors(delta: Delta) -> dict[str, list[Tensor]]:
    """What each tensor of the file is joined from."""
    if delta.is_base:
        return {name: [tensor] for name, tensor in delta.extra_tensors.items()}
    streams: dict[str, list[Tensor]] = {dtype: [] for dtype in DTYPES}
    for piece in _pieces(delta):
        for tensor in _parts(delta, piece):
            streams[dtype_name(tensor.dtype)].append(tensor)
    streams |= {name: [tensor] for name, tensor in delta.extra_tensors.items()}
    if delta.recovered:
        rows = [delta.recovered[slot.name] for slot in delta.layout.adapted]
        streams[RECOVERED] = [torch.tensor([[r.importance, r.predicted, r.share] for r in rows], dtype=torch.float32)]
    if delta.has_parts:
        return streams | {INDEX: [part_codes.index(delta)], CODES: [part_codes.codes(delta)]}
    return streams | {INDEX: [_index(delta)]}


def _pieces(delta: Delta) -> Iterator[Piece]:
    if delta.has_parts:
        return file_size.part_pieces(delta.layout, delta, delta.ranks, held(delta.precisions))
    return file_size.pieces(delta.layout, delta, delta.ranks, set(delta.plain))


def _parts(delta: Delta, piece: Piece) -> list[Tensor]:
    name = piece.slot.name
    if not piece.matrix:
        return [delta.plain[name] if piece.part == "plain" else delta.scales[name]["rs".index(piece.part)]]
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
        if version not in (FORMAT, PARTS_FORMAT):
            raise FormatError(f"{source} has format {version!r}; this version reads formats 1, 2 and 3")
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
    reading = Streams(entries, data)
    if all(name.startswith("statistics/") for name in entries):  # the base's own task
        statistics = reading.named("statistics/")
        require(not statistics or description.format == PARTS_FORMAT, "the base's own task has tensors")
        prototypes.refuse_misfits(statistics)
        return Delta(**described(description), layout=layout, statistics=statistics)
    recovered = reading.recovered(layout)
    read_numbers = _read_parts if description.format == PARTS_FORMAT else _read_everything
    numbers = read_numbers(description, layout, reading)
    probe, statistics = reading.named("probe/"), reading.named("statistics/")
    reading.finish()
    require(not probe or "outputs" in probe, "its probe has no outputs")
    proof.refuse_misfits(probe)
    prototypes.refuse_misfits(statistics)
    return Delta(
        **described(description),
        **numbers,
        layout=layout,
        recovered=recovered,
        probe=probe,
        statistics=statistics,
    )


def _read_everything(description: Description, layout: Layout, reading: Streams) -> dict[str, Any]:
    """Scales, matrices and plain tensors of a task whose matrices have one precision."""
    index = reading.whole(INDEX)
    require(index.dtype == torch.int32 and index.numel() == file_size.index_length(layout), "its index is too short")
    ranks = _ranks(index[: len(layout.adapted)].tolist(), layout, description)
    masked, buffers = _flags(index[len(layout.adapted) :], layout, ranks)
    scales: dict[str, list[Tensor]] = {}
    coded, plain = {}, {}
    for piece in file_size.pieces(layout, description, ranks, buffers):
        if piece.matrix:
            coded[piece.key] = reading.matrix(piece, piece.key in masked)
        elif piece.part == "plain":
            plain[piece.slot.name] = reading.tensor(piece.dtype, piece.shape, piece.key)
        else:
            scales.setdefault(piece.slot.name, []).append(reading.tensor(piece.dtype, piece.shape, piece.key))
    pairs = {name: (r, s) for name, (r, s) in scales.items()}
    return {"scales": pairs, "coded": coded, "plain": plain}


def _read_parts(description: Description, layout: Layout, reading: Streams) -> dict[str, Any]:
    """The parts of a task in which each has its precision."""
    index = reading.whole(INDEX)
    require(index.dtype == torch.int32 and index.numel() == len(layout.adapted), "its index is too short")
    ranks = {name: rank for name, rank in _ranks(index.tolist(), layout, description).items() if rank}
    dense = {slot.name for slot, rank in zip(layout.adapted, index.tolist(), strict=True) if rank < 0}
    precisions, masked = part_codes.parse(reading.whole(CODES), layout, ranks, dense)
    pieces = file_size.part_pieces(layout, description, ranks, precisions)
    coded = {piece.key: reading.matrix(piece, piece.key in masked) for piece in pieces}
    return {"coded": coded, "precisions": precisions}


def _description(facts: Mapping[str, Any]) -> Description:
    classes, names, objective, parents = (facts[n] for n in ("classes", "class_names", "objective", "parents"))
    require(isinstance(facts["task"], str) and facts["task"] != "", "its task has no name")
    require(is_whole(classes, 1, 2**40), f"it has {classes!r} classes")
    named = isinstance(names, list) and all(isinstance(n, str) for n in names)
    counted = named and (len(names) == classes or objective != DEFAULTS["objective"])
    require(names is None or counted, "its class names do not fit its classes")
    require(facts["view"] in ("", "mean", "full"), f"its view is {facts['view']!r}")
    known = PRECISIONS if facts["format"] == FORMAT else (DEFAULTS["precision"],)
    require(facts["precision"] in known, f"its precision is {facts['precision']!r}")
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
        format=int(facts["format"]),  # 2.0 is another spelling, which the header shows
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
