"""`refold chat`: talks with a model in the terminal, or in a script."""

from __future__ import annotations

import gc
import os
import re
import shlex
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, nullcontext, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from msgspec import Struct, structs

from refold.cli import output
from refold.cli.options import OWNER, SUMMARISER_METAVAR, Preset, StoreOptions, WindowOption, expanded
from refold.model.errors import ConfigError, MissingExtra, NotFound, RefoldError

if TYPE_CHECKING:
    from pathlib import Path

    from refold.chat.chat import Chat
    from refold.chat.commands import Command
    from refold.chat.tools import ChatTool
    from refold.config.tree import Settings
    from refold.engine.conversation import Conversation
    from refold.engine.engine import Engine
    from refold.terminal.dialogue import Questions
    from refold.terminal.event_text import PageLook
    from refold.upstreams.provider import Provider

MAX_PLACES = 200
"""Upstreams that are remembered, of models and of models in a conversation."""
LOCAL = "local"
"""The name of the small model on this machine."""
STDIN = "-"
DUMB = ("", "dumb", "unknown")
"""Values of TERM for terminals that can only print lines."""
HISTORY = "chat_history"
MODEL_HINT = "such as --model openai:gpt-4o-mini, or --model my-model --upstream http://localhost:8000/v1"
EXAMPLES = """\b
Examples:
  refold chat
  refold chat work --model openai:gpt-4o-mini
  refold chat --upstream http://localhost:8000/v1 --model my-model
  refold chat work --once "What did we decide about the ferry?\""""


class ChatOptions(Struct, frozen=True):
    """The options of the command."""

    name: str
    resume: bool
    model: str
    upstream: str
    key_env: str
    preset: str
    summariser: str
    window: int | None
    tools: tuple[str, ...]
    mcp: tuple[str, ...]
    once: str | None
    as_json: bool


class ChosenModel(Struct, frozen=True):
    """The model that answers."""

    provider: Provider
    window: int | None = None
    """As the settings or the program that runs it say."""
    local_name: str = ""
    """The name of the weights, if the model runs on this machine."""


def declare(app: typer.Typer) -> None:
    app.command(epilog=EXAMPLES)(expanded(chat))


def chat(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="The conversation to begin, or to go on with. Default: a new one.",
            show_default=False,
        ),
    ] = "",
    *,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with NAME, which must be there, or with the one used last."),
    ] = False,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="PROVIDER:MODEL, MODEL@URL, or a model of an upstream in the settings. Default: that of the "
            "conversation, else a small one on this machine.",
            show_default=False,
        ),
    ] = "",
    upstream: Annotated[
        str,
        typer.Option(
            "--upstream",
            metavar="NAME|URL",
            help="Where the model is: a well-known provider, an upstream in the settings, or an address.",
            show_default=False,
        ),
    ] = "",
    key_env: Annotated[
        str,
        typer.Option(
            "--key-env",
            metavar="NAME",
            help="The variable that holds the key for an address, if any.",
            show_default=False,
        ),
    ] = "",
    preset: Preset = "",
    summariser: Annotated[
        str,
        typer.Option(
            "--summariser",
            metavar=SUMMARISER_METAVAR,
            help="The model that writes the summaries: PROVIDER:MODEL or MODEL@URL; native for compactions by the "
            "provider of the chat. Default: the setting summariser.models, else the model of the chat.",
            show_default=False,
        ),
    ] = "",
    window: WindowOption = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            "--tools",
            metavar="MODULE",
            help="A Python module or file with functions under @refold.tool, and with commands of your own. May be "
            "given several times.",
            show_default=False,
        ),
    ] = None,
    mcp: Annotated[
        list[str] | None,
        typer.Option(
            "--mcp",
            metavar="SERVER",
            help="An MCP server with tools: its URL, or the command that starts it. May be given several times.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[
        str | None,
        typer.Option(
            "--once",
            metavar="TEXT",
            help="Send one message, or run one command, and leave; - sends all of stdin.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the events, one per line, as JSON.")] = False,
    place: StoreOptions,
) -> int:
    """Talk with a model in the terminal. Its context never overflows, and nothing is lost.

    Replies stream while you type; what you type during a reply waits in the store. Ctrl-C stops a reply, twice leaves.
    /help lists the commands. A pipe sends its lines one after the other. Without a model, a small one on this machine
    answers (`refold local install`). The extra `chat` is needed.
    """
    from refold.cli.store_access import change
    from refold.terminal.dialogue import log_as_notes

    options = ChatOptions(
        name,
        resume,
        model,
        upstream,
        key_env,
        preset,
        summariser,
        window,
        (*(tools or ()),),
        (*(mcp or ()),),
        once,
        as_json,
    )
    _check_streams(options)
    if _is_screen(options) and find_spec("prompt_toolkit") is None:
        raise MissingExtra("chat", "the chat in a terminal")

    async def act(engine: Engine) -> int:
        async with AsyncExitStack() as stack:
            return await _run(engine, options, place, stack)

    with log_as_notes(output.note):
        return change(place, act, begins=True)


