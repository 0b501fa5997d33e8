"""`cached_property` without the lock that `functools` takes at every first read before Python 3.12.

For frozen values with pure properties: two threads that compute one at the same time store equal values.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

__all__ = ["cached_property"]

if TYPE_CHECKING or not hasattr(functools.cached_property(repr), "lock"):
    from functools import cached_property
else:

    class cached_property:  # noqa: N801  # the name in the standard library
        def __init__(self, compute: Callable[[Any], Any]) -> None:
            self._compute, self.__doc__ = compute, compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self._compute(instance)
            return value
