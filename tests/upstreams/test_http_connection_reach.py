from __future__ import annotations

import socket

import aiohttp
import pytest

from refold.model.errors import UpstreamUnavailable
from refold.upstreams import Provider, Timeouts, open_upstream
from refold.upstreams.http import network_failure
from tests.upstreams.questions import QUESTION, Waits


def closed_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


async def test_a_host_that_nobody_serves_is_tried_again_and_then_unavailable():
    waits = Waits()
    provider = Provider("mine", "m", base_url=f"http://127.0.0.1:{closed_port()}/v1")
    async with open_upstream(provider, pace=waits.pace()) as upstream:
        with pytest.raises(UpstreamUnavailable, match="cannot be reached") as caught:
            await upstream.ask(QUESTION)
    assert len(waits.waited) == 2
    assert "127.0.0.1" not in str(caught.value)


async def test_a_connection_that_takes_too_long_is_tried_again():
    """A server that accepts nothing: its queue is full, so connecting takes for ever."""
    waits = Waits()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        with socket.create_connection(server.getsockname()), Full(server):
            provider = Provider("mine", "m", base_url=url, timeouts=Timeouts(connect_s=0.05))
            async with open_upstream(provider, pace=waits.pace()) as upstream:
                with pytest.raises(UpstreamUnavailable, match=r"could not be reached within 0\.05 s"):
                    await upstream.ask(QUESTION)
    assert len(waits.waited) == 2


class Full:
    """Connections that wait in the queue of a server until it is full."""

    def __init__(self, server: socket.socket) -> None:
        self.waiting = [socket.socket() for _ in range(4)]
        for one in self.waiting:
            one.setblocking(False)
            one.connect_ex(server.getsockname())

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        for one in self.waiting:
            one.close()


@pytest.mark.parametrize(
    "error, words, again",
    [
        (aiohttp.ServerDisconnectedError(), "broke the connection", False),
        (aiohttp.ClientPayloadError("canary"), "broke the connection", False),
        (ConnectionResetError(), "broke the connection", False),
        (TimeoutError(), "sent nothing for 3 s", False),
        (aiohttp.InvalidURL("canary"), "broke the connection", False),
    ],
)
def test_what_the_network_says_becomes_one_error(error, words, again):
    found = network_failure(Provider("acme", "m"), error, 3)
    assert (str(found.error).splitlines()[0], found.again) == (f"acme {words}", again)


def test_time_for_the_whole_question():
    found = network_failure(Provider("acme", "m"), TimeoutError(), None)
    assert str(found.error).startswith("acme did not finish within 600 s")
