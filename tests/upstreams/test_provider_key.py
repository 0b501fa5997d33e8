from __future__ import annotations

import asyncio
import shlex
import sys

import pytest

from refold.model.errors import ConfigError, UpstreamError
from refold.testing import ScriptedUpstream
from refold.upstreams import Provider
from refold.upstreams import provider as key
from refold.upstreams.provider import ProviderKey
from tests.upstreams.questions import QUESTION, asking

COUNT = """
import pathlib, sys
file = pathlib.Path(sys.argv[1])
runs = int(file.read_text()) + 1 if file.exists() else 1
file.write_text(str(runs))
print(f"  key-{runs}  ")
"""


@pytest.fixture
def command(tmp_path):
    """A command that prints another key every time, and how often it ran."""
    file = tmp_path / "runs"
    script = tmp_path / "key.py"
    script.write_text(COUNT)
    return shlex.join([sys.executable, str(script), str(file)]), lambda: int(file.read_text())


def provider(**settings) -> Provider:
    return Provider("mine", "m", base_url="http://h", auth="bearer", **settings)


async def test_no_key_where_none_is_wanted():
    assert await ProviderKey(provider(), {}).headers() == {}


async def test_a_key_from_the_environment():
    assert await ProviderKey(provider(key_env="K"), {"K": " sk-1\n"}).headers() == {
        "authorization": "Bearer sk-1"
    }


@pytest.mark.parametrize("value", [None, "", "  ", "two words", "caf\u00e9", "line\nbreak"])
def test_a_variable_without_a_key_is_found_at_once_and_not_shown(value):
    environ = {} if value is None else {"K": value}
    with pytest.raises(ConfigError, match="the variable K holds") as caught:
        ProviderKey(provider(key_env="K"), environ)
    assert caught.value.hint
    assert not value or not value.strip() or value not in str(caught.value)


async def test_a_command_is_run_once_for_all(command):
    line, runs = command
    mine = ProviderKey(provider(key_command=line), {})
    found = await asyncio.gather(*(mine.headers() for _ in range(5)))
    assert (found, runs()) == ([{"authorization": "Bearer key-1"}] * 5, 1)


async def test_a_refused_key_is_renewed_once_however_many_were_refused(command):
    line, runs = command
    mine = ProviderKey(provider(key_command=line), {})
    refused = await mine.headers()
    assert await asyncio.gather(*(mine.renew(refused) for _ in range(5))) == [True] * 5
    assert (await mine.headers(), runs()) == ({"authorization": "Bearer key-2"}, 2)


async def test_a_command_that_prints_the_same_key_again_has_no_other():
    mine = ProviderKey(provider(key_command="echo key"), {})
    assert not await mine.renew(await mine.headers())
    assert not await ProviderKey(provider(key_env="K"), {"K": "k"}).renew({})


@pytest.mark.parametrize(
    "line, words",
    [
        ("false", "ended with code 1"),
        ("/nowhere/canary", "cannot be run"),
        ("'canary", "cannot be run"),
        ("echo", "holds no key"),
        ("echo canary canary", "no valid key"),
        ("sleep 9", "did not finish within"),
    ],
)
async def test_a_command_that_gives_no_key_says_why_and_shows_nothing(line, words, monkeypatch):
    monkeypatch.setattr(key, "COMMAND_TIMEOUT_S", 0.1)
    with pytest.raises(ConfigError, match=words) as caught:
        await ProviderKey(provider(key_command=line), {}).headers()
    assert "canary" not in str(caught.value)


async def test_an_upstream_renews_a_key_that_has_run_out(command):
    line, runs = command
    async with ScriptedUpstream("Yes.", key="key-2") as server, asking(server, key_command=line) as upstream:
        assert (await upstream.ask(QUESTION)).messages[-1].text == "Yes."
    assert ([request.key for request in server.requests], runs()) == (["key-1", "key-2"], 2)


async def test_an_upstream_asks_for_another_key_once_only(command):
    line, runs = command
    async with ScriptedUpstream(key="other") as server, asking(server, key_command=line) as upstream:
        with pytest.raises(UpstreamError, match="status 401") as caught:
            await upstream.ask(QUESTION)
    assert ([request.key for request in server.requests], runs()) == (["key-1", "key-2"], 2)
    assert "key_command" in caught.value.hint
