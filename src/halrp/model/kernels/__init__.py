"""The forward and backward passes of adapted layers, as pure functions of tensors.

A task's weight is W_t = r ∘ W ∘ s + p q (see `factors`). Training a delta costs less than training the layer, because W
needs no gradient, and the gradient of a full weight is a third of a layer's work. There are three ways to compute
y = W_t x + b and its gradients, and `linear` and `conv` choose the fastest for the shapes at hand:

- "analytic" builds W_t, applies the plain layer, and takes the gradients of r, s, p and q from products and sums that
  are much smaller than the gradient of W_t (`euler`).
- "factored" keeps W and the factors apart, y = r ∘ (W (s ∘ x)) + p (q x) + b, which pays in a linear layer whose
  activations are smaller than W.
- "merged" builds W_t and leaves the rest to autograd, at the cost of training the plain layer.
"""

from halrp.model.factors import merge
from halrp.model.kernels.conv import conv
from halrp.model.kernels.convolution import Geometry, convolve, window_sums
from halrp.model.kernels.linear import linear

__all__ = ["Geometry", "conv", "convolve", "linear", "merge", "window_sums"]
