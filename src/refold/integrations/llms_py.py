"""llms.py: the extension `context_compaction`, with request and response filters, a config file, an API and a status page.

    python -m refold.integrations.llms_py

puts the folder of the extension where the server looks for it (`~/.llms/extensions`, or `LLMS_EXTENSIONS_DIR`). The server calls `install`
with its extension context. The request filter replaces the history of a chat by what fits, and a tool filter does so in a loop of tools;
the response filter reads the usage. Conversations are kept in a file beside the configuration.
"""

from __future__ import annotations

import asyncio
import html
import json
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from refold.core import presets
from refold.core.policy import Policy, TokenRatio
from refold.integrations.histories import (
    HistoryTable,
    PreparedCall,
    as_usage,
    named_by_client,
    split_prompt,
)
from refold.model.dialect import DIALECTS
from refold.model.errors import ConfigError, MissingExtra, RefoldError, UpstreamError
from refold.model.message import assistant
from refold.plugins.filters import filter_request, filter_response
from refold.plugins.plugin import FilterResponse
from refold.plugins.registry import active, load_plugins
from refold.ports.models import Ask, Summariser
from refold.ports.records import Listed
from refold.summarisers import ModelSummariser, SummaryWriter
from refold.sync import Engine, answer_recall
from refold.tokens.catalog import window_for
from refold.tokens.counters import counter_for
from refold.wire.reply import Reply

_log = logging.getLogger("refold")

EXTENSION = "context_compaction"
FOLDER = '''"""Context compaction by Refold: see docs/guides/llms-py.md there."""

from refold.integrations.llms_py import install as __install__
'''
_MARK, _CALL, _THREAD = "refold_summary", "refold_call", "refold_thread"
"""Keys in the server's context of a chat: it asks for a summary; the call that was prepared for it; the thread that it names."""
_current: ContextVar[PreparedCall | None] = ContextVar("refold_llms_call", default=None)
_provider: ContextVar[str] = ContextVar("refold_llms_provider", default="")
"""The server's provider of the chat in progress: it writes the summaries too, unless the settings name one."""
REMEMBERED = 10_000
"""Conversations whose provider is remembered for a compaction on request."""


class ExtensionConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of the extension, in `config.json` and in its API."""

    enabled: bool = True
    threshold: float = 0.8
    """The share of the window from which on a conversation is compacted."""
    provider: str | None = None
    model: str | None = None
    """Write the summaries; by default the provider and the model of the conversation."""
    summary_prompt: str = presets.LLMS.recipe.prompts.fresh
    recall: bool = True
    """Whether models get the recall tool. Read at the start."""

    def checked(self) -> ExtensionConfig:
        """
        Raises:
            ConfigError: a value is out of range.
        """
        if not 0 < self.threshold <= 1:
            raise ConfigError("threshold: it is a share of the window", hint="give a number above 0, up to 1")
        if not self.summary_prompt.strip():
            raise ConfigError("summary_prompt: it is empty", hint="leave it out for the usual one")
        return self


class CompactionExtension:
    """The extension in a running server. `ctx` is its extension context; `folder` has the configuration and the conversations."""

    def __init__(self, ctx: Any, folder: Path) -> None:
        self.ctx, self.folder = ctx, folder
        self.config = self._read_config()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._table: HistoryTable | None = None
        self._lock = threading.Lock()
        self._providers: dict[str, str] = {}

    # Settings

    @property
    def config_path(self) -> Path:
        return self.folder / "config.json"

    def _read_config(self) -> ExtensionConfig:
        """Read the file, or write it with the defaults. A key that cannot be used is logged and left out, not the whole file."""
        if not self.config_path.exists():
            self._write_config(ExtensionConfig())
            return ExtensionConfig()
        try:
            given = json.loads(self.config_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            _log.warning("%s cannot be read as JSON: the defaults are used", self.config_path)
            return ExtensionConfig()
        config = ExtensionConfig()
        for key, value in given.items() if isinstance(given, dict) else ():
            try:
                config = updated(config, {key: value})
            except ConfigError as error:
                _log.warning("%s: %s: it is left out", self.config_path, error.message)
        return config

    def _write_config(self, config: ExtensionConfig) -> None:
        part = self.config_path.with_suffix(".part")
        part.write_bytes(msgspec.json.format(msgspec.json.encode(config), indent=2) + b"\n")
        part.replace(self.config_path)

    def update(self, fields: Mapping[str, object]) -> None:
        """Change some settings, and save all of them. Chats that wait for their model end with the old ones.

        Raises:
            ConfigError: a key is not known, or a value cannot be used; nothing was changed.
        """
        with self._lock:
            self.config = updated(self.config, fields)
            self._write_config(self.config)
            if self._table is not None:
                self._table.change_settings(self._policy())

    def _policy(self) -> Policy:
        policy = presets.LLMS
        prompts = structs.replace(policy.recipe.prompts, fresh=self.config.summary_prompt)
        return structs.replace(
            policy,
            triggers={"after_call": TokenRatio(self.config.threshold, ">=")},
            recipe=structs.replace(policy.recipe, prompts=prompts),
        )

    @property
    def table(self) -> HistoryTable:
        """The conversations, opened at first use. They stay open."""
        with self._lock:
            if self._table is None:
                engine = Engine(f"sqlite:///{self.folder / 'conversations.db'}")
                self._table = HistoryTable(engine, summariser_for=self._summariser_for, policy=self._policy())
            return self._table

    # Filters

    async def note_thread(self, chat: dict[str, Any], context: dict[str, Any]) -> None:  # noqa: ARG002  # a filter
        """Note the thread that a chat names, before the server makes one for a chat that names none."""
        context[_THREAD] = context.get("threadId")

    async def on_request(self, chat: dict[str, Any], context: dict[str, Any]) -> None:
        """Replace the history of a chat by what fits."""
        if not chat.get("messages"):
            return
        if context.get(_MARK):
            await self._filter(chat, context)
            return
        self._loop = asyncio.get_running_loop()
        thread, user = context.get(_THREAD), context.get("user")
        name = named_by_client(str(user or "default"), str(thread)) if thread else ""
        if self.config.enabled:
            await self._compact(chat, context, name)
        await self._filter(chat, context)

    async def on_tool(self, chat: dict[str, Any], context: dict[str, Any]) -> None:
        """Do the same in a loop of tools, as soon as every call has its result."""
        call = context.get(_CALL)
        if context.get(_MARK) or _has_open_call(chat["messages"]):
            return
        if self.config.enabled and call is not None and call.conversation is not None:
            await self._compact(chat, context, call.conversation.id)
        await self._filter(chat, context)

    async def _filter(self, chat: dict[str, Any], context: dict[str, Any]) -> None:
        """Run the request filters of plugins, after the compaction.

        Raises:
            PluginError: one of them ends the request.
        """
        if not active().has_request_filters:
            return
        call = context.get(_CALL)
        talk = call.conversation if call is not None else None
        fields = {key: value for key, value in chat.items() if _is_json(value)}
        done = await filter_request(
            active(),
            msgspec.json.encode(fields),
            DIALECTS["chat"],
            model=str(chat.get("model") or ""),
            conversation=talk.id if talk is not None else "",
            owner=str(context.get("user") or ""),
            is_summary=bool(context.get(_MARK)),
            max_output=talk.state.most_output if talk is not None else None,
        )
        if not done.notes:
            return
        changed = json.loads(done.body)
        chat["messages"][:] = changed.pop("messages")
        for field, _ in done.fields:
            chat.pop(field, None)
        chat.update({field: changed[field] for field, _ in done.fields if field in changed})
        if talk is not None:
            # The server goes on with the changed messages in its loop of tools.
            _, rest = split_prompt(chat["messages"])
            branch, size = talk.branch, talk.size
            await asyncio.to_thread(
                lambda: self.table.note_short_form(rest, name=talk.id, branch=branch, size=size)
            )

    async def _compact(self, chat: dict[str, Any], context: dict[str, Any], name: str) -> None:
        prompt, rest = split_prompt(chat["messages"])
        limit = (context.get("modelInfo") or {}).get("limit") or {}
        most = chat.get("max_completion_tokens") or chat.get("max_tokens") or None
        provider = str(context.get("provider") or "")
        _provider.set(provider)
        table = await asyncio.to_thread(lambda: self.table)
        call = await table.aprepare(
            rest,
            name=name,
            owner=str(context.get("user") or ""),
            system=prompt or None,
            tools=chat.get("tools") or (),
            model=str(chat.get("model") or ""),
            max_output=most,
            window=limit.get("context") or None,
        )
        if call.conversation is not None:
            self._providers[call.conversation.id] = provider
            if len(self._providers) > REMEMBERED:
                del self._providers[next(iter(self._providers))]
        if call.conversation is not None and not call.is_unchanged:
            talk = call.conversation
            chat["messages"][:] = call.messages
            # The server goes on with these messages in its loop of tools.
            short, branch, size = call.messages_after_prompt, talk.branch, talk.size
            await asyncio.to_thread(
                lambda: table.note_short_form(short, name=talk.id, branch=branch, size=size)
            )
        context[_CALL] = call
        _current.set(call)

    async def on_response(self, response: dict[str, Any], context: dict[str, Any]) -> None:
        """Read the usage of a reply, which flags its conversation from the threshold on. The reply is not changed."""
        call = context.get(_CALL)
        if call is not None and not context.get(_MARK):
            usage = {
                key: value for key, value in (response.get("usage") or {}).items() if key.endswith("_tokens")
            }
            await asyncio.to_thread(call.record, usage or None)
        if not context.get(_MARK) and active().has_response_filters:
            await self._filter_response(response, context)

    async def _filter_response(self, response: dict[str, Any], context: dict[str, Any]) -> None:
        """Show a reply to the response filters of plugins.

        Raises:
            PluginError: one of them refuses it.
        """
        call = context.get(_CALL)
        talk = call.conversation if call is not None else None
        said = [one.get("message") or {} for one in response.get("choices") or ()]
        await filter_response(
            active(),
            FilterResponse(
                "chat",
                str(response.get("model") or ""),
                said,
                conversation=talk.id if talk is not None else "",
                owner=str(context.get("user") or ""),
            ),
        )

    def _summariser_for(self, model: str) -> Summariser:
        """Return the summariser of conversations with a model: chats of the server itself."""
        writer = self.config.model or model
        upstream = ServerModel(
            self, writer, self.config.provider or ("" if self.config.model else _provider.get())
        )
        counter = counter_for(writer)
        return ModelSummariser([SummaryWriter(upstream, self._window_of(writer), counter.text)])

    def _window_of(self, model: str) -> int:
        """Return the window of a model: by the server's database, or by Refold's."""
        for provider in self.ctx.get_providers().values():
            if provider.provider_model(model):
                limit = (provider.model_info(model) or {}).get("limit") or {}
                if limit.get("context"):
                    return int(limit["context"])
        return window_for(model).tokens

    async def ask(self, chat: dict[str, Any], provider: str) -> dict[str, Any]:
        """Have the server answer a chat that is none of a user's: without tools, history and filters of this extension."""
        context = {"chat": chat, "tools": "none", "nohistory": True, "nostore": True, _MARK: True}
        if provider:
            context["provider"] = provider
        assert self._loop is not None, "a summary is asked for by a request"
        asked = asyncio.run_coroutine_threadsafe(self.ctx.chat_completion(chat, context), self._loop)
        return dict(await asyncio.wrap_future(asked))

    async def recall(self, what: str, start: int = 0) -> str:
        """Answer a call of the recall tool, in the conversation of the chat in progress."""
        call = _current.get()
        if call is None or call.conversation is None:
            return "error: nothing was said in this conversation yet"
        return await asyncio.to_thread(answer_recall, call.conversation, {"what": what, "start": start})

    # API

    def status(self, user: str) -> dict[str, Any]:
        """Return the fill level of the conversations of a user."""
        mine = [one for one in self.table.engine.conversations(limit=1_000) if _is_of(one, user)]
        return {
            "enabled": self.config.enabled,
            "conversations": {
                one.id.removeprefix(f"{user}/"): {
                    "usage_ratio": round(one.tokens / one.window, 4) if one.window else 0.0,
                    "needs_compaction": bool(one.reason),
                    "message_count": one.messages,
                    "compaction_count": one.compactions,
                }
                for one in mine
            },
        }

    def compact(self, name: str, user: str) -> dict[str, Any]:
        """Compact a conversation of a user now.

        Raises:
            RefoldError: there is none of this name, or it cannot be made smaller.
        """
        found = [one for one in self.table.engine.conversations(limit=1_000) if _is_of(one, user)]
        full = next((one for one in found if name in (one.id, one.id.removeprefix(f"{user}/"))), None)
        if full is None:
            raise ConfigError("there is no such conversation", hint="GET status lists them")
        _provider.set(self._providers.get(full.id, ""))
        summariser = self._summariser_for(full.model) if self._loop is not None else None
        talk = self.table.engine.conversation(full.id, summariser=summariser, policy=self.table.policy)
        before = talk.status().tokens
        talk.compact()
        return {"status": "ok", "tokens_before": before, "tokens": talk.status().tokens}

    def page(self, user: str) -> str:
        """Return the status page: no script, and nothing of what was said."""
        known = self.status(user)
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{one['usage_ratio']:.0%}</td><td>{one['message_count']}</td>"
            f"<td>{one['compaction_count']}</td><td>{'with the next request' if one['needs_compaction'] else ''}</td></tr>"
            for name, one in known["conversations"].items()
        )
        state = "on" if known["enabled"] else "off"
        head = "<th>conversation</th><th>window used</th><th>messages</th><th>compactions</th><th>due</th>"
        return (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>Context compaction</title>'
            "<style>body{font:16px system-ui;margin:2em}td,th{padding:.3em 1em;text-align:left}</style>"
            f"<h1>Context compaction is {state}</h1><p>From {self.config.threshold:.0%} of a window on.</p>"
            f"<table><tr>{head}</tr>{rows}</table></html>"
        )

    def add_routes(self, web: Any) -> None:
        """Register the API and the page with the server; `web` is `aiohttp.web`."""
        ctx = self.ctx

        async def get_config(_request: Any, _user: str) -> Any:
            return web.json_response(structs.asdict(self.config))

        async def post_config(request: Any, _user: str) -> Any:
            await asyncio.to_thread(self.update, await _fields(request))
            return web.json_response(structs.asdict(self.config))

        async def get_status(_request: Any, user: str) -> Any:
            return web.json_response(await asyncio.to_thread(self.status, user))

        async def post_compact(request: Any, user: str) -> Any:
            self._loop = asyncio.get_running_loop()
            name = str((await _fields(request)).get("conversation") or "")
            return web.json_response(await asyncio.to_thread(self.compact, name, user))

        async def get_page(_request: Any, user: str) -> Any:
            return web.Response(text=await asyncio.to_thread(self.page, user), content_type="text/html")

        ctx.add_get("config", self._guarded(web, get_config))
        ctx.add_post("config", self._guarded(web, post_config, by_admins=True))
        ctx.add_get("status", self._guarded(web, get_status))
        ctx.add_post("compact", self._guarded(web, post_compact))
        ctx.add_get("", self._guarded(web, get_page))

    def _guarded(self, web: Any, handler: Any, *, by_admins: bool = False) -> Any:
        """Return a handler for signed-in users, or for administrators only."""
        ctx = self.ctx

        async def handle(request: Any) -> Any:
            if not ctx.check_auth(request)[0]:
                return web.json_response(ctx.error_auth_required, status=401)
            if by_admins and not ctx.is_admin(request):
                refusal = {"error": "only an administrator may do this", "hint": "ask one of them"}
                return web.json_response(refusal, status=403)
            try:
                return await handler(request, ctx.get_username(request) or "default")
            except RefoldError as error:
                return web.json_response({"error": error.message, "hint": error.hint}, status=400)

        return handle


