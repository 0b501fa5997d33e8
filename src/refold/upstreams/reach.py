"""When no answer comes: what the network says, as a typed error.

One idea: asking again helps where nothing was sent, and doubles the bill where the provider has the question and may be at
work. So a connection that cannot be made is tried again. One that breaks later is not, before the answer or in the middle of
it, and neither is an answer that takes too long, or a certificate that nobody trusts. Connections that are kept for the next
question are given up after some seconds, so that hardly any of them breaks because the provider closed it meanwhile.

Addresses, and what stands in them, stay out of the message.
"""

from __future__ import annotations

import aiohttp

from refold.model.errors import UpstreamUnavailable
from refold.upstreams.provider import Provider
from refold.upstreams.refusal import Setback


def lost(provider: Provider, error: Exception, waited_s: float | None) -> Setback:
    """What became of a request that got no answer, or only the beginning of one.

    `waited_s` is how long nothing came; None where the time for the whole question was over.
    """
    what, hint, again = _explain(provider, error, waited_s)
    return Setback(UpstreamUnavailable(f"{provider.name} {what}", hint=hint), again=again)


def _explain(provider: Provider, error: Exception, waited_s: float | None) -> tuple[str, str, bool]:
    match error:
        case aiohttp.ServerTimeoutError():
            connect_s = provider.timeouts.connect_s
            return f"could not be reached within {connect_s:g} s", "check base_url and proxy", True
        case TimeoutError():
            late = f"did not finish within {provider.timeouts.total_s:g} s"
            said = late if waited_s is None else f"sent nothing for {waited_s:g} s"
            return said, "raise its timeouts, or ask for less", False
        case aiohttp.ClientSSLError():
            return "shows a certificate that is not trusted", "name your own authority with ca_file", False
        case aiohttp.ClientHttpProxyError():
            return f"is behind a proxy that answered {error.status}", "check proxy", error.status >= 500
        case aiohttp.ClientConnectorError():
            return "cannot be reached", "check base_url and proxy", True
        case _:
            return "broke the connection", "it may have billed an answer all the same", False
