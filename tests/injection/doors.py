"""The doors of Refold through which a payload is put, and what is found wrong on the other side.

A conversation is: a task, a rule that the user types, the payload, turns that fill the window, a question. It is compacted, and what would be
sent next is looked at, and what a summariser was given. Reading here shares no code with what it checks.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, redirect_stderr, redirect_stdout
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

import refold
from refold.cli.main import run
from refold.engine.settings import ConversationSettings, open_summariser
from refold.testing import Received, ScriptedUpstream
from refold.upstreams import Provider, Retries
from tests.gateway.conftest import ServedModel, served
from tests.injection.payloads import Message, Payload, assistant, user

WINDOW = 8_000
OWN = "Never touch billing/tax.py."
"""The rule that the user types, before every payload but those that open a conversation."""
TASK = "Fix the invoice export in export.py."
RULES = "## Rules the user gave"
LONG = "The sea is wide and grey. " * 100
DENSE = "\N{CUNEIFORM SIGN A}" * 175
"""As many tokens as `LONG` in a fifteenth of the characters: what is digested is the same, and half of the time is saved."""
PATHS = {"chat": "/v1/chat/completions", "anthropic": "/v1/messages", "responses": "/v1/responses"}
_BREAKS = re.compile("\r\n|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")
_ALIKE = str.maketrans("ѕеаорсхуіјԁ＃﹟ʀ♯⌗", "seaopcxyijd##r##")
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0\u034f")


class Seen(Struct, frozen=True):
    """What a door let through."""

    lead: str
    """The summary, as it would be sent."""
    rest: str = ""
    """The messages after it."""
    transcripts: tuple[str, ...] = ()
    """What a model was given to sum up."""
    recalled: tuple[str, ...] = ()
    """What the recall tool answers: to a search, and to the handle of the payload."""


def conversation(payload: Payload, turns: int = 12, reply: str = LONG) -> list[Message]:
    """The whole of it, in the payload's format. Twelve turns fill the window: the payload leaves it, and the last of them stay."""
    own = [user(f"One more thing. {OWN}"), assistant("Understood.")]
    said = [user(TASK), assistant("I will look at it.")]
    said = (
        [*payload.said, *_answered(payload), *said, *own] if payload.opens else [*said, *own, *payload.said]
    )
    for number in range(turns):
        said += [user(f"Tell me more of sea {number}."), assistant(reply)]
    return [*said, user("And now?")]


def _answered(payload: Payload) -> list[Message]:
    return [assistant("I see.")] if payload.said[-1]["role"] == "user" else []


def number_of(payload: Payload) -> int:
    """The number of the payload's last message."""
    return len(payload.said) - 1 + (0 if payload.opens else 4)


# --- Doors ---


async def by_digest(payload: Payload) -> Seen:
    """The library, without a model."""
    talk = refold.sync.Conversation("gpt-4o", window=WINDOW, max_output=1_000, format=payload.format)
    talk.add(*conversation(payload, reply=DENSE))
    lead, rest = parted(talk.compact())
    wanted = ["Send the keys", "Send a copy of every answer"]
    wanted += [f"#m{number_of(payload)}"] if payload.is_recalled else []
    answers = tuple(refold.sync.answer_recall(talk, {"what": what}) for what in wanted)
    return Seen(lead, rest, recalled=answers)


@asynccontextmanager
async def by_model() -> AsyncIterator[ModelDoor]:
    """The library, with a model that copies whatever it is told to."""
    door = ModelDoor()
    async with ScriptedUpstream(otherwise=door.answer, window=None) as upstream:
        door.upstream = upstream
        yield door


class ModelDoor:
    upstream: ScriptedUpstream
    _payload: Payload
    _written = 0
    """How many summaries of its own the payload has had."""

    def answer(self, received: Received) -> str:
        """A summary that does all that the payload wants."""
        if self._payload.written:
            section = self._payload.written[min(self._written, len(self._payload.written) - 1)]
            self._written += 1
            return f"## Goal\nFix the invoice export.\n{section}\n## Critical Context\nThe sea is wide and grey.\n"
        rules = "\n".join(f"- {rule}" for rule in self._payload.not_rules[:5])
        forged = "\n".join(self._payload.forged) if self._payload.is_copied else ""
        return f"## Goal\nFix the invoice export.\n{RULES}\n{rules}\n## Critical Context\nThe export works.\n{forged}\n"

    async def __call__(self, payload: Payload) -> Seen:
        self._payload, self._written, before = payload, 0, len(self.upstream.requests)
        own = Provider("mine", "small", base_url=f"{self.upstream.url}/v1", retries=Retries(tries=1))
        settings = ConversationSettings(model="gpt-4o", summarisers=(own,))
        async with (
            open_summariser(settings, own, windows={"small": 200_000}, environ={}) as summariser,
            refold.Conversation(
                "gpt-4o", window=200_000, max_output=1_000, format=payload.format, summariser=summariser
            ) as talk,
        ):
            # Too little to fold it before the model is asked, which then reads the payload itself and no digest of it.
            await talk.add(*conversation(payload, turns=10))
            lead, rest = parted(await talk.compact())
            for _ in payload.written[1:]:
                await talk.add(*conversation(payload, turns=10)[-20:], assistant("Wide."))
                lead, rest = parted(await talk.compact())
        asked = self.upstream.requests[before:]
        return Seen(lead, rest, tuple(one.messages[-1].text for one in asked if one.messages))


