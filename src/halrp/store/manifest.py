"""What is in a store: the manifest, a JSON file that holds a checksum of every other file and of itself.

Format 4 says what the base's fingerprint is of. Format 3 brought the identity of a store and its generations, and
old versions of tasks; format 2 named layouts, base and tasks; format 1 had no layouts. All are read.
`docs/format.md` describes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, NamedTuple

from halrp._version import __version__
from halrp.checks import is_whole
from halrp.errors import DamagedError, FormatError, StoreError
from halrp.store import atomic

FORMAT = 4
FORMATS = (1, 2, 3, 4)
"""Formats of manifests that can be read."""
LARGEST = 64 * 2**20
"""Bytes that a manifest may have."""
MOST_FILES = 200_000
"""Files that a manifest may name."""
HISTORY = 32
"""Earlier generations that a manifest remembers."""
BASE = re.compile(r"base-([0-9a-f]{16})\.safetensors")
LAYOUT = re.compile(r"layout-([0-9a-f]{16})\.json")
TASK = re.compile(r"tasks/[a-z0-9-]{1,48}-([0-9a-f]{16})\.safetensors")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHORT = re.compile(r"[0-9a-f]{16}")


class Entry(NamedTuple):
    """A file of the store."""

    file: str
    sha256: str
    bytes: int


def entry_of(stem: str, content: bytes, ending: str = ".safetensors") -> Entry:
    """The entry of a content: a file's name holds a part of its checksum."""
    digest = atomic.checksum(content)
    return Entry(f"{stem}-{digest[:16]}{ending}", digest, len(content))


@dataclass(frozen=True)
class Manifest:
    """What is in a store."""

    head: str
    """The name of the model's head."""
    channels_last: bool
    """Whether convolutions keep their channels last."""
    fingerprint: str
    """Of the base."""
    base: Entry
    counts_head: bool
    """Whether the fingerprint is also of the parameters of the base's head; before format 4 it always was."""
    tasks: Mapping[str, Entry] = field(default_factory=dict)
    """By name, in the order of commits."""
    layouts: Mapping[str, Entry] = field(default_factory=dict)
    """What task files are laid out by, by their digests."""
    versions: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    """Replaced versions of tasks that can be brought back, the newest first, by name; tasks without any are absent."""
    pruned: tuple[str, ...] = ()
    """Files that this generation replaced by pruning; they stay in the trash until the next one."""
    identity: str = ""
    """Which store this is: a digest of its first manifest. Formats 1 and 2 had none."""
    generation: int = 0
    """The number of changes since the store was begun, or since its manifest has format 3."""
    history: tuple[str, ...] = ()
    """The beginnings of the digests of earlier manifests, the newest last."""
    version: str = __version__
    """Of the library that wrote it."""
    format: int = FORMAT

    @cached_property
    def content(self) -> bytes:
        """The manifest's file: JSON that holds a checksum of itself."""
        return _text(self) if self.format > 2 else _text_before_3(self)

    @cached_property
    def digest(self) -> str:
        """The checksum of the manifest's file."""
        return atomic.checksum(self.content)

    @property
    def entries(self) -> Iterator[Entry]:
        """Every file that the manifest names."""
        yield self.base
        yield from self.layouts.values()
        yield from self.tasks.values()
        for versions in self.versions.values():
            yield from versions

    @cached_property
    def files(self) -> frozenset[str]:
        """The names of those files."""
        return frozenset(entry.file for entry in self.entries)

    def edited(self, **changes: Any) -> Manifest:
        """The manifest with other fields. What an earlier generation pruned is not of this one."""
        return replace(self, **{"pruned": (), **changes})

    def following(self, before: Manifest | None) -> Manifest:
        """The next generation of a store, with this content; the manifest before if nothing else changed."""
        if before is None:
            begun = replace(self, identity="", generation=1, history=())
            return replace(begun, identity=begun.digest)
        same = replace(self, version=before.version, format=before.format, pruned=before.pruned, **_lineage(before))
        if same == before and list(same.tasks) == list(before.tasks):
            return before
        history = (*before.history, before.digest[:16])[-HISTORY:]
        later = replace(self, generation=before.generation + 1, history=history, version=__version__, format=FORMAT)
        if before.identity:
            return replace(later, identity=before.identity)
        return replace(later, identity=replace(later, identity="").digest)

    @staticmethod
    def parse(content: bytes, source: str) -> Manifest:
        """Read a manifest, trusting nothing: what it holds must be written in exactly these bytes."""
        try:
            facts = json.loads(content)
            if not is_whole(facts["format"]) or facts["format"] not in FORMATS:
                raise FormatError(
                    f"{source} has format {facts['format']!r}; this version reads formats {FORMATS[0]} to {FORMAT}"
                )
            manifest = _manifest(facts, source)
            if manifest.content != content:
                raise DamagedError(f"{source}: its checksum is wrong; it was changed or cut")
            return manifest
        except StoreError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(f"{source} is not a manifest ({type(error).__name__}: {error})") from error


