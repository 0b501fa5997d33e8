"""The recall tool that the gateway offers and runs itself (setting `compaction.recall_tool`).

With the setting on, every request of a conversation leaves with one more tool. If the model calls it, the gateway
answers the call from the stored conversation and asks again, and the client gets the
answers of all rounds (`MOST_ROUNDS`) as one reply (`refold.gateway.joined_reply`). Every round is a request of its own in the branch: it is
planned, stored and billed like any other, with its calls and results as messages.

The client never sees these messages, so its next request has only its own form of the reply. `put_back` replaces
it by the stored messages, found by the hash of the client's history up to that reply. Then the request has the
history that the provider knows, with its thinking and its cached prefix. The stored row names places in a branch and
holds no content. A reply that calls the client's tools as well ends the rounds: its answered recalls are stored with it.

Only calls in a provider's reply are run. A call that a client writes into its history is content like any other.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct, structs

from refold.core.assemble import RECALL, has_recall
from refold.core.identity import extend_chain
from refold.core.prompt_cache import NO_SEQ
from refold.core.stage import Edit
from refold.gateway.joined_reply import shown_parts
from refold.gateway.marker import is_structured
from refold.gateway.recognition import DecodedLine, chain_key
from refold.gateway.request import IncomingRequest
from refold.model.dialect import Dialect
from refold.model.errors import RefoldError, StoreError, UpstreamUnavailable, WireError
from refold.model.message import DialectName, Message, Reasoning, ToolCall
from refold.model.window import Tool
from refold.ports.records import read_recalled, read_reply
from refold.recall import DESCRIPTION, LEAST_TOKENS, MAX_TOKENS, answer_recall, recall_tool
from refold.text_work import run_text_work
from refold.wire.json_codec import FIELDS, NULL, is_null, is_object, read, read_list, word, write
from refold.wire.message import decode_message, encode_item
from refold.wire.request import decode_tools

if TYPE_CHECKING:
    from refold.engine.conversation import Conversation
    from refold.engine.engine import Engine
    from refold.gateway.exchange import Ticket
    from refold.gateway.upstreams import Target

MOST_ROUNDS = 3
"""Rounds of one reply whose recalls are answered: a search, the originals that it found, and one more. If the model calls
the tool once more, it is asked a last time with a `tool_choice` of none: the tool stays in the list, so that the cached prefix of
tools and system prompt does too."""
MOST_CALLS = 8
"""Calls of the tool that are answered in one round: each has at least `LEAST_TOKENS` of the room of one answer."""
SECOND_NAME = "refold_recall"
"""The tool's name if the client has another tool of the name `recall`."""
LAST_NOTE = "\n[this was the last recall of this reply: go on without the tool]"
TOO_OFTEN = "error: recall was called too often in this reply; go on without it"
TOO_MANY = f"error: only {MOST_CALLS} calls at once are answered; call recall again for the rest"
UNREADABLE = "error: the conversation cannot be read now; go on without recall"
MOST_HELD = 512
"""Replies with hidden messages that are held in memory: several hundred conversations in use."""
_FREE_CHOICES = ("auto", "none")
"""Values of `tool_choice` with which a model may answer in words."""
_NO_TOOL: dict[DialectName, Raw] = {
    "chat": Raw(b'"none"'),
    "responses": Raw(b'"none"'),
    "anthropic": Raw(b'{"type":"none"}'),
}
"""The value of `tool_choice` with which a model must answer in words."""
_TOPIC = "recall"

_log = logging.getLogger("refold.gateway")


class HiddenRun(Struct, frozen=True):
    """The messages that stand for one reply of the client's history: those numbered `first` up to, not including,
    `last` of a branch, and the reply to a call.
    """

    after: bytes
    """The hash of the client's history before the reply."""
    conversation: str
    branch: str
    first: int
    last: int
    call: str


class HiddenMessages(Struct, frozen=True):
    """The messages of a `HiddenRun` as JSON. `results` answer calls of the last one, beside the client's results."""

    items: tuple[bytes, ...]
    results: tuple[bytes, ...] = ()


class RecallOffer(Struct, frozen=True):
    """A request with the tool, and with the hidden messages of its history."""

    incoming: IncomingRequest
    name: str
    """The tool's name in this request."""
    seen: DecodedLine | None
    """The messages of the request, if they were read and nothing was put back."""
    history: bytes = b""
    """The hash of the history that the client sent; empty if the provider holds part of it."""
    topic: str = ""
    edits: tuple[Edit, ...] = ()


