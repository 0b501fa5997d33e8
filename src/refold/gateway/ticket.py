"""One call on its way: what came, what leaves, where to, and what was done about it.

One idea: whatever goes wrong with Refold itself, the call goes on as it came. A ticket without a conversation is a call that
only passes by, and it says so.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Literal, TypeAlias
from urllib.parse import quote

from msgspec import Raw, structs

from refold.core.budget import OutputRoom
from refold.gateway.additions import USAGE, with_fields
from refold.gateway.backlog import Backlog, Exchange
from refold.gateway.conversations import Made, TakenRequest
from refold.gateway.credentials import Credentials
from refold.gateway.errors import Shape
from refold.gateway.incoming import DIALECT_OF, Incoming
from refold.gateway.outgoing import body_of
from refold.gateway.output_size import lowered_fields, room_to_warn_of, told_output, told_room
from refold.gateway.provider_state import StateHandout, StateRow
from refold.gateway.targets import Target
from refold.gateway.watching import Watcher
from refold.model.dialect import DIALECTS, Dialect
from refold.model.errors import RecoverySpent, StoreError
from refold.text_work import run_text_work

Action: TypeAlias = Literal[
    "none", "reduce", "summarise", "recover", "off", "unparsed", "not-kept", "failed", "passed"
]
"""What was done: nothing, something made shorter, something summarised, made smaller after a refusal; or why nothing could be:
the client does not want it, it cannot be read, it could not be kept, something of ours failed, it is no conversation."""

_PLAIN = " !#$&'()*+,-./:;<=>?@[]^_`{|}~"
"""What a header holds as it is, besides letters and digits; anything else is written as in a URL."""
_IS_PLAIN = re.compile(f"[0-9A-Za-z{re.escape(_PLAIN)}]*").fullmatch

KEEP_S = 2.0
"""How long the end of an answer waits for its reply to be stored; then it leaves, and is stored later."""

_log = logging.getLogger("refold.gateway")


class Ticket:
    def __init__(
        self,
        *,
        call_id: str,
        method: str,
        path: str,
        credentials: Credentials,
        handout: StateHandout,
        body: bytes,
        targets: Sequence[Target],
        shape: Shape,
        backlog: Backlog,
    ) -> None:
        self.call_id, self.method, self.path = call_id, method, path
        self.credentials, self.body, self.targets = credentials, body, targets
        self.handout = handout
        self.shape = shape
        self.action: Action = "passed"
        self.incoming: Incoming | None = None
        self.hosted: TakenRequest | None = None
        self.made: Made | None = None
        self.is_kept = False
        self.exchange: Exchange | None = None
        """What to store of it; None where it is no conversation's."""
        self._backlog = backlog
        self._upstream = targets[0].name if targets else ""
        """Whom it was sent to last."""
        self._added: dict[str, Raw] = {}
        self._lowered: dict[str, Raw] = {}
        self._room: OutputRoom | None = None
        """What is left for messages, where the client is warned that it is little."""

    @property
    def dialect(self) -> Dialect | None:
        """How its answer reads, where it is an answer of a model."""
        name = DIALECT_OF.get(self.path)
        return DIALECTS[name] if name else None

    @property
    def is_stream(self) -> bool:
        """Did the client ask for an answer piece by piece?"""
        return self.incoming is not None and self.incoming.is_stream

    @property
    def can_shrink(self) -> bool:
        return self.hosted is not None

    @property
    def strips_usage(self) -> bool:
        """Was usage asked for that the client did not ask for?"""
        return USAGE in self._added

    async def host(self, incoming: Incoming, hosted: TakenRequest, added: dict[str, Raw]) -> None:
        """Send what the window shows instead of what came, and what the operator adds to it."""
        self.incoming, self.hosted, self._added = incoming, hosted, added
        self._room = room_to_warn_of(hosted)
        await self._made(hosted.made)

    async def _made(self, made: Made) -> None:
        incoming, hosted, added = self.incoming, self.hosted, self._added
        assert incoming is not None
        assert hosted is not None
        self.made, self._lowered = made, lowered_fields(incoming, made)
        talk, changed = hosted.live.conversation, {**added, **self._lowered}
        self.handout.answers = StateRow(
            "",
            talk.id,
            talk.branch,
            self.call_id,
            made.sent.size,
            root=incoming.root,
            held=incoming.held,
        )

        def write() -> bytes:
            return with_fields(body_of(incoming, hosted, made), changed)

        is_copy = made.is_as_sent and not changed
        size = 0 if is_copy else len(incoming.body) + len(hosted.line.history.array)
        self.body = await run_text_work(size, write)
        done = [receipt.decision for receipt in made.receipts]
        self.action = "summarise" if "summarise" in done else "reduce" if done else "none"
        if not hosted.is_stored:
            self.action = "not-kept"

    async def body_for(self, target: Target) -> bytes:
        """What to send to an upstream: to one that is asked in the place of the first, words instead of compactions that it did not
        make.
        """
        self._upstream = target.name
        if target is self.targets[0] or self.hosted is None or self.made is None or self.incoming is None:
            return self.body
        try:
            return await self._in_words(self.incoming, self.hosted, self.made, target)
        except Exception as error:  # noqa: BLE001  # the upstream may take it as it is, whatever failed here
            _log.warning("a call could not be put in words for another upstream: %s", type(error).__name__)
            return self.body

    async def _in_words(self, incoming: Incoming, hosted: TakenRequest, made: Made, target: Target) -> bytes:
        twins = await hosted.host.twins(hosted.live, hosted.compactions, target.name)
        if not twins and not made.sent.made:
            return self.body

        def write() -> tuple[bytes, Made]:
            told = hosted.live.in_words(made, twins)
            return with_fields(body_of(incoming, hosted, told), self._added), told

        body, told = await run_text_work(len(incoming.body) + len(hosted.line.history.array), write)
        self.made = structs.replace(made, note=told.note)
        self.action = "reduce" if self.action == "none" else self.action
        return body

    async def shrink(self, status: int, refusal: bytes) -> None:
        """Send less, after a provider's refusal.

        Raises:
            RecoverySpent: it was no refusal as too long, or nothing smaller can be sent.
        """
        incoming = self.incoming
        if self.hosted is None or incoming is None or self.hosted.live.is_earlier:
            raise RecoverySpent
        held = incoming.held if incoming.held or not incoming.root else None
        try:
            made = await self.hosted.live.shrink(status if status >= 400 else None, refusal, held=held)
            await self._made(made)
        except RecoverySpent:
            raise
        except Exception as error:  # noqa: BLE001  # the client gets the provider's own refusal, whatever failed here
            _log.warning("a call could not be made smaller: %s", type(error).__name__)
            raise RecoverySpent from None
        self.action = "recover"

    async def keep(self, watcher: Watcher, status: int = 200) -> None:
        """Keep what came of it, once, whoever goes away meanwhile. The client waits for that for `KEEP_S` at most, and where it
        fails the exchange is stored later: the client has its answer all the same.
        """
        if self.is_kept or self.exchange is None:
            return
        self.is_kept = True
        if status < 400:
            await self._backlog.within(self._keep(self.exchange, watcher), KEEP_S)
        elif (self.hosted is None or not self.hosted.is_stored) and not self.exchange.is_after_gap:
            await self._store_later(self.exchange)

    async def _keep(self, exchange: Exchange, watcher: Watcher) -> None:
        outcome = await run_text_work(watcher.size, watcher.outcome)
        answered = structs.replace(exchange, outcome=outcome, upstream=self._upstream)
        is_hosted = self.hosted is not None and self.hosted.is_stored
        if not is_hosted and not exchange.is_after_gap:
            await self._store_later(answered)
            return
        try:
            if self.hosted is None or self.made is None:
                await answered.store()
                return
            live, held = self.hosted.live, exchange.incoming.held
            await live.answered(self.made, outcome, self.call_id, held=held)
            await exchange.host.note_compactions(live, self.made, outcome, self._upstream)
        except StoreError as error:
            _log.warning("a reply is stored later: %s", error.located)
            await self._store_later(answered)
        except Exception as error:  # noqa: BLE001  # the answer is the client's, whatever failed here
            _log.warning("a reply could not be kept: %s", type(error).__name__)

    async def _store_later(self, exchange: Exchange) -> None:
        mark = self.hosted.line.hashes[-1:] if self.hosted else await exchange.host.marks(exchange.incoming)
        self._backlog.add(structs.replace(exchange, mark=b"".join(mark)))

    def told(self, upstream: str) -> list[tuple[bytes, bytes]]:
        """What the client is told about it, in headers."""
        said = {
            "x-refold-action": self.action,
            "x-refold-receipt": self.call_id,
            "x-refold-upstream": upstream,
        }
        if self.hosted is not None and self.made is not None:
            talk = self.hosted.live.conversation
            said["x-refold-conversation"] = talk.id
            said["x-refold-branch"] = talk.branch
            said["x-refold-tokens"] = f"{self.made.sent.whole}->{self.made.sent.tokens}"
            if waiting := self._backlog.waiting_for(self.hosted.line.hashes):
                said["x-refold-not-kept"] = str(waiting)
        if self.incoming is not None and self.made is not None and self._lowered:
            said["x-refold-output"] = told_output(self.incoming, self.made)
        if self._room is not None:
            said["x-refold-room"] = told_room(self._room)
        if self._added:
            said["x-refold-added"] = ", ".join(self._added)
        return [(name.encode(), _header(value)) for name, value in said.items()]


def _header(value: str) -> bytes:
    return (value if _IS_PLAIN(value) else quote(value, safe=_PLAIN)).encode()