class ServerModel:
    """A model of the server, as an upstream that writes summaries. The server's own loop asks it."""

    def __init__(self, extension: CompactionExtension, model: str, provider: str) -> None:
        self.model, self._extension, self._provider = model, extension, provider

    async def ask(self, ask: Ask) -> Reply:
        """Return the model's reply.

        Raises:
            UpstreamError: the server has none.
        """
        system = ask.system if isinstance(ask.system, str) else "\n\n".join(one.text for one in ask.system)
        messages = [{"role": one.role, "content": one.text} for one in ask.messages]
        if system:
            messages.insert(0, {"role": "system", "content": system})
        chat = {"model": self.model, "messages": messages, "stream": False, "max_tokens": ask.max_output}
        if ask.temperature is not None:
            chat["temperature"] = ask.temperature
        try:
            reply = await self._extension.ask(chat, self._provider)
            choice = reply["choices"][0]
            text = choice["message"].get("content") or ""
        except Exception as error:  # whatever a provider of the server raises
            raise UpstreamError(f"the server gave no summary: {type(error).__name__}") from error
        used = reply.get("usage") or {}
        usage = as_usage(used.get("prompt_tokens") or 0, used.get("completion_tokens") or 0, None)
        return Reply((assistant(text),), usage=usage, finish=choice.get("finish_reason") or "")


