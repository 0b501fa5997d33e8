"""Servers and the official clients that talk to them: in this loop, or from a plain thread.

The SDKs are imported by the fixtures: pytest reads this file at the start of every run, and they take seconds to import.
"""

from __future__ import annotations

import pytest

from refold.testing import ScriptedUpstream


@pytest.fixture
async def server():
    async with ScriptedUpstream() as running:
        yield running


@pytest.fixture
def threaded():
    with ScriptedUpstream() as running:
        yield running


@pytest.fixture
async def gpt(server):
    import openai

    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture
async def claude(server):
    import anthropic

    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture
def sync_gpt(threaded):
    import openai

    with openai.OpenAI(base_url=f"{threaded.url}/v1", api_key="k", max_retries=0) as client:
        yield client


@pytest.fixture
def sync_claude(threaded):
    import anthropic

    with anthropic.Anthropic(base_url=threaded.url, api_key="k", max_retries=0) as client:
        yield client
