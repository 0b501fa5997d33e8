"""`GET /v1/models` for several upstreams: their lists, merged in the operator's order.

An upstream that does not answer is left out. With a single upstream its list is passed on unchanged, without
this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp
import msgspec
from msgspec import Raw, Struct

from refold.gateway.upstreams import Credentials, Forwarder, Target, request_headers
from refold.model.errors import ConfigError, UpstreamUnavailable

PATIENCE_S = 10.0
"""Time for the list of one upstream; a slower one is left out."""
MOST_BYTES = 8 * 1024 * 1024
"""Size of one list: the longest known has a few thousand models."""
PATH = "/v1/models"


class _Model(Struct):
    id: str


class _List(Struct):
    data: list[Raw]


_LIST, _MODEL = msgspec.json.Decoder(_List), msgspec.json.Decoder(_Model)


async def list_models(
    forwarder: Forwarder, targets: Sequence[Target], credentials: Credentials, *, is_anthropic: bool
) -> bytes:
    """The body of the answer, in the format of the client.

    Raises:
        UpstreamUnavailable: no upstream gave a list.
    """
    found = await asyncio.gather(*(_models(forwarder, one, credentials) for one in targets))
    known: dict[str, Raw] = {}
    for models in found:
        for raw in models or ():
            known.setdefault(_MODEL.decode(raw).id, raw)
    if not any(models is not None for models in found):
        raise UpstreamUnavailable("no upstream lists its models", hint="check their urls and keys")
    listed: dict[str, object] = {"data": list(known.values())}
    if is_anthropic:
        ids = list(known)
        listed |= {
            "has_more": False,
            "first_id": ids[0] if ids else None,
            "last_id": ids[-1] if ids else None,
        }
    else:
        listed = {"object": "list", **listed}
    return msgspec.json.encode(listed)


async def _models(forwarder: Forwarder, target: Target, credentials: Credentials) -> list[Raw] | None:
    if target.is_small:
        return [Raw(b'{"id":"local","object":"model","created":0,"owned_by":"refold"}')]
    try:
        sent = await request_headers(target, credentials)
        async with asyncio.timeout(PATIENCE_S):
            response = await forwarder.send(target, "GET", target.address(PATH), sent, None)
            async with response:
                body = await response.content.read(MOST_BYTES) if response.status == 200 else b""
        listed = _LIST.decode(body)
        return [raw for raw in listed.data if _MODEL.decode(raw).id]
    except (ConfigError, aiohttp.ClientError, OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
