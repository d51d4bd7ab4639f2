"""A loss whose forward and backward passes are compiled, where the machine and the model allow that."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from halrp.errors import CompileWarning


class Compiled:
    """A function that torch.compile has compiled; if that fails it is called as it is, with a warning."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        """Compile a function when it is first called."""
        self._function, self._works = function, True
        self._compiled: Callable[..., Tensor] | None = None

    def __call__(self, *arguments: Any) -> Tensor:
        """Call the function."""
        if self._works:
            try:
                self._compiled = self._compiled or torch.compile(self._function)
                return self._compiled(*arguments)
            except Exception as error:  # compilers fail in many ways; an error of the function itself comes again below
                self._works = False
                reason = (str(error) or type(error).__name__).splitlines()[0]
                warnings.warn(
                    f"torch.compile cannot compile the training step ({reason}); it runs as it is. "
                    "Recipe(compile=False) gives the same without this warning",
                    CompileWarning,
                    stacklevel=2,
                )
        return self._function(*arguments)
