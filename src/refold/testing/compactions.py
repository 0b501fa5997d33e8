"""Compactions on request, as Anthropic and OpenAI make them.

Anthropic answers a request with the field `compaction` by one signed block, which later stands first in the
messages. OpenAI answers at `/v1/responses/compact` with the user's messages and one sealed item, and a request
whose last item is a `compaction_trigger` with the sealed item alone. A compaction that was changed, or that
stands where none may stand, is refused in the provider's words; OpenAI's also if another model made it.

A compaction that this module did not make has no signature that it could check, and is taken as it is.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterator, Sequence
from hashlib import blake2b

import msgspec
from msgspec import Raw

from refold.core.identity import extend_chain, start_chain
from refold.model.message import Message, Opaque, compaction_of, holds_compaction
from refold.model.tokens import Usage
from refold.testing.replies import CREATED, responses_usage
from refold.testing.script import EVENTS, Body, Finish, JsonObject, Received, Refuse, ReplyEvent, Say, say
from refold.wire import Request
from refold.wire.request import BETA, COMPACTION_BETA

_SEALED = "cmp1"
_TAKEN = frozenset(
    [
        "model",
        "input",
        "instructions",
        "previous_response_id",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "image",
        "tools",
        "parallel_tool_calls",
        "reasoning",
        "text",
        "service_tier",
    ]
)
"""The fields of a request at `/v1/responses/compact`."""
_STOPS: dict[Finish, str] = {
    "length": "max_tokens",
    "calls": "tool_use",
    "refusal": "refusal",
    "window": "model_context_window_exceeded",
}


def told(received: Received) -> Say:
    """A compaction that quotes the user's messages: what a scripted provider writes if its script says nothing."""
    quoted = (message.text[:120] for message in received.seen if message.role == "user" and message.text)
    return say("Summary of the conversation so far. The user said: " + " / ".join(quoted))


def is_wanted(received: Received) -> bool:
    """True if a request asks for a compaction instead of a reply."""
    request = received.request
    if request is None:
        return False
    if received.dialect.name == "anthropic":
        return not _is_null(request, "compaction")
    return received.path.endswith("/compact") or _is_triggered(request)


def _is_triggered(request: Request) -> bool:
    last = request.messages[-1].parts if request.messages else ()
    return any(isinstance(part, Opaque) and part.kind == "compaction_trigger" for part in last)


