"""The provider behind the server: reads a request, refuses or answers it, and bills the reply.

Only the model is fake, not the provider. The script contains the model's replies and the faults; ids,
signatures, counts and the stored messages of a Responses conversation follow from the requests, so that the
same script and the same requests give the same bytes.

To bill a call, its prompt is a sequence of pieces (tools, system blocks, blocks of messages), and the simulated
prompt cache depends on the marks in it. OpenAI marks every piece automatically; Anthropic uses the client's
`cache_control`.
"""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, count
from math import sqrt
from zlib import crc32

import msgspec
from msgspec import MsgspecError, Raw, Struct, json, structs

from refold.core.measure import count_fixed
from refold.core.prompt_cache import LOOKBACK, CacheRules, Prompt, PromptCache
from refold.core.verify import breakpoint_in, breakpoints_of
from refold.model.dialect import ANTHROPIC, RESPONSES, Dialect
from refold.model.errors import WireError
from refold.model.message import Message, Opaque, Part, Reasoning, ToolCall, after_compaction
from refold.model.tokens import CountSource, TokenCounter, Usage
from refold.model.window import FixedFields, Tool, Ttl
from refold.testing import compactions
from refold.testing.replies import CREATED, PROTOCOLS, response_id
from refold.testing.rules import (
    ProviderLimits,
    ReadRequest,
    chains_of,
    malformed,
    refuse,
    refuse_compaction,
    refuse_unread,
)
from refold.testing.script import (
    Answer,
    Body,
    JsonObject,
    NumberedReply,
    Received,
    Refuse,
    ReplyPart,
    Say,
    Script,
    Scripted,
    Slow,
    answer_of,
    as_say,
    sign,
)
from refold.wire import Request, decode_messages, decode_request

# The bill of a call: its tokens, and the provider's prompt cache

HOUR_S = 3_600.0
OPENAI_STEP = 128


class ScaledCounter:
    """Counts a multiple of another counter's tokens, as a provider whose tokenizer is not the one we assume."""

    def __init__(self, counter: TokenCounter, factor: float) -> None:
        self.counter, self.factor = counter, factor

    @property
    def source(self) -> CountSource:
        return self.counter.source

    def text(self, text: str) -> int:
        return round(self.counter.text(text) * self.factor)

    def message(self, message: Message) -> int:
        return round(self.counter.message(message) * self.factor)


class _Piece(Struct, gc=False):
    content: bytes
    """The identity of the piece, without its cache mark."""
    size: int
    """Tokens from the start of the prompt to the end of the piece."""
    marks: Sequence[Ttl]