def updated(config: ExtensionConfig, fields: Mapping[str, object]) -> ExtensionConfig:
    """Return a configuration with some fields changed.

    Raises:
        ConfigError: a key is not known, or a value cannot be used.
    """
    known = ", ".join(ExtensionConfig.__struct_fields__)
    for key in fields:
        if key not in ExtensionConfig.__struct_fields__:
            raise ConfigError(f"there is no setting {key[:40]!r}", hint=f"the settings are {known}")
    try:
        return msgspec.convert({**structs.asdict(config), **fields}, ExtensionConfig).checked()
    except msgspec.ValidationError as error:
        raise ConfigError(f"{', '.join(fields)[:200]}: {error}", hint=f"the settings are {known}") from None


def install(ctx: Any) -> None:
    """Install the extension into a server of llms.py, which calls this as `__install__`."""
    try:
        from aiohttp import web
    except ImportError:
        raise MissingExtra("llms-py", "the extension of llms.py") from None
    load_plugins()
    extension = CompactionExtension(ctx, Path(ctx.path))
    ctx.app.chat_request_filters.insert(0, extension.note_thread)  # the server registers its own ones first
    ctx.register_chat_request_filter(extension.on_request)
    ctx.register_chat_tool_filter(extension.on_tool)
    ctx.register_chat_response_filter(extension.on_response)
    if extension.config.recall:
        from refold.engine.recall import recall_tool

        ctx.register_tool(extension.recall, recall_tool(), group="refold")
    extension.add_routes(web)


