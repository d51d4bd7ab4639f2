"""What is in a store: the manifest, a JSON file that holds a checksum of every other file and of itself.

Format 2 names the layouts of the base beside the base and the tasks. Format 1 had none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from halrp._version import __version__
from halrp.checks import is_whole
from halrp.errors import DamagedError, FormatError, StoreError
from halrp.store import atomic

FORMAT = 2
FORMATS = (1, 2)
"""Formats of manifests that can be read."""
BASE = re.compile(r"base-[0-9a-f]{16}\.safetensors")
LAYOUT = re.compile(r"layout-[0-9a-f]{16}\.json")
TASK = re.compile(r"tasks/[a-z0-9-]{1,48}-[0-9a-f]{16}\.safetensors")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
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
    tasks: Mapping[str, Entry] = field(default_factory=dict)
    """By name, in the order of commits."""
    layouts: Mapping[str, Entry] = field(default_factory=dict)
    """What task files are laid out by, by their digests."""
    version: str = __version__
    """Of the library that wrote it."""
    format: int = FORMAT

    def to_bytes(self) -> bytes:
        """The manifest's file: JSON that holds a checksum of itself."""
        facts: dict[str, Any] = {
            "format": self.format,
            "halrp": self.version,
            "head": self.head,
            "channels_last": self.channels_last,
            "fingerprint": self.fingerprint,
            "base": asdict(self.base),
        }
        if self.format > 1:
            facts["layouts"] = [asdict(entry) for entry in self.layouts.values()]
        facts["tasks"] = [{"name": name, **asdict(entry)} for name, entry in self.tasks.items()]
        facts["sha256"] = atomic.checksum(json.dumps(facts).encode())
        return f"{json.dumps(facts, indent=1)}\n".encode()

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
            if manifest.to_bytes() != content:
                raise DamagedError(f"{source}: its checksum is wrong; it was changed or cut")
            return manifest
        except StoreError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(f"{source} is not a manifest ({type(error).__name__}: {error})") from error


def _manifest(facts: dict[str, Any], source: str) -> Manifest:
    tasks: dict[str, Entry] = {}
    for task in facts["tasks"]:
        name = task.pop("name")
        if not isinstance(name, str) or not name or name in tasks:
            raise DamagedError(f"{source} names the task {name!r} twice or not at all")
        tasks[name] = _entry(task, TASK, source)
    layouts = [_entry(layout, LAYOUT, source) for layout in facts.get("layouts", ())]
    _check(isinstance(facts["head"], str), source, "head")
    _check(isinstance(facts["channels_last"], bool), source, "channels_last")
    _check(_SHA256.fullmatch(facts["fingerprint"]) is not None, source, "fingerprint")
    _check(isinstance(facts["halrp"], str), source, "version")
    return Manifest(
        head=facts["head"],
        channels_last=facts["channels_last"],
        fingerprint=facts["fingerprint"],
        base=_entry(facts["base"], BASE, source),
        tasks=tasks,
        layouts={entry.sha256[:16]: entry for entry in layouts},
        version=facts["halrp"],
        format=facts["format"],
    )


def _entry(facts: dict[str, Any], names: re.Pattern[str], source: str) -> Entry:
    _check(facts.keys() == {"file", "sha256", "bytes"}, source, "entry")
    entry = Entry(**facts)
    # Only names that this library gives: none of them leaves the folder.
    _check(isinstance(entry.file, str) and names.fullmatch(entry.file) is not None, source, f"file {entry.file!r}")
    _check(is_whole(entry.bytes, 8), source, "size")
    _check(isinstance(entry.sha256, str) and _SHA256.fullmatch(entry.sha256) is not None, source, "checksum")
    _check(entry.file.partition(".")[0].endswith(f"-{entry.sha256[:16]}"), source, f"file {entry.file!r}")
    return entry


def _check(good: bool, source: str, field_name: str) -> None:
    if not good:
        raise DamagedError(f"{source} has a bad {field_name}")
