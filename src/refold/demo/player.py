"""Plays the session of the demo through a gateway that it starts, and measures every call.

The client knows nothing of Refold. The tokens are those of the header `x-refold-tokens`, the reasons come from the gateway's store,
and the scripted provider counts for itself and refuses a request that is too long.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import aiohttp
import msgspec
from msgspec import Struct

from refold.demo.session import DETAIL, MODEL, QUESTION, RULE, SYSTEM, TOOLS, Step, session
from refold.engine.engine import Engine
from refold.model.errors import ConfigError
from refold.testing import Received, Refuse, Say, ScriptedUpstream, call, say

# The client of the demo: OpenAI's own, or a plain HTTP client if that is not installed. Neither
# depends on Refold. Both take the fields of a Chat Completions request and return the message of
# the reply, its headers and, if there is no message, the provider's error.


class Answered(Struct, frozen=True):
    message: dict[str, Any] | None
    headers: Mapping[str, str]
    problem: str = ""


Ask: TypeAlias = Callable[[dict[str, Any]], Awaitable[Answered]]


@asynccontextmanager
async def client_for(address: str) -> AsyncIterator[tuple[str, Ask]]:
    """The name of the client, and its function for a request."""
    if find_spec("openai"):
        async with _openai(address) as ask:
            yield "the OpenAI SDK", ask
    else:
        async with _plain(address) as ask:
            yield "a plain HTTP client", ask


@asynccontextmanager
async def _openai(address: str) -> AsyncIterator[Ask]:
    from openai import APIStatusError, AsyncOpenAI

    async with AsyncOpenAI(base_url=f"{address}/v1", api_key="demo", max_retries=0) as client:

        async def ask(fields: dict[str, Any]) -> Answered:
            try:
                raw = await client.chat.completions.with_raw_response.create(**fields)
            except APIStatusError as error:
                return Answered(
                    None, error.response.headers, f"{error.status_code} {error.code or error.type}"
                )
            message = raw.parse().choices[0].message
            return Answered(message.model_dump(exclude_none=True), raw.headers)

        yield ask


@asynccontextmanager
async def _plain(address: str) -> AsyncIterator[Ask]:
    async with aiohttp.ClientSession() as session:

        async def ask(fields: dict[str, Any]) -> Answered:
            body = {name: value for name, value in fields.items() if name != "extra_headers"}
            headers = {
                "authorization": "Bearer demo",
                "content-type": "application/json",
                **fields["extra_headers"],
            }
            async with session.post(
                f"{address}/v1/chat/completions", data=msgspec.json.encode(body), headers=headers
            ) as got:
                found = msgspec.json.decode(await got.read())
            told = {name.lower(): value for name, value in got.headers.items()}
            if got.status != 200:
                return Answered(
                    None, told, f"{got.status} {found['error']['code'] or found['error']['type']}"
                )
            message = found["choices"][0]["message"]
            return Answered({name: one for name, one in message.items() if one is not None}, told)

        yield ask


NAME = "demo"
STEP = "x-demo-step"
"""The header that tells the scripted model its next answer: the messages it sees depend on the window."""
WINDOW = 8_000
"""Small, so that a session of a minute fills it several times."""
REPLY = 800
"""Tokens that the agent asks for: its steps are short."""
STORE = "demo.db"
CHANGES = frozenset(("reduce", "summarise"))


class DemoCall(Struct, frozen=True):
    """One call of the agent, as it went."""

    number: int
    asks: str
    """The user's message before the call, if it is new."""
    does: str
    messages: int
    whole: int
    """Tokens of the whole history, and of the part that was sent."""
    sent: int
    action: str
    reason: str = ""


class Recalled(Struct, frozen=True):
    """The question at the end of the demo, and the passage that recall finds."""

    question: str
    handle: str
    text: str
    is_shown: bool
    """Was it still in the last window?"""


class Played(Struct, frozen=True):
    """The whole session."""

    window: int
    client: str
    calls: tuple[DemoCall, ...]
    refused: int
    """How often the provider refused a request."""
    without: str
    """The provider's error for the first request that it would refuse without Refold."""
    first_refused: int | None
    """Which call that is."""
    rule: str
    keeps_rule: bool
    """True if the last window has the user's rule of the first turn, word for word."""
    recalled: Recalled | None

    @property
    def whole(self) -> int:
        return sum(one.whole for one in self.calls)

    @property
    def sent(self) -> int:
        return sum(one.sent for one in self.calls)

    @property
    def compactions(self) -> int:
        return sum(one.action == "summarise" for one in self.calls)


class DemoOptions(Struct, frozen=True):
    """The window, the preset and the pause between calls."""

    window: int = WINDOW
    preset: str = ""
    pause_s: float = 0.0


async def play(on_call: Callable[[DemoCall], Any], options: DemoOptions) -> Played:
    """Play the session; `on_call` is told of every call once it is answered.

    Raises:
        ConfigError: the gateway did not start.
    """
    steps = [step for turn in session() for step in turn.steps]
    model = partial(_spoken, steps)
    with TemporaryDirectory(prefix="refold-demo-") as place:
        async with (
            ScriptedUpstream(otherwise=model, window=options.window, model=MODEL) as upstream,
            _gateway(Path(place), f"{upstream.url}/v1", options) as address,
            client_for(address) as (client, ask),
        ):
            player = _Player(ask, address, on_call, options.pause_s)
            await player.run()
            refused, last = (
                sum(isinstance(one, Refuse) for one in upstream.answered),
                upstream.requests[-1].body,
            )
            number, without = await player.without_refold(options.window)
        recalled = await _recalled(f"sqlite:///{place}/{STORE}", last)
    kept = RULE.encode() in last
    return Played(options.window, client, tuple(player.calls), refused, without, number, RULE, kept, recalled)


