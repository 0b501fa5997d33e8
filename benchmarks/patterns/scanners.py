"""Every function that reads text from outside, as a function of one text.

Some read texts of a user, a model or a tool, some a request, a stream or a file, some a model's name or a
query. Together they cover the way of a message into a conversation, through a compaction, and out again.
"""

import asyncio
import json
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

import refold
from refold.cli.output import plain
from refold.core.digest.extract import digest, excerpt, find, mentions
from refold.core.digest.facts import Facts, index_message, read_terms, term_ids
from refold.core.digest.ledger import EMPTY, Ledger, entries, identifiers, merge, rules
from refold.core.digest.line_markers import is_role, quoted_lines
from refold.core.digest.pieces import contains_word, head, pieces, tail
from refold.core.digest.shorten import shorten
from refold.core.digest.typed_text import typed_passages
from refold.core.inventions import invented, known_of, without_inventions
from refold.core.measure import CharacterEstimate
from refold.core.overflow import classify
from refold.core.prompts import fenced, split_text
from refold.core.search import query as search_query
from refold.core.search.query import phrases
from refold.core.secrets import redact, redact_message, values_of
from refold.core.stages.parts import HANDLE_MARK, truncate
from refold.core.summary_checks import (
    DraftSource,
    SummaryDraft,
    accept,
    continues,
    is_call,
    is_echo,
    is_other_language,
    is_refusal,
    with_facts,
    without_thoughts,
)
from refold.core.summary_text import KeptText, headings_once, mechanical, says_something, sections
from refold.core.tool_use import call_key, error_lines, file_accesses, has_failed
from refold.engine.journal import title_of
from refold.gateway.marker import without_marker_lines
from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES
from refold.model.errors import DoesNotFit, RefoldError
from refold.model.message import Message, Text, ToolCall, ToolResult, assistant, user
from refold.replay import facts as literals
from refold.replay.facts import rules as replayed_rules
from refold.tokens import counter_for
from refold.tokens.catalog import spellings, window_for
from refold.wire import decode_error, decode_request, decode_transcript
from refold.wire.sse import SseParser

Scanner = Callable[[str], object]
COUNTER = CharacterEstimate()
WINDOW = 32_000
_CLAUDE, _GPT = counter_for("claude-sonnet-4-5"), counter_for("gpt-4o")


def ledger_of(messages: Iterable[Message]) -> Ledger:
    """The ledger of a conversation, as it is kept message by message."""
    found, calls = EMPTY, dict[str, ToolCall]()
    for message in messages:
        found = merge(found, entries(message, calls=calls))
        calls |= {call.id: call for call in message.calls}
    return found


def _result(text: str, name: str = "read_file") -> tuple[Message, Message]:
    # Half of a surrogate pair reaches the arguments of a call as an escape, which `json` writes.
    call = ToolCall("call_1", name, json.dumps({"path": text[:2_000]}))
    return Message("assistant", (call,)), Message("tool", (ToolResult("call_1", (Text(text),)),))


def _facts(text: str) -> Facts:
    return index_message(index_message(Facts(), user(text), 0), assistant(text), 1)


def _count(text: str) -> int:
    return len(text) // 4


def _digest(text: str) -> object:
    return digest(_facts(text), first=0, last=2, budget=2_000, window=WINDOW, counter=COUNTER)


def _shorten(text: str) -> object:
    return shorten(_facts(text), user(text), 0, limit=500, window=WINDOW, counter=COUNTER)


def _shorten_with_rules(text: str) -> object:
    """With every sentence that reads as a rule to be kept, and the index of another text, in which nothing is
    found.
    """
    facts = index_message(Facts(), user(text[::-1]), 0)
    must = tuple(rules(text))
    return shorten(facts, user(text), 0, limit=500, window=WINDOW, counter=COUNTER, must=must)


def _shorten_call(text: str) -> object:
    call = ToolCall(
        "call_1", "write", msgspec.json.encode({"path": "a", "text": text}, enc_hook=repr).decode()
    )
    message = Message("assistant", (call,))
    return shorten(index_message(Facts(), message, 0), message, 0, limit=200, window=WINDOW, counter=COUNTER)


