"""The administration API below `/refold/`: status, settings, conversations, and the event stream.

Every answer is a value of the library, as JSON; no decision is made here. A caller sees only its own
conversations. Tuning settings can be changed; upstreams and their keys cannot, and only an admin sees them.

Outside of a call, here and on the page (`GatewayBackend`), a conversation is opened by a `GatewayWorkspace`: with the settings
that its next request would have, at the upstream that would get it.

`/refold/compact` compacts a list of messages that a client posts; nothing of it is stored. The messages are added
as they are, without the automatic compactions of a conversation that grows, and then compacted once. Messages that
break a rule of their format are repaired as in a conversation. No store keeps what a repair leaves out here, so
the answer lists every repair.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct, structs
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from refold.chat.commands import command_table, run_command
from refold.config import ResolvedSettings, update
from refold.config.formats import hidden_names, tree_of, values_of
from refold.config.tree import Amount, WindowTokens
from refold.core.assemble import assemble
from refold.core.fold import REASON as BROKEN
from refold.core.fold import violations_to_mend
from refold.dashboard.workspace import NO_MODEL, OperationNote, SummaryChoice
from refold.engine import actions
from refold.engine.actions import Outcome
from refold.engine.arguments import check_days, check_focus
from refold.engine.conversation import Conversation, take_prompt
from refold.engine.effect import check_by, first_day, stats_of
from refold.engine.engine import Engine
from refold.engine.events import Event
from refold.engine.journal import read_fill_level
from refold.engine.settings import NATIVE, ConversationSettings, policy_for
from refold.engine.state import State, SummaryAuthor
from refold.gateway.app import MIB, Gateway, cancel_on_disconnect, header_texts
from refold.gateway.auth import KeyRing, send_answer
from refold.gateway.conversations import OwnerConversations
from refold.gateway.errors import answer, log_store_failure
from refold.gateway.events import CHANGED, LOST, Channel, Events
from refold.gateway.request import Wishes, check_json, read_body
from refold.gateway.upstreams import Credentials, Target
from refold.model.dialect import DIALECTS
from refold.model.errors import (
    MAX_TOKENS,
    MIN_WINDOW,
    NOT_TOKENS,
    AccessError,
    ConfigError,
    InvalidWindow,
    NotFound,
    RefoldError,
    StoreError,
    WireError,
    error_location,
)
from refold.model.message import Message
from refold.plugins.registry import LoadedPlugin, active
from refold.ports.records import ClientKey, Head
from refold.ports.store import ClientKeys
from refold.text_work import run_text_work
from refold.wire.sdk import RequestFields, read_message, text_in

# `/refold/compact`: messages that a client posts, of which nothing is stored

FOR_CHATS = {
    "/model": "a client names its model in every request",
    "/preset": "POST /refold/config changes the preset",
}
"""Commands that would change nothing here: each request brings its own settings."""
NOTHING_GAINED = "nothing was changed: a compaction would not make it smaller"
_FIELD = re.compile(r"field `([^`]{1,40})", re.ASCII)
_PLACE = re.compile(r" - at `\$\.([a-z_]{1,20})", re.ASCII)
_SIZES = {"window": MIN_WINDOW, "max_output": 1, "keep": 0}
"""The smallest value of each field that counts tokens."""


class PostedMessages(Struct, frozen=True, forbid_unknown_fields=True):
    """Messages to compact without storing them, and the settings to compact them with."""

    model: str
    messages: list[dict[str, Any]] = []
    input: list[dict[str, Any]] = []
    """The messages in the format "responses"."""
    format: Literal["chat", "responses", "anthropic"] = "chat"
    system: str | list[dict[str, Any]] = ""
    """The system prompt, in the formats that have a field for it."""
    tools: list[dict[str, Any]] = []
    preset: str = ""
    window: WindowTokens | None = None
    max_output: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    keep: Amount | None = None
    focus: str = ""

    @property
    def posted(self) -> list[dict[str, Any]]:
        return self.messages or self.input


class MessageRepair(Struct, frozen=True):
    """One repair of a posted message. `after` is 0 if all of it was left out."""

    index: int
    """The place in the posted list."""
    rule: str
    problem: str
    before: int
    after: int
    """Tokens."""


def read_posted(raw: bytes) -> PostedMessages:
    """
    Raises:
        ConfigError: the body is no JSON object with these fields, or has no messages; the error names the field.
    """
    try:
        asked = msgspec.json.decode(raw or b"{}", type=PostedMessages)
    except msgspec.DecodeError as error:
        raise _unreadable(str(error)) from None
    if not asked.posted:
        name = "input" if asked.format == "responses" else "messages"
        raise ConfigError(
            f"{name} is empty or missing: there is nothing to compact",
            hint=f"give a list of messages as {name!r}",
        )
    return asked


_TYPES = {
    **dict.fromkeys(("messages", "input"), "a list of messages"),
    "system": "a text or a list of blocks",
    "tools": "a list of tools",
}
"""The fields of `PostedMessages` that are no plain text, in words."""


def _unreadable(reason: str) -> ConfigError:
    """Name the field that msgspec complains about, without its value."""
    known = f"the fields are: {', '.join(PostedMessages.__struct_fields__)}"
    field, place = _FIELD.search(reason), _PLACE.search(reason)
    if field is not None:
        is_missing = "missing" in reason
        return ConfigError(
            f"{field[1]} is missing" if is_missing else f"there is no field {field[1]!r}", hint=known
        )
    if place is None:
        return ConfigError("the body is not a JSON object", hint=known)
    name = place[1]
    if name in _SIZES:
        what = NOT_TOKENS.format(_SIZES[name], MAX_TOKENS)
        return ConfigError(f"{name} {what}", hint="give a whole number, such as 32000")
    if name == "format":
        return ConfigError("format is not a known one", hint="chat, responses or anthropic")
    what = _TYPES.get(name, "a text")
    return ConfigError(f"{name} is not {what}", hint=f"give {what}; docs/gateway.md has an example")


async def compact_posted(talk: Conversation, asked: PostedMessages, note: str) -> msgspec.Raw:
    """Add the messages to an empty conversation, compact it, and return the answer as JSON.

    Raises:
        WireError: a value is not a message of its format.
        DoesNotFit: the rest is still too large.
    """
    before = await _load(talk, asked.posted)
    with suppress(InvalidWindow):  # the messages are compacted even if no call can follow them
        await talk.compact(focus=asked.focus, keep=asked.keep)
    status, after = await talk.status(), talk.state
    size = before.frame.instructions + before.folded.whole

    def write() -> msgspec.Raw:
        repairs = _repairs(before, after, len(asked.posted) - before.size)
        answer: dict[str, object] = {"before": size, "after": status.tokens, "summary": status.summary}
        notes = [note] if note else []
        if repairs or status.tokens < size:
            window = assemble(after.frame.fixed, after.folded.shown.messages(), after.folded.lead)
            fields = RequestFields().fields(window)
        else:
            fields = {"input" if asked.format == "responses" else "messages": asked.posted}
            fields |= {"system": asked.system} if asked.system else {}
            answer |= {"after": size, "summary": SummaryAuthor()}
            notes.append(NOTHING_GAINED)
        answer |= {"repairs": repairs} if repairs else {}
        answer |= {"note": "; ".join(notes)} if notes else {}
        return msgspec.Raw(msgspec.json.encode({**fields, **answer}))

    return await run_text_work(after.text_size, write)


async def _load(talk: Conversation, posted: Sequence[dict[str, Any]]) -> State:
    """Add the messages without a compaction on the way, and return the state."""

    def load(state: State) -> Outcome:
        dialect, messages = state.frame.fixed.dialect, list[Message]()
        for at, value in enumerate(posted):
            try:
                messages.append(read_message(value, dialect))
            except WireError as error:
                place = f"{dialect.messages_key}[{at}]"
                raise WireError(error.message, place=place, hint=error.hint) from None
        state, added = take_prompt(state, messages)
        return actions.load(state, added)

    return (await talk.apply(load, text_size=text_in(posted))).state


def _repairs(before: State, after: State, offset: int) -> list[MessageRepair]:
    """List the repairs by the places of the messages in the posted list; `offset` messages of it went into the
    system prompt.
    """
    shown = {item.seq: item.tokens for item in after.folded.items.items}
    edits = {
        edit.seq: edit
        for one in after.receipts
        if one.reason == BROKEN
        for edit in one.edits
        if shown.get(edit.seq) != edit.before  # else it was left out of a request only, such as an open call
    }
    items, repairs = before.folded.items.items, list[MessageRepair]()
    for found in violations_to_mend(before.folded):
        if found.index is not None:
            item = items[found.index]
            left = edits[item.seq].after if item.seq in edits else item.tokens
            place = item.seq + offset
            repairs.append(MessageRepair(place, found.rule, found.message, item.tokens, left))
    named = {one.index for one in repairs}
    repairs += [
        MessageRepair(edit.seq + offset, "", BROKEN, edit.before, edit.after)
        for edit in edits.values()
        if edit.seq + offset not in named
    ]
    return sorted(repairs, key=lambda one: one.index)


# The event stream: `GET /refold/events`

PATH = "/refold/events"
HEARTBEAT_S = 15.0
"""Interval of heartbeats: proxies and firewalls close connections that are silent for 30 to 60 seconds."""
KEY_CHECK_S = 5.0
"""Interval at which a silent stream looks whether its key is still valid, as every page does."""
BEAT = b":\n\n"
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # some proxies buffer streams otherwise
    (b"x-content-type-options", b"nosniff"),
)


class EventStream:
    """The event stream as a plain ASGI application. A client that reconnects sends `Last-Event-ID`."""

    def __init__(self, events: Events, store: ClientKeys, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._events, self._store, self._heartbeat_s = events, store, heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        owner, key_id = scope["state"]["owner"], scope["state"]["key_id"]
        channel = self._events.channel(owner)
        last = next((value for name, value in scope["headers"] if name == b"last-event-id"), b"")
        place = channel.place(last.decode("latin-1"))  # before the first await, so that no event is missed
        await send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        if scope["method"] == "GET":
            with suppress(ClientDisconnect):
                async with cancel_on_disconnect(receive):
                    await self._follow(channel, place, key_id, send)
        await send({"type": "http.response.body", "body": b""})

    async def _follow(self, channel: Channel, place: int, key_id: str, send: Send) -> None:
        await _write(send, BEAT)  # tells the client that the stream is open
        silent_s, step_s = 0.0, min(self._heartbeat_s, KEY_CHECK_S)
        while await self._may_hear(key_id):
            news = channel.since(place)
            place = news.place
            for line in news.lines:
                await _write(send, line)
            if channel.is_closed:
                return
            silent_s += step_s
            if await channel.wait(place, step_s):
                silent_s = 0.0
            elif silent_s >= self._heartbeat_s and await self._may_hear(key_id):
                silent_s = 0.0
                await _write(send, BEAT)

    async def _may_hear(self, key_id: str) -> bool:
        """True if the listener would still be admitted: the key may be revoked during a long stream."""
        try:
            if not key_id:
                return not await self._store.has_keys()
            kept = await self._store.find_key_owner(key_id)
        except StoreError:
            return False  # a client that reconnects gets the error
        return kept is not None and kept.revoked_at is None


async def _write(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


# The pages

_log = logging.getLogger("refold.gateway")

MAX_BODY = 64 * 1024
"""Size of a request body: settings are short."""
MOST = 1_000
"""Rows in one answer."""
ADMINS_ONLY = (
    "these settings are about how the gateway is run: an admin key shows them (refold keys create --admin)"
)

Handler: TypeAlias = Callable[["Admin", Request], Awaitable[object]]


class Admin:
    """The routes below `/refold/` and the gateway that they report on."""

    def __init__(self, gateway: Gateway, version: str) -> None:
        self.gateway, self.version = gateway, version

    def routes(self) -> list[Route]:
        conversation = "/refold/conversations/{name:path}"
        return [
            self._route("/refold/status", status),
            Route(PATH, EventStream(self.gateway.events, self.gateway.store), methods=["GET"]),
            self._route("/refold/config", show_config),
            self._route("/refold/config", change_config, "POST"),
            self._route("/refold/compact", compact_messages, "POST"),
            self._route("/refold/command", command, "POST"),
            self._route("/refold/stats", stats),
            self._route("/refold/conversations", conversations),
            self._route(f"{conversation}/sessions", sessions),
            self._route(f"{conversation}/compactions", compactions),
            self._route(f"{conversation}/receipts", receipts),
            self._route(f"{conversation}/compact", compact, "POST"),
            self._route(f"{conversation}/undo", undo, "POST"),
            self._route(f"{conversation}/off", switch_off, "POST"),
            self._route(f"{conversation}/on", switch_on, "POST"),
            self._route(f"{conversation}/pins", pins),
            self._route(f"{conversation}/pins", change_pin, "POST"),
            self._route(conversation, one_conversation),
        ]

    def _route(self, path: str, handler: Handler, method: str = "GET") -> Route:
        return Route(path, _Page(self, handler), methods=[method])

    async def host(self, request: Request) -> OwnerConversations:
        return await self.gateway.host(request.state.owner)

    async def workspace(self, request: Request) -> GatewayWorkspace:
        return GatewayWorkspace(self.gateway, await self.host(request))

    async def opened(self, request: Request, name: str = "") -> Conversation:
        """The conversation named by the path, or with this name.

        Raises:
            NotFound: the caller has no conversation with this name.
        """
        name = name or request.path_params["name"]
        return await (await self.workspace(request)).open(name, request.query_params.get("branch", ""))

    async def author(self, request: Request, name: str = "") -> SummaryChoice:
        """The summariser of the conversation named by the path, or with this name, and a note if it cannot be asked. A
        provider key in the headers of this request is the client's own, as in a call.
        """
        workspace, name = await self.workspace(request), name or request.path_params["name"]
        head = await workspace.head(name, request.query_params.get("branch", ""))
        return await workspace.author(*workspace.terms(head), header_texts(request.scope))


class _Page:
    """One route, as plain ASGI, so that all errors have the same shape."""

    def __init__(self, admin: Admin, handler: Handler) -> None:
        self._admin, self._handler = admin, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            _check_names(scope)
            found = await self._handler(self._admin, Request(scope, receive, send))
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001  # every failure gets the same shape
            if not isinstance(error, RefoldError):
                _log.error("a page failed: %s", error_location(error))
            log_store_failure(error)
            await send_answer(send, answer(error, "refold"))
            return
        headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
        body = msgspec.json.encode(found, enc_hook=_encode_unknown)
        await Response(body, media_type="application/json", headers=headers)(scope, receive, send)


def _check_names(scope: Scope) -> None:
    """
    Raises:
        NotFound: the name contains a NUL, which some stores cannot search for.
    """
    if "\0" in scope["path"] or b"%00" in scope["query_string"]:
        raise NotFound("there is nothing with this name", hint="see /refold/conversations")


async def status(admin: Admin, request: Request) -> object:
    """The state of the gateway, for the caller."""
    host = await admin.host(request)
    compaction, backlog = host.resolved.settings.compaction, admin.gateway.backlog
    return {
        "version": admin.version,
        "preset": compaction.preset,
        "enabled": compaction.enabled,
        "upstreams": [{"name": one.name, "formats": one.formats} for one in admin.gateway.targets],
        "owner": host.engine.owner,
        "live": len(host.table),
        "held_back": await host.engine.held_back(),
        "not_kept": len(backlog) + backlog.dropped,
        "in_flight": _in_flight(admin, request.state.owner, is_admin=request.state.admin),
        "plugins": [
            {"name": one.plugin.name, "version": one.plugin.version, "calls": _calls(one)} for one in active()
        ],
        "jobs": await _jobs(admin),
        "conversations": [structs.asdict(one) for one in await host.engine.conversations(limit=20)],
    }


def _in_flight(admin: Admin, owner: str, *, is_admin: bool) -> dict[str, int]:
    """The requests that are being served, as the limits count them: the caller's own, and for an admin the bytes of all."""
    admission = admin.gateway.admission
    own = {"requests": admission.requests[owner], "bytes": admission.bytes[owner]}
    return {**own, "all_bytes": admission.total_bytes} if is_admin else own