def _lineage(manifest: Manifest) -> dict[str, Any]:
    return {name: getattr(manifest, name) for name in ("identity", "generation", "history")}


# ---- writing ----------------------------------------------------------------------------------------------------


def _text(manifest: Manifest) -> bytes:
    """Formats 3 and 4: a line for each field and each entry; the last field is the checksum of the lines before it."""
    tasks = [
        f'{{"name": {quoted(name)}, {_fields(entry)}{_versions(manifest.versions.get(name, ()))}}}'
        for name, entry in manifest.tasks.items()
    ]
    fields = {
        "format": str(manifest.format),
        "halrp": quoted(manifest.version),
        "identity": quoted(manifest.identity),
        "generation": str(manifest.generation),
        "history": json.dumps(manifest.history),
        "head": quoted(manifest.head),
        "channels_last": json.dumps(manifest.channels_last),
        "fingerprint": quoted(manifest.fingerprint),
        "counts_head": json.dumps(manifest.counts_head),
        "base": f"{{{_fields(manifest.base)}}}",
        "layouts": _lines([f"{{{_fields(entry)}}}" for entry in manifest.layouts.values()]),
        "tasks": _lines(tasks),
        "pruned": _lines([quoted(file) for file in manifest.pruned]),
    }
    if manifest.format < 4:
        del fields["counts_head"]
    text = "".join(f' "{name}": {value},\n' for name, value in fields.items())
    before = f"{{\n{text}".encode()
    return before + f' "sha256": "{atomic.checksum(before)}"\n}}\n'.encode()


def _fields(entry: Entry) -> str:
    return f'"file": "{entry.file}", "sha256": "{entry.sha256}", "bytes": {entry.bytes}'


def _versions(entries: tuple[Entry, ...]) -> str:
    return f', "versions": [{", ".join(f"{{{_fields(entry)}}}" for entry in entries)}]' if entries else ""


def _lines(items: list[str]) -> str:
    return "[\n  " + ",\n  ".join(items) + "\n ]" if items else "[]"


def _text_before_3(manifest: Manifest) -> bytes:
    """Formats 1 and 2: indented by one space; the checksum is that of the facts without indentation."""
    facts: dict[str, Any] = {
        "format": manifest.format,
        "halrp": manifest.version,
        "head": manifest.head,
        "channels_last": manifest.channels_last,
        "fingerprint": manifest.fingerprint,
        "base": manifest.base._asdict(),
    }
    if manifest.format > 1:
        facts["layouts"] = [entry._asdict() for entry in manifest.layouts.values()]
    tasks = [{"name": name, **entry._asdict()} for name, entry in manifest.tasks.items()]
    checksum = atomic.checksum(json.dumps({**facts, "tasks": tasks}).encode())
    # Python's own indentation takes seconds for many tasks.
    items = [
        f'{{\n   "name": {quoted(name)},\n   "file": "{entry.file}",\n   "sha256": "{entry.sha256}",\n'
        f'   "bytes": {entry.bytes}\n  }}'
        for name, entry in manifest.tasks.items()
    ]
    head = json.dumps(facts, indent=1).removesuffix("\n}")
    return f'{head},\n "tasks": {_lines(items)},\n "sha256": "{checksum}"\n}}\n'.encode()


