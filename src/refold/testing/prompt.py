"""Bills a call: counts its tokens, and simulates the provider's prompt cache.

A prompt is a sequence of pieces (tools, system blocks, blocks of messages), and the cache depends on the
marks in it. OpenAI marks every piece automatically; Anthropic uses the client's `cache_control`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate

import msgspec
from msgspec import Struct

from refold.core.measure import count_fixed
from refold.core.prompt_cache import LOOKBACK, CacheRules, Prompt, PromptCache
from refold.core.verify import breakpoint_in, breakpoints_of
from refold.model.message import Message, Opaque, Part, Reasoning, ToolCall, after_compaction
from refold.model.tokens import Source, TokenCounter, Usage
from refold.model.window import Fixed, Tool, Ttl
from refold.testing.script import ReplyPart
from refold.wire import Request

HOUR_S = 3_600.0
OPENAI_STEP = 128


class ScaledCounter:
    """Counts a multiple of another counter's tokens, as a provider whose tokenizer is not the one we assume."""

    def __init__(self, counter: TokenCounter, factor: float) -> None:
        self.counter, self.factor = counter, factor

    @property
    def source(self) -> Source:
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
            size += count_fixed(Fixed(request.dialect, tools=(tool,)), self.counter).total.tokens
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
