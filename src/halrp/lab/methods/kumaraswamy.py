"""Kumaraswamy and binary concrete distributions: samples as functions of uniform numbers, densities, divergences.

A Kumaraswamy variable has the density c·d·v^(c−1)·(1 − v^c)^(d−1) on 0 … 1; with d = 1 it is Beta(c, 1). A binary
concrete variable b = sigmoid(y) relaxes a Bernoulli one; its logistic y has a density in closed form. All functions are
differentiable and, except for the product along the stick, elementwise. None of them uses a generator.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

EULER = 0.5772156649015329
"""The Euler–Mascheroni constant."""
TERMS = 15
"""Terms of the series in `divergence`, as in the authors' code: few, so the divergence of a distribution from itself
is slightly below zero."""
CLIP = 1e-3
"""Probabilities are kept this far from 0 and 1 where their log-odds are needed."""
LIMIT = math.log((1 - CLIP) / CLIP)
"""The largest log-odds, and the largest logarithm of a shape parameter."""
TINY = 1e-7


def sample(c: Tensor, d: Tensor, uniform: Tensor) -> Tensor:
    """Kumaraswamy samples (1 − (1−u)^(1/d))^(1/c) from uniform samples u; shapes (K,)."""
    return ((-torch.expm1(torch.log1p(-uniform) / d)).log() / c).exp()


def stick(v: Tensor) -> Tensor:
    """The logarithm of π_k = Π_{j≤k} v_j, (K,): the rest of a stick of which the share v_j remains after each break."""
    return (v + TINY).log().cumsum(0)


def log_odds(log_probability: Tensor) -> Tensor:
    """log(p / (1−p)) of log p, with p kept inside CLIP … 1−CLIP; shapes (K,)."""
    return torch.logit(log_probability.exp().clamp(CLIP, 1 - CLIP))


def logistic(odds: Tensor, uniform: Tensor, temperature: Tensor) -> Tensor:
    """The variable y = (odds + logit u) / T whose sigmoid is a relaxed Bernoulli sample; `odds` are log-odds (K,)."""
    return (odds + torch.logit(uniform)) / temperature


def log_density(y: Tensor, odds: Tensor, temperature: Tensor) -> Tensor:
    """The log-density of `logistic(odds, ·, T)` at y: odds − T·y + log T − 2 softplus(odds − T·y); shapes (K,)."""
    inner = odds - temperature * y
    return inner + temperature.log() - 2 * F.softplus(inner)


def divergence(c: Tensor, d: Tensor, c0: Tensor, d0: Tensor, terms: int = TERMS) -> Tensor:
    """KL(Kum(c, d) ‖ Kum(c0, d0)), one number for each entry of the shapes (K,).

    log(cd) − log(c0 d0) + (c−c0)/c · (−γ − ψ(d) − 1/d) − (d−1)/d + (d0−1) c0 d Σ_m B(m c0/c, d) / (m c0 + c d).
    The sum over m = 1, 2, … is the expansion of E log(1 − v^c0), cut after `terms`; its terms fall like m^(−1−d).
    """
    m = torch.arange(1, terms + 1, dtype=c.dtype, device=c.device).unsqueeze(1)
    x = m * c0 / c
    beta = (torch.lgamma(x) + torch.lgamma(d) - torch.lgamma(x + d)).exp()
    series = (beta / (m * c0 + c * d)).sum(0)
    tilt = (c - c0) / c * (-EULER - torch.digamma(d) - 1 / d)
    return (c * d / (c0 * d0)).log() + tilt - (d - 1) / d + (d0 - 1) * c0 * d * series
