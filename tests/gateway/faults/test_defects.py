"""The tests are tested: known defects are put in one at a time, and each has to be found."""

from __future__ import annotations

import pytest

from refold.core import assemble
from refold.gateway import auth, upstreams
from refold.gateway.app import Gateway
from refold.gateway.exchange import Ticket
from refold.gateway.response_tap import Watcher, WholeEvents
from refold.gateway.server import OriginForm
from refold.testing import ScriptedUpstream
from tests.gateway.conftest import served
from tests.gateway.faults import test_injection, test_requests
from tests.gateway.faults.test_connect_failures import run_guesses
from tests.gateway.faults.test_owners import judge, run_owners
from tests.gateway.faults.test_streams import run_cuts, run_splits

pytestmark = pytest.mark.slow


async def broken_streams(_: object) -> None:
    _, found = await run_cuts(60)
    assert found == []


async def split_streams(_: object) -> None:
    _, found = await run_splits(100)
    assert found == []


async def three_owners(folder: object) -> None:
    judge(*await run_owners(f"sqlite:///{folder}/talks.db", 300))


async def elsewhere(_: object) -> None:
    assert await run_guesses(300) == set()


async def odd_requests(_: object) -> None:
    async with ScriptedUpstream(otherwise="Fine.") as provider, served(provider) as gate:
        await test_requests.test_what_is_odd_and_proper_is_one_request(gate)
        provider.requests.clear()
        await test_requests.test_what_is_meant_for_somebody_else_goes_nowhere(gate)


async def injected(_: object) -> None:
    await test_injection.test_a_summary_ends_where_we_say_and_nowhere_before()


def half_events_go_on(patch):
    patch.setattr(WholeEvents, "let_through", lambda self, chunk: chunk)


def an_end_is_an_end(patch):
    patch.setattr(Watcher, "is_open", property(lambda self: False))


def nothing_is_kept(patch):
    async def keep(*_: object) -> None:
        return None

    patch.setattr(Ticket, "keep", keep)


def text_is_read_chunk_by_chunk(patch):
    feed = Watcher.feed
    patch.setattr(Watcher, "feed", lambda self, chunk: feed(self, chunk.decode("utf-8", "replace").encode()))


def all_are_one_owner(patch):
    host = Gateway.host
    patch.setattr(Gateway, "host", lambda self, _: host(self, "anna"))


def redirects_are_followed(patch):
    request = upstreams.aiohttp.ClientSession.request
    follow = lambda self, *args, **more: request(self, *args, **{**more, "allow_redirects": True})  # noqa: E731
    patch.setattr(upstreams.aiohttp.ClientSession, "request", follow)


def trailers_are_headers(patch):
    patch.setattr(OriginForm, "on_header", OriginForm.__mro__[1].on_header)


def paths_may_lead_up(patch):
    patch.setattr(auth, "_has_dot_segments", lambda _: False)


def our_end_stands_in_a_summary(patch):
    patch.setattr(assemble, "_without", lambda _, text: text)


@pytest.mark.parametrize(
    "defect, campaign",
    [
        (half_events_go_on, broken_streams),
        (an_end_is_an_end, broken_streams),
        (nothing_is_kept, broken_streams),
        (text_is_read_chunk_by_chunk, split_streams),
        (all_are_one_owner, three_owners),
        (redirects_are_followed, elsewhere),
        (trailers_are_headers, odd_requests),
        (paths_may_lead_up, odd_requests),
        (our_end_stands_in_a_summary, injected),
    ],
    ids=lambda one: one.__name__,
)
async def test_a_known_defect_is_found(defect, campaign, monkeypatch, tmp_path):
    defect(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        await campaign(tmp_path)