def install_folder(extensions: Path) -> Path:
    """Write the folder of the extension, and return it. A configuration that is there stays."""
    folder = extensions / EXTENSION
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text(FOLDER, encoding="utf-8")
    return folder


def _is_json(value: object) -> bool:
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError):
        return False
    return True


def _has_open_call(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the newest calls have no result yet."""
    answered = set[str]()
    for one in reversed(messages):
        if one.get("role") == "tool":
            answered.add(str(one.get("tool_call_id")))
        else:
            return any(call["id"] not in answered for call in one.get("tool_calls") or ())
    return False


def _is_of(one: Listed, user: str) -> bool:
    """Whether a conversation is a user's. One without a thread belongs to nobody in particular: the default user sees it."""
    return one.id.startswith(f"{user}/") or ("/" not in one.id and user == "default")


async def _fields(request: Any) -> dict[str, Any]:
    try:
        found = await request.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError("the body is no JSON object", hint='send one such as {"threshold": 0.7}')
    return found


def main() -> None:
    """Write the folder of the extension where llms.py looks for it."""
    home = os.environ.get("LLMS_HOME") or Path.home() / ".llms"
    place = os.environ.get("LLMS_EXTENSIONS_DIR") or Path(home) / "extensions"
    sys.stdout.write(f"{install_folder(Path(place))}\n")


if __name__ == "__main__":
    main()
