"""Streams of your own data, each in one call: split by class, from a folder of pictures, permuted, or rotated.

    stream = split_by_class((x, y), classes_per_task=2)                     # tensors, or any data set with labels
    stream = stream_from_folder("birds/", classes_per_task=5, size=64)      # birds/<class>/*.jpg
    stream = permuted(data, tasks=10, test=test_data)
    stream = rotated(data, angles=(0, 30, 60, 90))

`data` and `test` are `(x, y)` tensors with x (images, channels, height, width) or (images, height, width), the same as
arrays with the channels last, `Images`, or a map-style data set whose items are (image, label), the image a tensor, an
array or a PIL image. A data set is read task by task, and should give the same image whenever it is asked for it.
Labels are any integers, and a class is numbered by its position among its task's classes.

The protocol is that of the benchmarks. For each class, `seed` draws the images that test (the share `test_share`,
unless `test` gives them); of the others `fraction` keeps a part, of which the share `validation` validates and the rest
trains. The images of a task depend on its identity, the seed and the fraction, never on the order. Order "A" is by
identity, "B" to "Z" are the permutations drawn from the seeds 1 to 25, and a list of identities is an order itself, as
is its text "2,0,1".

Bytes are scaled to 0 … 1 and normalised with `normal`, by default the mean and deviation of all images that do not
test. Floats are taken as they are; `normal` then says how they were normalised already.

Experiments find such a stream by its reference, `halrp run --stream my_module:load_birds`, where my_module.py has

    def load_birds(order, seed, fraction, data):
        return stream_from_folder(data or "birds/", 5, order=order, seed=seed, fraction=fraction)
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from halrp.errors import DataError, SettingError
from halrp.lab.data import Images
from halrp.lab.streams.custom_data import Pool, check_normal, measure, normalise, pictures, pool_of
from halrp.lab.streams.custom_split import SplitSettings
from halrp.lab.streams.protocol import SEEDS, Indices, mixed
from halrp.lab.streams.stream import Normal, Split, Stream, Task

Data: TypeAlias = tuple[Any, Any] | Images | Dataset[Any] | Sequence[tuple[Any, int]]
Order: TypeAlias = str | Sequence[int]
Change: TypeAlias = Callable[[Tensor, int, Normal], Tensor]
"""`change(x, identity, normal)`: what a task does to normalised images (images, channels, height, width)."""


def split_by_class(
    data: Data,
    classes_per_task: int | None = None,
    *,
    tasks: int | Sequence[Sequence[int]] | None = None,
    test: Data | None = None,
    name: str = "split",
    order: Order = "A",
    seed: int = 0,
    fraction: float = 1.0,
    validation: float = 0.2,
    test_share: float = 0.2,
    class_names: Sequence[str] | None = None,
    normal: Normal | None = None,
    assign: Literal["sorted"] | int = "sorted",
) -> Stream:
    """Cut a data set into tasks of different classes.

    Give `classes_per_task` (a last task takes what is left), or `tasks`: how many, or the labels of each. Classes are
    dealt to tasks in the order of their labels, or in a random order drawn from the seed `assign`. `class_names` has a
    name for each class in the order of the labels, or is indexed by label.
    """
    settings = SplitSettings(name, order, seed, fraction, validation, test_share)
    train = pool_of(data, f"{name}: data")
    names = train.named(class_names, name)
    return _stream(settings, train, test, _deal(name, train, classes_per_task, tasks, assign, names), normal)


def stream_from_folder(
    path: str | PathLike[str],
    classes_per_task: int | None = None,
    *,
    tasks: int | Literal["folders"] | None = None,
    size: int = 32,
    grey: bool = False,
    name: str | None = None,
    order: Order = "A",
    seed: int = 0,
    fraction: float = 1.0,
    validation: float = 0.2,
    test_share: float = 0.2,
    normal: Normal | None = None,
    assign: Literal["sorted"] | int = "sorted",
) -> Stream:
    """Make a stream of the pictures in `path/<class>/`, or with `tasks="folders"` in `path/<task>/<class>/`.

    If `path` holds nothing but `train/` and `test/` or `val/`, the folders are expected in each of them and the
    pictures of `test/` test; those of `val/` test if there is no `test/`, and join the training pictures if there is.
    Pictures become `size`×`size`, shrunk by the short side and cut around the centre, in colour or `grey`.
    """
    if size < 1:
        raise SettingError(f"size={size} of the pictures in {path} must be at least 1")
    name = Path(path).resolve().name if name is None else name
    keys, train, test = pictures(path, 2 if tasks == "folders" else 1, size, grey)
    names = [key[-1] for key in keys]
    settings = SplitSettings(name, order, seed, fraction, validation, test_share)
    pool = pool_of(train, f"{name}: {path}")
    if tasks != "folders":
        groups = _deal(name, pool, classes_per_task, tasks, assign, dict(enumerate(names)))
        return _stream(settings, pool, test, groups, normal)
    if classes_per_task is not None:
        raise SettingError(f'{name}: tasks="folders" leaves no choice of classes_per_task={classes_per_task}')
    groups = []
    for task, mine in itertools.groupby(range(len(keys)), key=lambda label: keys[label][0]):
        labels = tuple(mine)
        groups.append(_Group(task, labels, tuple(names[label] for label in labels)))
    return _stream(settings, pool, test, groups, normal)


def permuted(
    data: Data,
    tasks: int = 10,
    *,
    test: Data | None = None,
    name: str = "permuted",
    order: Order = "A",
    seed: int = 0,
    fraction: float = 1.0,
    validation: float = 0.2,
    test_share: float = 0.2,
    class_names: Sequence[str] | None = None,
    normal: Normal | None = None,
    first_identity: bool = True,
) -> Stream:
    """Make tasks that see the same images, each under one fixed permutation of all values, across channels too.

    Task k moves values by `permutation(k, values)`, where task 0 leaves them in place if `first_identity`. All tasks
    split the images alike, so that none tests an image on which another one trains. The default normal is one for all
    channels.
    """
    settings = SplitSettings(name, order, seed, fraction, validation, test_share)
    if tasks < 1:
        raise SettingError(f"tasks={tasks} of stream {name!r} must be at least 1")

    def change(x: Tensor, identity: int, _: Normal) -> Tensor:
        positions = torch.from_numpy(permutation(identity, x[0].numel(), first_identity)).to(x.device)
        return x.flatten(1).index_select(1, positions).view(x.shape)

    train = pool_of(data, f"{name}: data")
    titles = [f"permuted-{identity:0{len(str(tasks - 1))}d}" for identity in range(tasks)]
    return _stream(settings, train, test, _whole(train, titles, class_names, name), normal, change, by_channel=False)


def permutation(identity: int, values: int, first_identity: bool = True) -> NDArray[np.int64]:
    """Return the permutation of a task of `permuted`: the value at place i comes from place `permutation[i]`."""
    if identity == 0 and first_identity:
        return np.arange(values, dtype=np.int64)
    return np.random.RandomState(identity).permutation(values).astype(np.int64)


def rotated(
    data: Data,
    angles: Sequence[float] = (0, 90, 180, 270),
    *,
    fill: float | None = None,
    test: Data | None = None,
    name: str = "rotated",
    order: Order = "A",
    seed: int = 0,
    fraction: float = 1.0,
    validation: float = 0.2,
    test_share: float = 0.2,
    class_names: Sequence[str] | None = None,
    normal: Normal | None = None,
) -> Stream:
    """Make tasks that see the same images, each turned counter-clockwise by one of `angles`, in degrees.

    Corners that no pixel reaches take the pixel value `fill`, before normalising; without it they are black, or of
    floats the smallest value of the image's channel. All tasks split the images alike, so that none tests an image on
    which another one trains.
    """
    settings = SplitSettings(name, order, seed, fraction, validation, test_share)
    titles = [f"rotated-{angle:g}" for angle in angles]
    if not titles or len(set(titles)) < len(titles) or not all(math.isfinite(angle) for angle in angles):
        raise SettingError(f"angles={tuple(angles)} of stream {name!r} must be different finite numbers of degrees")

    train = pool_of(data, f"{name}: data")
    colour = 0.0 if fill is None and train.first().dtype == torch.uint8 else fill

    def change(x: Tensor, identity: int, normal: Normal) -> Tensor:
        corners = None if colour is None else normalise(x.new_full((1, x.shape[1], 1, 1), colour), normal)
        return rotate(x, angles[identity], corners)

    return _stream(settings, train, test, _whole(train, titles, class_names, name), normal, change)


def rotate(x: Tensor, angle: float, fill: Tensor | None = None) -> Tensor:
    """Turn images (images, channels, height, width) counter-clockwise by `angle` degrees and keep their shape.

    Quarter turns move whole pixels (of images that are not square, only half turns do); other angles interpolate
    between the four nearest. `fill` (1, channels, 1, 1) colours the corners; without it each channel's minimum does.
    """
    quarters, rest = divmod(angle % 360, 90)
    height, width = x.shape[2:]
    if rest == 0 and (height == width or quarters % 2 == 0):
        return torch.rot90(x, int(quarters), dims=(2, 3)).contiguous()
    cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    # Where a pixel of the result comes from, in coordinates from −1 to 1 whose second one points down.
    source = x.new_tensor([[cos, -sin * height / width, 0], [sin * width / height, cos, 0]])
    grid = functional.affine_grid(source.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    corners = x.amin((2, 3), keepdim=True) if fill is None else fill
    return functional.grid_sample(x - corners, grid, align_corners=False) + corners


class _Group(NamedTuple):
    """A task to be: its name and its classes, as labels of the data, in the order of the local labels."""

    name: str
    labels: tuple[int, ...]
    class_names: tuple[str, ...]

    def titles(self) -> Iterator[tuple[int, str]]:
        """Yield what errors call the classes, by label."""
        return zip(self.labels, self.class_names or map(str, self.labels), strict=True)


def _stream(
    settings: SplitSettings,
    train: Pool,
    test: Data | None,
    groups: Sequence[_Group],
    normal: Normal | None,
    change: Change | None = None,
    by_channel: bool = True,
) -> Stream:
    """Make the stream whose task k has the classes of `groups[k]` and shows them changed."""
    name = settings.name
    for group in groups:
        if len(group.labels) < 2:
            raise DataError(f"{name}: task {group.name!r} has {len(group.labels)} classes; a task needs at least two")
    identities = settings.identities(len(groups))
    first = train.first()
    tests = None if test is None else pool_of(test, f"{name}: test")
    if tests is not None:
        tests.fit(train)
    if normal is not None:
        check_normal(normal, first.shape[1], name)
    parts = settings.parts(train, tests, {label: name for group in groups for label, name in group.titles()})

    @functools.cache
    def normal_in_use() -> Normal:
        if normal is None and first.dtype == torch.uint8:
            return measure(train, np.sort(np.concatenate([part.rest for part in parts.values()])), by_channel)
        return normal or Normal((0.0,), (1.0,))

    def make(identity: int) -> Task:
        group = groups[identity]

        def split(pool: Pool, by_class: list[Indices]) -> Split:
            chosen = np.concatenate(by_class)
            by_file = mixed(np.argsort(chosen, kind="stable"))
            y = np.repeat(np.arange(len(by_class)), [len(mine) for mine in by_class])[by_file]
            x = pool.take(chosen[by_file])
            if x.dtype == torch.uint8:
                x = normalise(x.to(torch.float32).div_(255), normal_in_use())
            if change is not None:
                x = change(x, identity, normal_in_use())
            x = x.contiguous(memory_format=torch.contiguous_format)
            return Split(x, torch.from_numpy(y).to(x.device))

        mine = [parts[label] for label in group.labels]
        return Task(
            name=group.name,
            identity=identity,
            classes=len(mine),
            train=split(train, [part.train for part in mine]),
            val=split(train, [part.val for part in mine]),
            test=split(train if tests is None else tests, [part.test for part in mine]),
            class_names=group.class_names,
            normal=normal_in_use(),
        )

    order = settings.order if isinstance(settings.order, str) else ",".join(map(str, identities))
    channels, height, width = first.shape[1:]
    return Stream(
        name=name,
        order=order,
        seed=int(settings.seed),
        fraction=settings.fraction,
        identities=identities,
        make=make,
        shape=(channels, height, width),
    )


def _deal(
    name: str,
    train: Pool,
    classes_per_task: int | None,
    tasks: int | Sequence[Sequence[int]] | None,
    assign: Literal["sorted"] | int,
    names: dict[int, str],
) -> list[_Group]:
    """Deal the classes to tasks."""
    labels = np.unique(train.labels)
    if (classes_per_task is None) == (tasks is None):
        raise SettingError(f"{name}: give either classes_per_task or tasks, not both")
    if assign != "sorted":
        if isinstance(assign, str) or not 0 <= assign < SEEDS:
            raise SettingError(f"{name}: assign={assign!r} must be 'sorted' or a seed from 0 to 2³²−1")
        labels = np.random.RandomState(assign).permutation(labels)
    if tasks is not None and not isinstance(tasks, int):
        dealt = [list(mine) for mine in tasks]
        for mine in dealt:
            strange = set(mine) - set(labels.tolist())
            if strange or len(set(mine)) < len(mine):
                raise SettingError(
                    f"{name}: task {mine} must name classes of the data, each once; unknown: {sorted(strange)}"
                )
    else:
        wanted = tasks if classes_per_task is None else classes_per_task
        if wanted is None or not 1 <= wanted <= len(labels):
            missing = f"{tasks} tasks" if classes_per_task is None else f"a task of {classes_per_task}"
            raise SettingError(f"{name}: {len(labels)} classes do not make {missing}; choose another number")
        cuts = wanted if classes_per_task is None else range(wanted, len(labels), wanted)
        dealt = [sorted(mine.tolist()) for mine in np.array_split(labels, cuts)]
    if not dealt:
        raise SettingError(f"{name}: tasks=[] leaves nothing to learn; name the classes of at least one task")
    width = len(str(len(dealt) - 1))
    return [
        _Group(f"task-{number:0{width}d}", tuple(mine), tuple(names[label] for label in mine) if names else ())
        for number, mine in enumerate(dealt)
    ]


def _whole(train: Pool, titles: Sequence[str], class_names: Sequence[str] | None, name: str) -> list[_Group]:
    """Tasks that all have every class."""
    names = train.named(class_names, name)
    labels = tuple(np.unique(train.labels).tolist())
    return [_Group(title, labels, tuple(names[label] for label in labels) if names else ()) for title in titles]