# ---- reading ----------------------------------------------------------------------------------------------------


def _manifest(facts: dict[str, Any], source: str) -> Manifest:
    tasks: dict[str, Entry] = {}
    versions: dict[str, tuple[Entry, ...]] = {}
    named = len(facts["tasks"])
    _check_number(named, source)
    for task in facts["tasks"]:
        name = task.pop("name")
        if not isinstance(name, str) or not name or name in tasks:
            raise DamagedError(f"{source} names the task {name!r} twice or not at all")
        if "versions" in task:
            old = task.pop("versions")
            _check_number(named := named + len(old), source)
            versions[name] = tuple(_entry(entry, TASK, source) for entry in old)
        tasks[name] = _entry(task, TASK, source)
    layouts = [_entry(layout, LAYOUT, source) for layout in facts.get("layouts", ())]
    _check_number(named + len(layouts), source)
    _check(isinstance(facts["head"], str), source, "head")
    _check(isinstance(facts["channels_last"], bool), source, "channels_last")
    _check(_SHA256.fullmatch(facts["fingerprint"]) is not None, source, "fingerprint")
    _check(isinstance(facts["halrp"], str), source, "version")
    counts_head = facts["counts_head"] if facts["format"] > 3 else True
    _check(isinstance(counts_head, bool), source, "counts_head")
    manifest = Manifest(
        head=facts["head"],
        channels_last=facts["channels_last"],
        fingerprint=facts["fingerprint"],
        counts_head=counts_head,
        base=_entry(facts["base"], BASE, source),
        tasks=tasks,
        layouts={entry.sha256[:16]: entry for entry in layouts},
        versions=versions,
        version=facts["halrp"],
        format=facts["format"],
    )
    return manifest if manifest.format < 3 else _with_lineage(manifest, facts, source)


def _with_lineage(manifest: Manifest, facts: dict[str, Any], source: str) -> Manifest:
    identity, generation, history, pruned = (facts[n] for n in ("identity", "generation", "history", "pruned"))
    _check(_SHA256.fullmatch(identity) is not None, source, "identity")
    _check(is_whole(generation, 1, 2**63), source, "generation")
    short = (
        isinstance(history, list) and len(history) <= HISTORY and all(_SHORT.fullmatch(digest) for digest in history)
    )
    _check(short, source, "history")
    _check_number(len(pruned), source)
    _check(all(TASK.fullmatch(file) for file in pruned), source, "list of pruned files")
    # Pruned files are removed, so none of them may be in use.
    _check(manifest.files.isdisjoint(pruned), source, "list of pruned files")
    return replace(manifest, identity=identity, generation=generation, history=tuple(history), pruned=tuple(pruned))


def _entry(facts: dict[str, Any], names: re.Pattern[str], source: str) -> Entry:
    _check(facts.keys() == {"file", "sha256", "bytes"}, source, "entry")
    file, sha256, size = facts["file"], facts["sha256"], facts["bytes"]
    # Only names that this library gives: none of them leaves the folder.
    match = names.fullmatch(file) if isinstance(file, str) else None
    if match is None:
        raise DamagedError(f"{source} has a bad file {file!r}")
    _check(is_whole(size, 8, 2**63), source, "size")
    _check(isinstance(sha256, str) and _SHA256.fullmatch(sha256) is not None, source, "checksum")
    if not sha256.startswith(match[1]):
        raise DamagedError(f"{source} has a bad file {file!r}")
    return Entry(file, sha256, size)


def _check(good: bool, source: str, field_name: str) -> None:
    if not good:
        raise DamagedError(f"{source} has a bad {field_name}")


def _check_number(number: int, source: str) -> None:
    if number > MOST_FILES:
        raise DamagedError(f"{source} names {number:,} files, more than the {MOST_FILES:,} that a store may have")
