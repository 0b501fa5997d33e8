"""The spellings of a model's name.

One idea: the same model is `gpt-4o`, `openai/gpt-4o`, `gpt-4o-2024-08-06` or `openai/gpt-4o:free`, depending on who is
asked. `spellings` lists what a name may also be called, from the most literal to the barest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_DATE = re.compile(r"[-@](?:20\d{6}|20\d\d-\d\d-\d\d|\d{2}-20\d\d|latest)$")
_BEDROCK = re.compile(r"^(?:(?:us|eu|apac|au|jp|ca|global)\.)?([a-z0-9]+)\.(?=[a-z])")
"""A region and a vendor in front of a dot, as in `us.anthropic.claude-sonnet-4`; `gpt-4.1` has no letter after its dot."""
_REVISION = re.compile(r"-v\d+(?::\d+)?$")

LONGEST = 256
"""Characters. No model's name is half as long; a name comes from a client, and one of many slashes has as many spellings."""


def spellings(name: str) -> tuple[str, ...]:
    """The name itself, then the same without case, variant, route, vendor, revision and date, each at most once.

    A name that is longer than `LONGEST` has no other spelling.
    """
    name = name.strip()
    return tuple(dict.fromkeys(_ever_barer(name))) if len(name) <= LONGEST else (name,)


def _ever_barer(name: str) -> Iterator[str]:
    yield name
    name = name.lower()
    yield name
    name = name.removeprefix("models/")
    yield name
    while "/" in name:
        yield _without_variant(name)
        name = name.partition("/")[2]
        yield name
    name = _BEDROCK.sub("", name)
    yield name
    for strip in (_without_variant, _without_revision, _without_date):
        name = strip(name)
        yield name


def _without_variant(name: str) -> str:
    """`:free` and `:thinking` are ways to serve a model. A digit after the colon is Bedrock's revision or Ollama's size."""
    head, colon, variant = name.rpartition(":")
    return head if colon and variant[:1].isalpha() else name


def _without_revision(name: str) -> str:
    return _REVISION.sub("", name)


def _without_date(name: str) -> str:
    return _DATE.sub("", name)
