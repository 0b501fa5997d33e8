"""N13: a conversation is compacted by its own provider, through the official SDKs, and stays portable."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import msgspec
import pytest

import refold
from refold.cli.main import run
from refold.core.fold import has_thoughts
from refold.engine import summary_jobs
from refold.engine.archive import pack, unpack
from refold.model.message import holds_compaction
from refold.model.summary import Summary
from refold.stores.memory import MemoryStore
from refold.stores.sqlite.store import SqliteStore
from refold.testing import Body, Received, Refuse, Reset, Say, ScriptedUpstream, garbage, say, think
from tests.gateway.conftest import ServedModel, served, target_for
from tests.gateway.recall_clients import CLIENTS

WINDOW = 8_000
FILLER = "The tide tables of the northern harbours list wind, depth and swell for every hour. " * 40
FORMATS = ["anthropic", "responses"]
KEYS = {"x_api_key": "client-key", "authorization": "Bearer client-key"}
THINKS: dict[str, Any] = {"max_tokens": 1_200, "thinking": {"type": "enabled", "budget_tokens": 1_024}}
SAYS = "The code word is ZEBRA-41. The user reads out tide tables of the northern harbours."
AS_TEXT = {
    "anthropic": "native gpt-5; as text, because another model or upstream is asked",
    "responses": "digest; only the model that made the provider's compaction can read it",
}
"""The author of what another model or upstream is sent."""
BLOCK = re.compile(rb'\{"type":"compaction","content"[^{}]*\}|\{"id":"cmp_[^{}]*\}')


def native(provider: ScriptedUpstream, **more: Any) -> Any:
    return served(provider, **{"window": WINDOW, "summariser_models": "native", **more})


def replier(received: Received) -> Say:
    """Long replies, as OpenAI's compactions keep the user's messages; a summary if one is asked for."""
    if b"checkpoint" in received.body.lower()[-6_000:]:
        return say("## Goal\nThe user reads out tide tables of the northern harbours.\n")
    return say(f"Noted. {FILLER}")


def thinker(received: Received) -> Say:
    return say(think(f"Thought {received.number}."), *replier(received).parts)


def asked(provider: ScriptedUpstream) -> list[Received]:
    """The requests for a compaction."""
    marks = b'"compaction":{"type":"sum', b'"compaction": {"type": "sum', b'"compaction_trigger"'
    return [
        one
        for one in provider.requests
        if one.path.endswith("/compact") or any(mark in one.body for mark in marks)
    ]


def with_item(provider: ScriptedUpstream) -> list[Received]:
    """The requests for a reply that hold a compaction."""
    made = asked(provider)
    return [one for one in provider.requests if one not in made and any(map(holds_compaction, one.messages))]


def refusals(provider: ScriptedUpstream) -> list[object]:
    return [
        one for one in provider.answered if not isinstance(one, Say) and getattr(one, "status", 200) != 200
    ]


def item_in(body: bytes) -> bytes:
    """The bytes of the one compaction in a body."""
    (found,) = BLOCK.findall(body)
    return found


async def settle() -> None:
    """Wait for the summaries that are being written."""
    while summary_jobs._running:
        await asyncio.wait({*summary_jobs._running})


async def compacted(gate: ServedModel, client: Any, *, turns: int = 5, keep: int = 2_000) -> str:
    """Talk for some turns, and compact on request. Returns the name of the conversation."""
    for turn in range(turns):
        planted = "" if turn else " The code word is ZEBRA-41."
        await client.ask(f"Turn {turn}: harbour {turn}.{planted}")
    (listed,) = await gate.store.conversations("local")
    path = f"/refold/conversations/{listed.id}/compact"
    status, _, body = await gate.post(path, msgspec.json.encode({"keep": keep}), **KEYS)
    assert status == 200, body
    return listed.id


@pytest.mark.feature("N13")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", FORMATS)
async def test_a_long_conversation_is_compacted_by_its_own_provider(wire, stream):
    is_thinking = wire == "anthropic"
    model = thinker if is_thinking else replier
    async with (
        ScriptedUpstream(otherwise=model, window=WINDOW, strict=True, binds_thinking=is_thinking) as provider,
        native(provider) as gate,
        CLIENTS[wire](gate, stream=stream, **(THINKS if is_thinking else {})) as client,
    ):
        for turn in range(16):
            await client.ask(f"Turn {turn}: harbour {turn}.")
            await settle()
        (listed,) = await gate.store.conversations("local")
        calls = [one for one in await gate.store.calls("local", listed.id) if one.kind == "summary"]
    assert refusals(provider) == []
    assert len(asked(provider)) >= 2
    assert len(with_item(provider)) > len(asked(provider))
    assert all(one.upstream == "scripted" and one.usage.prompt for one in calls)
    # Each compaction is sent back as it was given, and a later one was made of the one before it.
    made = {item_in(one.content) for one in provider.answered if isinstance(one, Body)}
    assert {item_in(one.body) for one in with_item(provider)} <= made
    assert any(map(holds_compaction, asked(provider)[-1].messages))


@pytest.mark.feature("N13")
async def test_thoughts_after_the_compaction_stay_valid_and_the_header_is_sent():
    async with (
        ScriptedUpstream(otherwise=thinker, window=WINDOW, strict=True, binds_thinking=True) as provider,
        native(provider) as gate,
        CLIENTS["anthropic"](gate, stream=False, **THINKS) as client,
    ):
        await compacted(gate, client)
        await client.ask("And now?")
        await client.ask("And then?")
    assert refusals(provider) == []
    for one in with_item(provider):
        first, second, *_ = one.messages
        assert holds_compaction(first)
        assert has_thoughts(second) or has_thoughts(one.messages[2])
        assert "compact-2026-09-04" in one.headers["anthropic-beta"]
    assert len(with_item(provider)) == 2


@pytest.mark.feature("N13")
@pytest.mark.parametrize("wire", FORMATS)
async def test_another_model_reads_the_text_and_the_maker_its_own_bytes_again(wire):
    async with (
        ScriptedUpstream(otherwise=replier, window=WINDOW, compaction=SAYS) as provider,
        native(provider) as gate,
        CLIENTS[wire](gate, stream=False) as client,
    ):
        await compacted(gate, client)
        await client.ask("One.")
        made = item_in(provider.requests[-1].body)
        client.fields["model"] = "gpt-5-mini"
        _, headers, _ = await _once_more(gate, wire, client)
        rows = await gate.store.compactions("local", headers["x-refold-branch"], 100)
        await client.ask("Two.")
        other = provider.requests[-1]
        client.fields["model"] = "gpt-5"
        await client.ask("Three.")
        again = provider.requests[-1]
    assert not any(map(holds_compaction, other.messages))
    text = "\n".join(message.text for message in other.messages)
    assert "ZEBRA-41" in text
    assert item_in(again.body) == made
    assert refusals(provider) == []
    # The header names the author of what was sent, and a change for one call only is none of the conversation.
    assert headers["x-refold-summary"] == AS_TEXT[wire]
    assert "x-refold-changed" not in headers
    assert [one.kind for one in rows if one.state == "installed"] == ["summarise"]


@pytest.mark.feature("N13")
@pytest.mark.parametrize("tool", [False, True], ids=["", "recall"])
@pytest.mark.parametrize("author", ["native", ""], ids=["native", "own"])
@pytest.mark.parametrize("wire", CLIENTS)
async def test_the_model_may_change_on_the_turn_that_folds(wire, author, tool):
    """The models take turns, so every fold is made in a turn whose model is another one than before. The client sends reasoning."""
    more = THINKS if wire == "anthropic" else {}
    flags: dict[str, Any] = {"summariser_models": author} if author else {"summariser_enabled": False}
    async with (
        ScriptedUpstream(otherwise=thinker, window=WINDOW, strict=True) as provider,
        served(provider, window=WINDOW, compaction_recall_tool=tool, **flags) as gate,
        CLIENTS[wire](gate, stream=False, **more) as client,
    ):
        for turn in range(20):
            client.fields["model"] = ("gpt-5", "gpt-5-mini")[turn % 2]
            await client.ask(f"Turn {turn}: harbour {turn}.")
            await settle()
        (listed,) = await gate.store.conversations("local")
        outline = await gate.store.outline("local", listed.id)
    assert refusals(provider) == []
    assert len(outline.heads) == 1
    assert listed.messages == len(client.history) - (2 if wire == "responses" else 1)


@pytest.mark.feature("N13")
@pytest.mark.parametrize("wire", FORMATS)
async def test_another_upstream_reads_the_text(wire):
    async with (
        ScriptedUpstream(otherwise=replier, compaction=SAYS) as first,
        ScriptedUpstream(otherwise=replier, compaction=None) as second,
        served(
            first,
            targets=[
                target_for(first, name="first", window=WINDOW, fallback=("second",)),
                target_for(second, name="second", window=WINDOW),
            ],
            summariser_models="native",
        ) as gate,
        CLIENTS[wire](gate, stream=False) as client,
    ):
        await compacted(gate, client)
        first.script(Refuse(529), otherwise=replier)
        _, headers, _ = await _once_more(gate, wire, client)
        await client.ask("Two.")
    (elsewhere,) = second.requests
    assert headers["x-refold-summary"] == AS_TEXT[wire]
    assert not any(map(holds_compaction, elsewhere.messages))
    assert "compact-2026" not in elsewhere.headers.get("anthropic-beta", "")
    assert any(map(holds_compaction, first.requests[-1].messages))


@pytest.mark.feature("N13")
@pytest.mark.parametrize("wire", FORMATS)
async def test_the_author_is_told_and_an_undo_brings_all_messages_back(wire):
    async with (
        ScriptedUpstream(otherwise=replier, compaction=SAYS) as provider,
        native(provider) as gate,
        CLIENTS[wire](gate, stream=False) as client,
    ):
        name = await compacted(gate, client)
        _, headers, _ = await _once_more(gate, wire, client)
        assert headers["x-refold-summary"] == "native gpt-5"
        status, _, _ = await gate.post(f"/refold/conversations/{name}/undo", b"{}", **KEYS)
        assert status == 200
        await client.ask("And now?")
    last = provider.requests[-1]
    assert not any(map(holds_compaction, last.messages))
    assert len(last.messages) == 2 * 5 + 1


async def _once_more(gate: ServedModel, wire: str, client: Any) -> tuple[int, dict[str, str], bytes]:
    path, key = ("/v1/messages", "messages") if wire == "anthropic" else ("/v1/responses", "input")
    said = {**client.fields, key: [*client.history, {"role": "user", "content": "Go on."}]}
    return await gate.post(path, msgspec.json.encode(said), **KEYS)


@pytest.mark.feature("N13")
@pytest.mark.parametrize("wire", FORMATS)
async def test_a_fork_before_the_compaction_has_nothing_of_it(wire):
    async with (
        ScriptedUpstream(otherwise=replier, compaction=SAYS) as provider,
        native(provider) as gate,
        CLIENTS[wire](gate, stream=False) as client,
    ):
        await compacted(gate, client)
        client.history = client.history[:2]
        await client.ask("Something else.")
    last = provider.requests[-1]
    assert len(last.messages) == 3
    assert not any(map(holds_compaction, last.messages))


# Failures

HUGE = "tide " * 60_000
ANSWER = {"id": "m", "type": "message", "role": "assistant", "model": "gpt-5", "usage": {}}
FAULTS: dict[str, tuple[str, Any, str]] = {
    "garbage": ("both", garbage(), "answered with neither a reply nor an error"),
    "an error": ("both", Refuse(400, "no"), "answered 400"),
    "no such path": ("both", Refuse(404), "answered 404"),
    "overloaded": ("both", Refuse(500), "answered 500"),
    "a reset": ("both", Reset(), "broke the connection"),
    "huge": ("both", say(HUGE), "more than a quarter of the window"),
    "an ordinary reply": (
        "both",
        Body.of(
            200,
            {
                **ANSWER,
                "content": [{"type": "text", "text": "Hello."}],
                "stop_reason": "end_turn",
                "output": [{"type": "message", "role": "assistant", "content": []}],
            },
        ),
        "ended with end_turn|without a compaction",
    ),
    "nothing": (
        "both",
        Body.of(200, {**ANSWER, "content": [], "stop_reason": "end_turn", "output": []}),
        ".",
    ),
    "a cut text": ("anthropic", say("Cut", finish="length"), "ended with max_tokens"),
    "a refusal": ("anthropic", say("No.", finish="refusal"), "ended with refusal"),
    "no signature": (
        "anthropic",
        Body.of(
            200,
            {**ANSWER, "content": [{"type": "compaction", "content": SAYS}], "stop_reason": "compaction"},
        ),
        "without a signature",
    ),
    "two blocks": (
        "anthropic",
        Body.of(
            200,
            {
                **ANSWER,
                "content": 2 * [{"type": "compaction", "content": SAYS, "signature": "x"}],
                "stop_reason": "compaction",
            },
        ),
        "without a compaction",
    ),
    "an empty seal": (
        "responses",
        Body.of(200, {"output": [{"type": "compaction", "id": "cmp_1", "encrypted_content": ""}]}),
        "without a compaction",
    ),
}


@pytest.mark.feature("N13")
@pytest.mark.parametrize(
    ("wire", "fault"),
    [(wire, name) for name, (only, _, _) in FAULTS.items() for wire in FORMATS if only in ("both", wire)],
)
async def test_without_a_usable_compaction_the_model_writes_and_the_reason_is_told(wire, fault, caplog):
    _, answer, why = FAULTS[fault]
    async with (
        ScriptedUpstream(otherwise=replier, compaction=answer) as provider,
        native(provider) as gate,
        CLIENTS[wire](gate, stream=False) as client,
    ):
        await compacted(gate, client)
        _, headers, _ = await _once_more(gate, wire, client)
    told = headers["x-refold-summary"]
    assert told.startswith("model gpt-5; the provider did not compact: ")
    assert re.search(why, told)
    assert "no compaction by gpt-5: the provider did not compact" in caplog.text
    assert "without the summariser" not in caplog.text  # a model of the summariser has written it
    assert not with_item(provider)


@pytest.mark.feature("N13")
@pytest.mark.parametrize("wire", FORMATS)
async def test_a_provider_without_compactions_is_asked_for_one_only_once(wire):
    async with (
        ScriptedUpstream(otherwise=replier, compaction=None) as provider,
        native(provider) as gate,
        CLIENTS[wire](gate, stream=False) as client,
        CLIENTS[wire](gate, stream=False, extra_headers={"x-refold-window": "9000"}) as other,
    ):
        name = await compacted(gate, client)
        await client.ask("And now?")
        path = f"/refold/conversations/{name}/compact"
        assert (await gate.post(path, b"{}", **KEYS))[0] == 200
        for turn in range(16):  # another conversation, which needs another summariser
            await other.ask(f"Another turn {turn}.")
            await settle()
        told = (await _once_more(gate, wire, other))[1]["x-refold-summary"]
    assert told.startswith("model gpt-5; the provider did not compact: ")
    assert len(asked(provider)) == 1


REFUSED_LATER = Body.of(
    200,
    {
        **ANSWER,
        "content": [{"type": "compaction", "content": SAYS, "signature": "of another model"}],
        "stop_reason": "compaction",
        "output": [{"type": "compaction", "encrypted_content": "cmp1.b3RoZXI.00.of-another-model"}],
    },
)
"""A compaction that the provider does not take back; the sealed one has no id."""


@pytest.mark.feature("N13")
@pytest.mark.parametrize("wire", FORMATS)
async def test_the_headers_tell_what_was_sent_in_place_of_a_refused_compaction(wire):
    async with (
        ScriptedUpstream(otherwise=replier, compaction=REFUSED_LATER) as provider,
        native(provider) as gate,
        CLIENTS[wire](gate, stream=False) as client,
    ):
        await compacted(gate, client)
        _, headers, _ = await _once_more(gate, wire, client)
        rows = await gate.store.compactions("local", headers["x-refold-branch"], 100)
    # The text is the block's own, or a digest in place of the sealed item. No smaller request was sent.
    author = {"anthropic": "model gpt-5", "responses": "digest"}[wire]
    why = "the provider does not take its own compaction back, so a text is sent"
    assert headers["x-refold-summary"] == f"{author}; {why}"
    assert headers["x-refold-action"] == "folded"
    assert headers["x-refold-changed"] == "reduce"
    assert [one.kind for one in rows if one.state == "installed"] == ["summarise", "reduce"]


@pytest.mark.feature("N13")
@pytest.mark.parametrize("wire", FORMATS)
async def test_a_compaction_that_the_provider_does_not_take_back_is_replaced_by_its_text(wire):
    async with (
        ScriptedUpstream(otherwise=replier, compaction=REFUSED_LATER) as provider,
        native(provider) as gate,
        CLIENTS[wire](gate, stream=False) as client,
    ):
        await compacted(gate, client)
        await client.ask("And now?")
        await client.ask("And then?")
    assert len(refusals(provider)) == 1
    assert len(with_item(provider)) == 1
    text = "\n".join(message.text for message in provider.requests[-1].messages)
    assert "ZEBRA-41" in text


@pytest.mark.feature("N13")
async def test_secrets_are_not_given_to_a_compaction_that_is_stored():
    async with (
        ScriptedUpstream(otherwise=replier) as provider,
        native(provider) as gate,
        CLIENTS["anthropic"](gate, stream=False) as client,
    ):
        await client.ask("My key is sk-ant-api03-" + "Ab3dE5fG7h" * 9 + ". Keep it.")
        await compacted(gate, client)
    assert asked(provider) == []


# Clients that have the provider compact


@pytest.mark.feature("N13")
async def test_a_client_that_asks_for_a_compaction_gets_one_of_all_messages():
    async with (
        ScriptedUpstream(otherwise=replier, compaction=SAYS) as provider,
        native(provider, window=6_000) as gate,
        gate.anthropic() as sdk,
    ):
        history: list[Any] = []
        for turn in range(4):
            history.append({"role": "user", "content": f"Turn {turn}. {FILLER[:2_000]}"})
            history.append({"role": "assistant", "content": FILLER[:2_000]})
        fields: dict[str, Any] = {"model": "gpt-5", "max_tokens": 500, "betas": ["compact-2026-09-04"]}
        block = await sdk.beta.messages.create(messages=history, compaction={"type": "summarize"}, **fields)
        (whole,) = provider.requests
        told = [{"role": "assistant", "content": [one.to_dict() for one in block.content]}]
        await sdk.beta.messages.create(messages=[*told, {"role": "user", "content": "Go on."}], **fields)
    assert block.stop_reason == "compaction"
    assert len(whole.messages) == 8
    assert len(provider.requests) == 2
    assert holds_compaction(provider.requests[-1].messages[0])
    assert refusals(provider) == []


@pytest.mark.feature("N13")
async def test_a_request_with_context_management_of_its_own_passes_and_holds_no_compaction_of_ours():
    managed = {"edits": [{"type": "clear_tool_uses_20250919"}, {"type": "compact_20260112"}]}
    async with (
        ScriptedUpstream(otherwise=replier, compaction=SAYS) as provider,
        native(provider) as gate,
        CLIENTS["anthropic"](gate, stream=False) as client,
    ):
        await compacted(gate, client)
        client.fields["extra_body"] = {"context_management": managed}
        await client.ask("And now?")
        own = provider.requests[-1]
        client.fields["extra_body"] = {"context_management": {"edits": managed["edits"][:1]}}
        await client.ask("And then?")
    assert json.loads(own.body)["context_management"] == managed
    assert not any(map(holds_compaction, own.messages))
    assert "ZEBRA-41" in "\n".join(message.text for message in own.messages)
    assert any(map(holds_compaction, provider.requests[-1].messages))


@pytest.mark.feature("N13")
async def test_a_trigger_of_codex_is_not_answered_by_a_compaction_of_ours_first():
    async with (
        ScriptedUpstream(otherwise=replier, compaction=SAYS) as provider,
        native(provider, window=6_000) as gate,
        gate.openai() as sdk,
    ):
        history: list[Any] = [
            {"role": role, "content": f"{turn} {FILLER[:2_000]}"}
            for turn in range(4)
            for role in ("user", "assistant")
        ]
        trigger: Any = {"type": "compaction_trigger"}
        made = await sdk.responses.create(model="gpt-5", input=[*history, trigger])
    assert [one.type for one in made.output] == ["compaction"]
    (whole,) = provider.requests
    assert len(whole.messages) == 9


@pytest.mark.feature("N13")
@pytest.mark.parametrize("settings", [{"summariser_models": "native"}, {"summariser_enabled": False}])
async def test_nothing_is_put_before_a_compaction_that_a_client_has_asked_for(settings):
    beta = {"anthropic-beta": "compact-2026-09-04"}
    async with (
        ScriptedUpstream(otherwise=replier, compaction=SAYS, window=6_000) as provider,
        served(provider, window=6_000, **settings) as gate,
        gate.anthropic() as sdk,
    ):
        history: list[Any] = [{"role": "user", "content": "The code word is ZEBRA-41."}]
        asked: Any = {"model": "claude", "max_tokens": 500}
        made = await sdk.messages.create(
            **asked, messages=history, extra_body={"compaction": {"type": "summarize"}}, extra_headers=beta
        )
        history = [{"role": "assistant", "content": [made.content[0].model_dump(exclude_none=True)]}]
        folds = 0
        for turn in range(12):
            history.append({"role": "user", "content": f"{turn} {FILLER[:2_000]}"})
            got = await sdk.messages.with_raw_response.create(**asked, messages=history, extra_headers=beta)
            folds += got.headers["x-refold-action"] == "folded"
            history.append({"role": "assistant", "content": got.http_response.json()["content"]})
    assert folds > 1
    assert holds_compaction(provider.requests[-1].messages[0])


HISTORY: list[Any] = [
    {"role": role, "content": f"{turn} {FILLER[:2_000]}"}
    for turn in range(10)
    for role in ("user", "assistant")
]


@pytest.mark.feature("N13")
@pytest.mark.parametrize("window", [6_000, None], ids=["known", "learnt"])
@pytest.mark.parametrize("way", ["path", "trigger", "field"])
async def test_a_client_s_own_compaction_above_the_window_is_folded_to_fit(way, window):
    """Nothing is lost: the originals are stored, and the provider compacts what is left of them."""
    async with (
        ScriptedUpstream(otherwise=replier, compaction=SAYS, window=6_000, strict=True) as provider,
        served(provider, window=window, notify_marker=True) as gate,
        gate.openai() as sdk,
        gate.anthropic() as claude,
    ):
        if way == "path":
            asked_for = await sdk.responses.with_raw_response.compact(model="gpt-5", input=HISTORY)
            made = asked_for.http_response.json()["output"]
        elif way == "trigger":
            items = [*HISTORY, {"type": "compaction_trigger"}]
            asked_for = await sdk.responses.with_raw_response.create(model="gpt-5", input=items)
            made = asked_for.http_response.json()["output"]
        else:
            asked_for = await claude.beta.messages.with_raw_response.create(
                model="gpt-5",
                max_tokens=500,
                messages=HISTORY,
                betas=["compact-2026-09-04"],
                extra_body={"compaction": {"type": "summarize"}},
            )
            made = asked_for.http_response.json()["content"]
        await settle()
        (listed,) = await gate.store.conversations("local")
    assert made[-1]["type"] == "compaction"
    assert asked_for.headers["x-refold-action"] == ("folded" if window else "recovered")
    assert listed.messages == len(HISTORY) + (way == "trigger")
    whole, sent = asked(provider)[0], asked(provider)[-1]
    assert 1 < len(sent.messages) < len(HISTORY)
    assert len(asked(provider)) == (1 if window else 2)
    assert window or len(whole.messages) >= len(HISTORY)


@pytest.mark.feature("N13")
async def test_a_compaction_of_the_client_is_no_failure_of_the_summariser(caplog):
    async with (
        ScriptedUpstream(otherwise=replier, compaction=SAYS, window=6_000) as provider,
        native(provider, window=6_000) as gate,
        gate.openai() as sdk,
    ):
        made = await sdk.responses.with_raw_response.compact(model="gpt-5", input=HISTORY[:2])
        history: list[Any] = made.http_response.json()["output"]
        told = []
        for turn in range(16):
            history.append({"role": "user", "content": f"{turn} {FILLER[:2_000]}"})
            got = await sdk.responses.with_raw_response.create(model="gpt-5", input=history)
            await settle()
            told += [got.headers["x-refold-summary"]] if "x-refold-changed" in got.headers else []
            history.append({"role": "assistant", "content": got.parse().output_text})
    assert len(told) > 3
    assert {*told} == {
        "model gpt-5; the provider did not compact: the conversation holds a compaction already"
    }
    assert "no compaction by" not in caplog.text  # it was not asked


# The commands


@pytest.fixture
def refold_command(capsys):
    """Runs a command in this process; returns its exit code, its output and its notes."""

    def call(*args: str) -> tuple[int, str, str]:
        code = run(args)
        told = capsys.readouterr()
        return code, " ".join(told.out.split()), " ".join(told.err.split())

    return call


@pytest.fixture
def ships(tmp_path, monkeypatch):
    """Makes a stored conversation in a format, for commands, with long messages of the user if so wished."""
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "key")
    url = f"sqlite:///{tmp_path}/ships.db"
    monkeypatch.setenv("REFOLD_STORE", url)

    async def fill(wire: str, said: str) -> None:
        async with refold.Engine(url) as engine:
            talk = await engine.conversation("ships", model="gpt-5", format=wire, window=WINDOW)
            for turn in range(6):
                await talk.add({"role": "user", "content": f"Turn {turn}: harbour {turn}. {said}"})
                await talk.add(
                    {"role": "assistant", "content": f"Noted {turn}. {FILLER[: 3_400 - len(said)]}"}
                )

    return lambda wire, said="": asyncio.run(fill(wire, said))


@pytest.mark.feature("N13")
@pytest.mark.parametrize("path", ["", "/v1"])
@pytest.mark.parametrize("wire", FORMATS)
def test_the_commands_ask_the_provider_at_its_root_or_below_v1(wire, path, ships, refold_command):
    ships(wire)
    with ScriptedUpstream(otherwise=replier, compaction=SAYS) as provider:
        named = ("--summariser", f"native@{provider.url}{path}")
        first = refold_command("compact", "ships", "--keep", "2000", *named)
        assert "native gpt-5" in first[1], first
        by_digest = refold_command("rerun", "ships", "--summariser", "digest")
        assert "digest; no summariser is configured" in by_digest[1]
        again = refold_command("rerun", "ships", *named)
        assert "native gpt-5" in again[1], again
    address = {"anthropic": "/v1/messages", "responses": "/v1/responses/compact"}[wire]
    assert {one.path for one in provider.requests} == {address}


@pytest.mark.feature("N13")
@pytest.mark.parametrize("wire", FORMATS)
def test_a_rerun_asks_the_server_that_was_named_and_says_if_it_asks_nobody(wire, ships, refold_command):
    ships(wire)
    with (
        ScriptedUpstream(otherwise=replier, compaction=SAYS) as first,
        ScriptedUpstream(otherwise=replier, compaction=SAYS.replace("ZEBRA", "OKAPI")) as second,
    ):
        refold_command("compact", "ships", "--keep", "2000", "--summariser", f"native@{first.url}")
        told = refold_command("rerun", "ships", "--summariser", f"native@{second.url}")
        again = refold_command("rerun", "ships", "--summariser", f"native@{first.url}/v1")
    assert (len(first.requests), len(second.requests)) == (1, 1)
    assert (told[0], again[0]) == (0, 0)
    assert "native gpt-5" in told[1]
    assert "no model was asked" not in told[2]
    assert "no model was asked: the same model has summarised the same messages before" in again[2]


@pytest.mark.feature("N13")
@pytest.mark.parametrize("path", ["", "/v1"])
@pytest.mark.parametrize("wire", FORMATS)
async def test_the_gateway_sends_what_a_command_had_compacted_to_the_same_server(
    wire, path, tmp_path, refold_command, monkeypatch
):
    """The gateway has a name for the server, and the command only its address. Another server reads the text."""
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "key")
    monkeypatch.setenv("REFOLD_STORE", f"sqlite:///{tmp_path}/ships.db")
    store = await SqliteStore.open(tmp_path / "ships.db")
    async with (
        ScriptedUpstream(otherwise=replier, compaction=SAYS, strict=True) as first,
        ScriptedUpstream(otherwise=replier, compaction=None, strict=True) as second,
        served(
            first,
            store=store,
            targets=[
                target_for(first, name="first", window=WINDOW, models=("gpt-5",), fallback=("second",)),
                target_for(second, name="second", window=WINDOW),
            ],
            summariser_enabled=False,
        ) as gate,
        CLIENTS[wire](gate, stream=False) as client,
    ):
        for turn in range(5):
            await client.ask(f"Turn {turn}: harbour {turn}.")
        (listed,) = await gate.store.conversations("local")
        command = ("compact", listed.id, "--keep", "2000", "--summariser", f"native@{first.url}{path}")
        told = await asyncio.to_thread(refold_command, *command)
        assert "native gpt-5" in told[1], told
        _, headers, _ = await _once_more(gate, wire, client)
        assert headers["x-refold-summary"] == "native gpt-5"
        assert any(map(holds_compaction, first.requests[-1].messages))
        first.script(Refuse(529), otherwise=replier)
        _, headers, _ = await _once_more(gate, wire, client)
        assert headers["x-refold-summary"] == AS_TEXT[wire]
        assert not any(map(holds_compaction, second.requests[-1].messages))
    await store.close()


@pytest.mark.feature("N13")
def test_a_command_measures_a_compaction_in_the_conversation_s_own_window(ships, refold_command):
    """OpenAI keeps the user's messages: they are more than a quarter of a window of 8,000, and less of the model's own."""
    ships("responses", FILLER[:2_400])
    with ScriptedUpstream(otherwise=replier, compaction=SAYS) as provider:
        told = refold_command(
            "compact", "ships", "--keep", "1000", "--summariser", f"native@{provider.url}/v1"
        )
    why = "the provider did not compact: its compaction takes more than a quarter of the window"
    assert f"model gpt-5; {why}" in told[1]


@pytest.mark.feature("N13")
def test_a_command_that_cannot_ask_says_the_provider_s_own_reason(ships, refold_command):
    ships("responses")
    refold_command("compact", "ships", "--keep", "2000")
    with ScriptedUpstream(otherwise=Refuse(403), compaction=Refuse(401)) as provider:
        told = refold_command("rerun", "ships", "--summariser", f"native@{provider.url}/v1")
    assert told[0] == 2
    assert "error: no summary could be written, and the old compaction stays" in told[2]
    assert "hint: the provider did not compact: answered 401" in told[2]
    assert "the summariser answered 403" in told[2]


@pytest.mark.feature("N13")
def test_without_the_option_a_command_uses_the_summariser_of_the_settings(ships, refold_command, monkeypatch):
    ships("responses")
    with ScriptedUpstream(otherwise=replier, compaction=SAYS) as provider:
        monkeypatch.setenv("REFOLD_SUMMARISER_MODELS", f"gpt-4o-mini@{provider.url}/v1")
        told = refold_command("compact", "ships", "--keep", "2000")
        assert "model gpt-4o-mini" in told[1], told
        told = refold_command("rerun", "ships", "--summariser", "digest")
        assert "digest; no summariser is configured" in told[1]
        told = refold_command("rerun", "ships")
        assert "model gpt-4o-mini" in told[1], told
        monkeypatch.setenv("REFOLD_SUMMARISER_ENABLED", "false")
        assert "digest; no summariser is configured" in refold_command("rerun", "ships")[1]
        monkeypatch.delenv("REFOLD_SUMMARISER_ENABLED")
        monkeypatch.setenv("REFOLD_SUMMARISER_MODELS", "native")
        monkeypatch.delenv("OPENAI_API_KEY")
        told = refold_command("rerun", "ships")
    assert told[0] == 2
    assert "OPENAI_API_KEY" in told[2]
    assert "--summariser digest" in told[2]


# The library, archives and old rows


async def _talk(engine: refold.Engine, provider: ScriptedUpstream, wire: str) -> refold.Conversation:
    talk = await engine.conversation(
        "ships",
        model="gpt-5",
        format=wire,
        window=WINDOW,
        summariser=f"native@{provider.url}/v1",
    )
    for turn in range(6):
        await talk.add({"role": "user", "content": f"Turn {turn}: harbour {turn}."})
        await talk.add({"role": "assistant", "content": f"Noted {turn}. {FILLER}"})
    await talk.compact(keep=2_000)
    await talk.add({"role": "user", "content": "Go on."})
    return talk


@pytest.mark.feature("N13", "L5")
@pytest.mark.parametrize("wire", FORMATS)
async def test_the_library_asks_sends_exports_imports_and_examines(wire, monkeypatch, tmp_path):
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "key")
    key = "messages" if wire == "anthropic" else "input"
    first, second = f"sqlite:///{tmp_path}/one.db", f"sqlite:///{tmp_path}/two.db"
    async with ScriptedUpstream(otherwise=replier, compaction=SAYS) as provider:
        async with refold.Engine(first) as engine:
            talk = await _talk(engine, provider, wire)
            fields = await talk.context()
            status = await talk.status()
            assert status.summary.author == "native"
            assert json.dumps(fields[key]).count('"type": "compaction"') == 1
            headers = fields.get("extra_headers", {})
            assert headers == ({"anthropic-beta": "compact-2026-09-04"} if wire == "anthropic" else {})
            (change,) = [one for one in await talk.compactions() if one.kind == "summarise"]
            assert (await talk.diff(change)).after.lead.is_native
            assert await engine.examine("ships") == []
            archive = [chunk async for chunk in pack(engine.store, [engine.owner])]
        async with refold.Engine(first) as engine:  # loaded from the store
            talk = await engine.conversation("ships", model="gpt-5", format=wire, window=WINDOW)
            assert (await talk.context())[key] == fields[key]
            await talk.reconfigure(model="gpt-5-mini")
            assert '"type": "compaction"' not in json.dumps((await talk.context())[key])
            await talk.reconfigure(model="gpt-5")
            assert (await talk.context())[key] == fields[key]
        async with refold.Engine(second) as engine:
            assert not [one.fault async for one in unpack(engine.store, archive) if one.fault]
            talk = await engine.conversation("ships", model="gpt-5", format=wire, window=WINDOW)
            assert (await talk.context())[key] == fields[key]
            assert await talk.undo()
            assert len((await talk.context())[key]) == 13


@pytest.mark.feature("N13")
async def test_a_rerun_by_the_provider_replaces_a_digest(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key")
    async with (
        ScriptedUpstream(otherwise=replier, compaction=SAYS) as provider,
        refold.Engine(MemoryStore()) as engine,
    ):
        talk = await engine.conversation("ships", model="gpt-5", format="anthropic", window=WINDOW)
        for turn in range(6):
            await talk.add({"role": "user", "content": f"Turn {turn}."})
            await talk.add({"role": "assistant", "content": f"Noted {turn}. {FILLER}"})
        await talk.compact(keep=2_000)
        assert (await talk.status()).summary.author == "digest"
        assert await talk.rerun(summariser=f"native@{provider.url}")
        assert (await talk.status()).summary.author == "native"


def test_a_conversation_without_compactions_on_request_cannot_be_native():
    with pytest.raises(refold.ConfigError, match="cannot be compacted by its provider"):
        refold.Conversation("gpt-5", window=WINDOW, summariser="native")


def test_native_stands_before_the_models():
    from refold.config import resolve
    from refold.config.layers import flag_layer

    with pytest.raises(refold.SettingError, match="number 2 is native"):
        resolve([flag_layer({"summariser.models": "openai:gpt-4o-mini,native"})])


def test_a_summary_of_an_earlier_version_is_read():
    old = msgspec.msgpack.encode({"text": "Told.", "first": 0, "last": 4, "tokens": 2, "kind": "model"})
    found = msgspec.msgpack.decode(old, type=Summary)
    assert (found.author, found.native) == ("model", None)
