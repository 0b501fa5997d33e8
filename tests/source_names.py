"""The names of the source, resolved through imports, aliases and re-exports: what a class inherits from, and what a
module imports. The checks of the shape use it, on the project and on sources that plant a defect.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator, Mapping
from functools import cache, cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "refold"

Sources = Mapping[str, ast.Module]
"""Modules by their full names."""


def module_name(path: Path, root: Path = SOURCE) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(("refold", *parts)).removesuffix(".__init__")


@cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of a file of the source. It is made once and kept: all of them are a million objects."""
    return ast.parse(path.read_bytes())


@lru_cache(maxsize=1_000)
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Every node of a module. Walking through a tree takes longer than anything that is done with its nodes."""
    return tuple(ast.walk(tree))


@cache
def project() -> Sources:
    found = {module_name(path): parse(path) for path in sorted(SOURCE.rglob("*.py"))}
    gc.freeze()  # so that the garbage collector does not go through the trees again and again
    return MappingProxyType(found)


PLANTED_AMONG = ("refold", "refold.engine.conversation", "refold.engine.engine")


def with_planted(**planted: str) -> Sources:
    """A few modules of the project and planted ones; `gateway__planted` is the module `refold.gateway.planted`."""
    added = {f"refold.{name.replace('__', '.')}": ast.parse(text) for name, text in planted.items()}
    return {name: project()[name] for name in PLANTED_AMONG} | added


def package_of(name: str) -> str:
    """The top-level package of a full name: `engine` of `refold.engine.state`, empty for `refold` itself."""
    return name.split(".")[1] if "." in name else ""


def imports_in(module: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Pairs of a local name and the full name that an import binds it to."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(module.split(".")[: -node.level]) if node.level else ""
            whole = ".".join(part for part in (start, node.module or "") if part)
            for alias in node.names:
                yield alias.asname or alias.name, f"{whole}.{alias.name}"


def full_name(expression: ast.expr | None, known: Mapping[str, str]) -> str:
    """The full name of a class or a module in an expression: `conv.Conversation`, `Base[int]`; empty if there is none."""
    match expression:
        case ast.Subscript():
            return full_name(expression.value, known)
        case ast.Attribute():
            owner = full_name(expression.value, known)
            return f"{owner}.{expression.attr}" if owner else ""
        case ast.Name():
            return known.get(expression.id, "")
    return ""


def names_bound(module: str, tree: ast.Module) -> dict[str, str]:
    """The full names that the names of a module stand for: imports, classes, and assignments of one to another."""
    known = dict(imports_in(module, tree))
    known |= {node.name: f"{module}.{node.name}" for node in nodes_of(tree) if isinstance(node, ast.ClassDef)}
    for node in nodes_of(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            whole = full_name(node.value, known)
            if whole and whole != known.get(node.targets[0].id):
                known.setdefault(node.targets[0].id, whole)
    return known


@cache
def resolver() -> Resolver:
    """The resolver of the project."""
    return Resolver(project())


class Resolver:
    """Follows re-exports: `refold.Conversation` is `refold.engine.conversation.Conversation`."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.names = {module: names_bound(module, tree) for module, tree in sources.items()}

    def home(self, name: str) -> str:
        for _ in range(10):
            parts = name.split(".")
            splits = range(len(parts) - 1, 0, -1)
            module = next((found for at in splits if (found := ".".join(parts[:at])) in self.sources), "")
            if not module or name in self.sources:
                return name
            held, *rest = name.removeprefix(f"{module}.").split(".")
            target = self.names[module].get(held)
            if target is None or target == f"{module}.{held}":
                return name
            name = ".".join((target, *rest))
        return name

    @cached_property
    def class_bases(self) -> dict[str, list[str]]:
        """The classes by their full names, each with those of its bases that are the project's own."""
        found: dict[str, list[str]] = {}
        for module, tree in self.sources.items():
            for node in nodes_of(tree):
                if isinstance(node, ast.ClassDef):
                    bases = [self.home(full_name(base, self.names[module])) for base in node.bases]
                    own = [base for base in bases if base.startswith("refold.")]
                    found[f"{module}.{node.name}"] = own
        return found

    def imported(self) -> Iterator[tuple[str, str]]:
        """Pairs of a module and the home of a name of the project that it imports or reaches by a module."""
        for module, tree in self.sources.items():
            names = {whole for _, whole in imports_in(module, tree)}
            reached = {
                full_name(node, self.names[module])
                for node in nodes_of(tree)
                if isinstance(node, ast.Attribute)
            }
            for name in sorted(names | reached):
                home = self.home(name)
                if home.startswith("refold."):
                    yield module, home