async def _run(engine: Engine, options: ChatOptions, place: StoreOptions, stack: AsyncExitStack) -> int:
    from refold.chat.chat import Chat
    from refold.terminal.dialogue import Questions

    tools, commands = load_tools(options.tools)
    name, begun_with = await _name_of(engine, options)
    own = stack.enter_context(ExitStack())
    known = places_for(name, await _known_places(engine))
    chosen = choose_model(options, _settings(), begun_with, known, own)
    await _note_place(engine, name, chosen)
    talk = await _open(engine, name, options, chosen, stack)
    questions = Questions()
    opened = Chat(
        talk,
        chosen.provider,
        tools=tools,
        mcp=options.mcp,
        recall=not chosen.local_name,  # a model of this size calls no tools
        commands=commands,
        confirm=questions.confirm if _is_person(options) else None,
    )
    for server in opened.servers:
        _note(f"connecting to the MCP server {server}…")
    async with opened, _remember_places(engine, name, opened, chosen):
        for problem in opened.problems:
            _note(f"warning: {problem}")
        if chosen.local_name:
            _note(
                f"{output.plain(chosen.local_name)} on this machine answers: private, and often wrong\n"
                "hint: --model asks another one, such as openai:gpt-4o-mini"
            )
        if not _is_person(options):
            return await _script(opened, options)
        state = f"{output.plural(talk.size, 'message')}" if talk.size else "new"
        _note(f"{output.plain(name)} ({state}); /help lists the commands, Ctrl-D leaves")
        await _dialogue(opened, questions, options, place)
    if opened.waiting:
        _note(f"{output.plural(opened.waiting, 'typed line')} in the queue: answered when you go on")
    _note(f"hint: to go on: {_go_on_command(name, place)}")
    return 0


def _go_on_command(name: str, place: StoreOptions) -> str:
    """The command that opens this conversation again; with its store and owner, if those are not the usual ones."""
    from refold.cli.settings import store_url
    from refold.stores.url import sqlite_file

    words = ["refold", "chat", shlex.quote(output.plain(name))]
    usual = os.environ.get("REFOLD_STORE") or store_url()
    if place.url != (str(sqlite_file(usual) or usual) if usual else ""):
        # A URL may hold a password.
        words += ["--store", shlex.quote(output.plain(place.url)) if sqlite_file(place.url) else "URL"]
    if place.owner != OWNER:
        words += ["--owner", shlex.quote(output.plain(place.owner))]
    return " ".join(words)


async def _script(chat: Chat, options: ChatOptions) -> int:
    from refold.terminal.dialogue import StdinLines, run_script

    inputs = StdinLines() if options.once is None else _one(options.once)
    look = _plain_look()
    with output.prints_on_stderr():
        return await run_script(
            chat, inputs, as_json=options.as_json, look=look, write=output.write, tell=_tell
        )


async def _one(text: str) -> AsyncIterator[str]:
    from refold.chat.chat import is_blank

    text = sys.stdin.buffer.read().decode("utf-8", "replace") if text == STDIN else text
    if is_blank(text):
        raise ConfigError("there is nothing to send", hint="give a text with --once, or - and a pipe")
    yield text


async def _dialogue(chat: Chat, questions: Questions, options: ChatOptions, place: StoreOptions) -> None:
    from refold.terminal.dialogue import PlainTerminal, Terminal, converse

    terminal: Terminal
    if _is_screen(options):
        from refold.terminal.screen import Screen

        terminal = Screen(chat, history_file(place.url), has_colour=not os.environ.get("NO_COLOR"))
        sys.setswitchinterval(0.001)  # a thread that renders a long block gives way to a typed key
        gc.freeze()  # what was imported stays: to look for garbage in it takes 50 ms, and a typed key would wait
    else:
        terminal = PlainTerminal(chat, _plain_look(), write=output.write, tell=_tell)
    with nullcontext() if _is_screen(options) else output.prints_on_stderr():
        await converse(chat, terminal, questions)