def _calls(one: LoadedPlugin) -> dict[str, dict[str, int]]:
    """The calls of a plugin since the start, by point and outcome."""
    found = dict[str, dict[str, int]]()
    for (point, outcome), count in one.guard.counts.items():
        found.setdefault(point, {})[outcome] = count
    return found


async def _jobs(admin: Admin) -> dict[str, object]:
    """Where summaries are written, and the queue of the workers in numbers."""
    queue = admin.gateway.jobs
    if queue is None:
        return {"run_by": "this process"}
    return {"run_by": "workers; this process if a summary needs the client's own key"} | structs.asdict(
        await queue.state()
    )


async def show_config(admin: Admin, request: Request) -> object:
    """The settings without secrets: all for an admin, for other callers those that they can change."""
    resolved, is_admin = (await admin.host(request)).resolved, request.state.admin
    origins = {name: str(origin) for name, _, origin in values_of(resolved, for_admin=is_admin)}
    shown = {"settings": tree_of(resolved, for_admin=is_admin), "origins": origins, "hidden": []}
    return shown if is_admin else {**shown, "hidden": hidden_names(), "hint": ADMINS_ONLY}


async def change_config(admin: Admin, request: Request) -> object:
    """Change tuning settings, all that were sent or none, and store them."""
    host = await admin.host(request)
    await admin.gateway.change(
        host, update(host.resolved, await _body(request, example='{"compaction": {"preset": "lis"}}'))
    )
    return await show_config(admin, request)


