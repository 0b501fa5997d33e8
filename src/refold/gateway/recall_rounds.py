"""The recall tool that the gateway offers and runs itself (setting `compaction.recall_tool`).

With the setting on, every request of a conversation leaves with one more tool. If the model calls it, the gateway
answers the call from the stored conversation and asks again, and the client gets the
answers of all rounds (`MOST_ROUNDS`) as one reply. Every round is a request of its own in the branch: it is
planned, stored and billed like any other, with its calls and results as messages.

The client never sees these messages, so its next request has only its own form of the reply. `put_back` replaces
it by the stored messages, found by the hash of the client's history up to that reply. Then the request has the
history that the provider knows, with its thinking and its cached prefix. The stored row names places in a branch and
holds no content. A reply that calls the client's tools as well ends the rounds: its answered recalls are stored with it.

Only calls in a provider's reply are run. A call that a client writes into its history is content like any other.

The joined reply has the texts, the thinking and the client's own calls of all rounds, numbered as in one answer, with the usage of all
rounds. As long as no round has called the tool, nothing is changed. Its functions do no I/O. They exist for bodies (`join_bodies`), for
streams (`JoinedStream`) and for messages (`shown_parts`), and the three agree.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct, structs

from refold.core.assemble import RECALL, has_recall
from refold.core.identity import extend_chain
from refold.core.prompt_cache import NO_SEQ
from refold.core.stage import Edit
from refold.engine.recall import DESCRIPTION, LEAST_TOKENS, MAX_TOKENS, answer_recall, recall_tool
from refold.gateway.marker import is_structured
from refold.gateway.recognition import DecodedLine, chain_key
from refold.gateway.request import IncomingRequest
from refold.model.dialect import Dialect
from refold.model.errors import RefoldError, StoreError, UpstreamUnavailable, WireError
from refold.model.message import DialectName, Message, Part, Reasoning, Text, ToolCall
from refold.model.window import Tool
from refold.ports.records import read_recalled, read_reply
from refold.text_work import run_text_work
from refold.wire.json_codec import FIELDS, NULL, is_null, is_object, read, read_list, word, write
from refold.wire.request import decode_message, decode_tools, encode_item
from refold.wire.sse import UNREADABLE, EventSplitter, parse_event

if TYPE_CHECKING:
    from refold.engine.conversation import Conversation
    from refold.engine.engine import Engine
    from refold.gateway.exchange import Ticket
    from refold.gateway.provider_state import StateHandout
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
STORE_UNREADABLE = "error: the conversation cannot be read now; go on without recall"
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
                text = STORE_UNREADABLE
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
        self._earlier: list[StateHandout] = []

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
        self._earlier.append(ticket.handout)
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
            await earlier.continue_at(ticket.handout)
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


# The answers of all rounds as one reply.

Json = dict[str, Any]

BETWEEN = "\n\n"
"""Separates the texts of two rounds where the format has one text for the whole reply."""
_RESPONSES_OPENING = ("response.created", "response.queued", "response.in_progress")
_RESPONSES_END = ("response.completed", "response.incomplete")


def add_usage(one: Any, other: Any) -> Any:
    """The sum of two usage reports of one format: numbers are added, of other values the second is taken."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {**one, **{key: add_usage(one.get(key), value) for key, value in other.items()}}
    is_number = [isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other)]
    if all(is_number):
        return one + other
    if isinstance(one, list) and isinstance(other, list):
        return [*one, *other]
    return one if other is None else other


def shown_parts(rounds: Sequence[Sequence[Message]], name: str, dialect: Dialect) -> tuple[Part, ...]:
    """The parts of the reply that the client gets: those of all rounds, without the calls of the tool `name`."""
    parts = [part for messages in rounds for message in messages for part in message.parts]
    shown = [part for part in parts if not (isinstance(part, ToolCall) and part.name == name)]
    if dialect.name != "chat":
        return tuple(shown)
    texts = ["".join(message.text for message in messages) for messages in rounds]
    text = BETWEEN.join(filter(None, texts))
    return (*([Text(text)] if text else []), *(part for part in shown if not isinstance(part, Text)))


# Answers that are not streamed


def join_bodies(bodies: Sequence[bytes], name: str, dialect: Dialect) -> bytes:
    """The answers of all rounds as one, without the calls of the tool `name`.

    Raises:
        msgspec.DecodeError, TypeError, KeyError: an answer cannot be read.
    """
    answers: list[Json] = [msgspec.json.decode(body) for body in bodies]
    joined = _JOIN[dialect.name](answers, name)
    usages = [answer["usage"] for answer in answers if isinstance(answer.get("usage"), dict)]
    if usages:
        total = usages[0]
        for usage in usages[1:]:
            total = add_usage(total, usage)
        joined["usage"] = total
    return msgspec.json.encode(joined)


