"""Calls of programs that send their whole history every time, as conversations of an engine.

Frameworks and SDKs keep the messages themselves and send all of them with every call. `HistoryTable` finds the branch that a history
continues, adds the messages that are new to it, and returns a `PreparedCall`: the request to send instead. A history that differs from
the branch at some message goes on in a fork. Every adapter of this package is a translation of messages around these two classes.

The engine is one of `refold.sync`: its event loop has a thread of its own, so an adapter may be called from any loop and any thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, TypeAlias
from uuid import uuid4

import msgspec
from msgspec import Struct

from refold.core.identity import chain_of, extend_chain, start_chain
from refold.core.policy import Policy
from refold.engine.damage import read_run
from refold.engine.engine import MAX_ID
from refold.engine.recall import MAX_TOKENS
from refold.engine.settings import SystemPrompt
from refold.model.dialect import DIALECTS, Dialect
from refold.model.errors import ConfigError, InvalidWindow, NotAnOverflow, StoreError, WireError
from refold.model.message import Message
from refold.model.tokens import Usage
from refold.ports.models import Summariser
from refold.sync import Conversation, Engine, answer_recall
from refold.wire.sdk import as_json, read_message

_log = logging.getLogger("refold")

OPEN_BRANCHES = 256
"""Branches held open, the least recently used are closed first. A named one is read from the store when it is used again."""
Terms: TypeAlias = tuple[str, int | None, int | None, int]
"""The model of a call, its output in tokens, the window of the model, and the number of the table's settings."""
NO_TERMS: Terms = ("", None, None, 0)
UNNAMED = "call-"
"""The beginning of the names of conversations that were given none."""
PASSED_ON = (WireError, StoreError, InvalidWindow)
"""Failures after which the caller's own request is sent unchanged: a defect here must not stop the program. A request that cannot be
made to fit is no such failure, since the provider would refuse it too."""


class SentMessage(Struct, frozen=True):
    """One message of a prepared call."""

    message: dict[str, Any]
    at: int | None = None
    """The number of the given message that it is, or that it was made of; None for a summary."""
    is_same: bool = False
    """Whether it is sent as it was given."""


