"""What the scorer knows of a message: its text, its size, its literals, and whether it has been seen before.

One idea: a replay looks at nearly the same messages before every reply, so what is known of one is found once. Messages that
say the same have the same number, and everything after this module compares numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from refold.model.message import Message, Reasoning, Text
from refold.model.tokens import TokenCounter
from refold.replay.counting import said
from refold.replay.literals import Kind, literals, rare_words
from refold.replay.rules import rules


class Facts:
    """One message, looked at once."""

    def __init__(self, message: Message, number: int, tokens: int) -> None:
        self.message, self.number, self.tokens = message, number, tokens
        self.role = message.role

    @cached_property
    def said(self) -> str:
        return said(self.message)

    @cached_property
    def text(self) -> str:
        """All that can be read in the message: what was said, then the name and the arguments of every call."""
        calls = (f"\n{call.name}\n{spelled_out(call.arguments)}" for call in self.message.calls)
        return self.said + "".join(calls)

    @cached_property
    def literals(self) -> dict[str, Kind]:
        return literals(self.text)

    @cached_property
    def rare_words(self) -> frozenset[str]:
        return rare_words(self.text)

    @cached_property
    def rules(self) -> tuple[str, ...]:
        return rules(self.said) if self.role == "user" else ()

    @cached_property
    def call_ids(self) -> tuple[str, ...]:
        return tuple(call.id for call in self.message.calls)

    @cached_property
    def result_ids(self) -> tuple[str, ...]:
        return tuple(result.call_id for result in self.message.results)

    @cached_property
    def has_bad_arguments(self) -> bool:
        return any(call.kind == "function" and not _is_json(call.arguments) for call in self.message.calls)

    @cached_property
    def is_empty(self) -> bool:
        """Is there nothing in a message of people or models but white space?"""
        parts = self.message.parts
        return (
            self.role in ("user", "assistant")
            and all(type(part) is Text for part in parts)
            and not self.said.strip()
        )

    @cached_property
    def is_only_thought(self) -> bool:
        """Is there nothing in it but reasoning and white space?"""
        thoughts = [part for part in self.message.parts if type(part) is not Text]
        return bool(thoughts) and all(type(part) is Reasoning for part in thoughts) and not self.said.strip()


class FactBook:
    """The facts of all messages of one replay. It keeps every message it has seen, so that no identity is used twice."""

    def __init__(self, counter: TokenCounter, known: Iterable[Facts] = ()) -> None:
        self.counter = counter
        self._by_identity: dict[int, tuple[Message, Facts]] = {}
        self._by_content: dict[object, Facts] = {}
        for facts in known:
            self._by_identity[id(facts.message)] = facts.message, facts
            self._by_content.setdefault(_content(facts.message, facts.tokens), facts)

    def of(self, message: Message) -> Facts:
        seen = self._by_identity.get(id(message))
        if seen is None:
            seen = self._by_identity[id(message)] = message, self._look_at(message)
        return seen[1]

    def all_of(self, messages: Iterable[Message]) -> tuple[Facts, ...]:
        return tuple(map(self.of, messages))

    def _look_at(self, message: Message) -> Facts:
        tokens = self.counter.message(message)
        content = _content(message, tokens)
        known = self._by_content.get(content)
        if known is None:
            known = self._by_content[content] = Facts(message, len(self._by_content), tokens)
        return known


def _content(message: Message, tokens: int) -> object:
    """What makes two messages the same to a cache; the tokens stand for reasoning and media."""
    calls = tuple((call.id, call.name, call.arguments) for call in message.calls)
    results = tuple(result.call_id for result in message.results)
    return message.role, results, said(message), calls, tokens


class Context:
    """What a candidate would send, with what is the same as in the context before it."""

    def __init__(self, facts: Sequence[Facts], before: Context | None) -> None:
        self.facts = facts
        self.tokens = sum(known.tokens for known in facts)
        self.shared = _shared(facts, before.facts) if before else 0
        self.is_rewritten = before is not None and self.shared < len(before.facts)

    @cached_property
    def numbers(self) -> frozenset[int]:
        return frozenset(known.number for known in self.facts)

    @cached_property
    def text(self) -> str:
        return "\n".join(known.text for known in self.facts)

    @cached_property
    def system_size(self) -> int:
        """How many messages of the system stand at its head."""
        later = (at for at, known in enumerate(self.facts) if known.role not in ("system", "developer"))
        return next(later, len(self.facts))


def spelled_out(arguments: str) -> str:
    """The arguments of a call as a reader sees them: keys and values, one on a line."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return "\n".join(_leaves(value))


def argument_names(arguments: str) -> list[str]:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return []
    return list(value) if isinstance(value, dict) else []


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value if isinstance(value, str) else json.dumps(value)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _shared(new: Sequence[Facts], old: Sequence[Facts]) -> int:
    """How many messages both begin with."""
    at = 0
    for one, other in zip(new, old, strict=False):
        if one.number != other.number:
            break
        at += 1
    return at
