"""Mutants that no test can tell from the program, with the reason: by module, the change as the runner prints it."""

from __future__ import annotations

_ANNOTATION = "it stands in annotations alone, which nothing evaluates"
_SAME_LENGTHS = "`strict` guards against lengths that never differ, and a private value is frozen"
_FROZEN = "nobody changes a field of such a value; that it is frozen keeps it so"
_MESSAGE = "how much of a name a message shows"

EQUIVALENT: dict[str, dict[str, str]] = {
    "halrp.seeding": {
        "constant: 0 → 1": "a number that no thread has",
        "condition: if hasattr(os, 'register_at_fork'): → if True:": "another system",
    },
    "halrp.model.codec": {
        "comparison: scale > 0 → scale >= 0": "a row of zeros becomes 0/0, which is 0 as int8 on the machines we have",
    },
    "halrp.model.int4": {
        "comparison: scale > 0 → scale >= 0": "zeros become 0/0, which is 0 as int8 on the machines we have",
        "constant: 1 → 2": "what a group of zeros is divided by, as only they have the scale 0",
    },
    "halrp.method.allocate": {
        "condition: if TYPE_CHECKING: → if True:": "an import for annotations happens",
        "deletion: Integers = NDArray[np.int64] → pass": _ANNOTATION,
        "constant: True → False": _SAME_LENGTHS,
        "condition: _Segments(np.ones_like(costs), scores, costs) if concave else _join(scores, costs)"
        " → _join(scores, costs)": "joining a concave curve changes nothing; the other way is faster",
    },
    "halrp.method.budget": {
        "arithmetic: float | None → float & None": _ANNOTATION,
        "constant: 0 → 1": "a room of a single byte, in which nothing fits",
        "condition: _chosen(options, room) if room > 0 else Allocation(dict.fromkeys(options, 0))"
        " → Allocation(dict.fromkeys(options, 0))": "what follows fills the room by the same rates, only more slowly",
    },
    "halrp.store.atomic": {
        "constant: 4 → 5": "the length of a random name",
        "condition: if temporary is not None: → if True:": "what is suppressed then is the removal of no file",
        "condition: if os.name != 'posix': → if False:": "another system",
        "condition: if fcntl is None: → if False:": "another system",
        "deletion: time.sleep(0.05) → pass": "waiting for a lock costs the processor",
        "constant: 0.05 → 1.05": "how often a lock is tried",
        "constant: 10.0 → 11.0": "how long a lock is waited for",
        "constant: 0 → 1": "a size that is replaced before it is used",
        "return: return False → return None": "both are false",
        "deletion: self.close() → pass": "a file that nobody refers to is closed anyway",
        "deletion: _close(held) → pass": "a file that nobody refers to is closed anyway",
        "deletion: held[0].close() → pass": "a file that nobody refers to is closed anyway",
        "comparison: time.monotonic() >= deadline → time.monotonic() > deadline": "one instant of a clock",
    },
    "halrp.store.fitting": {
        "constant: 12 → 13": _MESSAGE,
        "deletion: tensor = tensor.to(base.device, copy=True) → pass": (
            "a delta gives copies of its tensors, and the device is the base's on a machine that has one"
        ),
    },
    "halrp.store.format_1": {
        "constant: 2 → 3": "a bound beyond every file that fits into memory",
        "constant: 40 → 41": "a bound beyond every file that fits into memory",
        "constant: 3 → 4": _MESSAGE,
        "comparison: name in facts[PREDICTED] → name not in facts[PREDICTED]": (
            "the layout that such a file shows is replaced by that of its base"
        ),
        "condition: 'adapted' if name in facts[PREDICTED] else 'owned' → 'adapted'": (
            "the layout that such a file shows is replaced by that of its base"
        ),
        "condition: 'adapted' if name in facts[PREDICTED] else 'owned' → 'owned'": (
            "the layout that such a file shows is replaced by that of its base"
        ),
        "boolean: isinstance(s, list) and s and all((is_whole(n, 1, _LARGEST) for n in s))"
        " → isinstance(s, list) or s or all((is_whole(n, 1, _LARGEST) for n in s))": (
            "such a file is refused with another message"
        ),
    },
    "halrp.store.store": {
        "constant: 30.0 → 31.0": "how old a checkpoint may be",
    },
    "halrp.store.commit": {
        "deletion: Stored = Callable[[str, Manifest], 'bytes | None'] → pass": _ANNOTATION,
        "constant: True → False": _FROZEN,
    },
    "halrp.store.trash": {
        "condition: if not left: → if False:": "without work there is nothing to remove; the rest is only time",
    },
    "halrp.store.task_file": {
        "deletion: __all__ = ['check', 'load', 'read', 'write'] → pass": "which names are public is for readers",
    },
}