class _Player:
    """The agent's own loop: it keeps its history, and sends all of it every time."""

    def __init__(self, ask: Ask, address: str, on_call: Callable[[DemoCall], Any], pause_s: float) -> None:
        self._ask, self._address, self._on_call, self._pause_s = ask, address, on_call, pause_s
        self.history: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
        self.calls: list[DemoCall] = []

    def _request(self, messages: int, headers: Mapping[str, str]) -> dict[str, Any]:
        history = self.history[:messages]
        fields = {"model": MODEL, "messages": history, "tools": TOOLS, "max_tokens": REPLY}
        return {**fields, "extra_headers": headers}

    async def without_refold(self, window: int) -> tuple[int | None, str]:
        """The first call that the provider refuses without Refold, and its error."""
        for one in self.calls:
            if one.whole > 0.8 * window:  # the prompt and the tools come on top
                answered = await self._ask(self._request(one.messages, {"x-refold": "off"}))
                if answered.message is None:
                    return one.number, answered.problem
        return None, ""

    async def run(self) -> None:
        for turn in session():
            self.history.append({"role": "user", "content": turn.asks})
            asks = turn.asks
            for step in turn.steps:
                if not await self._take(step, asks):
                    return
                asks = ""
                await asyncio.sleep(self._pause_s)

    async def _take(self, step: Step, asks: str) -> bool:
        """Send the request of the next step and perform its tool calls. Returns False if there was no answer."""
        headers = {"x-refold-conversation": NAME, STEP: str(len(self.calls))}
        answered = await self._ask(self._request(len(self.history), headers))
        found = await self._noted(answered, step, asks)
        self.calls.append(found)
        self._on_call(found)
        if answered.message is None:
            return False
        self.history.append(answered.message)
        for wanted in answered.message.get("tool_calls", ()):
            self.history.append({"role": "tool", "tool_call_id": wanted["id"], "content": step.result})
        return True

    async def _noted(self, answered: Answered, step: Step, asks: str) -> DemoCall:
        headers = answered.headers
        whole, _, sent = headers.get("x-refold-tokens", "0->0").partition("->")
        action = "refused" if answered.message is None else headers.get("x-refold-changed", "")
        reason = await _reason(self._address) if action in CHANGES else answered.problem
        number, size = len(self.calls) + 1, len(self.history)
        return DemoCall(number, asks, step.does, size, int(whole), int(sent), action, reason)


async def _spoken(steps: list[Step], received: Received) -> Say:
    number = int(received.headers.get(STEP, "0"))
    step = steps[number]
    calls = [call(step.tool, step.arguments, id=f"call_{number}")] if step.tool else []
    return say(*([step.says] if step.says else []), *calls)


async def _reason(address: str) -> str:
    """The reason of the gateway's last change."""
    url = f"{address}/refold/conversations/{NAME}/compactions"
    async with aiohttp.ClientSession() as session, session.get(url) as got:
        rows = msgspec.json.decode(await got.read()) if got.status == 200 else []
    return max(rows, key=lambda row: row["number"])["reason"] if rows else ""


async def _recalled(store: str, last: bytes) -> Recalled | None:
    """The passage about the detail that recall finds in the stored conversation."""
    async with Engine(store) as engine:
        passages = str(await (await engine.conversation(NAME)).recall(QUESTION))
    lines, wanted = passages.splitlines(), DETAIL.split()
    at = next((at for at, line in enumerate(lines) if line.split()[-3:] == wanted), None)
    if at is None:
        return None
    handle = next(line.split()[0] for line in reversed(lines[: at + 1]) if line.startswith("#m"))
    return Recalled(QUESTION, handle, " ".join(wanted), wanted[0].encode() in last)


@asynccontextmanager
async def _gateway(place: Path, url: str, options: DemoOptions) -> AsyncIterator[str]:
    """Start the gateway as `refold serve` does, without any settings of this machine."""
    (place / "none.toml").touch()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    flags = [
        "--port",
        "0",
        "--upstream",
        f"demo={url}",
        "--store",
        f"sqlite:///{STORE}",
        "--no-summariser-enabled",
        "--compaction-allow-system-summary",
    ]
    flags += ["--window", str(options.window), *(["--preset", options.preset] if options.preset else [])]
    with (place / "gateway.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "refold", "serve", *flags,
            stdout=asyncio.subprocess.PIPE, stderr=log, cwd=place, start_new_session=True,
            env={**environ, "REFOLD_CONFIG": str(place / "none.toml")},
        )  # fmt: skip
    try:
        yield await _address(process, place / "gateway.log")
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _address(process: asyncio.subprocess.Process, log: Path) -> str:
    assert process.stdout
    address = (await process.stdout.readline()).decode().strip()
    if not address:
        raise _complaint(log)
    return address


def _complaint(log: Path) -> ConfigError:
    what, _, hint = log.read_text(encoding="utf-8").strip().partition("\nhint: ")
    return ConfigError(f"the gateway did not start: {what.removeprefix('error: ')}", hint=hint)