def _accept(text: str) -> object:
    """A model's text, checked against its source."""
    half = len(text) // 2
    source = DraftSource(
        told=text[:half],
        tokens=10**6,
        previous=text[:100],
        spoken=text[:half],
        ledger=ledger_of([user(text)]),
    )
    return accept(SummaryDraft(text[half:]), source, most=4_000, count=_count, is_last_try=True)


def _request(text: str) -> object:
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": _valid(text)}]})
    return decode_request(body, CHAT)


def _raw_request(dialect) -> Scanner:
    def read(text: str) -> object:
        data = b'{"model": "m", "messages": [{"role": "user", "content": "' + text.encode("utf-8", "replace")
        with suppress(RefoldError):
            return decode_request(data, dialect)

    return read


def _raw_json(text: str) -> object:
    with suppress(RefoldError):
        return decode_request(text.encode("utf-8", "replace"), CHAT)


def _transcript(text: str) -> object:
    with suppress(RefoldError):
        return decode_transcript(text.encode("utf-8", "replace"))


def _transcript_lines(text: str) -> object:
    line = msgspec.json.encode({"role": "user", "content": _valid(text[:200])}) + b"\n"
    with suppress(RefoldError):
        return decode_transcript(line * (len(text) // len(line) + 1) + text.encode("utf-8", "replace"))


def _stream(text: str) -> object:
    parser, data = SseParser(), text.encode("utf-8", "replace")
    return [parser.feed(data[at : at + 1_000]) for at in range(0, len(data), 1_000)], parser.end()


def _valid(text: str) -> str:
    """The text without lone surrogates, which JSON cannot hold."""
    return text.encode("utf-8", "replace").decode()


def _conversation(text: str) -> object:
    """Through the public interface: the text by a user, by an assistant and by a tool, then a compaction and
    a search.
    """
    return asyncio.run(_compacted(_valid(text)))


async def _compacted(text: str) -> object:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "read_file", "arguments": '{"path": "a.py"}'},
    }
    talk = refold.Conversation(model="gpt-4o", window=20_000, max_output=1_000)
    await talk.add(
        {"role": "user", "content": text},
        {"role": "assistant", "content": text, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": text},
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Go on, please."},
    )
    await talk.compact()
    return await talk.context(), await talk.recall(text[:200])


def _parallel_calls(text: str) -> object:
    """A hundred characters in each of many calls of one message, and in each of their results: no cut makes
    them fit.
    """
    parts = [_valid(text[at : at + 100]) for at in range(0, len(text), 200)]
    calls = [
        {"type": "tool_use", "id": f"c{at}", "name": "read", "input": {"path": part}}
        for at, part in enumerate(parts)
    ]
    results = [
        {"type": "tool_result", "tool_use_id": f"c{at}", "content": part} for at, part in enumerate(parts)
    ]
    return asyncio.run(_asked(calls, results))


async def _asked(calls: list[dict], results: list[dict]) -> object:
    talk = refold.Conversation("gpt-4o", window=6_000, max_output=500, format="anthropic")
    await talk.add(
        {"role": "user", "content": "Read them all."},
        {"role": "assistant", "content": calls},
        {"role": "user", "content": results},
    )
    with suppress(DoesNotFit):
        return await talk.context()


def _new_files(text: str) -> object:
    """Ten new file names in each of many calls."""
    names = [f"*** Add File: {at}" for at in range(len(text) // 20)]
    calls = (ToolCall("c", "apply_patch", "\n".join(names[at : at + 10])) for at in range(0, len(names), 10))
    return ledger_of(Message("assistant", (call,)) for call in calls)


def _known_secrets(text: str) -> object:
    """The secrets of a message, searched for in the next one."""
    return redact_message(assistant(text), 1, known=values_of(user(text)))


def _model_name(text: str) -> object:
    return spellings(text), window_for(text)


SCANNERS: dict[str, Scanner] = {
    "redact": redact,
    "values_of": lambda text: values_of(user(text)),
    "known secrets": _known_secrets,
    "rules": lambda text: list(rules(text)),
    "typed text": lambda text: (typed_passages(user(text)), typed_passages(user(text), is_task=True)),
    "quoted lines": lambda text: (quoted_lines(text, begins_line=True), quoted_lines(text, "transcript", begins_line=True), is_role(text)),
    "ledger of a user": lambda text: entries(user(text)),
    "ledger of an assistant": lambda text: merge(entries(assistant(text)), entries(assistant(text[::-1]))),
    "ledger of a tool": lambda text: ledger_of(_result(text)),
    "ledger of files": lambda text: ledger_of(Message("assistant", (ToolCall("c", "write", msgspec.json.encode({"path": path}).decode()),)) for path in _valid(text).split(" ")[:20_000]),
    "titles": lambda text: title_of(user(text)),
    "pieces": lambda text: list(pieces(text)),
    "head and tail": lambda text: (head(text, 1_000), tail(text, 1_000), head(text, len(text) - 1), tail(text, len(text) - 1)),
    "terms": read_terms,
    "words": search_query.spaced,
    "query": lambda text: (phrases(text), search_query.fragments(phrases(text))),
    "index": lambda text: _facts(text).known,
    "digest": _digest,
    "shorten": _shorten,
    "shorten with rules": _shorten_with_rules,
    "shorten a call": lambda text: _shorten_call(_valid(text)),
    "find": lambda text: find(_facts(text), text[:500], budget=500, window=WINDOW, counter=COUNTER),
    "find by a long query": lambda text: (term_ids(_facts(text).log, text), mentions(user(text), text)),
    "excerpt": lambda text: excerpt(_facts(text), [(0, user(text))], text[:100], budget=500, counter=COUNTER),
    "truncate": lambda text: truncate(text, len(text) // 2, HANDLE_MARK, "#m1"),
    "parted": lambda text: split_text(text, 1_000, _count),
    "accept": _accept,
    "is_refusal": is_refusal,
    "without_thoughts": without_thoughts,
    "is_echo": lambda text: is_echo(text, text),
    "continues": lambda text: (continues(text), is_call(text)),
    "inventions": lambda text: invented(text, known_of(text[: len(text) // 2])),
    "without_inventions": lambda text: without_inventions(text, known_of("")),
    "languages": lambda text: is_other_language(text, (text,)),
    "headings": lambda text: (headings_once(text), says_something(text)),
    "with_facts": lambda text: with_facts(text, ledger_of([user(text), assistant(text)]), most=4_000, count=_count, said=text),
    "sections": lambda text: (sections(ledger_of([user(text)]), 10_000, beside=KeptText(text))),
    "mechanical": lambda text: mechanical([user(text)], ledger_of([user(text)]), previous=text),
    "says": lambda text: (contains_word(text, text[:20]), contains_word(text, text[: len(text) // 2] + "!")),
    "fenced": fenced,
    "tool kinds": lambda text: file_accesses(ToolCall("c", "apply_patch", text)),
    "command of a shell": lambda text: call_key(ToolCall("c", "bash", json.dumps({"command": text}))),
    "printed files": lambda text: file_accesses(ToolCall("c", "bash", json.dumps({"command": f"cat {text}"}))),
    "tool failures": lambda text: (error_lines(f"error\n{text}"), has_failed(ToolResult("c", (Text(text),)))),
    "ids of the user": lambda text: identifiers(text, by_user=True),
    "ids of a result": lambda text: identifiers(text, by_user=False),
    "count": _GPT.text,
    "estimate": _CLAUDE.text,
    "model name": _model_name,
    "overflow": lambda text: classify(400, text),
    "provider error": lambda text: decode_error(text.encode("utf-8", "replace")),
    "request": _request,
    "open chat request": _raw_request(CHAT),
    "open anthropic request": _raw_request(ANTHROPIC),
    "open responses request": _raw_request(RESPONSES),
    "raw json": _raw_json,
    "transcript": _transcript,
    "transcript lines": _transcript_lines,
    "stream": _stream,
    "terminal": lambda text: plain(text, len(text)),
    "markers": without_marker_lines,
    "literals": literals.literals,
    "rare words": literals.rare_words,
    "replayed rules": replayed_rules,
    "conversation": _conversation,
    "parallel calls": _parallel_calls,
    "new files": _new_files,
}  # fmt: skip
"""By name."""