class PreparedCall:
    """One call to a model: the request to send, and where its usage or its refusal is told.

    `fields` are the fields of the request in the format of the table. `conversation` is None if the request could not be taken;
    `fields` are the caller's own then, and everything that is recorded is dropped.
    """

    def __init__(
        self, fields: dict[str, Any], given: Sequence[object], key: str, conversation: Conversation | None
    ) -> None:
        self.fields, self.conversation = fields, conversation
        self._given, self._key = given, key
        self._sent = conversation.state.sent if conversation else None
        self._pieces: list[SentMessage] | None = None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the request, those with the system prompt included."""
        found: list[dict[str, Any]] = self.fields[self._key]
        return found

    @property
    def max_output(self) -> int | None:
        """The most tokens of output that fit beside the request; None if that is not known."""
        return self.conversation.max_output if self.conversation else None

    def record(self, usage: object) -> None:
        """Record the usage that the provider reported: see `Conversation.record`. A report that cannot be read is
        logged, not raised: the reply is there. One that comes after the next call of the conversation was prepared is dropped: its
        figures would be taken for those of the other window.
        """
        if self.conversation is None or usage is None:
            return
        if self.conversation.state.sent is not self._sent:
            _log.info("the usage of a call was not recorded: it came after the next call")
            return
        try:
            self.conversation.record(usage)
        except (WireError, StoreError) as error:
            _log.warning("the usage of a call was not recorded: %s", error.message)

    def recover(self, error: Exception) -> bool:
        """Make the request smaller after the provider refused it; False if the refusal is not about its length.

        Raises:
            RecoverySpent: no smaller request is possible.
        """
        if self.conversation is None:
            return False
        try:
            fields = self.conversation.recover(error)
        except NotAnOverflow:
            return False
        except Exception as raised:
            if raised is error:
                return False
            raise
        self.fields, self._pieces = {**self.fields, **fields}, None
        self._sent = self.conversation.state.sent
        return True

    def pieces(self) -> list[SentMessage]:
        """Return the messages of the request after the system prompt, each with the given message behind it."""
        if self._pieces is None:
            self._pieces = self._match()
        return self._pieces

    @property
    def messages_after_prompt(self) -> list[dict[str, Any]]:
        """The messages of the request without the system prompt."""
        return [one for one in self.messages if one.get("role") not in ("system", "developer")]

    def _match(self) -> list[SentMessage]:
        sent = self.messages_after_prompt
        spelled = [_spelled(one) for one in self._given]
        owners = {name: at for at, one in enumerate(self._given) for name in _call_names(one)}
        last, found = len(spelled), list[SentMessage]()
        for one in reversed(sent):
            text = _spelled(one)
            at = next((at for at in range(last - 1, -1, -1) if spelled[at] == text), None)
            if at is not None:
                last = at
                found.append(SentMessage(one, at, is_same=True))
            else:
                found.append(
                    SentMessage(
                        one, next((owners[name] for name in _call_names(one) if name in owners), None)
                    )
                )
        return found[::-1]

    @property
    def is_unchanged(self) -> bool:
        """Whether all given messages are sent as they are."""
        return [one.at for one in self.pieces() if one.is_same] == [*range(len(self._given))]


class _OpenBranch(Struct):
    """A branch in use: its conversation, and for every prefix hash the number of messages behind it."""

    conversation: Conversation
    sizes: dict[bytes, int]
    terms: Terms
    system: bytes
    tools: bytes
    owner: str = ""
    """Whose calls it was found for; empty where all belong to the program."""
    size: int = 0
    """Messages whose hashes are known."""
    end: bytes = start_chain(b"")
    """The hash of all originals."""
    replied: bytes = b""
    """The hash up to the first reply; empty before there is one."""

    @property
    def name(self) -> str:
        return self.conversation.id

    def note(self, chain: Sequence[bytes], messages: Sequence[Message], first: int) -> None:
        """Note the hashes of messages whose first has the number `first`, also as they are after the originals: a program that
        went on with a short form may send the originals again.
        """
        for at, (mark, message) in enumerate(zip(chain, messages, strict=True), first + 1):
            self.end = extend_chain(self.end, message, b"")
            self.sizes[mark] = self.sizes[self.end] = self.size = at
            if not self.replied and message.role == "assistant":
                self.replied = mark


class HistoryTable:
    """Matches whole histories with the conversations of an engine.

    A call with a name belongs to the conversation of that name, also after a restart of the program. A call without one is recognised
    by its messages while the program runs: it continues a conversation if it repeats it up to a reply. `summariser_for` returns the
    summariser of the conversations with a model. `policy` is that of the conversations; by default the engine's.
    """

    def __init__(
        self,
        engine: Engine | None = None,
        *,
        format: str = "chat",  # noqa: A002  # the word users know
        summariser_for: Callable[[str], Summariser] | None = None,
        policy: Policy | None = None,
    ) -> None:
        if engine is not None and not isinstance(engine, Engine):
            raise ConfigError(
                "this is no engine of `refold.sync`",
                hint="give refold.sync.Engine(...): it may be used from async programs too",
            )
        self.is_own, self._summariser_for = engine is None, summariser_for
        self.engine = engine or Engine("memory:")
        self.format, self._dialect = format, _dialect(format)
        self._branches: OrderedDict[tuple[str, str], _OpenBranch] = OrderedDict()
        self._lock = threading.RLock()
        self.policy, self._settings = policy, 1

    def change_settings(self, policy: Policy | None) -> None:
        """Use another policy, and the summarisers that `summariser_for` returns from now on, with the next call of every
        conversation. A call that was prepared goes on with its own.
        """
        with self._lock:
            self.policy = policy
            self._settings += 1

    def prepare(
        self,
        messages: Sequence[object],
        *,
        name: str = "",
        owner: str = "",
        system: SystemPrompt = None,
        tools: Sequence[object] = (),
        model: str = "",
        max_output: int | None = None,
        window: int | None = None,
    ) -> PreparedCall:
        """Take a history, and return the request to send.

        Args:
            messages: the whole history in the format of the table, without its system prompt.
            name: the name of the conversation; by default it is recognised by its messages.
            owner: whose conversations a call without a name may continue; their names begin with it.
            system: the system prompt: see `Conversation.set_system`.
            tools: the tool definitions.
            model: the model that is asked; by default the engine's.
            max_output: the most tokens of output that are asked for; by default the engine's setting.
            window: the window of the model in tokens, where the framework knows it; by default the engine's setting.

        Raises:
            DoesNotFit: nothing more can be left out, and the request is still too large.
            ConfigError: the name or a setting cannot work.
        """
        key = self._dialect.messages_key
        given = [*messages]
        try:
            read = [read_message(one, self._dialect) for one in given]
            with self._lock:
                terms = (model, max_output, window, self._settings)
                branch = self._take(read, name, owner, system, tools, terms)
            fields = branch.conversation.context()
        except PASSED_ON as error:
            _log.warning("a request was passed on unchanged: %s", error.message)
            prompt = [*system] if isinstance(system, list | tuple) and key == "messages" else []
            return PreparedCall({key: [*prompt, *given]}, given, key, None)
        return PreparedCall(fields, given, key, branch.conversation)

    async def aprepare(
        self,
        messages: Sequence[object],
        *,
        name: str = "",
        owner: str = "",
        system: SystemPrompt = None,
        tools: Sequence[object] = (),
        model: str = "",
        max_output: int | None = None,
        window: int | None = None,
    ) -> PreparedCall:
        """Do the same as `prepare` without blocking the event loop."""
        return await asyncio.to_thread(
            self.prepare,
            messages,
            name=name,
            owner=owner,
            system=system,
            tools=tools,
            model=model,
            max_output=max_output,
            window=window,
        )

    def note_short_form(self, messages: Sequence[object], *, name: str, branch: str, size: int) -> None:
        """Let a compacted history stand for the first `size` messages of a branch: a program that keeps it instead of its own
        goes on with it.
        """
        chain = [*chain_of(read_message(one, self._dialect) for one in messages)]
        with self._lock:
            found = self._branches.get((name, branch)) or self._open(name, branch, NO_TERMS)
            if chain and chain[-1] not in found.sizes and size <= found.conversation.size:
                found.sizes[chain[-1]] = size
                mark = chain[-1]  # the branch may have gone on, as after a restart
                for at, message in enumerate(self._stored(found.conversation, size), size + 1):
                    mark = extend_chain(mark, message, b"")
                    found.sizes[mark] = at
            self._branches[name, branch] = found

    def conversation(self, messages: Sequence[object] = (), *, name: str = "") -> Conversation | None:
        """Return the conversation of a name, or the one that a history continues; None if there is none. Conversations of an
        `owner` are found by their names only: a history may be another one's too.
        """
        if name:
            return self.engine.conversation(name, format=self.format)
        chain = [*chain_of(read_message(one, self._dialect) for one in messages)]
        with self._lock:
            found = self._recognised(chain, [one for one in self._branches.values() if not one.owner])
        return found.conversation if found else None

    def recall(
        self,
        arguments: str | Mapping[str, object],
        messages: Sequence[object] = (),
        *,
        name: str = "",
        max_tokens: int = MAX_TOKENS,
    ) -> str:
        """Return the answer to a model's call of the recall tool, in the conversation of a name or of a history."""
        talk = self.conversation(messages, name=name)
        if talk is None:
            return "error: nothing was said in this conversation yet"
        return answer_recall(talk, arguments, max_tokens=max_tokens)

    def close(self) -> None:
        """Close the engine, if it was made here."""
        with self._lock:
            self._branches.clear()
        if self.is_own:
            self.engine.close()

    def _take(
        self,
        messages: Sequence[Message],
        name: str,
        owner: str,
        system: SystemPrompt,
        tools: Sequence[object],
        terms: Terms,
    ) -> _OpenBranch:
        """Add the new messages of a history to its branch."""
        chain = [*chain_of(messages)]
        unnamed = named_by_client(owner, UNNAMED)
        found = self._find(name, unnamed, chain, terms)
        found = found or self._open(f"{unnamed}{uuid4().hex[:12]}", "", terms)
        found.conversation.load()
        if found.conversation.size != found.size:  # another table or program has written to it
            found = self._reopened(found, terms)
        known, size = _common(found, chain)
        if size != found.conversation.size:
            branch = self.engine.fork(found.name, size, branch=found.conversation.branch)
            found = self._open(found.name, branch, terms)
        if found.terms != terms:
            found = self._reopened(found, terms)
        if (spelled := _spelled(system)) != found.system:
            found.conversation.set_system(system)
            found.system = spelled
        if (spelled := _spelled([*tools])) != found.tools:
            found.conversation.set_tools(tools)
            found.tools = spelled
        if known < len(messages):
            found.conversation.add(*messages[known:])
            found.note(chain[known:], messages[known:], size)
        found.owner = owner
        place = found.name, found.conversation.branch
        self._branches[place] = found
        self._branches.move_to_end(place)
        if found.conversation.size != size + len(messages) - known:
            del self._branches[place]  # another program writes to it: its messages are read again next time
        while len(self._branches) > OPEN_BRANCHES:
            self._branches.popitem(last=False)
        return found

    def _find(self, name: str, unnamed: str, chain: Sequence[bytes], terms: Terms) -> _OpenBranch | None:
        """Return the branch with the longest common prefix."""
        if name:
            branches = [one for (owner, _), one in self._branches.items() if owner == name]
            branches = branches or [self._open(name, "", terms)]
            return max(branches, key=lambda one: _common(one, chain)[0])
        among = [one for one in self._branches.values() if one.name.startswith(unnamed)]
        return self._recognised(chain, among)

    def _recognised(self, chain: Sequence[bytes], among: Sequence[_OpenBranch]) -> _OpenBranch | None:
        """Return the branch that a history repeats up to a reply, or that ends where it goes on. Equal openings alone do not
        make one conversation.
        """
        best: tuple[int, _OpenBranch | None] = (0, None)
        for one in among:
            known, size = _common(one, chain)
            is_replied = bool(one.replied) and one.replied in chain[:known]
            if known > best[0] and (is_replied or size == one.conversation.size):
                best = known, one
        return best[1]

    def _reopened(self, branch: _OpenBranch, terms: Terms) -> _OpenBranch:
        """Open a branch again, with the short forms, which are not stored."""
        opened = self._open(branch.name, branch.conversation.branch, terms)
        opened.sizes = branch.sizes | opened.sizes
        return opened

    def _open(self, name: str, branch: str, terms: Terms) -> _OpenBranch:
        """Open a branch, and read the hashes of its messages."""
        model, max_output, window, _ = terms
        summariser = self._summariser_for(model) if self._summariser_for and model else None
        talk = self.engine.conversation(
            name,
            branch=branch,
            model=model,
            max_output=max_output,
            window=window,
            summariser=summariser,
            format=self.format,
            policy=self.policy,
        )
        opened = _OpenBranch(talk, {}, terms, _spelled(None), _spelled([]))
        if talk.size:
            messages = self._stored(talk, 0)
            opened.note([*chain_of(messages)], messages, 0)
            opened.size = talk.size  # also where some of them cannot be read
        return opened

    def _stored(self, talk: Conversation, first: int) -> list[Message]:
        """The messages of a branch from a number on, without those whose content is not stored. No history has the
        placeholder of a damaged message, so one that goes on there gets a branch of its own.
        """
        head = self.engine.store.head(self.engine.owner, talk.id, talk.branch)
        stored = read_run(self.engine.store.messages(head, first), head)
        return [one.message for one in stored if one is not None]


