"""Finds every regular expression of the source, and how each is used.

Patterns are searched twice: as values, in the globals of every module and in the containers these hold, and
as calls of `re` in the source text, so that a pattern compiled inside a function is found too. A call whose
pattern is known only at run time is listed as such; `RUNTIME` gives for each of them the reason why it is
safe.
"""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import BuiltinMethodType, ModuleType
from typing import NamedTuple

import refold
from refold.model.errors import MissingExtra

SOURCE = Path(refold.__file__).parent
CALLS = ("compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn")
ONCE = ("match", "fullmatch")
"""Methods that try one position of a text; the other methods try every position."""
RUNTIME = {
    "config/resolution.py": "a pattern of the user's own, refused where it is ambiguous",
    "core/assemble.py": "an escaped constant",
    "core/digest/line_markers.py": "built from constants when the module is loaded, and found there as a value",
    "core/secrets.py": "likewise",
    "engine/state.py": "a pattern of the user's own, refused where it is ambiguous",
    "gateway/events.py": "an escaped constant",
    "replay/facts.py": "built from constants when the module is loaded, and found there as a value",
    "replay/score.py": "how a candidate of an evaluation writes its handles: its author is at hand",
    "tokens/counters.py": "built from constants when the module is loaded, and found there as a value",
    "tokens/catalog.py": "likewise",
}
"""Files with a pattern that is known only at run time, and why it is safe."""
BOUNDED = {"refold.core.summary_checks._CANNOT_DO": "reads the first 240 characters of a reply"}
"""Patterns that may take many steps per character, but get few characters."""
NOT_IMPORTED = ("refold.__main__",)


class Found(NamedTuple):
    """A pattern, its location, and its use."""

    place: str
    pattern: re.Pattern
    uses: tuple[str, ...]


class Call(NamedTuple):
    """A call of `re` in a source file. `pattern` is None if it is known only at run time."""

    place: str
    pattern: str | bytes | None
    flags: int
    use: str


@cache
def modules() -> tuple[ModuleType, ...]:
    """Every module under `refold` that can be imported here: an extra that is not installed has no patterns."""
    found = [refold]
    for one in pkgutil.walk_packages(refold.__path__, "refold."):
        if one.name not in NOT_IMPORTED:
            with suppress(MissingExtra):
                found += [importlib.import_module(one.name)]
    return tuple(found)


@cache
def patterns() -> tuple[Found, ...]:
    """Every compiled pattern of the source, and every pattern that is passed to a function of `re`, once each."""
    found: dict[tuple, Found] = {}
    uses = _uses()
    for module in modules():
        for name, value in vars(module).items():
            for place, pattern in _patterns_in(value, f"{module.__name__}.{name}", 0):
                known = (
                    uses.get((module.__name__, name), {"search"})
                    if place == f"{module.__name__}.{name}"
                    else {"search"}
                )
                _note(found, place, pattern, known)
    for call in calls():
        if call.pattern is not None and call.use != "compile":
            _note(found, call.place, re.compile(call.pattern, call.flags), {call.use})
    return tuple(found.values())


def _note(found: dict[tuple, Found], place: str, pattern: re.Pattern, uses: set[str]) -> None:
    key = (pattern.pattern, pattern.flags)
    known = found.get(key)
    found[key] = Found(
        known.place if known else place, pattern, tuple(sorted({*uses, *(known.uses if known else ())}))
    )


def _patterns_in(value: object, place: str, depth: int) -> Iterator[tuple[str, re.Pattern]]:
    if isinstance(value, re.Pattern):
        yield place, value
    elif isinstance(value, BuiltinMethodType) and isinstance(value.__self__, re.Pattern):
        yield place, value.__self__
    elif isinstance(value, dict) and depth < 4:
        for key, one in value.items():
            yield from _patterns_in(one, f"{place}[{str(key)[:30]}]", depth + 1)
    elif isinstance(value, tuple | list | set | frozenset) and depth < 4:
        for at, one in enumerate(value):
            yield from _patterns_in(one, f"{place}[{at}]", depth + 1)


def _uses() -> dict[tuple[str, str], set[str]]:
    """The use of the pattern under each name of a module: the methods that are called on it, in any module."""
    uses: dict[tuple[str, str], set[str]] = {}
    for module in modules():
        for owner, use in _source(module).uses:
            uses.setdefault(owner, set()).add(use)
    return uses


def _uses_in(module: ModuleType, nodes: Sequence[ast.AST]) -> Iterator[tuple[tuple[str, str], str]]:
    """The uses of names of a module or of what it imports, each with the module that the name is of."""
    owners = {name: (module.__name__, name) for name in vars(module)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            owners |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    methods = {id(node.value): node for node in nodes if isinstance(node, ast.Attribute)}
    called = {id(node.func): node for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in owners:
            method = methods.get(id(node))
            if use := _use(method, called.get(id(method))):
                yield owners[node.id], use


def _use(method: ast.Attribute | None, call: ast.Call | None) -> str:
    """The method that is called on a named pattern; `search` if it is unknown."""
    if method is None:
        return "search"
    if method.attr not in CALLS:
        return ""
    places = call.args[1:2] if call else []
    # With a place to begin at, which is not the beginning, it is tried at many of them.
    is_once = all(isinstance(place, ast.Constant) and place.value == 0 for place in places)
    return method.attr if method.attr in ONCE and is_once else "search"


class _Source(NamedTuple):
    """What is read from the syntax tree of a module, which is not kept: all trees are a million objects."""

    uses: tuple[tuple[tuple[str, str], str], ...]
    calls: tuple[Call, ...]


@cache
def _source(module: ModuleType) -> _Source:
    nodes = tuple(ast.walk(ast.parse(Path(module.__file__).read_bytes())))
    return _Source(tuple(_uses_in(module, nodes)), tuple(_calls_in(module, nodes)))


@cache
def calls() -> tuple[Call, ...]:
    """Every call of a function of `re` in the source."""
    return tuple(call for module in modules() for call in _source(module).calls)


def _calls_in(module: ModuleType, nodes: Sequence[ast.AST]) -> Iterator[Call]:
    path = Path(module.__file__)
    for node in nodes:
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if (
            not is_call
            or not isinstance(node.func.value, ast.Name)
            or node.func.value.id != "re"
            or node.func.attr not in CALLS
        ):
            continue
        flags = [one.value for one in node.keywords if one.arg == "flags"]
        flags += node.args[1:2] if node.func.attr == "compile" else []
        use = node.func.attr if node.func.attr in (*ONCE, "compile") else "search"
        place = f"{path.relative_to(SOURCE).as_posix()}:{node.lineno}"
        yield Call(place, _value(node.args[0], module), _value(flags[0], module) or 0 if flags else 0, use)


def _value(node: ast.expr, module: ModuleType):
    """The value of an expression, as far as the globals of its module determine it."""
    try:
        return eval(compile(ast.Expression(node), "<pattern>", "eval"), vars(module))  # our own source
    except Exception:  # noqa: BLE001  # it uses what is only known when it runs
        return None
