"""An embedder for tests: it knows a few subjects by their words, so what is near can be told beforehand."""

from __future__ import annotations

import re
from array import array
from math import hypot

SUBJECTS = (
    {"ship", "ships", "boat", "boats", "harbour", "port", "sail", "sailed", "ferry", "vessel"},
    {"refund", "money", "invoice", "paid", "payment", "reimbursed"},
    {"zebra", "zebras", "horse", "stripes", "savanna", "animal"},
)


class Subjects:
    """Vectors of one number for each of the subjects, and one for everything else."""

    name = "subjects"
    least = 0.2

    def __init__(self) -> None:
        self.read: list[str] = []
        """All that it was ever given."""

    async def embed(self, texts):
        self.read += texts
        return [vector_of(text) for text in texts]


def vector_of(text: str) -> bytes:
    words = re.findall(r"\w+", text.casefold())
    counts = [float(sum(word in subject for word in words)) for subject in SUBJECTS]
    numbers = [*counts, 0.01 * sum(len(word) > 3 for word in words)]
    length = hypot(*numbers)
    return array("f", (number / length for number in numbers)).tobytes() if length else b""


class Failing(Subjects):
    """One that can be broken."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = RuntimeError("canaryword")

    async def embed(self, texts):
        if self.error is not None:
            raise self.error
        return await super().embed(texts)
