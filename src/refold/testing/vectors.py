"""What the scripted provider answers where it is asked for vectors.

One idea: texts that share words get vectors that point the same way, so what is nearest can be told beforehand: a vector counts the
words, each in a place that follows from its letters.
"""

from __future__ import annotations

from array import array
from base64 import b64encode
from math import sqrt
from zlib import crc32

from msgspec import MsgspecError, Struct, json

from refold.testing.events import Json

SIZE = 64
"""Numbers of a vector: enough to keep the words of a test apart."""


class _Wanted(Struct, frozen=True):
    input: str | list[str]
    model: str = ""
    encoding_format: str = "float"

    @property
    def texts(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else self.input


def answer(body: bytes) -> Json | None:
    """The answer to a request for vectors; None where it is none, or where one of the texts is empty."""
    try:
        wanted = json.decode(body, type=_Wanted)
    except (MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not wanted.texts or not all(wanted.texts):
        return None
    data = [
        {"object": "embedding", "index": index, "embedding": _spelt(vector(text), wanted.encoding_format)}
        for index, text in enumerate(wanted.texts)
    ]
    read = sum(len(text.split()) for text in wanted.texts)
    usage = {"prompt_tokens": read, "total_tokens": read}
    return {"object": "list", "data": data, "model": wanted.model, "usage": usage}


def vector(text: str) -> list[float]:
    """Of length one."""
    counts = [0.0] * SIZE
    for word in text.casefold().split():
        counts[crc32(word.encode("utf-8", "surrogatepass")) % SIZE] += 1.0
    length = sqrt(sum(count * count for count in counts)) or 1.0
    return [count / length for count in counts]


def _spelt(numbers: list[float], encoding: str) -> object:
    return b64encode(array("f", numbers).tobytes()).decode() if encoding == "base64" else numbers
