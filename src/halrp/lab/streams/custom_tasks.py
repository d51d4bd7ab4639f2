"""The tasks of a custom stream: which classes each has, and its tensors."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from halrp.errors import DataError, SettingError
from halrp.lab.streams.custom_data import Pool, check_normal, measure, normalise
from halrp.lab.streams.custom_split import Parts, StreamSettings
from halrp.lab.streams.protocol import SEEDS, Indices, mixed
from halrp.lab.streams.stream import Normal, Split, Stream, Task

Change: TypeAlias = Callable[[Tensor, int, Normal], Tensor]
"""`change(x, identity, normal)`: what a task does to normalised images (images, channels, height, width)."""


class ClassGroup(NamedTuple):
    """The name of a task and its classes, as labels of the data, in the order of the local labels."""

    name: str
    labels: tuple[int, ...]
    class_names: tuple[str, ...]

    def titles(self) -> Iterator[tuple[int, str]]:
        """Yield labels, and the names of their classes for error messages."""
        return zip(self.labels, self.class_names or map(str, self.labels), strict=True)


def deal_classes(
    name: str,
    train: Pool,
    classes_per_task: int | None,
    tasks: int | Sequence[Sequence[int]] | None,
    assign: Literal["sorted"] | int,
    names: Mapping[int, str],
) -> list[ClassGroup]:
    """Divide the classes among tasks; see `split_by_class`."""
    labels = np.unique(train.labels)
    if (classes_per_task is None) == (tasks is None):
        raise SettingError(f"{name}: give either classes_per_task or tasks, not both")
    if assign != "sorted":
        if isinstance(assign, str) or not 0 <= assign < SEEDS:
            raise SettingError(f"{name}: assign={assign!r} must be 'sorted' or a seed from 0 to 2³²−1")
        labels = np.random.RandomState(assign).permutation(labels)
    if tasks is not None and not isinstance(tasks, int):
        dealt = [list(mine) for mine in tasks]
        _check_labels(name, dealt, set(labels.tolist()))
    else:
        wanted = tasks if classes_per_task is None else classes_per_task
        if wanted is None or not 1 <= wanted <= len(labels):
            missing = f"{tasks} tasks" if classes_per_task is None else f"a task of {classes_per_task}"
            raise SettingError(f"{name}: {len(labels)} classes do not make {missing}; choose another number")
        cuts = wanted if classes_per_task is None else range(wanted, len(labels), wanted)
        dealt = [sorted(mine.tolist()) for mine in np.array_split(labels, cuts)]
    width = len(str(len(dealt) - 1))
    return [
        ClassGroup(f"task-{number:0{width}d}", tuple(mine), tuple(names[label] for label in mine) if names else ())
        for number, mine in enumerate(dealt)
    ]


def _check_labels(name: str, dealt: Sequence[Sequence[int]], known: set[int]) -> None:
    """Check the labels of tasks that a user listed."""
    if not dealt:
        raise SettingError(f"{name}: tasks=[] has no task; list the classes of at least one")
    for labels in dealt:
        unknown = set(labels) - known
        if unknown or len(set(labels)) < len(labels):
            raise SettingError(
                f"{name}: task {labels} must name classes of the data, each once; unknown: {sorted(unknown)}"
            )


def all_classes(train: Pool, titles: Sequence[str], class_names: Sequence[str] | None, name: str) -> list[ClassGroup]:
    """Tasks with these titles, each of which has every class."""
    names = train.named(class_names, name)
    labels = tuple(np.unique(train.labels).tolist())
    return [ClassGroup(title, labels, tuple(names[label] for label in labels) if names else ()) for title in titles]


@dataclass(frozen=True, eq=False)
class TaskMaker:
    """Makes the tasks of a stream from its images; task k has the classes of `groups[k]`."""

    train: Pool
    test: Pool
    """`train` itself, unless there is separate test data."""
    parts: Mapping[int, Parts]
    """The images of each class, by label."""
    groups: Sequence[ClassGroup]
    given_normal: Normal | None
    change: Change | None
    by_channel: bool

    @functools.cached_property
    def normal(self) -> Normal:
        """The normalisation in use; measured once, and only if a task is made."""
        if self.given_normal is None and self.train.first().dtype == torch.uint8:
            measured = np.sort(np.concatenate([part.rest for part in self.parts.values()]))
            return measure(self.train, measured, self.by_channel)
        return self.given_normal or Normal((0.0,), (1.0,))

    def make(self, identity: int) -> Task:
        """Make the task of an identity."""
        group = self.groups[identity]
        parts = [self.parts[label] for label in group.labels]
        return Task(
            name=group.name,
            identity=identity,
            classes=len(parts),
            train=self.split(identity, self.train, [part.train for part in parts]),
            val=self.split(identity, self.train, [part.val for part in parts]),
            test=self.split(identity, self.test, [part.test for part in parts]),
            class_names=group.class_names,
            normal=self.normal,
        )

    def split(self, identity: int, pool: Pool, by_class: Sequence[Indices]) -> Split:
        """Read images that are listed class by class, in an order that mixes the classes, as a task sees them."""
        chosen = np.concatenate(by_class)
        shuffled = mixed(np.argsort(chosen, kind="stable"))
        y = np.repeat(np.arange(len(by_class)), [len(images) for images in by_class])[shuffled]
        x = pool.take(chosen[shuffled])
        if x.dtype == torch.uint8:
            x = normalise(x.to(torch.float32).div_(255), self.normal)
        if self.change is not None:
            x = self.change(x, identity, self.normal)
        x = x.contiguous(memory_format=torch.contiguous_format)
        return Split(x, torch.from_numpy(y).to(x.device))


def build_stream(
    settings: StreamSettings,
    train: Pool,
    test: Pool | None,
    groups: Sequence[ClassGroup],
    change: Change | None = None,
    by_channel: bool = True,
) -> Stream:
    """Make the stream whose task k has the classes of `groups[k]` and changes its images with `change`."""
    name = settings.name
    for group in groups:
        if len(group.labels) < 2:
            raise DataError(f"{name}: task {group.name!r} has {len(group.labels)} classes; a task needs at least two")
    identities = settings.identities(len(groups))
    _, channels, height, width = train.first().shape
    if test is not None:
        test.check_matches(train)
    if settings.normal is not None:
        check_normal(settings.normal, channels, name)
    parts = settings.parts(train, test, {label: title for group in groups for label, title in group.titles()})
    maker = TaskMaker(train, train if test is None else test, parts, groups, settings.normal, change, by_channel)
    return Stream(
        name=name,
        order=settings.order if isinstance(settings.order, str) else ",".join(map(str, identities)),
        seed=int(settings.seed),
        fraction=settings.fraction,
        identities=identities,
        make=maker.make,
        shape=(channels, height, width),
    )
