"""System messages in the middle of a conversation: the newest stays, older ones fold, and all stand where the provider takes them."""

from __future__ import annotations

import json

import pytest

import refold
from refold.model.dialect import DIALECTS
from refold.sync import Conversation
from refold.testing.rules import ProviderLimits, ReadRequest, malformed
from refold.testing.script import Received
from refold.wire import decode_request

CLAUDE_CODE = "usauauausauauausauauausauauaus"
"""Roles as Claude Code sends them to a model that takes system messages: a reminder behind every other question."""
ROLES = {"u": "user", "a": "assistant", "s": "system"}
PRESETS = ("refold", "lis", "opal", "llms", "picoclaw", "librechat")


def said(kind: str, number: int, length: int = 60) -> dict[str, str]:
    words = " ".join(f"note {number * 100 + at} of the plan" for at in range(length // 4))
    return {"role": ROLES[kind], "content": f"{kind}{number}: {words}"}


def filler(number: int) -> dict[str, str]:
    """A message in which nothing is worth quoting: the user's where the number is even."""
    return {
        "role": "assistant" if number % 2 else "user",
        "content": "It goes on as before, and nothing is new. " * 30,
    }


def play(talk: Conversation, script: str, length: int = 60) -> list[dict]:
    """What leaves, each time that a reply is asked for."""
    sent = []
    for number, kind in enumerate(script):
        talk.add(said(kind, number, length))
        if kind != "a" and script[number + 1 : number + 2] in ("", "a"):
            sent.append(talk.context())
    return sent


def shape(fields: dict) -> str:
    return "".join(message["role"][0] for message in fields["messages"])


def refusal(fields: dict, name: str = "anthropic") -> str:
    """What the scripted provider says against it."""
    dialect = DIALECTS[name]
    body = json.dumps({"model": "m", "max_tokens": 10, **fields}).encode()
    request = decode_request(body, dialect)
    found = malformed(ReadRequest(Received(1, "", dialect, {}, body, request), request), ProviderLimits())
    return found.message if found else ""


@pytest.mark.parametrize("preset", PRESETS)
def test_after_a_fold_every_window_is_taken(preset):
    talk = Conversation("claude-opus-4-8", format="anthropic", preset=preset, window=4_000, max_output=500)
    sent = play(talk, CLAUDE_CODE)
    assert [refusal(fields) for fields in sent] == [""] * len(sent)
    assert len(sent[-1]["messages"]) < len(CLAUDE_CODE)


@pytest.mark.parametrize("preset", PRESETS)
def test_after_a_recovery_every_window_is_taken(preset):
    talk = Conversation("claude-opus-4-8", format="anthropic", preset=preset, window=8_000, max_output=500)
    play(talk, CLAUDE_CODE)
    size = talk.state.folded.tokens
    told = f"prompt is too long: {size} tokens > {size // 2} maximum"
    smaller = talk.recover({"error": {"type": "invalid_request_error", "message": told}})
    assert refusal(smaller) == ""
    assert len(smaller["messages"]) < len(CLAUDE_CODE)


@pytest.mark.parametrize("preset", PRESETS)
def test_an_undone_fold_leaves_what_is_taken(preset):
    talk = Conversation("claude-opus-4-8", format="anthropic", preset=preset, window=32_000, max_output=500)
    play(talk, CLAUDE_CODE)
    before = shape(talk.context())
    assert refusal(talk.compact()) == ""
    talk.undo()
    assert shape(talk.context()) == before
    talk.compact()
    talk.add(said("a", 50), said("u", 51), said("s", 52))
    talk.undo()
    assert refusal(talk.context()) == ""


@pytest.mark.parametrize("name", ["anthropic", "chat", "responses"])
def test_the_newest_stays_and_older_ones_fold(name):
    talk = Conversation("m", format=name, window=32_000, max_output=500)
    play(talk, "usausausa" + "ua" * 12 + "u", 400)
    fields = talk.compact()
    messages = fields["input" if name == "responses" else "messages"]
    told = [message["content"] for message in messages if message["role"] == "system"]
    assert told == [said("s", 7, 400)["content"]]
    assert refusal(fields, name) == ""


@pytest.mark.parametrize("name", ["anthropic", "chat", "responses"])
def test_old_ones_that_fill_the_window_fold_away(name):
    talk = Conversation("m", format=name, window=8_000, max_output=500)
    for number in range(4):
        talk.add(
            said("u", number), {"role": "system", "content": f"reminder {number} " + "file content " * 1_500}
        )
        fields = talk.context()
        assert refusal(fields, name) == ""
        assert f"reminder {number} " in json.dumps(fields)
        assert json.dumps(fields).count("file content file content") < 1_600
        talk.add(said("a", number))


def test_what_folds_is_in_the_digest_and_is_no_rule_of_the_user():
    talk = Conversation("claude-opus-4-8", format="anthropic", window=16_000, max_output=500)
    talk.add(
        "Fix the build.", {"role": "system", "content": "The port is 48213. Never touch the file it.toml."}
    )
    talk.add(said("a", 1), said("u", 2), {"role": "system", "content": "The date is 2026-10-01."})
    for number in range(3, 33):
        talk.add(filler(number))
    fields = talk.compact()
    assert "48213" in str(fields["messages"][0])
    assert "2026-10-01" in str(fields["messages"][1:])
    assert talk.state.folded.ledger.rules == ()


def test_one_that_stayed_in_sight_is_in_the_digest_once_it_leaves():
    talk = Conversation("claude-opus-4-8", format="anthropic", window=16_000, max_output=500)
    talk.add("Fix the build.", {"role": "system", "content": "The port is 48213."})
    for number in range(1, 21):
        talk.add(filler(number))
    assert "48213" in str(talk.compact()["messages"][1:])
    talk.add(said("a", 41), said("u", 42), {"role": "system", "content": "The date is 2026-10-01."})
    for number in range(43, 65):
        talk.add(filler(number))
    fields = talk.compact()
    assert "48213" in str(fields["messages"][0])
    assert "48213" not in str(fields["messages"][1:])
    assert "2026-10-01" in str(fields["messages"][1:])


def test_one_that_was_moved_is_told():
    talk = Conversation("claude-opus-4-8", format="anthropic", window=32_000, max_output=500)
    talk.add(said("u", 0), said("a", 1), said("s", 2), said("u", 3))
    assert shape(talk.context()) == "uaus"
    (receipt,) = talk.receipts
    assert [(edit.stage, edit.handle) for edit in receipt.edits] == [("place", "#m2")]


def test_two_in_a_row_become_one():
    talk = Conversation("claude-opus-4-8", format="anthropic", window=32_000, max_output=500)
    talk.add(said("u", 0), said("s", 1), said("s", 2))
    fields = talk.context()
    assert shape(fields) == "us"
    assert [block["text"] for block in fields["messages"][1]["content"]] == [
        said("s", at)["content"] for at in (1, 2)
    ]


def test_the_newest_is_cut_only_where_it_does_not_fit_by_itself():
    talk = Conversation("claude-opus-4-8", format="anthropic", window=8_000, max_output=500)
    reminder = "rule " * 4_000 + "the end of the rules"
    talk.add(said("u", 0), said("a", 1), said("u", 2, 8), {"role": "system", "content": reminder})
    whole = talk.context()
    assert reminder in str(whole)
    talk.add(said("a", 3), said("u", 4, 8), {"role": "system", "content": reminder * 3})
    cut = talk.context()
    assert refusal(cut) == ""
    assert said("u", 4, 8)["content"] in str(cut)
    assert "the end of the rules" in str(cut["messages"][-1])


def test_what_sets_something_at_the_provider_stays_where_it_is():
    directive = {"role": "system", "content": [], "output_config": {"effort": "low"}}
    talk = Conversation("claude-opus-4-8", format="anthropic", window=32_000, max_output=500)
    talk.add(said("u", 0), said("s", 1), said("a", 2), directive, said("u", 4), said("s", 5))
    assert talk.context()["messages"][3] == directive
    for number in range(6, 40):
        talk.add(said("au"[number % 2], number))
    talk.add(said("s", 41))
    fields = talk.compact()
    assert [message for message in fields["messages"] if "output_config" in message] == [directive]
    assert refusal(fields) == ""


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", ["anthropic", "chat"])
def test_a_small_newest_one_stays_whole_beside_a_question_that_must_be_cut(name, preset):
    talk = Conversation("claude-opus-4-8", format=name, preset=preset, window=2_500, max_output=500)
    newest = ""
    for turn in range(6):
        talk.add({"role": "user", "content": f"u{turn} " + " ".join(_words(turn, 200 + 350 * (turn % 4)))})
        if turn % 2:
            newest = f"s{turn} " + " ".join(_words(turn + 50, 45))
            talk.add({"role": "system", "content": newest})
        fields = talk.context()
        assert newest in json.dumps(fields)
        assert refusal(fields, name) == ""
        talk.add({"role": "assistant", "content": f"a{turn} " + " ".join(_words(turn + 100, 150))})


def _words(seed: int, count: int) -> list[str]:
    known = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "kappa", "lambda", "theta")
    return [known[(seed + at * at + at // 3) % len(known)] for at in range(count)]


async def test_another_system_prompt_is_sent_from_the_next_request_on():
    async with refold.Conversation("gpt-4o-mini", system="Be brief.") as chat:
        await chat.add("Hello.")
        await chat.set_system([{"role": "developer", "content": "Be long."}, "No lists."])
        several = await chat.context()
        await chat.set_system(None)
        none = await chat.context()

    assert [one["role"] for one in several["messages"]] == ["developer", "system", "user"]
    assert [one["content"] for one in none["messages"]] == ["Hello."]