def _check_streams(options: ChatOptions) -> None:
    """
    Raises:
        ConfigError: stdin or stdout is closed (`<&-`, `>&-`), and needed.
    """
    closed: list[object] = [sys.stdin, sys.stdout]  # Python sets them to None, whatever their types say
    if closed[0] is None and options.once in (None, STDIN):
        raise ConfigError(
            "stdin is closed, so nothing can be read", hint="give a text with --once, or a pipe"
        )
    if closed[1] is None:
        raise ConfigError("stdout is closed, so no reply can be written", hint="write it to a file or a pipe")


def _is_person(options: ChatOptions) -> bool:
    """Whether a person types, and not a script."""
    return options.once is None and not options.as_json and sys.stdin.isatty()


def _is_screen(options: ChatOptions) -> bool:
    return _is_person(options) and sys.stdout.isatty() and os.environ.get("TERM", "") not in DUMB


def _plain_look() -> PageLook:
    from refold.terminal.event_text import PageLook

    return PageLook(
        output.screen_width(), has_markdown=False, has_colour=False, is_terminal=sys.stdout.isatty()
    )


def _note(text: str) -> None:
    """Say something that may be longer than a line of the terminal."""
    from refold.terminal.event_text import PageLook, note_text

    look = PageLook(output.screen_width(), has_markdown=False, is_terminal=sys.stderr.isatty())
    _tell(note_text(text, look))


