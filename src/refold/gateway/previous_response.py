"""Requests that continue a response stored by the provider, instead of sending their history.

If the whole chain of responses passed through this gateway, it rebuilds the history from the store: earlier
messages, the reply, and the new input make an ordinary request. While nothing has to be changed the client's
own bytes are sent and the provider continues from its own copy; after a compaction the whole window is sent,
without `previous_response_id`.

If part of the chain is missing, the first answered request after the gap starts a branch of its own. The
response that it continued is the root of that branch: everything after the root is known. After a compaction
of such a branch the request continues its root.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import DecodeError, Raw, Struct, structs

from refold.engine.engine import Engine
from refold.gateway.exchange import Backlog
from refold.gateway.provider_state import ProviderState, StateId, StateRow, is_id
from refold.gateway.request import IncomingRequest
from refold.model.errors import WireError
from refold.ports.records import StoredMessage, read_recalled, read_reply, read_stored
from refold.text_work import run_text_work
from refold.wire.json_codec import FIELDS, NULL, read_list, word

PREVIOUS = "previous_response_id"


class _First(Struct):
    role: str = ""


_DECODE_FIRST = msgspec.json.Decoder(_First).decode


def previous_in(incoming: IncomingRequest) -> StateId | None:
    """The response that a request continues."""
    name = word(incoming.fields.get(PREVIOUS, NULL))
    return StateId("response", name) if name else None


async def whole(
    engine: Engine, state: ProviderState, backlog: Backlog, incoming: IncomingRequest
) -> IncomingRequest | None:
    """The request with its whole history; None if part of the history did not pass through here.

    If the previous exchange waits in the backlog, the request is joined to it and will be stored after it.
    """
    previous = previous_in(incoming)
    if previous is None or not incoming.goes_on:
        return None
    if joined := await _after_waiting(engine.owner, backlog, previous, incoming):
        return joined
    answered = await state.find(engine.owner, previous)
    if answered is None or not answered.conversation:
        return None
    head = await engine.store.head(engine.owner, answered.conversation, answered.branch)
    kept = await engine.store.reply_to(engine.owner, answered.call)
    reply = await run_text_work(len(kept), read_reply, kept)
    if head is None or reply is None:
        return None
    asked = await engine.store.messages(head, 0, answered.size)
    if len(asked) < answered.size or any(_is_unusable(one, incoming) for one in asked):
        return None  # part of it is not stored yet, or was stored without content
    size = sum(len(one.body) for one in asked) + sum(map(len, reply)) + len(incoming.body)

    def join() -> IncomingRequest:
        for one in asked:
            read_stored(one, head)  # a damaged one must not be taken for the client's
        return _joined(incoming, answered, [one.body for one in asked], reply, read_recalled(kept))

    return await run_text_work(size, join)


async def _after_waiting(
    owner: str, backlog: Backlog, previous: StateId, incoming: IncomingRequest
) -> IncomingRequest | None:
    """The request joined to an exchange in the backlog; None if the response is not from there."""
    waiting = backlog.exchange_with(owner, previous)
    if waiting is None or waiting.outcome is None or waiting.incoming.dialect is not incoming.dialect:
        return None
    asked, reply = waiting.incoming, waiting.outcome.reply
    answered = StateRow(conversation=asked.name, root=asked.root, held=asked.held)

    def join() -> IncomingRequest | None:
        messages = read_reply(reply)
        items = [*map(bytes, read_list(asked.array or b"[]"))]
        if messages is None:
            return None
        return _joined(incoming, answered, items, messages, read_recalled(reply))

    return await run_text_work(waiting.size + len(asked.array or b"") + len(incoming.body), join)


async def after_gap(state: ProviderState, owner: str, incoming: IncomingRequest) -> IncomingRequest | None:
    """The request as the start of a branch whose earlier history only the provider has; None if its first
    item is not a user message.
    """
    previous = previous_in(incoming)
    if previous is None or not incoming.goes_on or not is_id(previous.id):
        return None
    if not await run_text_work(len(incoming.body), _begins_with_user, incoming.array or b"[]"):
        return None
    known = await state.find(owner, previous)
    name = incoming.name or (known.conversation if known else "")
    return structs.replace(incoming, root=previous.id, name=name)


def _begins_with_user(array: bytes | memoryview) -> bool:
    try:
        return _DECODE_FIRST(read_list(array)[0]).role == "user"
    except (DecodeError, IndexError, WireError):
        return False


def _joined(
    incoming: IncomingRequest,
    answered: StateRow,
    asked: Sequence[bytes],
    reply: Sequence[Raw],
    recalled: Sequence[Raw],
) -> IncomingRequest:
    """A request with the earlier messages and the reply in front of it. The results of recalls that the gateway
    ran are not known to the provider yet, and join the client's own messages.
    """
    own = [*map(bytes, recalled), *map(bytes, read_list(incoming.array or b"[]"))]
    items = [*asked, *map(bytes, reply), *own]
    fields = {name: raw for name, raw in incoming.fields.items() if name != PREVIOUS}
    if answered.root:
        fields[PREVIOUS] = Raw(msgspec.json.encode(answered.root))
    fields[incoming.dialect.messages_key] = Raw(b"[" + b",".join(items) + b"]")
    name = incoming.name or (answered.conversation if answered.root else "")
    body = incoming.body
    if recalled or answered.last:
        changed = {incoming.dialect.messages_key: Raw(b"[" + b",".join(own) + b"]")}
        if answered.last:
            changed[PREVIOUS] = Raw(msgspec.json.encode(answered.last))
        body = msgspec.json.encode({**FIELDS.decode(body), **changed})
    whole = structs.replace(
        incoming, body=body, fields=fields, name=name, root=answered.root, held=answered.held
    )
    whole.array  # noqa: B018  # fill the cache here, because a long history is joined in a thread
    return whole


def _is_unusable(one: StoredMessage, incoming: IncomingRequest) -> bool:
    return one.format != incoming.dialect.name or not one.body
