"""Methods by name: `make("halrp-budget", context, growth_per_task=0.026)`. A line each in `METHODS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from halrp import Halrp
from halrp.errors import SettingError
from halrp.lab.methods.contract import Context, Method, Size
from halrp.lab.methods.halrp import HalrpMethod
from halrp.lab.methods.networks import FineTune, Separate

__all__ = ["METHODS", "Context", "Method", "Size", "make"]

METHODS: dict[str, Callable[..., Method]] = {
    "halrp-budget": lambda context, **settings: HalrpMethod(context, Halrp.budget(**settings)),
    "halrp-official": lambda context, **settings: HalrpMethod(context, Halrp.official(**settings)),
    "halrp-paper": lambda context, **settings: HalrpMethod(context, Halrp.paper(**settings)),
    "stl": Separate,
    "finetune": FineTune,
}


def make(name: str, context: Context, **settings: Any) -> Method:
    """Make the method `name`; `settings` go to its preset."""
    if name not in METHODS:
        raise SettingError(f"no method is called {name!r}; all of them are {', '.join(METHODS)}")
    try:
        return METHODS[name](context, **settings)
    except TypeError as error:
        raise SettingError(f"method {name!r} does not take {settings}: {error}") from None