def _tell(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def history_file(store: str) -> Path:
    """Where the lines that were typed are kept: beside the store, if that is a file, else in the default folder."""
    from pathlib import Path

    from refold.stores.url import default_path, sqlite_file

    found = sqlite_file(store) or default_path(os.environ, sys.platform, Path.home())
    return found.parent / HISTORY


# The conversation


async def _name_of(engine: Engine, options: ChatOptions) -> tuple[str, str]:
    """The name of the conversation, and the model that it was begun with."""
    name = options.name
    if options.resume and not name:
        latest = await engine.conversations(limit=1)
        if not latest:
            raise NotFound("there is no conversation to go on with", hint="leave --resume out to begin one")
        name = latest[0].id
    name = name or await _new_name(engine)
    head = await engine.store.head(engine.owner, name)
    if head is None and options.resume:
        hint = "`refold conversations` lists those that are there"
        raise NotFound(f"there is no conversation {output.plain(name)!r}", hint=hint)
    return name, head.model if head is not None else ""


async def _new_name(engine: Engine) -> str:
    import time

    name = time.strftime("chat-%Y%m%d-%H%M%S", time.localtime(engine.clock()))
    return name if await engine.store.head(engine.owner, name) is None else f"{name}-{engine.new_id()[:4]}"


async def _open(
    engine: Engine, name: str, options: ChatOptions, chosen: ChosenModel, stack: AsyncExitStack
) -> Conversation:
    from refold.cli.settings import policy_here
    from refold.config.upstream import summarisers_of
    from refold.engine.engine import used_window
    from refold.engine.settings import NATIVE, ConversationSettings, open_summariser
    from refold.upstreams.provider import Provider, complete, provider_of

    provider, policy = complete(chosen.provider), policy_here(options.preset)
    named: tuple[Provider, ...] = ()
    if options.summariser == NATIVE:
        named = (Provider(NATIVE),)
    elif options.summariser:
        named = (provider_of(options.summariser, key_env=options.key_env),)
    settings = ConversationSettings(
        model=provider.model,
        window=options.window or chosen.window,
        policy=policy,
        summarisers=named or summarisers_of(_settings()),
    )
    writer = None
    if named or not chosen.local_name:  # the summaries of the local model are worse than a digest
        writer = await stack.enter_async_context(open_summariser(settings, provider, cache=engine.cache))
    head = await engine.store.head(engine.owner, name)
    used = used_window(head, provider.model) if head is not None else None
    engine.settings = structs.replace(
        engine.settings,
        url=provider.base_url,
        policy=policy,
        window=options.window,
        reported_window=chosen.window,  # this model's only: `/model` may choose another one
        used_window=used,
        summariser=writer,
    )
    wire = provider.format if head is None else None
    talk = await engine.conversation(name, model=provider.model, format=wire)
    await talk.load()
    return await stack.enter_async_context(talk)


# The model


def _settings() -> Settings:
    from refold.cli.settings import layers_here, load_plugins_here
    from refold.config.layers import flag_layer
    from refold.config.resolution import resolve

    load_plugins_here()
    return resolve([flag_layer({"compaction.allow_system_summary": True}), *layers_here()]).settings


PLACES = "chat.places"
"""The key of the setting with the upstreams that models were last used at."""


class ModelPlace(Struct, frozen=True, array_like=True):
    """Where a model was used: the name or the address of the upstream, and the variable of its key."""

    upstream: str
    key_env: str = ""


async def _known_places(engine: Engine) -> dict[str, ModelPlace]:
    saved = await engine.store.setting(engine.owner, PLACES)
    try:
        return msgspec.json.decode(saved or b"{}", type=dict[str, ModelPlace])
    except msgspec.MsgspecError:
        return {}


def places_for(name: str, known: Mapping[str, ModelPlace]) -> dict[str, ModelPlace]:
    """The places of models for a conversation: where it used them itself, else where they were used last."""
    own = {key.rpartition("\n")[2]: place for key, place in known.items() if key.startswith(f"{name}\n")}
    return {key: place for key, place in known.items() if "\n" not in key} | own


async def _note_place(engine: Engine, name: str, chosen: ChosenModel) -> None:
    """Remember where a model is, so that its conversations go on with their names alone."""
    provider, known = chosen.provider, await _known_places(engine)
    place = ModelPlace(provider.base_url or provider.name, provider.key_env)
    keys = provider.model, f"{name}\n{provider.model}"
    if chosen.local_name or all(known.get(key) == place for key in keys):
        return
    others = [(key, value) for key, value in known.items() if key not in keys]
    latest = dict([*others, *((key, place) for key in keys)][-MAX_PLACES:])
    await engine.store.put_setting(engine.owner, PLACES, msgspec.json.encode(latest), engine.clock())


@asynccontextmanager
async def _remember_places(engine: Engine, name: str, chat: Chat, chosen: ChosenModel) -> AsyncIterator[None]:
    """Remember where the models are that `/model` chooses, at once: a terminal may be closed at any time."""
    import asyncio

    from refold.chat.chat import CommandReply

    last, events = chosen.provider, chat.events()

    async def note() -> None:
        nonlocal last
        now = chat.provider
        if now is None or now == last:
            return
        is_local = bool(chosen.local_name) and now.base_url == chosen.provider.base_url
        with suppress(RefoldError):  # the chat goes on; the place has to be named the next time
            if not is_local:
                await _note_place(engine, name, ChosenModel(now))
            last = now

    async def follow() -> None:
        async for event in events:
            if isinstance(event, CommandReply):
                await note()

    following = asyncio.create_task(follow())
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait({following})
        await note()


def choose_model(
    options: ChatOptions,
    settings: Settings,
    begun_with: str,
    known: Mapping[str, ModelPlace],
    stack: ExitStack,
) -> ChosenModel:
    """Find the provider of the model that answers: as named, else that of the conversation, else the local one, which
    runs until the stack is left.

    Raises:
        ConfigError: none can be found.
    """
    from refold.upstreams.provider import KNOWN, SERVER, Provider, provider_of

    named, upstreams = options.model, settings.upstreams
    model = named or begun_with or _only_model(settings)
    place, _, rest = named.partition(":")
    if options.upstream:
        if not model:
            raise ConfigError("--upstream needs the name of a model", hint="add --model NAME")
        if "://" in options.upstream:
            return ChosenModel(Provider(SERVER, model, base_url=options.upstream, key_env=options.key_env))
        return _of_upstream(options.upstream, model, upstreams, options.key_env)
    if rest and (place in upstreams or (place in KNOWN and "@http" not in named)):
        return _of_upstream(place, rest, upstreams, options.key_env)
    if "@http" in named:
        return ChosenModel(provider_of(named, key_env=options.key_env))
    if model in ("", LOCAL) and not (upstreams and not model):
        return _local(stack)
    if model in known and not upstreams:
        options = structs.replace(options, model=model, **structs.asdict(known[model]))
        return choose_model(options, settings, "", {}, stack)
    if not model:
        raise ConfigError("the settings name upstreams, and no model is named", hint=MODEL_HINT)
    return _of_upstream(_home_of(model, upstreams), model, upstreams, options.key_env)


def _of_upstream(name: str, model: str, upstreams: Mapping[str, object], key_env: str) -> ChosenModel:
    from refold.config.tree import UpstreamSettings
    from refold.config.upstream import provider_for
    from refold.upstreams.provider import KNOWN, Provider

    given = upstreams.get(name)
    if isinstance(given, UpstreamSettings):
        _note_project_file(name)
        return ChosenModel(provider_for(name, given, model), given.window)
    if name not in KNOWN:
        known = ", ".join((*upstreams, *KNOWN))
        raise ConfigError(
            f"there is no upstream {output.plain(name)!r}", hint=f"give a URL, or one of: {known}"
        )
    return ChosenModel(Provider(name, model, key_env=key_env))


def _note_project_file(upstream: str) -> None:
    """Say so before anything goes to an upstream whose settings came with the project."""
    from refold.cli.settings import layers_here

    for layer in layers_here():
        if layer.source == "project" and any(
            one.startswith(f"upstreams.{upstream}.") for one in layer.values
        ):
            output.note(f"the upstream {upstream} is the one that {output.plain(layer.path)} names")


def _home_of(model: str, upstreams: Mapping[str, object]) -> str:
    """The upstream of a model that is given by its name alone: the first of the settings that serves it, else its
    maker.
    """
    from fnmatch import fnmatchcase

    from refold.config.tree import UpstreamSettings
    from refold.tokens.catalog import find_model
    from refold.upstreams.provider import KNOWN

    able = {name: one for name, one in upstreams.items() if isinstance(one, UpstreamSettings)}
    serving = [name for name, one in able.items() if any(fnmatchcase(model, each) for each in one.models)]
    if served := serving or [name for name, one in able.items() if not one.models]:
        return served[0]
    found = find_model(model)
    if found is None or found.provider not in KNOWN:
        raise ConfigError(f"it is not known where the model {output.plain(model)!r} is", hint=MODEL_HINT)
    return found.provider


def _only_model(settings: Settings) -> str:
    """The first model that an upstream of the settings names in full."""
    patterns = (each for one in settings.upstreams.values() for each in one.models)
    return next((each for each in patterns if not {*"*?["} & {*each}), "")


def _local(stack: ExitStack) -> ChosenModel:
    from refold.local import WINDOW, missing_steps, serve_local
    from refold.upstreams.provider import Provider

    try:
        served = stack.enter_context(serve_local(window=WINDOW))
    except (ConfigError, MissingExtra) as error:
        steps = " and ".join(f"`{step}`" for step in missing_steps(sys.executable))
        hint = f"name a model, {MODEL_HINT}" + (f"; or run {steps}" if steps else "")
        raise ConfigError(
            f"no model is named, and the local one cannot run: {error.message}", hint=hint
        ) from None
    provider = Provider(LOCAL, LOCAL, base_url=served.base_url, headers=served.headers)
    return ChosenModel(provider, served.window, served.model)


# Tools


def load_tools(modules: tuple[str, ...]) -> tuple[list[ChatTool], list[Command]]:
    """Import modules, and return the tools and the commands that they define.

    Raises:
        ConfigError: a module cannot be imported, or has neither.
    """
    from refold.chat.commands import Command
    from refold.chat.tools import ChatTool

    tools, commands = list[ChatTool](), list[Command]()
    for name in modules:
        values = [*vars(_imported(name)).values()]
        own = [one for one in values if isinstance(one, ChatTool)]
        added = [one for one in values if isinstance(one, Command)]
        if not (own or added):
            hint = "put @refold.tool above its functions"
            raise ConfigError(f"the module {output.plain(name)!r} has no tools", hint=hint)
        tools += own
        commands += added
    return tools, commands


def _imported(name: str) -> object:
    from importlib import import_module
    from importlib.util import module_from_spec, spec_from_file_location
    from pathlib import Path

    load: Callable[[], object]
    if name.endswith(".py"):
        unique = re.sub(r"\W", "_", str(Path(name).resolve()))
        spec = spec_from_file_location(f"refold_chat_tools_{unique}", name)
        if spec is None or spec.loader is None:
            raise ConfigError(f"{output.plain(name)!r} is no Python file", hint="give a module or a file")
        module = module_from_spec(spec)
        loader = spec.loader

        def load() -> object:
            sys.modules[module.__name__] = module  # dataclasses look their module up there
            try:
                loader.exec_module(module)
            except BaseException:
                del sys.modules[module.__name__]
                raise
            return module
    else:
        if "" not in sys.path:
            sys.path.insert(0, "")  # a module in the current folder

        def load() -> object:
            return import_module(name)

    try:
        return load()
    except RefoldError:
        raise
    except (Exception, SystemExit) as error:  # code of the user's
        hint = "give a module of this environment, or the path of a file"
        raise ConfigError(
            f"{output.plain(name)!r} cannot be imported: {type(error).__name__}: {output.plain(str(error))}",
            hint=hint,
        ) from error
