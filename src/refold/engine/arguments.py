"""Checks of the arguments of the library's methods.

A value of another type is refused by a `ConfigError` that names the argument. Without the check it would fail
somewhere inside, after part of the work was done, or would be stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from inspect import iscoroutinefunction, signature, unwrap
from math import isnan

from refold.model.errors import ConfigError
from refold.model.message import replace_lone_surrogates

MAX_TIMEOUT_S = 3_600
"""An hour: no client waits longer for its first byte."""
MAX_FOCUS = 4_000
"""Characters of a focus: it is a sentence of the instruction, and the model that gets it has to read it as one."""


def check_text(value: object, name: str, *, hint: str = "give it as a string") -> None:
    """
    Raises:
        ConfigError: the value is not a string.
    """
    if not isinstance(value, str):
        raise _wrong(value, name, "a text", hint)


def check_unicode(value: object, name: str, *, hint: str = "give it as a string") -> None:
    """
    Raises:
        ConfigError: the value is not a string, or no store and no request could carry it.
    """
    check_text(value, name, hint=hint)
    if isinstance(value, str) and replace_lone_surrogates(value) != value:
        raise ConfigError(f"{name} holds half of a surrogate pair", hint="give valid Unicode")


def check_focus(value: object) -> None:
    """
    Raises:
        ConfigError: the value is not a string, no request could carry it, or it is too long.
    """
    if isinstance(value, str) and len(value) > MAX_FOCUS:
        raise ConfigError(
            f"focus is longer than {MAX_FOCUS:,} characters", hint="name the subject in a sentence or two"
        )
    check_unicode(value, "focus")


def check_texts(value: object, name: str, *, hint: str) -> None:
    """
    Raises:
        ConfigError: the value is not a collection of strings. One string is none: its characters would be taken
            for the strings.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        raise _wrong(value, name, "a list of texts", hint)
    for one in value:
        check_text(one, f"each of {name}", hint=hint)


def check_count(value: object, name: str, *, hint: str = "give a whole number, 0 or more") -> None:
    """
    Raises:
        ConfigError: the value is not a whole number, or below 0.
    """
    check_whole(value, name, hint=hint)
    if isinstance(value, int) and value < 0:
        raise ConfigError(f"{name} must not be below 0", hint=hint)


def check_whole(value: object, name: str, *, hint: str = "give a whole number") -> None:
    """
    Raises:
        ConfigError: the value is not a whole number.
    """
    if not isinstance(value, int):
        raise _wrong(value, name, "a whole number", hint)


def check_kind(value: object, kind: type, name: str, *, hint: str) -> None:
    """
    Raises:
        ConfigError: the value is not of this class.
    """
    if not isinstance(value, kind):
        raise _wrong(value, name, f"a {kind.__name__}", hint)


def check_members(value: object, name: str, *members: str, hint: str) -> None:
    """
    Raises:
        ConfigError: the value lacks a member of the protocol that it should have.
    """
    if isinstance(value, str | bytes) or not all(hasattr(value, member) for member in members):
        raise ConfigError(f"{name} cannot be {_kind(value)}", hint=hint)


def check_summariser(value: object) -> None:
    """
    Raises:
        ConfigError: the value cannot write summaries, or is a function that cannot be called as one.
    """
    if callable(value) and not _takes(value, [], previous="", max_tokens=0):
        hint = "define it as `def f(messages, *, previous, max_tokens)`, plain or async, and return a text"
        raise ConfigError("the summariser's function cannot take the arguments of a summariser", hint=hint)
    if value is not None and not isinstance(value, str) and not callable(value):
        hint = "give the name of a model, a `refold.Summariser`, or a function"
        check_members(value, "summariser", "write", hint=hint)


def _takes(function: Callable[..., object], *args: object, **kwargs: object) -> bool:
    """Whether a function can be called with these arguments, as far as its signature is known."""
    try:
        known = signature(function)
    except (TypeError, ValueError):  # written in C, without one
        return True
    try:
        known.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def check_function(value: object, name: str) -> None:
    """
    Raises:
        ConfigError: the value cannot be called.
    """
    if not callable(value):
        raise _wrong(value, name, "a function", "give a function, or leave it out")


def check_listener(value: object, name: str) -> None:
    """
    Raises:
        ConfigError: the value cannot be called, or its calls would do nothing, because nobody awaits them.
    """
    check_function(value, name)
    if is_async(value):
        raise ConfigError(
            f"{name} must be a plain function, and not an async one",
            hint="start a task in it, such as asyncio.create_task(...), or read `events()`",
        )


def is_async(function: object) -> bool:
    """Whether a call of the function returns a coroutine, which has to be awaited."""
    own = unwrap(function) if callable(function) else function
    return iscoroutinefunction(own) or iscoroutinefunction(getattr(own, "__call__", None))  # noqa: B004


def check_days(value: object) -> None:
    """
    Raises:
        ConfigError: the value is not a time span in days.
    """
    hint = "give a number above 0, or leave it out"
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(value, "days", "a number", hint)
    if not value > 0:
        raise ConfigError(f"days cannot be {value:g}", hint=hint)


def check_spend(value: object) -> None:
    """
    Raises:
        ConfigError: the value is not an amount of money. A comparison with NaN is always false, so it would be
            no limit at all.
    """
    hint = "give dollars, 0 or more, or None for no limit"
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(value, "max_spend", "a number", hint)
    if isnan(value) or value < 0:
        raise ConfigError(f"max_spend cannot be {value:g}", hint=hint)


def check_timeout(value: object, name: str) -> None:
    """
    Raises:
        ConfigError: the value is not a time to wait. NaN is refused too: no comparison with it is true.
    """
    hint = f"give seconds, above 0 and up to {MAX_TIMEOUT_S:,}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(value, name, "a number", hint)
    if not 0 < value <= MAX_TIMEOUT_S:
        raise ConfigError(f"{name} is out of range", hint=hint)


def _wrong(value: object, name: str, wanted: str, hint: str) -> ConfigError:
    return ConfigError(f"{name} must be {wanted}, and not {_kind(value)}", hint=hint)


def _kind(value: object) -> str:
    """Name the type of a value, never the value: it may be content."""
    return "None" if value is None else f"of the type {type(value).__name__}"