# The offer


def tool_name(fields: Mapping[str, Raw]) -> str:
    """The name under which the tool is offered; empty if it is not: the client has a recall tool already, the answer
    to the request cannot be continued, the model must call a tool, or the client prescribes the format of the reply,
    which two answers that are joined do not have.
    """
    if not is_null(fields.get("functions", NULL)) or not is_null(fields.get("prompt", NULL)):
        return ""
    if (
        bytes(fields.get("n", b"1")) not in (b"1", b"null")
        or bytes(fields.get("background", NULL)) == b"true"
    ):
        return ""
    if _prescribes_tools(fields.get("tool_choice", NULL)) or is_structured(fields):
        return ""
    tools = () if is_null(fields.get("tools", NULL)) else decode_tools(fields["tools"])
    names = {tool.name for tool in tools}
    if any(_is_ours(tool) for tool in tools) or SECOND_NAME in names:
        return ""
    return SECOND_NAME if RECALL in names else RECALL


def _prescribes_tools(choice: Raw) -> bool:
    """True if the model must call a tool, which could be recall in every round, or may call only the named ones."""
    if is_null(choice):
        return False
    kind = read(FIELDS, choice).get("type", NULL) if is_object(choice) else choice
    return word(kind) not in _FREE_CHOICES


def _is_ours(tool: Tool) -> bool:
    """True for the library's tool and for that of our MCP server, which the client answers."""
    if tool.name != RECALL:
        return has_recall((tool,))
    return tool.raw is not None and DESCRIPTION[:60].encode() in bytes(tool.raw)


def with_tool(fields: Mapping[str, Raw], name: str, dialect: Dialect) -> Raw:
    """The tools of a request with ours at the end, so that the client's keep their place in the cached prefix."""
    tool = recall_tool(dialect.name)
    (tool["function"] if dialect.name == "chat" else tool)["name"] = name
    own = [] if is_null(fields.get("tools", NULL)) else read_list(fields["tools"])
    return write([*own, tool])


# Calls and results


def recalls_in(messages: Sequence[Message], name: str) -> tuple[list[ToolCall], bool]:
    """The calls of the tool in a reply, and whether the reply has other calls, which the client answers."""
    calls = [call for message in messages for call in message.calls]
    own = [call for call in calls if call.name == name]
    return own, len(own) < len(calls)


def result_items(results: Sequence[tuple[ToolCall, str]], dialect: Dialect) -> list[bytes]:
    """The results of calls as messages of a format."""
    if dialect.name == "anthropic":
        blocks = [{"type": "tool_result", "tool_use_id": call.id, "content": text} for call, text in results]
        return [msgspec.json.encode({"role": "user", "content": blocks})]
    if dialect.name == "responses":
        return [
            msgspec.json.encode({"type": "function_call_output", "call_id": call.id, "output": text})
            for call, text in results
        ]
    return [
        msgspec.json.encode({"role": "tool", "tool_call_id": call.id, "content": text})
        for call, text in results
    ]