def _join_chat(answers: list[Json], name: str) -> Json:
    choices = [answer["choices"][0] for answer in answers]
    messages: list[Json] = [choice["message"] for choice in choices]
    last = {**messages[-1]}
    for field in ("content", "reasoning_content", "reasoning"):
        said = [text for message in messages if isinstance(text := message.get(field), str) and text]
        if said:
            last[field] = (BETWEEN if field == "content" else "").join(said)
    own = [call for call in last.get("tool_calls") or () if _called(call) != name]
    if own:
        last["tool_calls"] = own
    else:
        last.pop("tool_calls", None)
        last["content"] = last.get("content") or ""
    choice = {**choices[-1], "message": last}
    if choice.get("finish_reason") == "tool_calls" and not own:
        choice["finish_reason"] = "stop"
    return {**answers[-1], "id": answers[0].get("id"), "choices": [choice]}


def _called(call: Json) -> str:
    spoken = call.get("function")
    return str(spoken.get("name") or "") if isinstance(spoken, dict) else ""


def _join_anthropic(answers: list[Json], name: str) -> Json:
    blocks = [block for answer in answers for block in answer["content"] if not _is_recall(block, name)]
    joined = {**answers[-1], "id": answers[0].get("id"), "content": blocks}
    return _with_stop_reason(joined, has_calls=any(block.get("type") == "tool_use" for block in blocks))


def _is_recall(block: Json, name: str) -> bool:
    return block.get("type") in ("tool_use", "function_call") and block.get("name") == name


def _with_stop_reason(delta: Json, *, has_calls: bool) -> Json:
    is_left = delta.get("stop_reason") == "tool_use" and not has_calls
    return {**delta, "stop_reason": "end_turn"} if is_left else delta


def _join_responses(answers: list[Json], name: str) -> Json:
    items = [item for answer in answers for item in answer["output"] if not _is_recall(item, name)]
    return {**answers[-1], "output": items}


_JOIN: dict[DialectName, Callable[[list[Json], str], Json]] = {
    "chat": _join_chat,
    "anthropic": _join_anthropic,
    "responses": _join_responses,
}


# Streams