async def stats(admin: Admin, request: Request) -> object:
    """The effect of compaction in numbers. `days` restricts them to the latest, `by` groups them. With `all=true`, or by
    owner, they are those of all owners: for an admin, and without conversations.
    """
    host, asked = await admin.host(request), request.query_params
    if unknown := asked.keys() - {"all", "by", "days"}:
        raise ConfigError(f"{min(unknown)[:40]}: is no parameter of stats", hint="there are all, by and days")
    if (everyone := asked.get("all", "false")) not in ("true", "false"):
        raise ConfigError("all: is neither true nor false", hint="all=true")
    by, days = check_by(asked.get("by")), _days(asked.get("days", ""))
    if everyone == "false" and by != "owner":
        found = await host.engine.stats(by=by, days=days)
        return {"owner": host.engine.owner, "days": days, **found.document()}
    if not request.state.admin:
        raise AccessError(
            "the figures of all owners are for an admin", hint="use an admin key (refold keys create --admin)"
        )
    if by == "conversation":
        raise ConfigError("conversations are shown to their owner only", hint="leave out all=true")
    store, first = host.engine.store, first_day(admin.gateway.now(), days)
    found = await stats_of(store, await store.owners(), by=by, first=first)
    return {"owner": None, "days": days, **found.document()}