def named_by_client(owner: str, name: str) -> str:
    """Return the name of a client's conversation in a store of many clients: behind its owner. A name that no conversation can
    have is replaced by its hash, as in the gateway.
    """
    if len(owner) > MAX_ID // 2 or not owner.isprintable():
        owner = _hashed(owner)
    prefix = f"{owner}/" if owner else ""
    is_valid = len(prefix + name) <= MAX_ID and name.isprintable() and name.strip()
    return prefix + (name if is_valid else _hashed(name))


def _hashed(name: str) -> str:
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _dialect(name: str) -> Dialect:
    found = next((one for one in DIALECTS.values() if one.name == name), None)
    if found is None:
        raise ConfigError(f"there is no format {name[:40]!r}", hint="use chat, responses or anthropic")
    return found


def _common(branch: _OpenBranch, chain: Sequence[bytes]) -> tuple[int, int]:
    """Return how many messages of a history a branch has, and their number in the branch."""
    for known in range(len(chain), 0, -1):
        if (size := branch.sizes.get(chain[known - 1])) is not None:
            return known, size
    return 0, 0


def _spelled(value: object) -> bytes:
    """Return a value as JSON in one spelling, to compare it."""
    return msgspec.json.encode(msgspec.json.decode(as_json(value)), order="sorted")


def _call_names(message: object) -> list[tuple[str, str]]:
    """Return names of a message in the chat format by which it is found again after a change: the ids of its calls, or the id
    of the call that it answers.
    """
    if not isinstance(message, Mapping):
        return []
    if answered := message.get("tool_call_id"):
        return [("result", str(answered))]
    return [("call", str(call.get("id"))) for call in message.get("tool_calls") or ()]


def split_prompt(messages: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Split the system messages at the beginning of a history in the chat format from the others."""
    rest = next(
        (at for at, one in enumerate(messages) if _role(one) not in ("system", "developer")), len(messages)
    )
    return [*messages[:rest]], [*messages[rest:]]


def _role(message: object) -> object:
    return message.get("role") if isinstance(message, Mapping) else getattr(message, "role", None)


def as_usage(prompt: int, output: int, cached: int | None) -> Usage | None:
    """Return a report for `Conversation.record` from a framework's figures, where cached tokens are part of the prompt; None
    for an empty one.
    """
    return Usage(input=prompt - (cached or 0), cache_read=cached or 0, output=output) if prompt else None
