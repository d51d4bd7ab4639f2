"""`stl`: single-task learning, a separate network for every task.

Nothing is shared and nothing is forgotten; every other method is compared with it. With the same seed a task's network
is the one that any other method would train if the task came first.
"""

from __future__ import annotations

from torch import Tensor, nn

from halrp.lab.methods import network
from halrp.lab.methods.protocol import Context, Method, Size, State
from halrp.lab.streams import Task


class Separate(Method):
    """A network for each task."""

    frozen = True

    def __init__(self, context: Context, l2: float = 1e-4, redraw: bool = False) -> None:
        """Take the penalty λ/2·‖W‖² on the weights.

        With `redraw` random numbers depend on the order too. A task is then another run of the same training in every
        order, so the disparity between orders shows the noise of training alone.
        """
        super().__init__(context)
        self.l2 = l2
        self.salt = (context.order,) if redraw else ()
        self.first_decides = not redraw
        self.nets: list[nn.Module] = []

    def learn(self, task: Task) -> None:
        """Train a new network."""
        net, plan = network.fresh(self.context, task, *self.salt)
        seed_key = network.first_seed_key(self.context, task, *self.salt)
        network.fit(self.context, task, net, network.weight_groups(net, plan, self.l2), seed_key, "base")
        self.nets.append(net)

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits of the task's network."""
        return network.logits(self.context, self.nets[task], x)

    def stored(self) -> Size:
        """All networks."""
        return Size.of(t for net in self.nets for t in network.contents(net).values())

    def counted(self) -> int:
        """Without the running statistics of batch norms."""
        return sum(p.numel() for net in self.nets for p in net.parameters())

    def state(self) -> State:
        """All networks."""
        tensors: dict[str, Tensor] = {}
        for i, net in enumerate(self.nets):
            tensors |= network.add_prefix(str(i), network.contents(net))
        return State(tensors, {"classes": [network.head_width(net) for net in self.nets]})

    def restore(self, state: State) -> None:
        """Rebuild the networks."""
        self.nets = []
        for i, classes in enumerate(state.values["classes"]):
            net, _ = network.empty(self.context, classes)
            network.fill(net, network.strip_prefix(str(i), state.tensors))
            self.nets.append(net)
