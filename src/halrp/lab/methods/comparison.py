"""Comparisons for `check_method`: states through files, logits bit by bit, and global settings before and after."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from halrp.lab.methods.protocol import State
from halrp.store.tensors import copy_of


def serialised(state: State) -> tuple[bytes, str]:
    """A state as files hold it: tensors as safetensors, values as JSON."""
    tensors = {name: copy_of(tensor) for name, tensor in state.tensors.items()}
    return safetensors.torch.save(tensors), json.dumps(state.values)


def deserialised(content: tuple[bytes, str]) -> State:
    """The state that was serialised."""
    return State(safetensors.torch.load(content[0]), json.loads(content[1]))


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same type, shape and bits."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def same_state(a: State, b: State) -> bool:
    """Whether two states are bit-identical."""
    tensors = a.tensors.keys() == b.tensors.keys() and all(same(t, b.tensors[n]) for n, t in a.tensors.items())
    return tensors and a.values == b.values


def differences(expected: list[Tensor], actual: list[Tensor], when: str) -> Iterator[str]:
    """Describe where logits differ, by task."""
    for i, (a, b) in enumerate(zip(expected, actual, strict=True)):
        if not same(a, b):
            far = f" by up to {float((a - b).abs().max()):.2g}" if a.shape == b.shape else f" in shape {tuple(b.shape)}"
            yield f"logits of task {i} differ{far} {when}"


def global_state() -> dict[str, object]:
    """Generators and settings that a method must leave unchanged, by name."""
    numpy = np.random.get_state(legacy=True)  # noqa: NPY002
    state: dict[str, object] = {
        "state of torch's generator": torch.get_rng_state().numpy().tobytes(),
        "state of numpy's generator": [part.tobytes() if isinstance(part, np.ndarray) else part for part in numpy],
        "state of Python's generator": random.getstate(),
        "default dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(),
        "number of threads": torch.get_num_threads(),
        "demand for deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
    }
    if torch.cuda.is_initialized():
        state["states of CUDA's generators"] = [s.numpy().tobytes() for s in torch.cuda.get_rng_state_all()]
    return state


@contextmanager
def restoring_settings() -> Iterator[None]:
    """Restore torch's settings after a block."""
    dtype, grad, threads = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)