class Biller:
    """Counts prompts and replies, and keeps one cache per model."""

    def __init__(self, counter: TokenCounter, minimum: int, clock: Callable[[], float]) -> None:
        self.counter, self.minimum, self.clock = counter, minimum, clock
        self._caches: dict[tuple[str, str], PromptCache] = {}

    def size(self, request: Request, held: Sequence[Message] = ()) -> int:
        """The tokens of a prompt; `held` are earlier messages that the provider stores. Messages before a
        provider's own compaction are not counted.
        """
        messages = after_compaction((*held, *request.messages))
        fixed = count_fixed(request.fixed, self.counter).total.tokens
        return fixed + sum(map(self.counter.message, messages))

    def bill(
        self, request: Request, held: Sequence[Message], parts: Sequence[ReplyPart]
    ) -> tuple[Usage, int]:
        """The usage of a call, and the tokens that it wrote to the cache for an hour."""
        prompt = self._prompt(request, held)
        hit = self._cache(request).send(prompt, self.clock())
        size = self.size(request, held)
        thought = sum(self.counter.text(part.text) for part in parts if isinstance(part, Reasoning))
        output = thought + sum(self._spent(part) for part in parts if not isinstance(part, Reasoning))
        if request.dialect.name != "anthropic":
            return Usage(size - hit.read, hit.read, 0, output, thought), 0
        usage = Usage(size - hit.read - hit.written, hit.read, hit.written, max(1, output), thought)
        lasting = (prompt.sizes[length - 1] for length, ttl_s in prompt.marks.items() if ttl_s == HOUR_S)
        return usage, min(hit.written, max(0, max(lasting, default=0) - hit.read))

    def _spent(self, part: ReplyPart) -> int:
        if isinstance(part, ToolCall):
            return self.counter.text(part.name) + self.counter.text(part.arguments)
        return self.counter.text(part.text)

    def _cache(self, request: Request) -> PromptCache:
        name = request.dialect.name
        by_mark = CacheRules(minimum=self.minimum, lookback=LOOKBACK)
        by_itself = CacheRules(minimum=self.minimum, step=OPENAI_STEP)
        rules = by_mark if name == "anthropic" else by_itself
        return self._caches.setdefault((name, request.model), PromptCache(rules))

    def _prompt(self, request: Request, held: Sequence[Message]) -> Prompt:
        found = list(self._pieces(request, held))
        names, name = [], b""
        for piece in found:
            name = blake2b(name + piece.content, digest_size=16).digest()
            names.append(name)
        sizes = tuple(piece.size for piece in found)
        return Prompt(tuple(names), sizes, dict(_marks(request, found)))

    def _pieces(self, request: Request, held: Sequence[Message]) -> Iterator[_Piece]:
        size = 0
        for tool in request.tools:
            size += count_fixed(FixedFields(request.dialect, tools=(tool,)), self.counter).total.tokens
            yield _Piece(_tool_content(tool), size, breakpoint_in(tool.raw) if tool.raw is not None else ())
        for message in (*request.system, *after_compaction((*held, *request.messages))):
            sizes = self._sizes(message)
            for part, tokens in zip(message.parts, sizes, strict=False):  # a message may have no parts
                yield _Piece(_content(message, part), size + tokens, breakpoints_of(part))
            size += sizes[-1]

    def _sizes(self, message: Message) -> list[int]:
        """The tokens of a message up to the end of each of its parts; the last is the count of the whole
        message.
        """
        frame, whole = self.counter.message(Message(message.role, ())), self.counter.message(message)
        alone = (self.counter.message(Message(message.role, (part,))) - frame for part in message.parts[:-1])
        inner = [min(whole, size) for size in accumulate(alone, initial=frame)][1:]
        return [*inner, whole]


def _marks(request: Request, found: Sequence[_Piece]) -> Iterator[tuple[int, float | None]]:
    """The lengths at which the prompt is cached, each with its lifetime if that is not the default."""
    if request.dialect.name != "anthropic":
        yield from ((length, None) for length in range(1, len(found) + 1))
        return
    for length, piece in enumerate(found, 1):
        if piece.marks:
            yield length, HOUR_S if "1h" in piece.marks else None
    if found and request.fixed.automatic:
        yield len(found), HOUR_S if request.fixed.automatic == "1h" else None


def _content(message: Message, part: Part) -> bytes:
    (bare,) = Message(message.role, (part,)).bare().parts
    value: object = bare
    if isinstance(part, Opaque) and part.raw is not None:
        value = _unmarked(part.raw)
    return msgspec.json.encode((message.role, type(part).__name__, value))


def _tool_content(tool: Tool) -> bytes:
    return msgspec.json.encode(_unmarked(tool.raw) if tool.raw is not None else tool)


def _unmarked(raw: msgspec.Raw) -> object:
    value = msgspec.json.decode(raw)
    if isinstance(value, dict):
        value.pop("cache_control", None)
    return value