def _days(text: str) -> float | None:
    """
    Raises:
        ConfigError: the text is no number of days.
    """
    try:
        days = float(text) if text else None
    except ValueError:
        raise ConfigError("days must be a number of days", hint="such as 30") from None
    check_days(days)
    return days


async def conversations(admin: Admin, request: Request) -> object:
    words, limit, host = request.query_params.get("words", ""), _limit(request), await admin.host(request)
    return [structs.asdict(one) for one in await host.engine.conversations(limit=limit, words=words)]


async def one_conversation(admin: Admin, request: Request) -> object:
    talk, host = await admin.opened(request), await admin.host(request)
    found = await talk.status()
    return {"id": talk.id, **structs.asdict(found), "ratio": found.ratio, "off": talk.id in host.off}


async def sessions(admin: Admin, request: Request) -> object:
    talk, host = await admin.opened(request), await admin.host(request)
    return await host.engine.sessions(talk.id, limit=_limit(request))


async def compactions(admin: Admin, request: Request) -> object:
    talk, host = await admin.opened(request), await admin.host(request)
    rows = await host.engine.store.compactions(host.engine.owner, talk.branch, _limit(request))
    written = await host.engine.summaries([row.id for row in rows])
    authors = {one.id: SummaryAuthor.of(one.summary).text for one in written}
    return [_without_content(structs.asdict(row)) | {"author": authors.get(row.id, "")} for row in rows]