def without_trigger(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages that a compaction is made of."""
    return tuple(
        message
        for message in messages
        if not any(isinstance(part, Opaque) and part.kind == "compaction_trigger" for part in message.parts)
    )


# Refusals


def refuse_wish(received: Received, request: Request) -> Refuse | None:
    """The refusal of a request for a compaction, for its fields and headers."""
    if received.dialect.name == "responses":
        unknown = [name for name in request.fields if name not in _TAKEN]
        if received.path.endswith("/compact") and unknown:
            return Refuse(400, f"Unknown parameter: '{unknown[0]}'.", code="unknown_parameter")
        return None
    if COMPACTION_BETA not in received.headers.get(BETA, ""):
        return Refuse(400, f"compaction: requires anthropic-beta: {COMPACTION_BETA}")
    for name in ("context_management", "stop_sequences"):
        if not _is_null(request, name):
            return Refuse(400, f"{name}: cannot be combined with `compaction`")
    choice = msgspec.json.decode(request.fields.get("tool_choice", Raw(b"null")))
    if isinstance(choice, dict) and choice.get("type") in ("any", "tool"):
        return Refuse(400, "tool_choice: cannot be combined with `compaction`")
    if not any(message.parts for message in request.messages):
        return Refuse(400, "compaction_nothing_to_summarize: messages has nothing to summarize")
    return None


def refuse_items(received: Received, request: Request) -> Refuse | None:
    """The refusal of a compaction in the messages of a request."""
    if received.dialect.name == "responses":
        return next(_refuse_sealed(request), None)
    held = [
        (index, at, part)
        for index, message in enumerate(request.messages)
        for at, part in enumerate(message.parts)
        if compaction_of(part) is not None and _fields(part).get("signature")
    ]
    if not held:
        return None
    index, at, part = held[0]
    place = f"messages.{index}.content.{at}"
    if COMPACTION_BETA not in received.headers.get(BETA, ""):
        return Refuse(
            400, f"{place}: Input tag 'compaction' found using 'type' does not match any of the expected tags"
        )
    if len([part for message in request.messages for part in message.parts if compaction_of(part)]) > 1:
        return Refuse(400, "messages: at most one `compaction` block may be sent")
    if index or at:
        return Refuse(400, f"compaction_block_misplaced: {place} must come first in `messages`")
    fields = _fields(part)
    unknown = [name for name in fields if name not in ("type", "content", "signature", "cache_control")]
    if unknown:
        return Refuse(400, f"{place}.compaction.{unknown[0]}: Extra inputs are not permitted")
    signature, content = str(fields["signature"]), str(fields["content"])
    mark, _, bound = signature.rpartition(".")
    if not mark:
        return Refuse(400, f"compaction_signature_invalid: {place}")
    if mark != _mark(content, bound):
        return Refuse(400, f"compaction_content_mismatch: {place} was changed")
    return None


def _refuse_sealed(request: Request) -> Iterator[Refuse]:
    for message in request.messages:
        for part in message.parts:
            sealed = str(_fields(part).get("encrypted_content", "")) if compaction_of(part) else ""
            if not sealed.startswith(f"{_SEALED}."):
                continue
            _, content, bound, mark, *_ = [*sealed.split("."), "", "", ""]
            if mark != _mark(f"{request.model}\0{content}", bound):
                yield Refuse(
                    400,
                    f"The encrypted content {sealed[:4]}...{sealed[-4:]} could not be verified. Reason: Encrypted "
                    "content could not be decrypted or parsed.",
                    code="invalid_encrypted_content",
                )


def _fields(part: object) -> JsonObject:
    if not isinstance(part, Opaque) or part.raw is None:
        return {}
    found = msgspec.json.decode(part.raw)
    return found if isinstance(found, dict) else {}


def _is_null(request: Request, name: str) -> bool:
    return msgspec.json.decode(request.fields.get(name, Raw(b"null"))) is None


# Thinking stays bound to the messages that a compaction stands for


def chains(messages: Sequence[Message]) -> Iterator[bytes]:
    """The hash of the conversation after each message. After a compaction it is that of the messages it was made of."""
    chain = start_chain(b"")
    for message in messages:
        chain = _bound_by(message) or extend_chain(chain, message, b"")
        yield chain


def _bound_by(message: Message) -> bytes:
    """The hash in a compaction that this module made; empty for any other message."""
    if not holds_compaction(message):
        return b""
    fields = [_fields(part) for part in message.parts if compaction_of(part) is not None][-1]
    if signature := fields.get("signature"):
        return bytes.fromhex(str(signature).rpartition(".")[2])
    sealed = str(fields.get("encrypted_content", "")).split(".")
    return bytes.fromhex(sealed[2]) if sealed[0] == _SEALED and len(sealed) > 2 else b""


def _mark(content: str, bound: str) -> str:
    return blake2b(f"{content}\0{bound}".encode(), digest_size=12, person=b"refold-compact").hexdigest()


# Answers


def answer(received: Received, request: Request, made: Say, usage: Usage, bound: bytes) -> Body:
    """The response for a compaction with the text of a reply. `bound` is the hash of the conversation."""
    text = "".join(part.text for part in made.parts if hasattr(part, "text"))
    if received.dialect.name == "anthropic":
        return _anthropic(received, request, text, made, usage, bound)
    return _responses(received, request, text, usage, bound)


def _anthropic(
    received: Received, request: Request, text: str, made: Say, usage: Usage, bound: bytes
) -> Body:
    block = {"type": "compaction", "content": text, "signature": f"{_mark(text, bound.hex())}.{bound.hex()}"}
    is_whole = made.finish == "stop" and bool(text)
    step = {"type": "compaction", "input_tokens": usage.input, "output_tokens": usage.output}
    step |= {"cache_read_input_tokens": usage.cache_read, "cache_creation_input_tokens": usage.cache_write}
    reported = {"input_tokens": 0, "output_tokens": 0, "iterations": [step]}
    message: JsonObject = {
        "id": f"msg_{received.number}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [block] if is_whole else [],
        "stop_reason": "compaction" if is_whole else _STOPS.get(made.finish, "end_turn"),
        "stop_sequence": None,
        "usage": reported,
    }
    if not received.stream:
        return Body(200, msgspec.json.encode(message))
    events: list[JsonObject] = [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    ]
    if is_whole:
        events.append({"type": "content_block_start", "index": 0, "content_block": block})
        events.append({"type": "content_block_stop", "index": 0})
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events += [{"type": "message_delta", "delta": ended, "usage": reported}, {"type": "message_stop"}]
    return _streamed(events)


def _responses(received: Received, request: Request, text: str, usage: Usage, bound: bytes) -> Body:
    content = urlsafe_b64encode(text.encode()).decode().rstrip("=")
    mark = _mark(f"{request.model}\0{content}", bound.hex())
    sealed = f"{_SEALED}.{content}.{bound.hex()}.{mark}"
    item: JsonObject = {"id": f"cmp_{received.number}", "type": "compaction", "encrypted_content": sealed}
    reported = responses_usage(usage)
    if received.path.endswith("/compact"):
        whole = {
            "id": f"resp_{received.number}",
            "object": "response.compaction",
            "created_at": CREATED,
            "output": [*_kept(request), item],
            "usage": reported,
        }
        return Body(200, msgspec.json.encode(whole))
    response: JsonObject = {
        "id": f"resp_c{received.number}",
        "object": "response",
        "created_at": CREATED,
        "status": "completed",
        "model": request.model,
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": reported,
    }
    if not received.stream:
        return Body(200, msgspec.json.encode(response))
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    events: list[JsonObject] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response},
    ]
    return _streamed([{**event, "sequence_number": at} for at, event in enumerate(events)])


def _kept(request: Request) -> Iterator[JsonObject]:
    """The user's messages, which OpenAI returns before its item."""
    for number, message in enumerate(request.messages):
        if message.role == "user" and message.text:
            said = [{"type": "input_text", "text": message.text}]
            yield {
                "id": f"msg_u{number}",
                "type": "message",
                "role": "user",
                "status": "completed",
                "content": said,
            }


def _streamed(events: Sequence[JsonObject]) -> Body:
    return Body(200, b"".join(ReplyEvent(one, str(one["type"])).encode() for one in events), EVENTS)
