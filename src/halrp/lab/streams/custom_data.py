"""A user's data, in whatever form, as one pool of labelled images."""

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset

from halrp.errors import DataError, LabelError, SettingError
from halrp.lab.streams.protocol import Indices
from halrp.lab.streams.stream import Normal


@dataclass(frozen=True, eq=False)
class Pool:
    """Images that are read on demand, and their labels."""

    source: str
    """Its name in error messages."""
    labels: NDArray[np.int64]
    take: Callable[[Indices], Tensor]
    """Read images by index: (images, channels, height, width), uint8 or float32, in new memory."""
    names: tuple[str, ...] = ()
    """The names of classes that the data set has; empty if it has none."""

    def first(self) -> Tensor:
        """Read one image, (1, channels, height, width)."""
        return self.take(np.zeros(1, dtype=np.intp))

    def check_matches(self, train: "Pool") -> None:
        """Check that images and classes are like those of the training data."""
        mine, other = self.first(), train.first()
        if mine.shape != other.shape or mine.dtype != other.dtype:
            raise DataError(
                f"{self.source}: images are {tuple(mine.shape[1:])} of {mine.dtype}, training images "
                f"{tuple(other.shape[1:])} of {other.dtype}; convert one of them"
            )
        different = sorted(set(self.labels.tolist()) ^ set(train.labels.tolist()))
        if different:
            raise DataError(
                f"{self.source}: it must have the same classes as the training data; only one has {different[:10]}"
            )

    def named(self, names: Sequence[str] | None, stream: str) -> dict[int, str]:
        """The names of classes by label: from `names`, else those of the data set, else none."""
        labels = np.unique(self.labels).tolist()
        chosen = self.names if names is None else tuple(names)
        if len(chosen) == len(labels):
            return dict(zip(labels, chosen, strict=True))
        if chosen and labels[0] >= 0 and labels[-1] < len(chosen):
            return {label: chosen[label] for label in labels}
        if names is not None:
            raise SettingError(
                f"{stream}: {len(chosen)} class_names for {len(labels)} classes with labels {labels[0]} … {labels[-1]};"
                " give one for each"
            )
        return {}


def pool_of(data: Any, source: str) -> Pool:
    """Make a pool of a user's data; error messages call it `source`."""
    if type(data) is TensorDataset and len(data.tensors) == 2:  # a subclass may transform its items
        data = data.tensors
    if isinstance(data, tuple) and len(data) == 2:
        return _arrays(data[0], data[1], source)
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")) or isinstance(data, (Tensor, np.ndarray, str)):
        raise DataError(
            f"{source}: cannot read images and labels from {type(data).__name__}; pass (x, y) tensors, or a data set "
            "with a length whose items are (image, label)"
        )
    return _items(data, source)


def measure(pool: Pool, chosen: Indices, by_channel: bool) -> Normal:
    """The mean and standard deviation of images in bytes, scaled to 0 … 1: by channel, or one for all channels."""
    sums, count = torch.zeros(2, pool.first().shape[1], dtype=torch.float64), 0
    for some in np.array_split(chosen, math.ceil(len(chosen) / 1024)):
        x = pool.take(some).to(torch.float64).div_(255)
        sums += torch.stack([x.sum((0, 2, 3)), x.square().sum((0, 2, 3))]).to(sums.device)
        count += x.shape[0] * x.shape[2] * x.shape[3]
    mean, square = sums / count if by_channel else sums.mean(1, keepdim=True) / count
    deviation = (square - mean.square()).clamp(min=0).sqrt()
    deviation[deviation < 1e-6] = 1.0  # a constant channel is only shifted
    return Normal(tuple(mean.tolist()), tuple(deviation.tolist()))


def check_normal(normal: Normal, channels: int, stream: str) -> None:
    """Check that a normalisation has finite values, for each channel or one for all."""
    fits = all(len(value) in (1, channels) for value in normal)
    if not fits or not all(map(math.isfinite, (*normal.mean, *normal.deviation))) or min(normal.deviation) <= 0:
        raise SettingError(
            f"{stream}: normal={normal} must have one finite mean and one positive deviation for all channels, or "
            f"{channels} of them"
        )


def normalise(x: Tensor, normal: Normal) -> Tensor:
    """Normalise pixels in 0 … 1, (images, channels, height, width)."""
    mean, deviation = (x.new_tensor(value).view(-1, 1, 1) for value in normal)
    return (x - mean) / deviation


def _arrays(x: Any, y: Any, source: str) -> Pool:
    """Make a pool of tensors, or of arrays with the channels last."""
    if not isinstance(x, (Tensor, np.ndarray)) or x.ndim == 0:
        raise DataError(f"{source}: the images must be a tensor or an array of them, got {type(x).__name__}")
    labels = _labels(y, source)
    if len(x) != len(labels):
        raise DataError(f"{source}: {len(x)} images but {len(labels)} labels; they must be paired")
    if isinstance(x, np.ndarray) and x.dtype == np.uint8:  # may be memory-mapped, and larger than memory
        _tensor(x[:1], 4, source)
        return Pool(source, labels, lambda chosen: _tensor(x[chosen], 4, source))
    images = _tensor(x, 4, source)
    return Pool(source, labels, lambda chosen: images.index_select(0, torch.from_numpy(chosen).to(images.device)))


