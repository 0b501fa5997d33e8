"""The output size in a request: how a client states it, and how a lower one is written in its place.

A lower size is written into the fields that the client used itself, whatever they are called. A client that states no size gets no
field.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from msgspec import DecodeError, Raw
from msgspec.json import Decoder

from refold.core.budget import OutputRoom
from refold.gateway.conversations import Made, TakenRequest
from refold.gateway.incoming import Incoming, output_in
from refold.model.errors import BudgetError, DoesNotFit
from refold.tokens.catalog import window_for
from refold.wire.json_codec import FIELDS, NULL, is_object, word, write
from refold.wire.request import OUTPUT_FIELDS

_log = logging.getLogger("refold.gateway")
_NUMBER = Decoder(int)


def thinking_budget(fields: Mapping[str, Raw]) -> int:
    """Tokens that a request lets the model think with, as Anthropic's format says it; 0 where it says nothing of it,
    or that it shall not think.
    """
    raw = fields.get("thinking", NULL)
    if not is_object(raw):
        return 0
    try:
        thinking = FIELDS.decode(raw)
        is_off = word(thinking.get("type", NULL)) == "disabled"
        return 0 if is_off else max(0, _NUMBER.decode(thinking.get("budget_tokens", NULL)))
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return 0


def lowered_fields(incoming: Incoming, made: Made) -> dict[str, Raw]:
    """The fields of a request that ask for more output than its window allows, with the output that it does."""
    output = made.window.output if made.window else None
    if output is None:
        return {}
    stated = {name: output_in(incoming.fields, name) for name in OUTPUT_FIELDS}
    return {name: write(output) for name, count in stated.items() if count is not None and count > output}


def told_output(incoming: Incoming, made: Made) -> str:
    """How far the output was lowered, for a header."""
    output = made.window.output if made.window else None
    return f"{incoming.max_output}->{output}"


def room_to_warn_of(hosted: TakenRequest) -> OutputRoom | None:
    """What the first request of a branch leaves for messages, where that is little; the operator is warned of it, too."""
    room = hosted.live.conversation.state.tight_room if hosted.is_first else None
    if room is not None:
        _log.warning("%s", room.warning)
    return room


def told_room(room: OutputRoom) -> str:
    """The room for messages as a sum, for a header."""
    return f"window {room.window} - instructions {room.instructions} - output {room.asked} = {room.left} for messages"


def check_fits(hosted: TakenRequest, *, model: str, window: int | None) -> None:
    """Refuse a request that can neither be made to fit nor be sent as it came. A window that is only assumed refuses nothing, and
    neither do a limit of the settings below the model's window and a provider's own compaction, of which nobody else knows how much it
    takes: then the provider decides.

    Raises:
        DoesNotFit: its hint shows how the window is divided.
    """
    problem, state = hosted.made.problem, hosted.live.conversation.state
    if not isinstance(problem, DoesNotFit | BudgetError) or hosted.compactions:
        return
    room, messages = state.room, hosted.made.sent.whole
    fits = room.instructions + messages + room.asked <= room.window
    if fits or window_for(model, override=window).source == "default":
        return
    raise DoesNotFit(problem.message, hint=problem.hint)
