"""`finetune`: one network, trained on one task after another, with a head for each.

Nothing protects earlier tasks: the lower reference of every table. `l2` and `ewc` add a penalty to this method.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from halrp.lab.methods import network
from halrp.lab.methods.protocol import Context, Method, Size, State
from halrp.lab.streams import Task
from halrp.model.views import replace_module


class FineTune(Method):
    """One network, and a head per task."""

    def __init__(self, context: Context, l2: float = 1e-4) -> None:
        """Take the penalty λ/2·‖W‖² on the weights."""
        super().__init__(context)
        self.l2 = l2
        self.net: nn.Module | None = None
        self.heads: list[nn.Module] = []

    def learn(self, task: Task) -> None:
        """Train the network with a new head."""
        context = self.context
        if self.net is None:
            self.net, self.plan = network.fresh(context, task)
            groups = network.weight_groups(self.net, self.plan, self.l2)
            network.fit(context, task, self.net, groups, network.first_seed_key(context, task), "base")
        else:
            network.add_head(context, self.net, task)
            groups = network.weight_groups(self.net, self.plan, self.l2)
            seed_key = network.later_seed_key(context, task)
            network.fit(context, task, self.net, groups, seed_key, "fine-tune", **self.hooks())
        self.heads.append(self.net.get_submodule(network.HEAD).requires_grad_(False))
        self.consolidate(task)

    def hooks(self) -> dict[str, Any]:
        """Hooks for the training of a later task: none."""
        return {}

    def consolidate(self, task: Task) -> None:
        """Called after each task, to record what protects it: nothing."""

    def shared(self) -> dict[str, nn.Parameter]:
        """The parameters that all tasks use."""
        assert self.net is not None, "learn a task first"
        return {n: p for n, p in self.net.named_parameters() if self.plan.role(n) != "head"}

    def predict(self, x: Tensor, task: int) -> Tensor:
        """Logits of the current body with the head of the task."""
        assert self.net is not None, "learn a task first"
        current = self.net.get_submodule(network.HEAD)
        replace_module(self.net, network.HEAD, self.heads[task])
        try:
            return network.logits(self.context, self.net, x)
        finally:
            replace_module(self.net, network.HEAD, current)

    def stored(self) -> Size:
        """The body, and every head."""
        return Size.of(self._tensors().values())

    def counted(self) -> int:
        """Without the running statistics of batch norms."""
        assert self.net is not None, "learn a task first"
        return network.count_without_buffers(self.net, self._tensors())

    def _tensors(self) -> dict[str, Tensor]:
        assert self.net is not None, "learn a task first"
        body = {n: t for n, t in network.contents(self.net).items() if not n.startswith(f"{network.HEAD}.")}
        for i, head in enumerate(self.heads):
            body |= network.add_prefix(f"head/{i}", network.contents(head))
        return body

    def state(self) -> State:
        """The body, and every head."""
        return State(self._tensors(), {"classes": [len(next(head.parameters())) for head in self.heads]})

    def restore(self, state: State) -> None:
        """Rebuild the network, with the last task's head."""
        self.heads = []
        for i, classes in enumerate(state.values["classes"]):
            if i == 0:
                self.net, self.plan = network.empty(self.context, classes)
                network.fill(self.net, {n: t for n, t in state.tensors.items() if not n.startswith("head/")})
            assert self.net is not None
            head = network.empty_head(self.net, classes)
            network.fill(head, network.strip_prefix(f"head/{i}", state.tensors))
            replace_module(self.net, network.HEAD, head)
            self.heads.append(head)
