"""Server-sent events of a streamed reply.

The protocol modules return a list of events; the server decides when and whether to send each, so that a
stream can be cut at any event.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import Struct

Json: TypeAlias = dict[str, object]

PIECE = 24
"""Characters of text in one event: a few words, so that a sentence takes several."""


class ReplyEvent(Struct, frozen=True):
    data: Json | str
    name: str = ""

    def encode(self) -> bytes:
        data = self.data.encode() if isinstance(self.data, str) else msgspec.json.encode(self.data)
        return (b"event: %s\n" % self.name.encode() if self.name else b"") + b"data: %s\n\n" % data


GARBAGE = ReplyEvent('{"id": "cut in the midd')


def pieces(text: str) -> list[str]:
    return [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
