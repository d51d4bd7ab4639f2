"""Everything that can go wrong, as types. Each message names the thing, its value and the remedy."""

from halrp.text import printable


class HalrpError(Exception):
    """The root of every error this library raises on purpose."""

    def __str__(self) -> str:
        """Return the message, printable: the names in it may come from a file."""
        return printable(super().__str__(), keep="\n")


class ModelError(HalrpError, ValueError):
    """The model cannot be treated correctly: no adaptable layer, tied head, uninitialised parameter."""


class HeadError(ModelError):
    """The classifier head was not found, or does not give one logit per class."""


class DataError(HalrpError, ValueError):
    """A task's data cannot be learned from: empty, not finite, or of a shape that does not fit."""


class LabelError(DataError):
    """A label lies outside 0 … classes−1, or is not an integer."""


class BatchOfOneError(DataError):
    """Batch normalisation met a batch with a single example, which has no statistics."""


class TaskError(HalrpError, ValueError):
    """A task's name is already taken or not usable."""


class UnknownTaskError(HalrpError, KeyError):
    """No task of that name has been learned."""

    def __str__(self) -> str:
        """Return the message itself: KeyError would print its repr."""
        return printable(str(self.args[0]), keep="\n") if self.args else ""


class SettingError(HalrpError, ValueError):
    """A setting of the method or the recipe is out of range."""


class MissingPackageError(HalrpError, ImportError):
    """A part of the library needs a package that is not installed."""


class BudgetTooSmall(HalrpError, ValueError):  # noqa: N818  (a public name of the design)
    """The part of a task that cannot be shrunk is already larger than the budget."""


class DivergedError(HalrpError, ArithmeticError):
    """Training produced a loss that is not finite."""


class ProcessError(HalrpError, RuntimeError):
    """Processes that learn together differ in what must be the same, or one of them failed."""


class StoreError(HalrpError):
    """Something is wrong with a store or one of its files. The kinds below say what."""


class DamagedError(StoreError, ValueError):
    """A file is truncated, changed, foreign or hostile: what it holds cannot be a task of this store."""


class InactiveError(StoreError):
    """A task's outputs are not those that it was committed with, or the base's: its delta is not what is computed."""


class SignatureError(StoreError):
    """A file has no signature, or not one of the key that it is verified with: it may be anybody's."""


class WrongBaseError(StoreError, ValueError):
    """A store, or a task in it, belongs to another base than the one at hand."""


class FormatError(StoreError, ValueError):
    """A file was written in a format that this version does not read."""


class LockedError(StoreError):
    """Another process is writing to the store."""


class ConflictError(StoreError, ValueError):
    """The store already holds something else under that name."""


class StoreChangedError(StoreError):
    """A store that was seen has vanished, was rolled back, or is another one. Nothing was written or deleted."""


class LinkError(StoreError, ValueError):
    """A part of a store is a symbolic link, which could lead out of it."""


class WriteError(StoreError, OSError):
    """A file could not be written: the disk is full, or the folder is read-only. The old state is still there."""


class HalrpWarning(UserWarning):
    """The root of every warning of this library."""

    def __str__(self) -> str:
        """Return the message, printable: the names in it may come from a file."""
        return printable(super().__str__(), keep="\n")


class DataWarning(HalrpWarning):
    """Files of a data set could not be verified, or their images not be cached."""


class DamagedTaskWarning(HalrpWarning):
    """Tasks of a store cannot be read and were left out, as `skip_damaged` asks."""


class CheckpointWarning(HalrpWarning):
    """A checkpoint cannot be used, so that a task starts again instead of being resumed."""


class CompileWarning(HalrpWarning):
    """A training step cannot be compiled and runs as it is."""


class DivergedWarning(HalrpWarning):
    """Fine-tuning diverged on a given base, so that the probe, where it began, is committed."""


class NotLearnedWarning(HalrpWarning):
    """A task is about to be committed whose score on validation data is no better than that of a constant answer."""


class RunStateWarning(CheckpointWarning):
    """The state of an interrupted run of the laboratory cannot be used, so that its cell starts again."""