class ScriptedProvider:
    def __init__(self, script: Script, limits: ProviderLimits, biller: Biller) -> None:
        self.script, self.limits, self.biller = script, limits, biller
        self.compaction: Scripted | None = compactions.told
        """The answer to requests for a compaction; None for a provider without them."""
        self.requests: list[Received] = []
        self.answered: list[Answer] = []
        self._replies, self._calls = count(1), count(1)
        self._stored: dict[str, tuple[Message, ...]] = {}
        """Messages that a Responses request may continue, by the id of the response."""

    def receive(
        self, dialect: Dialect, path: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[ReadRequest, Refuse | None]:
        """Record a request; also returns the refusal, if the request is invalid before its messages are
        checked.
        """
        request, error = _read(body, dialect)
        lower = {name.lower(): value for name, value in headers.items()}
        received = Received(len(self.requests) + 1, path, dialect, lower, body, request)
        self.requests.append(received)
        wrong = refuse_unread(received, error, self.limits)
        if request is None or wrong is not None:
            return ReadRequest(received, Request(dialect, ())), wrong
        previous = _field(request, "previous_response_id")
        if not isinstance(previous, str):
            return ReadRequest(received, request), None
        unknown = Refuse(
            400, f"Previous response with id '{previous}' not found.", code="previous_response_not_found"
        )
        held = self._stored.get(previous)
        return ReadRequest(received, request, held or ()), unknown if held is None else None

    async def compact(self, asked: ReadRequest) -> Answer:
        """The refusal by the rules, otherwise a compaction with the text that the script gives for it, or its fault. If the
        next answer of the script is given as bytes, it answers a request that ends with a trigger.
        """
        is_triggered = not asked.received.path.endswith("/compact") and asked.request.dialect is RESPONSES
        if is_triggered and self.script.answers and isinstance(self.script.answers[0], Body):
            return await self.script.next(asked.received)
        if self.compaction is None:
            return _unknown_compaction(asked.received)
        wrong = refuse_compaction(asked, self.limits, self.count(asked))
        if wrong is not None:
            return wrong
        made = await answer_of(self.compaction, asked.received)
        if isinstance(made, Slow) and isinstance(made.answer, str | Say):
            return structs.replace(made, answer=self._compacted(asked, as_say(made.answer)))
        return self._compacted(asked, made) if isinstance(made, Say) else made

    def _compacted(self, asked: ReadRequest, made: Say) -> Body:
        usage, _ = self.biller.bill(asked.request, asked.held, made.parts)
        said = compactions.without_trigger(asked.messages)
        bound = [*compactions.chains(said)][-1:] or [b""]
        return compactions.answer(asked.received, asked.request, made, usage, bound[0])

    async def answer(self, asked: ReadRequest) -> Answer:
        """The refusal by the rules, otherwise the answer of the script."""
        wrong = refuse(asked, self.limits, self.count(asked))
        return wrong if wrong is not None else await self.script.next(asked.received)

    def check(self, asked: ReadRequest) -> Refuse | None:
        """The refusal of a conversation that is only to be counted."""
        return malformed(asked, self.limits) if self.limits.validates else None

    def count(self, asked: ReadRequest) -> int:
        return self.biller.size(asked.request, asked.held)

    def speak(self, asked: ReadRequest, say: Say) -> NumberedReply:
        """Give a reply its number, ids, signatures and usage."""
        request = asked.request
        parts = tuple(self._with_ids(part, asked) for part in say.parts)
        usage, written_1h = self.biller.bill(request, asked.held, parts)
        options, include = _field(request, "stream_options"), _field(request, "include")
        spoken = NumberedReply(
            next(self._replies),
            request.model,
            parts,
            say.finish,
            say.usage or usage,
            0 if say.usage else written_1h,
            isinstance(options, dict) and options.get("include_usage") is True,
            isinstance(include, list) and "reasoning.encrypted_content" in include,
        )
        if request.dialect is RESPONSES and _field(request, "store") is not False:
            self._store(asked, spoken)
        return spoken

    def _with_ids(self, part: ReplyPart, asked: ReadRequest) -> ReplyPart:
        if isinstance(part, ToolCall) and not part.id:
            prefix = "toolu" if asked.request.dialect is ANTHROPIC else "call"
            return structs.replace(part, id=f"{prefix}_{next(self._calls)}")
        if isinstance(part, Reasoning) and not part.signature and not part.sealed:
            bound_to = chains_of(asked.messages, self.limits)[-1]
            return structs.replace(part, signature=sign(part.text, bound_to))
        return part

    def _store(self, asked: ReadRequest, spoken: NumberedReply) -> None:
        """Store the items so far; `instructions` apply to one request only."""
        request = asked.request
        listed = request.system[len(request.system) - request.offset :]
        reply = decode_messages(msgspec.json.encode(PROTOCOLS["responses"].body(spoken)["output"]), RESPONSES)
        items = (*asked.held, *listed, *request.messages, *reply)
        self._stored[response_id(spoken.number)] = items


def _unknown_compaction(received: Received) -> Refuse:
    if received.path.endswith("/compact"):
        return Refuse(404, f"Invalid URL (POST {received.path})")
    return Refuse(400, "compaction: Extra inputs are not permitted")


def _read(body: bytes, dialect: Dialect) -> tuple[Request | None, WireError | None]:
    try:
        request = decode_request(body, dialect)
        msgspec.json.decode(body)
    except WireError as error:
        return None, error
    except msgspec.ValidationError:
        return None, WireError("a number is out of range")
    return request, None


def _field(request: Request, name: str) -> object:
    return msgspec.json.decode(request.fields.get(name, Raw(b"null")))


# The list of models, and token counts

_SINCE = "2025-06-15T15:06:40Z"


def list_models(name: str, limits: ProviderLimits, *, is_anthropic: bool) -> JsonObject:
    found = [model_entry(name, limits, is_anthropic=is_anthropic)]
    if is_anthropic:
        return {"data": found, "has_more": False, "first_id": name, "last_id": name}
    return {"object": "list", "data": found}


def model_entry(name: str, limits: ProviderLimits, *, is_anthropic: bool) -> JsonObject:
    if not is_anthropic:
        window = {"max_model_len": limits.window} if limits.window else {}
        return {"id": name, "object": "model", "created": CREATED, "owned_by": "refold", **window}
    sizes = {"max_input_tokens": limits.window, "max_tokens": limits.max_output}
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": _SINCE,
        "lifecycle": "active",
        **sizes,
    }