class JoinedStream:
    """Passes the streams of the rounds on as one stream. `feed` takes the bytes of the current round; `next_round`
    says that another one follows; `end` returns the last events, which are held back after a call of the tool.

    If an event cannot be read, the rest of the stream is passed on as it comes, and `is_readable` is False.
    """

    def __init__(self, dialect: Dialect, name: str) -> None:
        self._splitter, self._name, self._dialect = EventSplitter(), name, dialect.name
        self.is_readable = True
        self.has_recalls = False
        """True if the current round has called the tool. Its last events are held back then."""
        self._rounds = 1
        self._is_changed = False
        """True from the first event on that the client does not get as it came."""
        self._is_rewritten = False
        """True if the newest event did not pass as it came."""
        self._held: list[Json] = []
        self._usage: Json = {}
        """The usage of the earlier rounds."""
        self._usage_now: Json = {}
        """The usage at the beginning of the current round, which Anthropic reports apart."""
        self._hidden: set[int] = set()
        """Numbers of the current round's blocks, items or calls that the client does not get."""
        self._base = self._shown = 0
        """The number of blocks, items or calls that the client got, before this round and by now."""
        self._places: dict[int, int] = {}
        """The client's number of each of the current round's."""
        self._number = 0
        """The number of the next event, in a format that numbers its events."""
        self._id: object = None
        self._has_text = self._has_text_now = False
        self._last_call = -1
        self._has_calls = False
        self._items: list[Json] = []
        self._items_now: list[Json] = []
        """Items of a Responses reply that the client got: of the earlier rounds, and of this one."""

    def feed(self, chunk: bytes) -> bytes:
        """The bytes for the client."""
        return b"".join(self._take(event) for event in self._splitter.feed(chunk))

    def rest(self) -> bytes:
        """The incomplete event at the end of a stream."""
        return self._splitter.take_pending()

    def next_round(self) -> None:
        """Go on with the stream of the next call; the end of the last one is dropped."""
        self._usage = add_usage(self._usage, self._usage_of_round())
        for fields in self._held:
            self._items += self._round_items(fields["response"]) if "response" in fields else []
        self._items_now = []
        self._held, self._splitter = [], EventSplitter()
        self._hidden, self._places, self._base = set(), {}, self._shown
        self._has_text, self._has_text_now = self._has_text or self._has_text_now, False
        self.has_recalls, self._is_changed, self._last_call, self._has_calls = False, True, -1, False
        self._rounds += 1

    def end(self) -> bytes:
        """The last events of the reply, if they were held back."""
        held, self._held = self._held, []
        return b"".join(self._end(fields) for fields in held)

    @property
    def next_number(self) -> int:
        """The number of the next event in a Responses stream."""
        return self._number

    def _take(self, event: bytes) -> bytes:
        if event.strip(b"\r\n"):
            passed = self._take_event(event)
            self._is_rewritten = passed is not event
            return passed
        return b"" if self._is_rewritten else event  # the end of a line end that came in two chunks

    def _take_event(self, event: bytes) -> bytes:
        parsed = parse_event(event) if self.is_readable else None
        if parsed is None:
            return event
        if parsed.data.strip() == b"[DONE]":
            if self.has_recalls:
                self._held.append({"done": True})
                return b""
            return event
        try:
            fields = msgspec.json.decode(parsed.data)
            take = {"chat": self._chat, "anthropic": self._anthropic, "responses": self._responses}
            return take[self._dialect](event, fields)
        except UNREADABLE:
            self.is_readable = False
            return event

    def _end(self, fields: Json) -> bytes:
        if "done" in fields:
            return b"data: [DONE]\n\n"
        if self._dialect == "chat":
            return self._chat_end(fields)
        if self._dialect == "anthropic":
            return self._anthropic_end(fields)
        return self._responses_end(fields)

    def _usage_of_round(self) -> Json:
        """The usage of a round by its last events; a later report replaces an earlier one."""
        usage = self._usage_now
        for fields in self._held:
            usage = {**usage, **_known(fields.get("response", fields).get("usage"))}
        return usage

    def _with_usage(self, fields: Json) -> Json:
        if self._usage and isinstance(fields.get("usage"), dict):
            return {**fields, "usage": add_usage(self._usage, fields["usage"])}
        return fields

    # Chat Completions

    def _chat(self, event: bytes, fields: Json) -> bytes:
        if self._id is None:
            self._id = fields.get("id")
        choices = fields.get("choices") or []
        if not choices:
            if self.has_recalls and isinstance(fields.get("usage"), dict):
                self._held.append(fields)
                return b""
            return self._chat_end(fields) if self._is_changed and "error" not in fields else event
        (choice,) = choices
        delta: Json = choice.get("delta") or {}
        calls, finish = delta.get("tool_calls"), choice.get("finish_reason")
        if calls:
            own = [self._numbered(call) for call in calls if not self._is_hidden_call(call)]
            delta = {**delta, "tool_calls": own} if own else _without(delta, "tool_calls")
            self._has_calls = self._has_calls or bool(own)
            self._is_changed = self._is_changed or self.has_recalls
        said = delta.get("content")
        if not self._is_changed:
            self._has_text_now = self._has_text_now or bool(said)
            return event
        if said and self._rounds > 1 and self._has_text and not self._has_text_now:
            delta = {**delta, "content": BETWEEN + said}
        self._has_text_now = self._has_text_now or bool(said)
        if self._rounds > 1:
            delta = _without(delta, "role")
        if self.has_recalls and finish:
            self._held.append({**fields, "choices": [{**choice, "delta": {}}]})
            fields, finish = _without(fields, "usage"), None
        if not (any(delta.values()) or finish):
            return b""
        return self._chat_end({**fields, "choices": [{**choice, "delta": delta, "finish_reason": finish}]})

    def _is_hidden_call(self, call: Json) -> bool:
        at = self._call_number(call)
        if _called(call) == self._name:
            self._hidden.add(at)
            self.has_recalls = True
        return at in self._hidden

    def _call_number(self, call: Json) -> int:
        """The provider's number of a call; servers that give none send the calls one after the other."""
        at = call.get("index")
        if at is None:
            at = self._last_call + 1 if _called(call) else max(0, self._last_call)
        self._last_call = int(at)
        return self._last_call

    def _numbered(self, call: Json) -> Json:
        at = self._last_call
        if at not in self._places:
            self._places[at] = self._shown
            self._shown += 1
        return {**call, "index": self._places[at]} if "index" in call else call

    def _chat_end(self, fields: Json) -> bytes:
        choices = [{**choice} for choice in fields.get("choices") or ()]
        for choice in choices:
            if choice.get("finish_reason") == "tool_calls" and not self._has_calls:
                choice["finish_reason"] = "stop"
        own = {**fields, "id": self._id} if "id" in fields else fields
        return _event(self._with_usage({**own, "choices": choices}))

    # Anthropic Messages

    def _anthropic(self, event: bytes, fields: Json) -> bytes:
        kind = fields["type"]
        if kind == "message_start":
            self._usage_now = _known(fields["message"].get("usage"))
            return event if self._rounds == 1 else b""
        if kind == "content_block_start" and _is_recall(fields["content_block"], self._name):
            self._hidden.add(fields["index"])
            self.has_recalls = self._is_changed = True
            return b""
        if kind in ("content_block_start", "content_block_delta", "content_block_stop"):
            return self._placed(event, fields, "index", fields.get("content_block") or {})
        if kind in ("message_delta", "message_stop") and self._is_changed:
            if self.has_recalls:
                self._held.append(fields)
                return b""
            return self._anthropic_end(fields)
        return event

    def _placed(self, event: bytes, fields: Json, key: str, opened: Json) -> bytes:
        """An event of a block or an item with the client's number; empty if the client does not get it."""
        at = fields[key]
        if at in self._hidden:
            return b""
        if at not in self._places:
            self._places[at] = self._shown
            self._shown += 1
        if opened.get("type") == "tool_use":
            self._has_calls = True
        if not self._is_changed:
            return event
        return _event({**fields, key: self._places[at]}, fields["type"])

    def _anthropic_end(self, fields: Json) -> bytes:
        if fields["type"] == "message_delta":
            delta = _with_stop_reason(fields["delta"], has_calls=self._has_calls)
            usage = {**self._usage_now, **_known(fields.get("usage"))} if self._usage else fields.get("usage")
            fields = self._with_usage({**fields, "delta": delta, "usage": usage})
        return _event(fields, fields["type"])

    # Responses

    def _responses(self, event: bytes, fields: Json) -> bytes:
        kind = fields["type"]
        if kind in _RESPONSES_OPENING:
            self._id = self._id or fields["response"].get("id")
            if self._rounds > 1:
                return b""
        if kind == "response.output_item.added" and _is_recall(fields["item"], self._name):
            self._hidden.add(fields["output_index"])
            self.has_recalls = self._is_changed = True
            return b""
        if "output_index" in fields:
            if fields["output_index"] not in self._hidden and kind == "response.output_item.done":
                self._items_now.append(fields["item"])
            return self._renumbered(event, fields)
        if kind in _RESPONSES_END and self._is_changed:
            if self.has_recalls:
                self._held.append(fields)
                return b""
            return self._responses_end(fields)
        if self._is_changed:
            return self._sequenced(fields)
        self._number = fields.get("sequence_number", -1) + 1
        return event

    def _round_items(self, response: Json) -> list[Json]:
        """The items of the current round; some servers send them only with the whole reply."""
        listed = response.get("output") or []
        return self._items_now or [item for item in listed if not _is_recall(item, self._name)]

    def _renumbered(self, event: bytes, fields: Json) -> bytes:
        passed = self._placed(event, fields, "output_index", {})
        if not passed:
            return b""
        if self._is_changed:
            return self._sequenced({**fields, "output_index": self._places[fields["output_index"]]})
        self._number = fields.get("sequence_number", -1) + 1
        return passed

    def _sequenced(self, fields: Json) -> bytes:
        if isinstance(response := fields.get("response"), dict) and self._id:
            fields = {**fields, "response": {**response, "id": self._id}}
        if "sequence_number" in fields:
            fields = {**fields, "sequence_number": self._number}
            self._number += 1
        return _event(fields, fields["type"])

    def _responses_end(self, fields: Json) -> bytes:
        output = [*self._items, *self._round_items(fields["response"])]
        response = self._with_usage({**fields["response"], "output": output})
        return self._sequenced({**fields, "response": response})


def _known(usage: Mapping[str, Any] | None) -> Json:
    return {key: value for key, value in (usage or {}).items() if value is not None}


def _without(fields: Json, dropped: str) -> Json:
    return {name: value for name, value in fields.items() if name != dropped}


def _event(fields: Json, name: str = "") -> bytes:
    head = b"event: %s\n" % name.encode() if name else b""
    return head + b"data: %s\n\n" % msgspec.json.encode(fields)
