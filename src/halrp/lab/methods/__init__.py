"""Methods by name: `make("halrp-budget", context, growth_per_task=0.026)`.

`METHODS` lists those that come with the package (see `halrp.lab.registry`). A method of your own is a class that
derives from `Method`; its name is "my_module:Mine", and `check_method` tests whether it satisfies the protocol.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from halrp import Halrp
from halrp.errors import SettingError
from halrp.lab import registry
from halrp.lab.methods.halrp import HalrpMethod
from halrp.lab.methods.protocol import Context, Method, Size, State
from halrp.lab.names import check_name
from halrp.lab.registry import METHODS

__all__ = ["METHODS", "Context", "Method", "Size", "State", "make", "settings_of"]


def settings_of(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """All settings of a method: the given ones and the defaults of the others. An unknown setting is an error."""
    known = registry.method(name).settings()
    for key in settings:
        check_name(f"setting of method {name!r}", key, known)
    required = [key for key, value in known.items() if value is inspect.Parameter.empty and key not in settings]
    if required:
        raise SettingError(f"method {name!r} needs a value for {', '.join(required)}")
    return known | settings


def make(name: str, context: Context, **settings: Any) -> Method:
    """Make the method `name` with its settings."""
    settings_of(name, settings)
    build: Callable[..., Any] = registry.method(name).load()
    is_class = inspect.isclass(build)
    method = build(context, **settings) if is_class else _composition(name, build(**settings), context)
    if not isinstance(method, Method):
        raise SettingError(
            f"method {name!r} is a {type(method).__name__}; it must derive from halrp.lab.methods.Method"
        )
    return method


def _composition(name: str, composition: object, context: Context) -> Method:
    """The laboratory's form of a composition of HALRP."""
    if not isinstance(composition, Halrp):
        raise SettingError(
            f"method {name!r}: its function returns a {type(composition).__name__}; it must return a halrp.Halrp"
        )
    return HalrpMethod(context, composition)
