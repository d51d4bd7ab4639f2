"""The orders of a benchmark's tasks, which are known before its data are read."""

from halrp.lab import registry
from halrp.lab.streams.protocol import drawn_orders, published_orders


def orders_of(name: str) -> dict[str, list[int]] | None:
    """The identities of a stream's tasks by the name of each order; None if they depend on the data."""
    entry = registry.stream(name)
    if entry.orders is None:
        return None
    if entry.orders == "drawn" or entry.paper_name is None:
        return drawn_orders(entry.tasks)
    by_identity = {entry.by_identity: list(range(entry.tasks))} if entry.by_identity else {}
    return published_orders(entry.paper_name) | by_identity