async def receipts(admin: Admin, request: Request) -> object:
    talk, host = await admin.opened(request), await admin.host(request)
    calls = await host.engine.store.calls(host.engine.owner, talk.id, _limit(request))

    def write() -> msgspec.Raw:
        rows = [{**structs.asdict(call), "receipt": _json(call.receipt), "reply": None} for call in calls]
        return msgspec.Raw(msgspec.json.encode(rows, enc_hook=_encode_unknown))

    # The receipt of a call with a window of its own holds that window in full, so it may be long.
    return await run_text_work(sum(len(call.receipt) for call in calls), write)


async def compact(admin: Admin, request: Request) -> object:
    """Compact now, with the configured summariser; `focus` is the subject that the summary should stress, and
    `keep` the number of tokens of recent messages that stay.
    """
    asked = _only(await _body(request, example='{"focus": "the login", "keep": 4000}'), "focus", "keep")
    focus, keep = asked.get("focus", ""), asked.get("keep")
    check_focus(focus)
    talk, choice = await admin.opened(request), await admin.author(request)
    talk.summariser, note = choice.summariser, choice.note
    before = (await talk.status()).tokens
    with suppress(InvalidWindow):  # the compaction is done even if no call can follow yet
        await talk.compact(focus=focus, keep=keep)
    after = await talk.status()
    note = note or (NOTHING_GAINED if after.tokens >= before else "")
    done = {"id": talk.id, "before": before, "after": after.tokens, "compactions": after.compactions}
    return {**done, "summary": after.summary, **({"note": note} if note else {})}