def token_count(dialect: Dialect, size: int) -> JsonObject:
    kind = {} if dialect.name == "anthropic" else {"object": "response.input_tokens"}
    return {**kind, "input_tokens": size}


# Embeddings

SIZE = 64
"""Length of a vector: enough to separate the words of a test."""


class _Wanted(Struct, frozen=True):
    input: str | list[str]
    model: str = ""
    encoding_format: str = "float"

    @property
    def texts(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else self.input


def embed_texts(body: bytes) -> JsonObject | None:
    """The answer to a request for vectors; None if the request is invalid, or one of its texts is empty."""
    try:
        wanted = json.decode(body, type=_Wanted)
    except (MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not wanted.texts or not all(wanted.texts):
        return None
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _encode_vector(vector(text), wanted.encoding_format),
        }
        for index, text in enumerate(wanted.texts)
    ]
    read = sum(len(text.split()) for text in wanted.texts)
    usage = {"prompt_tokens": read, "total_tokens": read}
    return {"object": "list", "data": data, "model": wanted.model, "usage": usage}


def vector(text: str) -> list[float]:
    """A vector of length one."""
    counts = [0.0] * SIZE
    for word in text.casefold().split():
        counts[crc32(word.encode("utf-8", "surrogatepass")) % SIZE] += 1.0
    length = sqrt(sum(count * count for count in counts)) or 1.0
    return [count / length for count in counts]


def _encode_vector(numbers: list[float], encoding: str) -> object:
    return b64encode(array("f", numbers).tobytes()).decode() if encoding == "base64" else numbers