def _items(data: Any, source: str) -> Pool:
    """Make a pool of a map-style data set."""
    labels = _labels(_stored_labels(data), source)
    if len(labels) != len(data):
        raise DataError(f"{source}: the data set has {len(data)} items but {len(labels)} labels")

    def take(chosen: Indices) -> Tensor:
        images: list[Tensor] = []
        for number in chosen.tolist():
            image, label = _pair(data[number], f"{source}: item {number}")
            if label != labels[number]:
                raise LabelError(
                    f"{source}: item {number} has the label {label}, but its data set lists {labels[number]}"
                )
            images.append(_tensor(image, 3, f"{source}: item {number}"))
            if images[-1].shape != images[0].shape or images[-1].dtype != images[0].dtype:
                raise DataError(
                    f"{source}: item {number} is {tuple(images[-1].shape)} of {images[-1].dtype}, another one "
                    f"{tuple(images[0].shape)} of {images[0].dtype}; transform them to one shape and type"
                )
        return torch.stack(images)

    return Pool(source, labels, take, _stored_names(data))


def _stored_labels(data: Any) -> Any:
    """The labels of a data set, without reading its images if it lists them."""
    if getattr(data, "target_transform", None) is None:
        for key in ("targets", "labels"):
            if hasattr(data, key):
                return getattr(data, key)
        if hasattr(data, "dataset") and hasattr(data, "indices"):  # a subset
            labels = _stored_labels(data.dataset)
            return [int(labels[index]) for index in data.indices]
    return [_pair(data[number], f"item {number}")[1] for number in range(len(data))]


def _stored_names(data: Any) -> tuple[str, ...]:
    """The names of a data set's classes, if it has any and they fit its labels."""
    if getattr(data, "target_transform", None) is not None:
        return ()
    if hasattr(data, "dataset") and hasattr(data, "indices"):
        return _stored_names(data.dataset)
    names = getattr(data, "classes", ())
    known = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    return tuple(names) if known else ()


def _pair(item: Any, source: str) -> tuple[Any, int]:
    """The image and the label of an item."""
    if not (isinstance(item, (tuple, list)) and len(item) == 2):
        raise DataError(f"{source}: expected a pair (image, label), got {type(item).__name__}")
    image, label = item
    if isinstance(label, (Tensor, np.ndarray)) and label.ndim == 0:
        label = label.item()
    if not isinstance(label, numbers.Integral):
        raise LabelError(f"{source}: the label must be an integer, got {label!r}")
    return image, int(label)


def _labels(y: Any, source: str) -> NDArray[np.int64]:
    """Check labels and return them as an array."""
    labels = np.asarray(y.tolist() if isinstance(y, Tensor) else y)
    if len(labels.shape) != 1 or len(labels) == 0:
        raise LabelError(f"{source}: labels must be a list of at least one integer, got the shape {labels.shape}")
    if not np.issubdtype(labels.dtype, np.integer):
        raise LabelError(f"{source}: labels must be integers, got {labels.dtype}")
    return labels.astype(np.int64)


def _tensor(image: Any, dimensions: int, source: str) -> Tensor:
    """Return one image (3 dimensions) or several (4) as a tensor with the channels first, uint8 or finite float32."""
    if hasattr(image, "convert") and hasattr(image, "mode"):  # a PIL image
        if image.mode[0] in "IF":
            raise DataError(f"{source}: a PIL image of mode {image.mode} has more than 8 bits per channel; convert it")
        image = np.asarray(image.convert("L" if image.mode in ("1", "L") else "RGB"))
    if isinstance(image, np.ndarray):
        # torch accepts neither read-only arrays nor negative strides.
        plain = image.flags.writeable and min(image.strides, default=0) >= 0
        try:
            x = torch.from_numpy(image if plain else image.copy())
        except (TypeError, ValueError) as error:
            raise DataError(f"{source}: cannot use an array of {image.dtype}: {error}") from error
        x = x.movedim(-1, -3) if x.dim() == dimensions else x
        channels_last = True
    elif isinstance(image, Tensor):
        x, channels_last = image.detach(), False
    else:
        raise DataError(f"{source}: an image must be a tensor, an array or a PIL image, got {type(image).__name__}")
    x = x.unsqueeze(-3) if x.dim() == dimensions - 1 else x
    if x.dim() != dimensions or x.numel() == 0:
        raise DataError(f"{source}: images have channels, height and width, or height and width; got {tuple(x.shape)}")
    channels, _, width = x.shape[-3:]
    if channels > 4 and (channels_last or width in (1, 3)):
        raise DataError(
            f"{source}: {channels} channels; a tensor's channels come before height and width, an array's after them"
        )
    if x.dtype == torch.uint8:
        return x
    if not x.is_floating_point():
        raise DataError(f"{source}: images must be bytes (uint8) or floats, got {x.dtype}; convert them")
    if not bool(torch.isfinite(x).all()):
        raise DataError(f"{source}: images hold NaN or infinity; clean or drop them")
    return x.to(torch.float32)
