"""`refold serve`: starts the gateway with the settings of its flags, the environment and the files.

A first run needs no settings. Where no upstream is named the gateway serves a model of its own beside the usual providers: the small
one on this machine or, where that is not installed, a script that says so and how to get the model. The address alone is data, on
stdout; the notice about upstreams, keys and the store goes to stderr.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from msgspec import Struct, structs
from typer.core import TyperCommand

from refold.cli import output
from refold.cli.output import align, plain
from refold.config.formats import plain_default
from refold.config.layers import UPSTREAM_FLAG, Layer, flag_layer
from refold.config.tree import UPSTREAMS, SettingKey, all_keys
from refold.model.errors import ConfigError, MissingExtra, RefoldError
from refold.model.mask import mask_model, mask_url, mask_variable
from refold.model.message import DialectName

if TYPE_CHECKING:
    import asyncio

    from refold.config import ResolvedSettings
    from refold.config.tree import UpstreamSettings
    from refold.gateway.app import Gateway
    from refold.gateway.processes import Handover, LocalModel
    from refold.gateway.upstreams import Target
    from refold.testing import Received


# A flag for every setting. A command with settings takes one parameter, `flags`: the layer of the
# flags that were given, the strongest of all layers. The options are made from the tree of
# settings, so none can be missing. @app.command(cls=GroupedCommand) @with_settings def serve(flags: Layer)
# -> int: ...

FLAGS = "flags"
UPSTREAM_HELP = "Where models are: a well-known NAME, NAME=URL, or a URL alone. May be given several times."


class GroupedCommand(TyperCommand):
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
    default, what = key.unset or plain_default(key), f"{key.what}{_several(key)}"
    shown = {True: "on", False: "off"}.get(default, default) if isinstance(default, bool) else default
    return f"{what} Default: {shown}." if shown not in ("", [], {}) else what


def _several(key: SettingKey) -> str:
    """How several values are given to an option that takes a list or pairs."""
    from refold.config.parse import NESTED, UNSPLIT

    if key.kind not in ("list", "table"):
        return ""
    if key.name in NESTED:
        return ' In TOML: turn_start={ type = "age", seconds = 3600 }; the moments are turn_start, before_call and after_call.'
    pair = "" if key.kind == "list" else " as NAME=VALUE"
    way = (
        "give the option again"
        if key.name in UNSPLIT
        else "separate them by commas, or give the option again"
    )
    return f" Several{pair}: {way}."


def _identifier(name: str) -> str:
    return f"set_{name.replace('.', '_')}".lower()


_log = logging.getLogger("refold.gateway")
ALL: tuple[DialectName, ...] = ("chat", "responses", "anthropic")
"""The formats that the local model speaks."""
WORDS = "I am a script, not a model: the local model cannot run here. To change that: {steps}; then start `refold serve` again. You said: "
FIRST_WORDS = '{"model": "local", "messages": [{"role": "user", "content": "Say hello."}]}'
EXAMPLES = """\b
Examples:
  refold serve
  refold serve --upstream http://localhost:8000/v1
  refold serve --upstream openai --port 8080 --window 32000"""


def declare(app: typer.Typer) -> None:
    app.command(cls=GroupedCommand, epilog=EXAMPLES)(with_settings(serve))


def serve(flags: Layer) -> int:
    """Serve OpenAI- and Anthropic-compatible calls whose conversations never outgrow the window.

    Only the base URL of a client changes. It prints its address, and the upstreams with the keys that they get. Without an upstream the
    calls go to the usual providers with the client's own key, and the model `local` runs on this machine. The extra `server` is
    needed. docs/gateway.md describes the gateway, and every setting of docs/configuration.md is an option.
    """
    from refold.cli.settings import check_server_extra, load_plugins_here

    check_server_extra("the gateway")
    from refold.config import environment_layer, file_layers, resolve
    from refold.config.layers import with_current_url
    from refold.gateway.log import set_up
    from refold.gateway.processes import take_handover
    from refold.gateway.server import run, run_processes
    from refold.text_work import is_text_worked_on

    rewritten: list[str] = []
    files = [with_current_url(layer, rewritten.append) for layer in file_layers(os.environ, Path.cwd())]
    load_plugins_here(flags)
    resolved = resolve([flags, environment_layer(os.environ), *files])
    set_up(resolved.settings.server.log, resolved.settings.server.log_level)
    for text in rewritten:
        _log.warning("%s", text)
    handed = take_handover()
    if resolved.settings.server.workers > 1 and handed is None:
        with _own_model(resolved) as own:
            return run_processes(resolved, own.shared if own else None)
    with _own_model(resolved, handed) as own:
        run(resolved, _ReadyNote(resolved, own, handed), local=own.target if own else None, handed=handed)
    if is_text_worked_on():
        # The store and every connection are closed; threads that still work on a text would hold the process.
        logging.shutdown()
        os._exit(0)
    return 0


class OwnModel(Struct, frozen=True):
    """The model that the gateway brings along, where no upstream is named."""

    target: Target
    shared: LocalModel

    @property
    def description(self) -> str:
        return self.shared.description


@contextmanager
def _own_model(resolved: ResolvedSettings, handed: Handover | None = None) -> Iterator[OwnModel | None]:
    """The model of our own, where no upstream is named. One process of several has that of its parent."""
    if resolved.settings.upstreams:
        yield None
        return
    if handed is not None and handed.local is not None:
        yield _own(handed.local)
        return
    from refold.local import missing_steps

    with ExitStack() as stack:
        try:
            found = _local_model(stack)
        except (ConfigError, MissingExtra) as error:
            steps = "".join(f"\n  {step}" for step in missing_steps(sys.executable))
            todo = (
                f"A script answers for `local` until this is done:{steps}"
                if steps
                else "A script answers for `local`."
            )
            _say(resolved, f"no local model: {error.message}\n{todo}\n")
            found = _scripted_model(stack)
        yield found


def _local_model(stack: ExitStack) -> OwnModel:
    from refold.gateway.processes import LocalModel
    from refold.local import WINDOW, serve_local

    served = stack.enter_context(serve_local(window=WINDOW))
    return _own(LocalModel(served.base_url, served.key, served.window, f"{served.model} on this machine"))


def _own(shared: LocalModel) -> OwnModel:
    from refold.gateway.upstreams import local_target

    target = local_target(shared.base_url, shared.key)
    return OwnModel(structs.replace(target, started_with=shared.window, formats=ALL), shared)


def _scripted_model(stack: ExitStack) -> OwnModel:
    from refold.gateway.processes import LocalModel
    from refold.local import WINDOW
    from refold.testing import ScriptedUpstream

    def answer(received: Received) -> str:
        server.requests.clear()  # it records every request, for tests
        server.answered.clear()
        return words + received.text

    from refold.local import missing_steps

    steps = " and ".join(f"`{step}`" for step in missing_steps(sys.executable))
    words = WORDS.format(steps=steps or "see `refold local status`")

    key = secrets.token_urlsafe(32)
    server = ScriptedUpstream(otherwise=answer, window=WINDOW, key=key, validates=False, model="local")
    stack.enter_context(server)
    return _own(LocalModel(f"{server.url}/v1", key, WINDOW, "a script, no model: it repeats what you say"))


class _ReadyNote:
    """Writes the notice when the gateway answers."""

    def __init__(
        self, resolved: ResolvedSettings, local: OwnModel | None, handed: Handover | None = None
    ) -> None:
        self._resolved, self._local, self._handed = resolved, local, handed
        self._task: asyncio.Task[None] | None = None

    def __call__(self, address: str, gateway: Gateway) -> None:
        import asyncio

        if self._handed is not None:
            os.write(self._handed.ready, b"1")
            if not self._handed.is_first:
                return
        output.write(f"{address}\n")
        self._task = asyncio.get_running_loop().create_task(self._write(address, gateway))

    async def _write(self, address: str, gateway: Gateway) -> None:
        try:
            needs_key = await gateway.store.has_keys()
        except RefoldError:  # every request reports it too
            needs_key = True
        notice = self.notice(address, gateway, needs_key=needs_key)
        if self._resolved.settings.server.log == "json":
            from refold.gateway.log import facts

            _log.info("ready", extra=facts(**msgspec.to_builtins(notice)))
        else:
            output.note(notice_text(notice))

    def notice(self, address: str, gateway: Gateway, *, needs_key: bool) -> ServeNotice:
        from refold.plugins.registry import active

        settings = self._resolved.settings
        return ServeNotice(
            address,
            tuple(self._upstream(target) for target in gateway.targets),
            settings.compaction.preset if settings.compaction.enabled else "",
            _summaries(self._resolved, has_local=self._local is not None),
            _store(settings.store.url),
            needs_key,
            self._local is not None,
            tuple(one.plugin.name for one in active()),
        )

    def _upstream(self, target: Target) -> UpstreamNotice:
        from refold.config import completed
        from refold.config.tree import UpstreamSettings

        if self._local is not None and target is self._local.target:
            return UpstreamNotice(
                target.name, target.formats, target.models, "none needed", self._local.description
            )
        given = self._resolved.settings.upstreams.get(target.name, UpstreamSettings())
        whole = completed(target.name, given, os.environ)
        others = self._resolved.settings.upstreams.values()
        is_fallback = any(target.name in one.fallback for one in others)
        key = _key(given, whole, is_fallback=is_fallback)
        return UpstreamNotice(target.name, target.formats, target.models, key, mask_url(target.url))


def _key(given: UpstreamSettings, whole: UpstreamSettings, *, is_fallback: bool) -> str:
    """Whose key goes to an upstream, in the order in which keys are looked for."""
    own = (
        "printed by a command"
        if whole.key_command
        else f"${mask_variable(whole.key_env)}"
        if whole.key_env
        else ""
    )
    if not whole.pass_key:
        return f"{own} (settings)" if given.key_env or given.key_command else own or "none"
    first = f"the client's, else {own}" if own else "the client's"
    return first if given.pass_key or not is_fallback else f"{first}; as a fallback {own or 'none'}"


def _summaries(resolved: ResolvedSettings, *, has_local: bool) -> str:
    from refold.config import policy_of, summarisers_of

    summariser = resolved.settings.summariser
    if policy_of(resolved.settings).cut is None:
        return "none: old tool output is shortened, and messages that do not fit are dropped with a note"
    if not summariser.enabled or summariser.strategy in ("extractive", "truncate"):
        return "digests; no model is asked"
    if summariser.models:
        return f"by {', '.join(map(mask_model, summariser.models))}"
    if named := [":".join(filter(None, (one.name, one.model))) for one in summarisers_of(resolved.settings)]:
        return f"by {', '.join(map(mask_model, filter(None, named))) or 'the model of the conversation'}"
    return f"by the conversation's own model{'; for local, digests' if has_local else ''}"


def _store(url: str) -> str:
    from refold.stores.url import kind_of, sqlite_file

    if kind_of(url) == "memory":
        return "memory: forgotten when it ends"
    if kind_of(url) == "plugin":
        return f"{url.partition(':')[0]}, of a plugin"
    path = sqlite_file(url)
    return str(path) if path else "PostgreSQL"


def _say(resolved: ResolvedSettings, text: str) -> None:
    if resolved.settings.server.log == "json":
        _log.warning(text.strip().replace("\n", "; "))
    else:
        output.note(text)


class UpstreamNotice(Struct, frozen=True):
    """One upstream in the notice."""

    name: str
    formats: Sequence[str]
    models: Sequence[str]
    key: str
    """Whose key goes there: the first that exists."""
    place: str
    """Its address, or its place in words."""


class ServeNotice(Struct, frozen=True):
    """A gateway that is ready. The fields are those of the log line `ready`."""

    address: str
    upstreams: tuple[UpstreamNotice, ...]
    preset: str
    """Empty: nothing is compacted."""
    summaries: str
    store: str
    needs_key: bool
    has_local: bool
    plugins: tuple[str, ...] = ()

    @property
    def clients(self) -> str:
        return "those that have a key of Refold's" if self.needs_key else "this machine only, without a key"


def notice_text(notice: ServeNotice) -> str:
    """The notice for people; it needs no colour."""
    return "\n".join(
        (
            "Refold is ready. Change the base URL of your client, and nothing else:\n",
            *(f"  export {line}" for line in base_urls(notice)),
            "",
            _upstreams(notice.upstreams),
            *(f"{name:<11} {plain(value)}" for name, value in _facts(notice)),
            f"\nTry it:\n\n{first_call(notice)}\n\nCtrl-C ends it.",
        )
    )


def base_urls(notice: ServeNotice) -> Iterator[str]:
    """The variables that the providers' own clients read, for the formats of the upstreams."""
    spoken = {name for one in notice.upstreams for name in one.formats}
    if spoken & {"chat", "responses"}:
        yield f"OPENAI_BASE_URL={notice.address}/v1"
    if "anthropic" in spoken:
        yield f"ANTHROPIC_BASE_URL={notice.address}"


