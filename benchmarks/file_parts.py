"""What a task's file is made of: LeNet at the paper's growth per task, part by part, beside a full network.

Ranks are those that runs on CIFAR100-Split end with (`results/cifar100-split-25`); the numbers in the factors do not
matter for the size.

    python -m benchmarks.file_parts
"""

from __future__ import annotations

import torch

from benchmarks.train_step import Variant, random_start
from halrp.lab import backbones
from halrp.model.base import Base
from halrp.model.codec import PRECISIONS
from halrp.model.delta import Delta
from halrp.model.description import Description
from halrp.model.plan import plan
from halrp.store import task_file

VARIANTS = {
    "budget, kernel-mean 3 20 10 14": Variant((3, 20, 10, 14)),
    "budget, owned conv, 5 10": Variant((None, None, 5, 10), "full"),
    "official before pruning, 3 20 100 100": Variant((3, 20, 100, 100)),
}


def parts(delta: Delta) -> dict[str, int]:
    """Bytes of a task's file by what they are for."""
    sizes = dict.fromkeys(("header", "scales", "factors", "weights", "bias", "norm", "buffer", "head"), 0)
    sizes["scales"] = sum(t.numel() * t.element_size() for pair in delta.scales.values() for t in pair)
    for key, matrix in delta.coded.items():
        sizes["weights" if key.startswith("dense/") else "factors"] += matrix.bytes
    for name, tensor in delta.plain.items():
        sizes[delta.roles[name]] += tensor.numel() * tensor.element_size()
    sizes["header"] = len(task_file.write(delta)) - sum(sizes.values())
    return sizes


def main() -> None:
    torch.manual_seed(0)
    model = backbones.build("lenet", classes=10)
    base = Base(model, plan(model, "head"), channels_last=True)
    net = base.trainable(10, "parts")
    with torch.no_grad():
        for buffer in net.buffers():
            buffer.add_(1)  # as training would, so that they are owned
    owned = base.owned_tensors(net)
    names = ("header", "scales", "factors", "weights", "bias", "norm", "buffer", "head")
    print("| ranks | precision | " + " | ".join(names) + " | file | of a full network |")
    print("|---|---|" + "---|" * (len(names) + 2))
    for label, variant in VARIANTS.items():
        start = random_start(base, variant)
        tensors = {**owned, **start.dense}
        for precision in PRECISIONS:
            description = Description(task="task", classes=10, view=variant.view, precision=precision)
            delta = Delta.pack(description, base.layout, start.factors, tensors)
            sizes = parts(delta)
            assert sum(sizes.values()) == delta.bytes
            cells = " | ".join(f"{sizes[name]:,}" for name in names)
            share = 100 * delta.bytes / base.size.bytes
            print(f"| {label} | {precision} | {cells} | {delta.bytes:,} | {share:.2f} % |")
    print(f"\nA full network: {base.size.bytes:,} bytes. Adapted weights: {', '.join(base.adapted_weights())}.")


if __name__ == "__main__":
    main()