async def command(admin: Admin, request: Request) -> object:
    """Run a command such as /status on a conversation, as a chat does, and return its reply."""
    asked = _only(
        await _body(request, example='{"conversation": "support-42", "text": "/status"}'),
        "conversation",
        "text",
    )
    name, text = asked.get("conversation"), asked.get("text")
    if not (isinstance(name, str) and name and isinstance(text, str) and "\0" not in name + text):
        raise ConfigError(
            "the body names no conversation and no command",
            hint='such as {"conversation": "support-42", "text": "/status"}',
        )
    found = command_table().read(text)
    if found is None:
        raise ConfigError("the text is no command", hint="commands begin with a slash; /help lists them")
    which = found.command.name if found.command else ""
    if which in FOR_CHATS and found.arguments:
        raise ConfigError(f"{which} changes an open chat, and there is none here", hint=FOR_CHATS[which])
    talk, choice = await admin.opened(request, name), await admin.author(request, name)
    talk.journal.check_content()  # a command and its reply are content
    talk.summariser, note = choice.summariser, choice.note
    reply = await run_command(talk, text)
    is_told = note and found.command is not None and not found.command.is_immediate
    return {"id": talk.id, "command": which, "reply": reply, **({"note": note} if is_told else {})}


async def compact_messages(admin: Admin, request: Request) -> object:
    """Compact the messages of the body, and return them. No conversation is stored."""
    asked = await _posted(admin, request)
    check_focus(asked.focus)
    host, target = await admin.host(request), admin.gateway.targets.choose(asked.model, asked.format)[0]
    wishes = Wishes(preset=asked.preset, window=asked.window)
    terms = host.terms(
        asked.model, asked.format, window=target.window, wishes=wishes, max_output=asked.max_output
    )
    choice = await GatewayWorkspace(admin.gateway, host).author(target, terms, header_texts(request.scope))
    talk = Conversation(
        asked.model,
        system=asked.system or None,
        tools=asked.tools,
        format=asked.format,
        policy=policy_for(terms),
        window=terms.window,
        max_output=terms.max_output,
        limit=terms.limit,
        sensitive=terms.sensitive,
        max_spend=host.resolved.settings.summariser.max_spend,
    )
    async with talk:
        talk.summariser = choice.summariser
        return await compact_posted(talk, asked, choice.note)


async def _posted(admin: Admin, request: Request) -> PostedMessages:
    server = admin.gateway.resolved.settings.server
    limits = {"max_bytes": server.max_body_mb * MIB, "max_depth": server.max_depth}
    raw = await read_body(request.scope, request.receive, max_bytes=limits["max_bytes"])

    def read() -> PostedMessages:
        check_json(raw, **limits)
        return read_posted(raw)

    return await run_text_work(len(raw), read)


