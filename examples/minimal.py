"""Algorithm 1 of the paper on one linear layer, in plain torch: read it from top to bottom.

A network with one hidden layer, y = head(relu(W x + b)), learns a first task. Its W is then frozen for ever. A second
task gets the weight

    W₂ = diag(r) W diag(s) + P Q

with two vectors r and s, two thin matrices P and Q, and its own bias and head. Nothing of the first task changes. How
thin P and Q may be is read from a short training without constraint, the warm-up.

Run it: python examples/minimal.py
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

INPUTS, HIDDEN, CLASSES, DIRECTIONS = 100, 100, 5, 3
Parts = dict[str, Tensor]


def make_task(seed: int, examples: int = 1200) -> tuple[Tensor, Tensor]:
    """A task in noise: classes lie around three points each, and all points in a few directions of the task's own."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(DIRECTIONS, INPUTS, generator=generator)
    points = torch.randn(CLASSES, 3, DIRECTIONS, generator=generator) @ directions
    y = torch.arange(examples) % CLASSES
    which = torch.randint(3, (examples,), generator=generator)
    return points[y, which] + torch.randn(examples, INPUTS, generator=generator), y


def new_layer(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).div(columns**0.5)


def forward(x: Tensor, net: Parts) -> Tensor:
    """The plain network: head(relu(W x + b))."""
    return F.relu(x @ net["W"].T + net["b"]) @ net["head"].T


def adapted_forward(x: Tensor, W: Tensor, delta: Parts) -> Tensor:
    """The same with W₂ in the place of W, without ever building W₂: r ∘ (W (s ∘ x)) + P (Q x)."""
    hidden = delta["r"] * ((x * delta["s"]) @ W.T) + (x @ delta["Q"].T) @ delta["P"].T + delta["b"]
    return F.relu(hidden) @ delta["head"].T


def train(parts: Parts, logits: Callable[[Tensor, Parts], Tensor], x: Tensor, y: Tensor, steps: int) -> Parts:
    """Train copies of all the parts by Adam; everything else that `logits` uses stays as it is."""
    trained = {name: part.clone().requires_grad_() for name, part in parts.items()}
    optimiser = torch.optim.Adam(trained.values(), lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(logits(x, trained), y).backward()
        optimiser.step()
    return {name: part.detach() for name, part in trained.items()}


def fit_scales(free: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    """The scales in closed form: least squares for each row, free ≈ r ∘ W, then for each column, free ≈ r ∘ W ∘ s."""
    r = (free * W).sum(1) / W.square().sum(1)
    scaled = r[:, None] * W
    s = (free * scaled).sum(0) / scaled.square().sum(0)
    return r, s


def squared_gradient(net: Parts, x: Tensor, y: Tensor, batch: int = 50) -> Tensor:
    """What a unit of squared error in W costs the loss: the mean diagonal entry of the empirical Fisher matrix."""
    W = net["W"].clone().requires_grad_()
    total = torch.zeros((), dtype=W.dtype)
    for rows, labels in zip(x.split(batch), y.split(batch), strict=True):
        loss = F.cross_entropy(forward(rows, net | {"W": W}), labels)
        total += len(labels) * torch.autograd.grad(loss, W)[0].square().mean()
    return total / len(x.split(batch))


def choose_ranks(spectra: Parts, importance: Parts, rate: float) -> dict[str, int]:
    """The fewest components of all layers that recover a share `rate` of the predicted loss, importance · σ²."""
    scores = [(float(importance[n] * s**2), n) for n, spectrum in spectra.items() for s in spectrum]
    total = sum(score for score, _ in scores)
    ranks, recovered = dict.fromkeys(spectra, 0), 0.0
    for score, name in sorted(scores, key=lambda pair: -pair[0]):
        if recovered >= rate * total:
            break
        ranks[name], recovered = ranks[name] + 1, recovered + score
    return ranks


def low_rank(residual: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The closest matrix of a rank, as two factors that share the singular values: P = U √Σ, Q = √Σ Vᵀ."""
    U, sigma, Vt = torch.linalg.svd(residual, full_matrices=False)
    root = sigma[:rank].sqrt()
    return U[:, :rank] * root, root[:, None] * Vt[:rank]


def accuracy(logits: Tensor, y: Tensor) -> str:
    return f"{(logits.argmax(1) == y).float().mean():.1%}"


def main() -> None:
    (x1, y1), (x2, y2) = make_task(1), make_task(2)
    train1, test1 = (x1[:600], y1[:600]), (x1[600:], y1[600:])
    train2, test2 = (x2[:600], y2[:600]), (x2[600:], y2[600:])

    # The first task trains the base.
    fresh = {"W": new_layer(HIDDEN, INPUTS, 3), "b": torch.zeros(HIDDEN), "head": new_layer(CLASSES, HIDDEN, 4)}
    base = train(fresh, forward, *train1, steps=100)
    W, before = base["W"], forward(test1[0], base)
    print(f"first task   {accuracy(before, test1[1])} with {sum(t.numel() for t in base.values()):,} numbers")

    # Warm-up: a copy of the base with a new head goes where the second task wants to go.
    free = train(base | {"head": new_layer(CLASSES, HIDDEN, 5)}, forward, *train2, steps=10)

    # Rescaling the base expresses a part of the way; the leading components of what is left express the rest.
    r, s = fit_scales(free["W"], W)
    residual = free["W"] - r[:, None] * W * s
    spectra = {"W": torch.linalg.svdvals(residual)}
    rank = choose_ranks(spectra, {"W": squared_gradient(free, *train2)}, rate=0.9)["W"]
    P, Q = low_rank(residual, rank)
    print(f"rank         {rank} of {len(spectra['W'])}; with more layers, their importance would divide it among them")

    # Fine-tuning: everything that the second task owns, with the base frozen.
    start = {"r": r, "s": s, "P": P, "Q": Q, "b": free["b"], "head": free["head"]}
    delta = train(start, lambda x, parts: adapted_forward(x, W, parts), *train2, steps=90)
    size = sum(t.numel() for t in delta.values())
    print(f"second task  {accuracy(adapted_forward(test2[0], W, delta), test2[1])} with {size:,} numbers more")

    # For comparison: the base as it is with a head of its own, and a whole network of its own.
    head = train({"head": free["head"]}, lambda x, parts: forward(x, base | parts), *train2, steps=100)
    whole = train(free, forward, *train2, steps=90)
    print(f"             {accuracy(forward(test2[0], base | head), test2[1])} with a head alone, ", end="")
    print(f"{accuracy(forward(test2[0], whole), test2[1])} with all weights free")
    print(f"first task's logits unchanged: {torch.equal(forward(test1[0], base), before)}")


if __name__ == "__main__":
    main()
