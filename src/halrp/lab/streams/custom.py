"""Streams of your own data, each in one call: split by class, from a folder of pictures, permuted, or rotated.

    stream = split_by_class((x, y), classes_per_task=2)                     # tensors, or any data set with labels
    stream = stream_from_folder("birds/", classes_per_task=5, size=64)      # birds/<class>/*.jpg
    stream = permuted(data, tasks=10, test=test_data)
    stream = rotated(data, angles=(0, 30, 60, 90))

`data` and `test` are `(x, y)` tensors with x (images, channels, height, width) or (images, height, width), the same as
arrays with the channels last, `Images`, or a map-style data set whose items are (image, label), the image a tensor, an
array or a PIL image. A data set is read task by task, and must return the same image every time it is indexed.
Labels are any integers; within a task, a class is numbered by its position among the task's classes.

All four share the settings of `StreamOptions`, and images are split as in the benchmarks. For each class, `seed` draws
the test images (the share `test_share`, unless `test` is given); of the others the share `fraction` is used, of which
the share `validation` is for validation and the rest for training. The images of a task depend on its identity, the
seed and the fraction, never on the order.

Images in bytes are scaled to 0 … 1 and normalised with `normal`, by default the mean and standard deviation of all
images that are not test images. Float images are used as they are; `normal` then states how they were normalised.

Experiments load such a stream by its reference, `halrp run --stream my_module:load_birds`, where my_module.py has

    def load_birds(order, seed, fraction, data):
        return stream_from_folder(data or "birds/", 5, order=order, seed=seed, fraction=fraction)
"""

import itertools
import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from halrp.errors import SettingError
from halrp.lab.data import Images
from halrp.lab.streams.custom_data import Pool, normalise, pool_of
from halrp.lab.streams.custom_folder import read_folder
from halrp.lab.streams.custom_split import Order, StreamSettings
from halrp.lab.streams.custom_tasks import ClassGroup, all_classes, build_stream, deal_classes
from halrp.lab.streams.stream import Normal, Stream

Data: TypeAlias = tuple[Any, Any] | Images | Dataset[Any] | Sequence[tuple[Any, int]]


class StreamOptions(TypedDict, total=False):
    """Keyword arguments that every function here takes."""

    name: str
    """The stream's name; by default the function's or the folder's."""
    order: Order
    """"A" (default) is by identity, "B" to "Z" are permutations drawn from the seeds 1 to 25; or a list of identities,
    also as the text "2,0,1"."""
    seed: int
    """Draws which images train, validate and test; default 0."""
    fraction: float
    """The share of the training and validation images to use; default 1."""
    validation: float
    """The share of these for validation; default 0.2."""
    test_share: float
    """The share of a class's images for testing, if there is no separate test data; default 0.2."""
    normal: Normal | None
    """Mean and standard deviation of pixels in 0 … 1, by channel or one for all; by default measured."""


def split_by_class(
    data: Data,
    classes_per_task: int | None = None,
    *,
    tasks: int | Sequence[Sequence[int]] | None = None,
    assign: Literal["sorted"] | int = "sorted",
    test: Data | None = None,
    class_names: Sequence[str] | None = None,
    **options: Unpack[StreamOptions],
) -> Stream:
    """Split a data set into tasks of different classes.

    Give `classes_per_task` (the last task has those that are left), or `tasks`: their number, or the labels of each.
    Classes are assigned to tasks in the order of their labels, or in a random order drawn from the seed `assign`.
    `class_names` has a name for each class in the order of the labels, or is indexed by label.
    """
    settings = StreamSettings(**({"name": "split"} | options))
    name = settings.name
    train = pool_of(data, f"{name}: data")
    groups = deal_classes(name, train, classes_per_task, tasks, assign, train.named(class_names, name))
    return build_stream(settings, train, _test_pool(test, name), groups)


