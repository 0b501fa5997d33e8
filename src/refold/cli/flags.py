"""A flag for every setting.

A command with settings takes one parameter, `flags`: the layer of the flags that were given, the strongest of all layers. The options
are made from the tree of settings, so none can be missing.

    @app.command(cls=Grouped)
    @with_settings
    def serve(flags: Layer) -> int: ...
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from refold.config.formats import plain_default
from refold.config.keys import UPSTREAMS, SettingKey, all_keys
from refold.config.layers import UPSTREAM_FLAG, flag_layer

FLAGS = "flags"
UPSTREAM_HELP = "Where models are: a well-known NAME, NAME=URL, or a URL alone. May be given several times."


class Grouped(TyperCommand):
    """A command whose help lists the options of each section by themselves."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            title = getattr(param, "rich_help_panel", None) or "Options"
            record = param.get_help_record(ctx)
            groups.setdefault(title, []).extend([record] if record else [])
        for title in sorted(groups, key=lambda title: title != "Options"):
            with formatter.section(title):
                formatter.write_dl(groups[title])


def with_settings(command: Callable[..., int]) -> Callable[..., int]:
    """The command with an option for every setting; it gets those that were given as its parameter `flags`, a layer."""
    own = [one for one in signature(command, eval_str=True).parameters.values() if one.name != FLAGS]
    options = {_identifier(name): name for name in (UPSTREAMS, *(key.name for key in all_keys()))}

    @wraps(command)
    def run(**given: Any) -> int:
        said = {name: given.pop(option) for option, name in options.items()}
        return command(**given, flags=flag_layer(said))

    made = [_upstream_option(), *map(_option, all_keys())]
    parameters = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in (*own, *made)]
    run.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {}  # typer would look them up again, and those of `command` are not these
    return run


def _option(key: SettingKey) -> Parameter:
    kind, names = _type(key), list(key.flags)
    if kind == bool | None:
        names = [f"{name}/--no-{name.removeprefix('--')}" for name in names]
    metavar = key.field.upper()
    info = typer.Option(
        *names,
        metavar=None if kind == bool | None else f"NAME={metavar}" if key.is_upstream else metavar,
        help=_help(key),
        show_default=False,
        rich_help_panel=key.section.capitalize(),
    )
    return Parameter(
        _identifier(key.name), Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, info]
    )


def _upstream_option() -> Parameter:
    info = typer.Option(
        UPSTREAM_FLAG,
        metavar="[NAME=]URL",
        help=UPSTREAM_HELP,
        show_default=False,
        rich_help_panel=UPSTREAMS.capitalize(),
    )
    annotation = Annotated[list[str] | None, info]
    return Parameter(_identifier(UPSTREAMS), Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _type(key: SettingKey) -> Any:
    """Texts are read later, where all sources are: a mistake is told in the same words everywhere."""
    if key.is_upstream or key.kind in ("list", "table"):
        return list[str] | None
    return bool | None if key.kind == "switch" else str | None


def _help(key: SettingKey) -> str:
    default = key.unset or plain_default(key)
    shown = {True: "on", False: "off"}.get(default, default) if isinstance(default, bool) else default
    return f"{key.what} Default: {shown}." if shown not in ("", [], {}) else key.what


def _identifier(name: str) -> str:
    return f"set_{name.replace('.', '_')}".lower()