async def undo(admin: Admin, request: Request) -> object:
    talk = await admin.opened(request)
    return {"id": talk.id, "undone": await talk.undo()}


async def switch_off(admin: Admin, request: Request) -> object:
    """Pass the requests of a conversation on unchanged, until it is switched on again."""
    return await _switched(admin, request, on=False)


async def switch_on(admin: Admin, request: Request) -> object:
    return await _switched(admin, request, on=True)


async def _switched(admin: Admin, request: Request, *, on: bool) -> object:
    talk, host = await admin.opened(request), await admin.host(request)
    await host.engine.switch(talk.id, on=on)
    host.off = await host.engine.switched_off()
    admin.gateway.events.note_change(host.engine.owner, talk.id)
    return {"id": talk.id, "off": talk.id in host.off}


async def pins(admin: Admin, request: Request) -> object:
    """The messages that compaction keeps in the window."""
    talk = await admin.opened(request)
    return {"id": talk.id, "pins": await talk.pins()}


async def change_pin(admin: Admin, request: Request) -> object:
    """Pin or unpin a message."""
    asked = await _body(request, example=PIN_EXAMPLE)
    found = [(name, asked[name]) for name in ("pin", "unpin") if name in asked]
    if len(found) != 1 or not isinstance(found[0][1], str):
        raise ConfigError(
            "the body names no message to pin", hint=f'such as {PIN_EXAMPLE} or {{"unpin": "#m12"}}'
        )
    ((verb, handle),) = found
    talk = await admin.opened(request)
    await (talk.pin(handle) if verb == "pin" else talk.unpin(handle))
    admin.gateway.events.note_change((await admin.host(request)).engine.owner, talk.id)
    return {"id": talk.id, "pins": await talk.pins()}


PIN_EXAMPLE = '{"pin": "#m12"}'


async def _body(request: Request, *, example: str) -> dict[str, Any]:
    """
    Raises:
        ConfigError: the body is not a JSON object; the hint shows the example.
    """
    raw = await read_body(request.scope, request.receive, max_bytes=MAX_BODY)
    check_json(raw, max_bytes=MAX_BODY)
    try:
        return msgspec.json.decode(raw or b"{}", type=dict[str, Any])
    except msgspec.DecodeError:
        raise ConfigError("the body is not a JSON object", hint=f"such as {example}") from None


def _only(asked: dict[str, Any], *names: str) -> dict[str, Any]:
    """
    Raises:
        ConfigError: the body has a field with another name.
    """
    for name in asked:
        if name not in names:
            known = ", ".join(names)
            raise ConfigError(f"there is no field {name[:40]!r}", hint=f"the fields are: {known}")
    return asked


def _limit(request: Request) -> int:
    text = request.query_params.get("limit", "50")
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MOST)) and 0 < int(text) <= MOST):
        raise ConfigError("limit must be a number of rows", hint=f"1 to {MOST}")
    return int(text)


def _without_content(row: dict[str, object]) -> dict[str, object]:
    """A row of the journal without the window: that is content, and long."""
    return {name: value for name, value in row.items() if name not in ("shown", "edits", "holder")}


def _json(raw: bytes) -> object:
    try:
        return msgspec.Raw(raw) if raw else None
    except msgspec.DecodeError:
        return None


def _encode_unknown(value: object) -> object:
    if isinstance(value, bytes | memoryview):
        return None
    return str(value)


# The conversations and settings of one owner, as the API and the page open them

CLIENTS_KEY = (
    "no model was asked: the conversation's own model writes its summaries with the client's key; send that key with "
    "this request, or set summariser.models"
)
"""Why a manual compaction of a conversation has a digest."""