def first_call(notice: ServeNotice) -> str:
    """A command that gets an answer, whichever upstreams are served."""
    key = ' -H "x-refold-key: $REFOLD_KEY"' if notice.needs_key else ""
    if not notice.has_local:
        return f"  curl {notice.address}/v1/models{key}"
    address = f"{notice.address}/v1/chat/completions"
    return f"  curl {address}{key} -H 'content-type: application/json' \\\n    -d '{FIRST_WORDS}'"


def _facts(notice: ServeNotice) -> tuple[tuple[str, str], ...]:
    compaction = f"preset {notice.preset}" if notice.preset else "off: everything passes as it came"
    return (
        ("compaction", compaction),
        ("summaries", notice.summaries),
        ("store", notice.store),
        ("clients", notice.clients),
        *([("plugins", ", ".join(notice.plugins))] if notice.plugins else []),
        ("dashboard", f"{notice.address}/"),
    )


def _upstreams(upstreams: Sequence[UpstreamNotice]) -> str:
    """A table; keys are told below it where there is no room for them, since which key goes where must not be cut."""
    head = ("upstream", "speaks", "models", "key", "where")
    rest = "any other" if any(one.models for one in upstreams) else "any"
    rows = [
        (
            plain(one.name),
            ", ".join(one.formats),
            plain(", ".join(one.models), 40) or rest,
            plain(one.key),
            plain(one.place),
        )
        for one in upstreams
    ]
    table = align(head, rows, optional=("speaks", "key"), cuts=("models", "where", "upstream"))
    if " key " in table.splitlines()[0]:
        return table
    return table + "".join(f"key of {plain(one.name)}: {plain(one.key)}\n" for one in upstreams)