def stream_from_folder(
    path: str | PathLike[str],
    classes_per_task: int | None = None,
    *,
    tasks: int | Literal["folders"] | None = None,
    assign: Literal["sorted"] | int = "sorted",
    size: int = 32,
    grey: bool = False,
    **options: Unpack[StreamOptions],
) -> Stream:
    """Make a stream of the pictures in `path/<class>/`, or with `tasks="folders"` in `path/<task>/<class>/`.

    If `path` has only the folders `train/` and `test/` or `val/`, each of these has the folders of classes. Test images
    are those of `test/`, or of `val/` if there is no `test/`; if there are both, `val/` is added to the training data.
    Pictures are resized to `size`×`size` by their short side and cropped at the centre, in colour or `grey`.
    """
    if size < 1:
        raise SettingError(f"size={size} of the pictures in {path} must be at least 1")
    if options.get("name") is None:
        options["name"] = Path(path).resolve().name
    settings = StreamSettings(**options)
    name = settings.name
    keys, train, test = read_folder(path, 2 if tasks == "folders" else 1, size, grey)
    names = [key[-1] for key in keys]
    pool, test_pool = pool_of(train, f"{name}: {path}"), _test_pool(test, name)
    if tasks != "folders":
        groups = deal_classes(name, pool, classes_per_task, tasks, assign, dict(enumerate(names)))
        return build_stream(settings, pool, test_pool, groups)
    if classes_per_task is not None:
        raise SettingError(
            f'{name}: tasks="folders" sets the classes of each task; leave out classes_per_task={classes_per_task}'
        )
    groups = []
    for task, mine in itertools.groupby(range(len(keys)), key=lambda label: keys[label][0]):
        labels = tuple(mine)
        groups.append(ClassGroup(task, labels, tuple(names[label] for label in labels)))
    return build_stream(settings, pool, test_pool, groups)


def permuted(
    data: Data,
    tasks: int = 10,
    *,
    first_identity: bool = True,
    test: Data | None = None,
    class_names: Sequence[str] | None = None,
    **options: Unpack[StreamOptions],
) -> Stream:
    """Make tasks that share all images, each with its own fixed permutation of all values, across channels too.

    Task k uses `permutation(k, values)`; with `first_identity`, task 0 leaves images as they are. All tasks have the
    same split, so that none tests on an image on which another one trains. The default `normal` is one for all
    channels.
    """
    settings = StreamSettings(**({"name": "permuted"} | options))
    name = settings.name
    if tasks < 1:
        raise SettingError(f"tasks={tasks} of stream {name!r} must be at least 1")

    def change(x: Tensor, identity: int, _: Normal) -> Tensor:
        positions = torch.from_numpy(permutation(identity, x[0].numel(), first_identity)).to(x.device)
        return x.flatten(1).index_select(1, positions).view(x.shape)

    train = pool_of(data, f"{name}: data")
    titles = [f"permuted-{identity:0{len(str(tasks - 1))}d}" for identity in range(tasks)]
    groups = all_classes(train, titles, class_names, name)
    return build_stream(settings, train, _test_pool(test, name), groups, change, by_channel=False)


def permutation(identity: int, values: int, first_identity: bool = True) -> NDArray[np.int64]:
    """The permutation of a task of `permuted`: value i of its images is value `permutation[i]` of the original."""
    if identity == 0 and first_identity:
        return np.arange(values, dtype=np.int64)
    return np.random.RandomState(identity).permutation(values).astype(np.int64)


def rotated(
    data: Data,
    angles: Sequence[float] = (0, 90, 180, 270),
    *,
    fill: float | None = None,
    test: Data | None = None,
    class_names: Sequence[str] | None = None,
    **options: Unpack[StreamOptions],
) -> Stream:
    """Make tasks that share all images, each rotated counter-clockwise by one of `angles`, in degrees.

    Empty corners are filled with the pixel value `fill`, before normalisation; by default with black, or for float
    images with the minimum of the image's channel. All tasks have the same split, so that none tests on an image on
    which another one trains.
    """
    settings = StreamSettings(**({"name": "rotated"} | options))
    name = settings.name
    titles = [f"rotated-{angle:g}" for angle in angles]
    if not titles or len(set(titles)) < len(titles) or not all(math.isfinite(angle) for angle in angles):
        raise SettingError(f"angles={tuple(angles)} of stream {name!r} must be different finite numbers of degrees")

    train = pool_of(data, f"{name}: data")
    colour = 0.0 if fill is None and train.first().dtype == torch.uint8 else fill

    def change(x: Tensor, identity: int, normal: Normal) -> Tensor:
        corners = None if colour is None else normalise(x.new_full((1, x.shape[1], 1, 1), colour), normal)
        return rotate(x, angles[identity], corners)

    return build_stream(settings, train, _test_pool(test, name), all_classes(train, titles, class_names, name), change)


def rotate(x: Tensor, angle: float, fill: Tensor | None = None) -> Tensor:
    """Rotate images (images, channels, height, width) counter-clockwise by `angle` degrees, keeping their shape.

    Multiples of 90° move pixels exactly (180° only, if images are not square); other angles interpolate bilinearly.
    `fill` (1, channels, 1, 1) is the colour of empty corners; by default each channel's minimum.
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


def _test_pool(test: Data | None, name: str) -> Pool | None:
    return None if test is None else pool_of(test, f"{name}: test")