class GatewayWorkspace:
    """The conversations and settings of one owner behind a gateway."""

    def __init__(self, gateway: Gateway, host: OwnerConversations) -> None:
        self._gateway, self.host = gateway, host

    @property
    def engine(self) -> Engine:
        return self.host.engine

    @property
    def resolved(self) -> ResolvedSettings:
        return self.host.resolved

    async def open(self, name: str, branch: str = "", *, preset: str = "") -> Conversation:
        head = await self.head(name, branch)
        target, terms = self.terms(head, preset=preset)
        return await self.host.open_branch(head, terms, target.name, finds_twins=True)

    async def head(self, name: str, branch: str = "") -> Head:
        """
        Raises:
            NotFound: the owner has no conversation with this name.
        """
        head = await self.engine.store.head(self.engine.owner, name, branch)
        if head is None:
            raise NotFound("there is no such conversation", hint="see /refold/conversations")
        return head

    def terms(self, head: Head, *, preset: str = "") -> tuple[Target, ConversationSettings]:
        """The upstream of a conversation, and the settings that its next request would have. A window that was given for the
        last request, and the room for a reply that it asked for, are taken to hold for the next one: a client that
        sends them with one request sends them with all.
        """
        target = self._gateway.targets.choose(head.model, DIALECTS[head.format].name)[0]  # type: ignore[index]
        noted = read_fill_level(head.notes)
        reported = self._gateway.window_reports.known(target, head.model)
        if reported is None and noted.window_source == "upstream":
            reported = noted.window
        terms = self.host.terms(
            head.model,
            head.format,
            window=target.window,
            reported=reported,
            url=target.url,
            wishes=Wishes(preset=preset, window=noted.window if noted.window_source == "override" else None),
            max_output=noted.output or None,
        )
        return target, terms

    async def author(
        self, target: Target, terms: ConversationSettings, headers: Sequence[tuple[str, str]] = ()
    ) -> SummaryChoice:
        """The summariser for these settings. A provider key in the headers is the client's own, as in a call."""
        credentials, authors = Credentials(headers, "", target), self._gateway.authors
        wire = DIALECTS[terms.format].name  # type: ignore[index]
        if await authors.needs_client_key(self.host, target, credentials, wire):
            return SummaryChoice(None, CLIENTS_KEY)
        return SummaryChoice(authors.author(self.host, terms, target, credentials))

    def writers(self) -> Sequence[str]:
        return self.resolved.settings.summariser.models

    async def writer(self, talk: Conversation, model: str = "") -> SummaryChoice:
        if model == NO_MODEL:
            return SummaryChoice()
        target, terms = self.terms(await self.head(talk.id, talk.branch))
        if model in ("", NATIVE):  # native comes first in the settings
            return await self.author(target, terms)
        if model not in self.writers():
            raise ConfigError(
                "this model is not one of those that may write summaries here",
                hint="the operator names them in summariser.models",
            )
        return SummaryChoice(self._gateway.authors.named(self.host, terms, self.writers().index(model)))

    async def change_settings(self, changes: dict[str, object]) -> None:
        await self._gateway.change(self.host, update(self.resolved, changes))

    async def switch(self, name: str, *, on: bool) -> None:
        await self.engine.switch(name, on=on)
        self.host.off = await self.engine.switched_off()
        self.note_change(name)

    def note_change(self, name: str) -> None:
        self._gateway.events.note_change(self.engine.owner, name)


class GatewayBackend:
    """The page of a gateway."""

    events = (*(str(one.__struct_config__.tag) for one in Event.__subclasses__()), CHANGED, LOST)

    def __init__(self, gateway: Gateway, ring: KeyRing, stream: ASGIApp, version: str) -> None:
        self._gateway, self._ring, self._stream, self.version = gateway, ring, stream, version

    async def workspace(self, owner: str) -> GatewayWorkspace:
        return GatewayWorkspace(self._gateway, await self._gateway.host(owner))

    async def verify(self, key: str) -> ClientKey:
        return await self._ring.verify(key)

    async def operations(self) -> Sequence[OperationNote]:
        gateway, backlog = self._gateway, self._gateway.backlog
        try:
            await gateway.store.owners()
            notes = [OperationNote("store", "reachable")]
        except RefoldError:
            notes = [OperationNote("store", "cannot be reached", is_wrong=True)]
        if backlog.dropped or len(backlog):
            waiting = f"{len(backlog):,} waiting to be stored, {backlog.dropped:,} dropped"
            notes.append(OperationNote("replies not kept", waiting, is_wrong=True))
        else:
            notes.append(OperationNote("replies not kept", "none"))
        for one in gateway.targets:
            notes.append(OperationNote(f"upstream {one.name}", ", ".join(one.formats)))
        return notes

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._stream(scope, receive, send)
