"""The metrics of a stream, for those who bring their own accuracy matrix."""

from halrp.lab.records.metrics import (
    average_accuracy,
    backward_transfer,
    forward_transfer,
    order_disparity,
)

__all__ = ["average_accuracy", "backward_transfer", "forward_transfer", "order_disparity"]