async def answer_calls(
    talk: Conversation, calls: Sequence[ToolCall], *, left: int
) -> list[tuple[ToolCall, str]]:
    """Answer the calls of one round from a conversation; `left` further rounds may follow. Calls share the room of
    one answer.
    """
    each = max(LEAST_TOKENS, MAX_TOKENS // max(1, min(len(calls), MOST_CALLS)))
    found = list[tuple[ToolCall, str]]()
    for at, call in enumerate(calls):
        if left < 0:
            text = TOO_OFTEN
        elif at >= MOST_CALLS:
            text = TOO_MANY
        else:
            try:
                text = await answer_recall(talk, call.arguments, max_tokens=each)
            except RefoldError as error:
                _log.warning("a recall could not be answered: %s", type(error).__name__)
                text = UNREADABLE
        found.append((call, text + LAST_NOTE if left == 0 and at == len(calls) - 1 else text))
    return found


# Rounds


class RecallRounds:
    """The rounds of one reply: what was sent and answered so far."""

    def __init__(
        self,
        offer: RecallOffer,
        hidden: HiddenReplies,
        again: Callable[[Ticket, IncomingRequest, Target], Awaitable[Ticket]],
    ) -> None:
        self.name, self._offer, self._hidden, self._again = offer.name, offer, hidden, again
        self._incoming = offer.incoming
        self._items = list[bytes]()
        """The hidden messages so far: the replies with their calls, and the results."""
        self._replies = list[list[Message]]()
        self._first: int | None = None
        self.count = 0
        """Follow-up calls so far."""
        self.calls = 0
        """Calls of the tool so far."""
        self._earlier: list[Ticket] = []

    @property
    def dialect(self) -> Dialect:
        return self._incoming.dialect

    async def follow_up(
        self,
        ticket: Ticket,
        reply: bytes,
        target: Target,
        keep: Callable[[], Awaitable[None]] | None = None,
    ) -> Ticket | None:
        """The next call of the reply, if the model has called the tool and nothing else; None if the reply ends here.
        `keep` stores the reply of this round. One that ends here is stored with its answered recalls, see
        `Ticket.recalled`.

        Raises:
            UpstreamUnavailable: the model calls the tool in every round, and has said nothing.
        """
        dialect = self.dialect
        items = [bytes(item) for item in read_reply(reply) or ()]
        messages = [decode_message(item, dialect) for item in items]
        calls, has_others = recalls_in(messages, self.name)
        self._replies.append(messages)
        if ticket.hosted is None or ticket.made is None:
            return None
        if self._first is None:
            self._first = ticket.made.sent.size
        if not calls:
            if keep is not None:
                await keep()
            if self.count:
                await self._remember(ticket, items, [])
            return None
        self.calls += len(calls)
        talk, left = ticket.hosted.live.conversation, MOST_ROUNDS - self.count - 1
        results = result_items(await answer_calls(talk, calls, left=left), dialect)
        if has_others or left < -1:
            ticket.recalled = tuple(map(Raw, results))
            if keep is not None:
                await keep()
            self._check_answered()
            await self._remember(ticket, items, results)
            return None
        if keep is not None:
            await keep()  # the next round adds the reply to the branch
        added = [*self._sendable(items), *results]
        self._items += added
        self.count += 1
        self._earlier.append(ticket)
        self._incoming = _extended(self._incoming, added)
        if left < 0:
            self._incoming = _with(self._incoming, {"tool_choice": _NO_TOOL[dialect.name]})
        return await self._again(ticket, self._incoming, target)

    def _check_answered(self) -> None:
        """Refuse a reply that would be empty for the client.

        Raises:
            UpstreamUnavailable: the model has called the tool in every round, and said nothing.
        """
        parts = shown_parts(self._replies, self.name, self.dialect)
        if not any(not isinstance(part, Reasoning) for part in parts):
            raise UpstreamUnavailable(
                f"the model gave no answer: it called {self.name} again although it was told not to",
                hint="ask again, or turn compaction.recall_tool off for this model",
            )

    def _sendable(self, items: Sequence[bytes]) -> list[bytes]:
        """The items of a reply that can be sent back: reasoning that is neither stored nor encrypted cannot."""
        is_kept = bytes(self._incoming.fields.get("store", NULL)) != b"false"
        if self._incoming.dialect.name != "responses" or is_kept:
            return [*items]
        found = list[bytes]()
        for item in items:
            fields = FIELDS.decode(item)
            is_thought = word(fields.get("type", NULL)) == "reasoning"
            if not is_thought or not is_null(fields.get("encrypted_content", NULL)):
                found.append(item)
        return found

    async def _remember(self, ticket: Ticket, items: Sequence[bytes], results: Sequence[bytes]) -> None:
        """Store where the hidden messages of this reply are, for the client's next request."""
        assert ticket.hosted is not None
        assert ticket.made is not None
        assert self._first is not None
        for earlier in self._earlier:
            await earlier.handout.continue_at(ticket.handout)
        if not self._offer.history:
            return
        dialect, talk = self._incoming.dialect, ticket.hosted.live.conversation
        parts = shown_parts(self._replies, self.name, dialect)
        key = self._hidden.key(self._offer.incoming)
        shown = extend_chain(self._offer.history, Message("assistant", parts), key)
        run = HiddenRun(
            self._offer.history, talk.id, talk.branch, self._first, ticket.made.sent.size, ticket.call_id
        )
        messages = HiddenMessages((*self._items, *items), tuple(results))
        await self._hidden.remember(self._offer.topic, shown, run, messages)


def _extended(incoming: IncomingRequest, items: Sequence[bytes]) -> IncomingRequest:
    """A request with more messages at its end, in its fields and in its body."""
    key = incoming.dialect.messages_key
    whole = [*map(bytes, read_list(incoming.array or b"[]")), *items]
    fields = {**incoming.fields, key: _array(whole)}
    body = fields
    if (
        incoming.dialect.name == "responses"
    ):  # a body that continues a stored response has only its own messages
        own = FIELDS.decode(incoming.body)
        raw = bytes(own.get(key, b"[]"))
        listed = read_list(raw) if raw.startswith(b"[") else [Raw(b'{"role":"user","content":' + raw + b"}")]
        body = {**own, key: _array([*map(bytes, listed), *items])}
    return structs.replace(incoming, fields=fields, body=msgspec.json.encode(body))


def _array(items: Sequence[bytes]) -> Raw:
    return Raw(b"[" + b",".join(items) + b"]")


# Hidden messages of earlier replies


class HiddenReplies:
    """The replies of one owner that have hidden messages: finds them in a client's history, and puts them back."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held: dict[tuple[str, str], HiddenMessages] = {}
        """By topic and hash: equal histories have equal hashes in all formats, and the topic names the format."""

    def key(self, incoming: IncomingRequest) -> bytes:
        """The key of the hashes of a request's history."""
        return chain_key(self._engine.owner, incoming.line_name)

    async def offer(
        self,
        incoming: IncomingRequest,
        seen: DecodedLine | None,
        read_line: Callable[[IncomingRequest, bytes | memoryview], DecodedLine],
        *,
        is_continued: bool,
    ) -> RecallOffer | None:
        """The request with the tool and with its hidden messages; None if the tool is not offered. The messages of a
        request that continues a stored response (`is_continued`) come from the store, and none of them is hidden.

        Raises:
            WireError: the request cannot be read.
            StoreError: the store does not answer.
        """
        dialect, array = incoming.dialect, incoming.array or b"[]"
        name = await run_text_work(len(incoming.body) - len(array), tool_name, incoming.fields)
        if not name:
            return None
        edits = [Edit("recall_tool", NO_SEQ, 0, 0, f"compaction.recall_tool offers the tool {name}")]
        tools = with_tool(incoming.fields, name, dialect)
        if is_continued:
            return RecallOffer(_with(incoming, {"tools": tools}), name, None, edits=tuple(edits))
        if seen is None:
            seen = await run_text_work(len(array), read_line, incoming, array)
        hashes = seen.line.hashes
        # Equal histories have equal hashes in all formats, and hidden messages can be sent in their own format only.
        topic = f"{_TOPIC}_{dialect.name}_{hashes[0].hex()}" if hashes else ""
        runs = await self._runs(topic, hashes) if topic else []
        end = hashes[-1] if hashes else b""
        if not runs:
            return RecallOffer(_with(incoming, {"tools": tools}), name, seen, end, topic, tuple(edits))
        items = [bytes(seen.line.history.item(at)) for at in range(len(seen.line.history))]
        places = await run_text_work(len(array), _put_back, items, runs, seen.line.offset, dialect)
        edits += [
            Edit("recall_messages", at, 0, 0, "recall calls that the gateway ran, put back") for at in places
        ]
        changed = {"tools": tools, dialect.messages_key: _array(items)}
        return RecallOffer(_with(incoming, changed), name, None, end, topic, tuple(edits))

    async def remember(self, topic: str, shown: bytes, run: HiddenRun, messages: HiddenMessages) -> None:
        """Note the hidden messages of a reply: `shown` is the hash of the client's history with the reply. The store deletes the
        note with the conversation that its key names.
        """
        engine, key = self._engine, f"{shown.hex()} {run.conversation}"
        self._hold((topic, key), messages)
        try:
            row = msgspec.msgpack.encode(run)
            await engine.store.learn(engine.owner, topic, key, row, engine.clock())
        except StoreError as error:
            _log.warning("the hidden messages of a reply could not be noted: %s", error.located)

    def _hold(self, key: tuple[str, str], messages: HiddenMessages) -> None:
        self._held[key] = messages
        if len(self._held) > MOST_HELD:
            del self._held[next(iter(self._held))]

    async def _runs(self, topic: str, hashes: Sequence[bytes]) -> list[tuple[range, HiddenMessages]]:
        """The replies of a history that have hidden messages, as ranges of message numbers, in order."""
        engine, found = self._engine, list[tuple[range, HiddenMessages]]()
        heads = dict[tuple[str, str], object]()
        for key, row in await engine.store.all_learnt(engine.owner, topic):
            run = msgspec.msgpack.decode(row, type=HiddenRun)
            shown = bytes.fromhex(key.partition(" ")[0])
            if shown not in hashes or run.after not in hashes:
                continue
            place = (run.conversation, run.branch)
            if place not in heads:
                heads[place] = await engine.store.head(engine.owner, *place)
            messages = await self._messages((topic, key), run) if heads[place] is not None else None
            if messages is not None:
                found.append((range(hashes.index(run.after) + 1, hashes.index(shown) + 1), messages))
        return sorted(found, key=lambda one: one[0].start)

    async def _messages(self, key: tuple[str, str], run: HiddenRun) -> HiddenMessages | None:
        """The messages of a run; None if they are not stored any more."""
        if key not in self._held:
            store, owner = self._engine.store, self._engine.owner
            head = await store.head(owner, run.conversation, run.branch)
            stored = await store.messages(head, run.first, run.last) if head else []
            reply = await store.reply_to(owner, run.call)
            items = read_reply(reply)
            if not head or items is None or len(stored) < run.last - run.first:
                return None
            if not all(one.body for one in stored):
                return None
            bodies = [*(one.body for one in stored), *map(bytes, items)]
            self._hold(key, HiddenMessages(tuple(bodies), tuple(map(bytes, read_recalled(reply)))))
        return self._held[key]


def _with(incoming: IncomingRequest, changed: Mapping[str, Raw]) -> IncomingRequest:
    """A request with other values of these fields, in its fields and in its body."""
    body = msgspec.json.encode({**FIELDS.decode(incoming.body), **changed})
    return structs.replace(incoming, fields={**incoming.fields, **changed}, body=body)


def _put_back(
    items: list[bytes], runs: Sequence[tuple[range, HiddenMessages]], offset: int, dialect: Dialect
) -> list[int]:
    """Replace the replies by their hidden messages, in place; returns the numbers of the replaced messages."""
    places = list[int]()
    for numbers, hidden in reversed(runs):
        start, stop = numbers.start + offset, numbers.stop + offset
        own = items[start:stop]
        found = [*hidden.items]
        if not any(_has_thought(item, dialect) for item in own):
            found = [bare for item in found if (bare := _without_thought(item, dialect)) is not None]
        if own and dialect.name == "anthropic" and found:
            found[-1] = _with_mark_of(own[-1], found[-1])
        rest = [*hidden.results]
        if rest and dialect.name == "anthropic" and stop < len(items):
            merged = _merged_results(rest[0], items[stop])
            if merged is not None:
                items[stop], rest = merged, []
        items[start:stop] = [*found, *rest]
        places.append(numbers.start)
    return places[::-1]


def _has_thought(item: bytes, dialect: Dialect) -> bool:
    return any(isinstance(part, Reasoning) for part in decode_message(item, dialect).parts)


def _without_thought(item: bytes, dialect: Dialect) -> bytes | None:
    """A message without thinking; None if nothing else is in it."""
    message = decode_message(item, dialect)
    parts = tuple(part for part in message.parts if not isinstance(part, Reasoning))
    if len(parts) == len(message.parts):
        return item
    return bytes(encode_item(message.with_parts(parts), dialect)) if parts else None


def _with_mark_of(own: bytes, item: bytes) -> bytes:
    """A message with the cache mark that the client has set at the end of its own form of it."""
    if b'"cache_control"' not in own:
        return item
    blocks, fields = FIELDS.decode(own).get("content", NULL), FIELDS.decode(item)
    try:
        mark = FIELDS.decode(read_list(blocks)[-1]).get("cache_control", NULL)
        content = read_list(fields["content"])
    except (WireError, KeyError, IndexError, msgspec.DecodeError):
        return item
    if is_null(mark) or not content:
        return item
    content[-1] = Raw(msgspec.json.encode({**FIELDS.decode(content[-1]), "cache_control": mark}))
    return msgspec.json.encode({**fields, "content": content})


def _merged_results(results: bytes, following: bytes) -> bytes | None:
    """The client's message after a reply with our results in front of its own; None if it is not the user's."""
    fields = read(FIELDS, following)
    if word(fields.get("role", NULL)) != "user":
        return None
    ours, content = read_list(FIELDS.decode(results)["content"]), fields.get("content", NULL)
    theirs = [Raw(b'{"type":"text","text":' + bytes(content) + b"}")]
    if bytes(content).startswith(b"["):
        theirs = read_list(content)
    return msgspec.json.encode({**fields, "content": [*ours, *theirs]})
