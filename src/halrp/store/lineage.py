"""Whether a store is still the one that was seen: not vanished, replaced by another, or rolled back."""

from __future__ import annotations

from pathlib import Path

from halrp.errors import StoreChangedError
from halrp.store.manifest import Manifest

_REMEDY = "bring the right one back, open this one with a new learner, or write the tasks at hand with learner.save(…)"


def check(root: Path, known: Manifest | None, present: Manifest | None) -> None:
    """Refuse a store that is not the known one or a later generation of it."""
    if known is None or (present is not None and present.digest == known.digest):
        return
    if present is None:
        raise StoreChangedError(
            f"{root} has vanished: it held a store with {len(known.tasks)} tasks, generation {known.generation}, and "
            f"has no manifest.json; was it moved, deleted or unmounted? Nothing was written: {_REMEDY}"
        )
    another = known.identity and present.identity and present.identity != known.identity
    if another or present.fingerprint != known.fingerprint:
        raise StoreChangedError(
            f"{root} holds another store than before: {_short(present)}, not {_short(known)}. Nothing was written: "
            f"{_REMEDY}"
        )
    if present.generation < known.generation or _lacks_tasks(known, present):
        raise StoreChangedError(
            f"{root} was rolled back: it is at generation {present.generation} with {len(present.tasks)} tasks, and "
            f"was at generation {known.generation} with {len(known.tasks)}. Nothing was written: {_REMEDY}"
        )
    if _forked(known, present):
        raise StoreChangedError(
            f"{root} has another history than before: its generation {known.generation} is not the one that was seen, "
            f"so it was rolled back and continued by somebody else. Nothing was written: {_REMEDY}"
        )


def _short(manifest: Manifest) -> str:
    return f"{manifest.identity[:12]}… on the base {manifest.fingerprint[:12]}…"


def _lacks_tasks(known: Manifest, present: Manifest) -> bool:
    """Whether a store without generations has lost a task; versions that wrote those formats could not remove any."""
    return present.format < 3 and not known.tasks.keys() <= present.tasks.keys()


def _forked(known: Manifest, present: Manifest) -> bool:
    """Whether the generation that was seen is not an ancestor, as far as the present one remembers."""
    later = present.generation - known.generation
    if later == 0:
        return present.format > 2
    return later <= len(present.history) and present.history[-later] != known.digest[:16]