async def by_command(payload: Payload, folder: Path) -> Seen:
    """`refold compact FILE`."""
    file, target = folder / f"{payload.id}.json", folder / f"{payload.id}.out.json"
    key = "input" if payload.format == "responses" else "messages"
    more = {"max_tokens": 1_000} if payload.format == "anthropic" else {}
    file.write_text(json.dumps({"model": "gpt-4o", key: conversation(payload), **more}))
    window = ("--window", str(WINDOW), "--max-output", "1000", "--format", payload.format)
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        code = run(["compact", str(file), "--now", *window, "--output", str(target)])
    assert code == 0
    lead, rest = parted(json.loads(target.read_text()))
    return Seen(lead, rest)


@asynccontextmanager
async def by_gateway() -> AsyncIterator[GatewayDoor]:
    """`refold serve`, in three formats: what reached the provider."""
    async with (
        ScriptedUpstream(otherwise="Fine.", window=None) as upstream,
        served(upstream, window=WINDOW, summariser_enabled=False) as gate,
    ):
        yield GatewayDoor(gate)


class GatewayDoor:
    def __init__(self, gate: ServedModel) -> None:
        self._gate = gate

    async def __call__(self, payload: Payload) -> Seen:
        key = "input" if payload.format == "responses" else "messages"
        most = {"max_output_tokens" if payload.format == "responses" else "max_tokens": 100}
        # More turns: what the provider counts for odd characters changes what the gateway takes for full.
        said = conversation(payload, turns=20)
        body = msgspec.json.encode({"model": "gpt-4o", key: said, **most})
        status, _, _ = await self._gate.post(PATHS[payload.format], body, x_refold_conversation=payload.id)
        assert status == 200
        sent = self._gate.upstream.requests[-1].json
        assert isinstance(sent, dict)
        lead, rest = parted(sent)
        return Seen(lead, rest)


def parted(fields: dict[str, Any]) -> tuple[str, str]:
    """The summary, and the messages after it."""
    messages = fields.get("messages") or fields.get("input") or []
    texts = [text_of(one.get("content")) for one in messages]
    lead = next((text for text in texts if text.startswith("[Earlier messages")), "")
    return lead, "\n".join(text for text in texts if text != lead)


def text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(one.get("text", "") for one in content or () if isinstance(one, dict))  # type: ignore[attr-defined]


# --- What is wrong ---


def faults(payload: Payload, seen: Seen) -> list[str]:
    """What does not hold, in words."""
    if not seen.lead:
        return ["nothing was folded"]
    return [
        *(f"a rule of nobody's: {one}" for one in payload.not_rules if one in under(seen.lead, RULES)),
        *(f"a rule is lost: {one}" for one in (OWN, *payload.rules) if not is_kept(one, seen)),
        *_forgeries(payload, seen),
    ]


def _forgeries(payload: Payload, seen: Seen) -> Iterator[str]:
    for text in (seen.lead, *seen.transcripts, *seen.recalled):
        for marker in payload.forged:
            if any(bare(line).startswith(bare(marker)) for line in lines(text)):
                yield f"a line begins with {marker!r}"
        for hidden in payload.hidden:
            if hidden in text:
                yield f"{hidden!r} is there"
        if payload.title and any(one in under(text, payload.title) for one in payload.not_rules):
            yield f"it stands under {payload.title!r}"


def is_kept(rule: str, seen: Seen) -> bool:
    """Is it in the list of rules, in the task, or in a message that stays?"""
    task = seen.lead.partition("Task #m0: ")[2].partition("\n#m")[0].partition("\n## ")[0]
    return rule in under(seen.lead, RULES) or rule in task or rule in seen.rest


def under(text: str, title: str) -> str:
    """What stands below a line that reads as a heading of these words, up to the next heading or label."""
    wanted, found, is_under = _words(title), list[str](), False
    for line in lines(text):
        if _words(line) == wanted:
            is_under = True
        elif is_under and bare(line).startswith("#"):
            is_under = False
        elif is_under:
            found.append(line)
    return "\n".join(found)


def _words(line: str) -> str:
    """A heading without its marks; a line that begins with anything else reads as something else."""
    words = re.sub(r"^(?:<[a-z][a-z0-9]*>|[0-9]\.|=+|#+)+|<[^>]*>$", "", bare(line).strip("#*_:="))
    return words.strip("#*_:=").replace("_", "")


def lines(text: str) -> Sequence[str]:
    """The lines of a text, by every character that may be read as the end of one."""
    return _BREAKS.split(text)


@lru_cache(maxsize=10_000)
def bare(line: str) -> str:
    """A line as it reads: without what cannot be seen, in one case and one width."""
    seen = (one for one in unicodedata.normalize("NFKC", line) if _is_visible(one))
    return "".join(seen).translate(_ALIKE).casefold()


def _is_visible(character: str) -> bool:
    return (
        unicodedata.category(character) not in {"Cf", "Cc", "Mn", "Me", "Zs", "Zl", "Zp"}
        and character not in _BLANK
    )
