"""What the backbones' settings have in common."""

from typing import Literal

from torch import nn

from halrp.errors import SettingError

Statistics = Literal["running", "batch"]
"""What batch norms normalise by in evaluation: averages over training, or the batch at hand, whose rows then depend on
each other."""


class Norms:
    """Makes the batch norms of one network."""

    def __init__(self, backbone: str, statistics: Statistics) -> None:
        """Take the network's name, for errors, and its kind of statistics."""
        if statistics not in ("running", "batch"):
            raise SettingError(f"{backbone}: statistics={statistics!r} is unknown; choose 'running' or 'batch'")
        self._running = statistics == "running"

    def flat(self, features: int) -> nn.BatchNorm1d:
        """A norm of (batch, features)."""
        return nn.BatchNorm1d(features, track_running_stats=self._running)

    def image(self, channels: int) -> nn.BatchNorm2d:
        """A norm of (batch, channels, height, width)."""
        return nn.BatchNorm2d(channels, track_running_stats=self._running)


def refuse_size(backbone: str, good: bool, why: str, **values: int) -> None:
    """Raise unless `good`, naming the values that are not."""
    if not good:
        raise SettingError(f"{backbone}({', '.join(f'{n}={v}' for n, v in values.items())}) is impossible: {why}")
