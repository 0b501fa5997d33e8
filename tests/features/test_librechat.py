"""The features of the preset `librechat`, through the doors that users have."""

from __future__ import annotations

import json
import re

import pytest

import refold
from refold import presets
from refold.cli.main import run
from refold.engine.settings import ConversationSettings, open_summariser, with_block
from refold.sync import Conversation, Engine
from refold.testing import Refuse, ScriptedUpstream
from refold.tokens import counter_for
from refold.upstreams import Provider
from tests.core.conversations import TextCounter
from tests.formats import answer, chat_call, chat_result, question, turn
from tests.gateway.conftest import served

ROOM = 10_000 - 1_000 - 500
"""The window without the output and the reserve of 5 %."""
CHECKPOINT = "## Checkpoint\n## Goal\nGet the shop running."


def policy_with(**block):
    return with_block(block, ConversationSettings(model="gpt-4o")).policy


def talk_with(*, turns=70, window=10_000, **block):
    """A conversation of short turns, with its events, up to the first change."""
    events = []
    talk = Conversation(
        "gpt-4o", policy=policy_with(**block), window=window, max_output=1_000, on_event=events.append
    )
    for number in range(turns):
        talk.add(question(f"Step {number}: " + "look at the next file and tell me what it does. " * 10))
        sizes = talk.measurement.content.tokens
        talk.context()
        if talk.receipts:
            return talk, sizes, events
        talk.add(answer("It reads the settings and checks them. " * 6))
    return talk, None, events


class Quarters(TextCounter):
    """Counts four characters as a token, as the stage that masks results does."""

    def text(self, text):
        return len(text) // 4

    def message(self, message):
        return super().message(message) // 4


def quartered(**settings):
    """A conversation of the preset with a room of 8,500 tokens, four characters each."""
    given = {"window": 10_000, "max_output": 1_000, "counter": Quarters(), "preset": "librechat", **settings}
    return Conversation("gpt-4o", **given)


def result_of(name, text):
    return [chat_call(name), chat_result(name, text)]


def results_in(fields):
    return [message["content"] for message in fields["messages"] if message["role"] == "tool"]


def rows(characters):
    """Lines of ten characters."""
    return "".join(f"row {number:05}\n" for number in range(characters // 10))


def read_tables(talk, count, tokens):
    """Add turns with a result each, and a question with which the request has so many tokens."""
    for number in range(count):
        talk.add(question("Read it."), *result_of(f"read_{number}", rows(4 * 300)), answer("It has rows."))
    talk.add(question("And this?"), *result_of("read_last", rows(4 * 300)))
    talk.add(question("q" * 4 * (tokens - talk.measurement.content.tokens)))
    assert talk.measurement.content.tokens == tokens


@pytest.mark.feature("C1")
@pytest.mark.parametrize(("tokens", "is_masked"), [(6_799, False), (6_800, True)])
def test_answered_results_become_excerpts_from_80_percent_on(tokens, is_masked):
    talk = quartered()
    read_tables(talk, 20, tokens)
    fields = talk.context()
    *answered, unread = results_in(fields)
    said = [one["content"] for one in fields["messages"] if one["role"] == "assistant"]
    assert [one.reason for one in talk.receipts] == (["6,800 tokens >= 80 % of 8,500"] if is_masked else [])
    assert said == [None, "It has rows."] * 20 + [None]
    assert unread == rows(1_200)  # the assistant has not answered it
    if not is_masked:
        assert answered == [rows(1_200)] * 20
        return
    assert len(answered[0]) < len(answered[2]) < len(answered[4]) < 1_200  # the older, the shorter
    head, tail = re.split(r"\n\n… \[truncated: 1200 chars exceeded \d+ limit; #m2\] …\n\n", answered[0])
    lines = rows(1_200).splitlines()
    assert head.splitlines() == lines[: len(head.splitlines())]
    assert tail.splitlines() == lines[-len(tail.splitlines()) :]
    assert 0.67 < len(head) / len(head + tail) < 0.73


@pytest.mark.feature("C1")
def test_an_excerpt_keeps_300_characters():
    talk = quartered()
    for number in range(45):
        talk.add(question("Read it."), *result_of(f"read_{number}", rows(620)), answer("It has rows."))
    talk.add(question("And now?"))
    shortest = min(map(len, results_in(talk.context())))
    assert 270 < shortest <= 300


@pytest.mark.feature("C2")
@pytest.mark.parametrize(("window", "reserve"), [(10_000, 500), (20_000, 1_000), (50_000, 2_500)])
def test_a_twentieth_of_the_window_is_reserved(window, reserve):
    sizes = quartered(window=window).measurement
    assert sizes.reserve == 1_000 + reserve
    assert sizes.free == window - 1_000 - reserve


@pytest.mark.feature("C2")
@pytest.mark.parametrize(("instructions", "is_masked"), [(1_799, False), (1_800, True)])
def test_pressure_counts_the_instructions_too(instructions, is_masked):
    """Answered results are masked from 80 % of 8,500 tokens on, which is 6,800."""
    talk = quartered(system="s" * 4 * instructions)
    read_tables(talk, 12, instructions + 5_000)
    assert talk.measurement.system.tokens == instructions
    assert (results_in(talk.context())[0] != rows(1_200)) is is_masked


@pytest.mark.feature("C2")
def test_the_reserve_is_part_of_the_sum_that_is_shown(tmp_path, capsys):
    (tmp_path / "t.json").write_text(json.dumps({"model": "gpt-4o", "messages": [question("Hello.")]}))
    sizes = ["--window", "10000", "--max-output", "2000", "--preset", "librechat"]
    assert run(["context", str(tmp_path / "t.json"), "--json", *sizes]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["compress_at"]["arithmetic"] == "window 10,000 − output 2,000 − reserve 500 = 7,500"


class Writer:
    """A summariser that can be down, and that remembers the messages it was given."""

    def __init__(self):
        self.given, self.is_down = [], False

    async def __call__(self, messages, *, previous, max_tokens):
        self.given.append((messages, previous))
        if self.is_down:
            raise ConnectionError
        return f"{CHECKPOINT} Tables were read, {len(self.given)} times."


async def talk_until(talk, is_done, *, first=0):
    """Turns of questions about tables, up to the first after which something holds."""
    for number in range(first, first + 60):
        await talk.add(question(f"Read table {number}."), *result_of(f"read_{number}", rows(4 * 500)))
        fields = await talk.context()
        await talk.add(answer(f"Table {number} has rows."))
        if is_done():
            return fields, number + 1
    raise AssertionError("it never came to that")


def open_talk(writer, **settings):
    given = {"window": 10_000, "max_output": 1_000, "counter": Quarters(), "preset": "librechat", **settings}
    return refold.Conversation("gpt-4o", summariser=writer, **given)


@pytest.mark.feature("C4")
async def test_the_summariser_reads_the_originals_of_masked_results():
    writer = Writer()
    async with open_talk(writer) as talk:
        await talk_until(talk, lambda: talk.receipts)
        masked, _ = await talk_until(talk, lambda: len(talk.receipts) > 1, first=100)
        assert [one.decision for one in talk.receipts[:2]] == ["reduce", "reduce"]
        assert results_in(masked)[0] != rows(2_000)
        await talk.compact()
    ((given, _),) = writer.given
    assert {one["content"] for one in given if one["role"] == "tool"} == {rows(2_000)}


@pytest.mark.feature("C5")
def test_a_result_larger_than_its_share_is_cut():
    talk = quartered()
    talk.add(question("Read it."), *result_of("read_0", rows(4 * 4_500)))
    talk.add(*result_of("read_1", rows(4 * 2_600)))
    cut, newest = results_in(talk.context())
    assert newest == rows(4 * 2_600)  # no reply followed it yet, so it is whole
    assert "… [truncated: 18000 chars exceeded 101" in cut
    assert 10_150 < len(cut) <= 10_200  # 30 % of 8,500 tokens
    assert talk.recall("#m2")["content"] == rows(4 * 4_500)


@pytest.mark.feature("C5")
def test_an_input_larger_than_its_share_stays_an_object():
    talk = quartered()
    text = rows(4 * 4_500)
    talk.add(question("Write it."), chat_call("write", path="a.csv", text=text), chat_result("write", "ok"))
    talk.add(question("q" * 4 * 2_600))
    (call,) = talk.context()["messages"][1]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert set(arguments) == {"_truncated", "_originalChars"}
    assert arguments["_originalChars"] > 18_000
    assert len(call["function"]["arguments"]) <= 5_100  # 15 % of 8,500 tokens


@pytest.mark.feature("C6")
async def test_what_fits_stays_and_the_summariser_gets_all_the_rest():
    writer = Writer()
    async with open_talk(writer) as talk:
        fields, turns = await talk_until(talk, lambda: writer.given)
        ((given, previous),) = writer.given
    *_, kept = [at for at, one in enumerate(fields["messages"]) if CHECKPOINT in str(one["content"])]
    kept = fields["messages"][kept + 1 :]
    everything = [
        message
        for number in range(turns)
        for message in (
            question(f"Read table {number}."),
            *result_of(f"read_{number}", rows(2_000)),
            answer(f"Table {number} has rows."),
        )
    ][:-1]
    assert previous == ""
    assert [plain(one) for one in (*given, *kept)] == [plain(one) for one in everything]
    assert [one["role"] for one in kept] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
        "tool",
    ]


def plain(message):
    """A message by its role and its text or call; an absent text is an empty one."""
    calls = [one["function"]["name"] for one in message.get("tool_calls", ())]
    return message["role"], message.get("content") or "", calls


@pytest.mark.feature("C6")
def test_without_summaries_the_newest_messages_stay_in_one_piece():
    talk = quartered(preset="librechat", policy=presets.WITHOUT_SUMMARIES)
    sizes = [600, 600, 600, 7_000, 600, 600, 600, 600]
    said = [
        message
        for number, size in enumerate(sizes)
        for message in (question(f"Tell me part {number}."), answer(f"{number} " + "a" * 4 * size))
    ]
    talk.add(*said, question("And now?"))
    note, *kept = talk.context()["messages"]
    assert kept == [*said[8:], question("And now?")]  # an older one would fit, and is not kept
    assert "No longer shown: #m0 to #m7" in note["content"]


@pytest.mark.feature("C7")
def test_an_unchanged_history_is_not_summarised_again():
    talk, _, _ = talk_with()
    for _ in range(3):
        talk.context()
        talk.compact()
    assert len([one for one in talk.receipts if one.summary]) == 1


@pytest.mark.feature("C8")
async def test_the_last_two_turns_stay_and_later_summaries_begin_with_the_first_message_too():
    async with open_talk(None) as talk:
        fields, turns = await talk_until(talk, lambda: any(one.summary for one in talk.receipts))
        await talk_until(talk, lambda: sum(bool(one.summary) for one in talk.receipts) > 1, first=turns)
    asked = [one["content"] for one in fields["messages"] if str(one["content"]).startswith("Read table")]
    assert asked == [f"Read table {turns - 2}.", f"Read table {turns - 1}."]
    assert {one.summary.first for one in talk.receipts if one.summary} == {0}


@pytest.mark.feature("C8")
async def test_a_clean_slate_leaves_nothing_but_the_question():
    flags = {"compaction_preset": "librechat", "compaction_variant": "clean-slate"}
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(upstream, window=6_000, summariser_enabled=False, **flags) as gate,
        gate.openai() as client,
    ):
        await client.chat.completions.create(model="gpt-4o", messages=long_request(40))
        summary, *kept = json.loads(upstream.requests[-1].body)["messages"]
    assert kept == [question("And now?")]
    assert "Pick up where you left off" in summary["content"]


@pytest.mark.feature("C9")
async def test_in_a_run_the_summary_is_a_user_message_in_every_later_call():
    async with open_talk(None) as talk:
        fields, _ = await talk_until(talk, lambda: any(one.summary for one in talk.receipts))
        lead = fields["messages"][0]
        instructions = talk.measurement.instructions
        assert lead["role"] == "user"
        assert "Pick up where you left off" in lead["content"]
        for number in range(3):
            await talk.add(question(f"And {number}?"))
            assert (await talk.context())["messages"][0] == lead
            await talk.add(answer("Well."))
        assert talk.measurement.instructions == instructions
        assert talk.measurement.summary.tokens > 0


@pytest.mark.feature("C11")
async def test_models_are_asked_in_their_order_until_one_has_an_answer():
    async with (
        ScriptedUpstream(otherwise=Refuse(400)) as down,
        ScriptedUpstream(otherwise=CHECKPOINT) as well,
        ScriptedUpstream() as spare,
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(
            upstream,
            window=6_000,
            compaction_preset="librechat",
            summariser_models=[f"m-{at}@{one.url}/v1" for at, one in enumerate((down, well, spare))],
        ) as gate,
        gate.openai() as client,
    ):
        await client.chat.completions.create(model="gpt-4o", messages=long_request(40))
        assert "Get the shop running." in upstream.requests[-1].body.decode()
        assert [len(one.requests) > 0 for one in (down, well, spare)] == [True, True, False]


@pytest.mark.feature("C11")
async def test_where_all_fail_a_stub_keeps_the_previous_summary():
    writer = Writer()
    async with open_talk(writer) as talk:
        _, turns = await talk_until(talk, lambda: any(one.summary for one in talk.receipts))
        writer.is_down, known = True, len(talk.receipts)
        fields, _ = await talk_until(
            talk, lambda: any(one.summary for one in talk.receipts[known:]), first=turns
        )
    stub = talk.receipts[-1].summary
    assert stub.kind == "mechanical"
    assert "[Compacted messages: " in stub.text
    assert CHECKPOINT in fields["messages"][0]["content"]


@pytest.mark.feature("C11")
async def test_a_stub_is_never_what_an_overflow_leaves():
    writer = Writer()
    writer.is_down = True
    async with open_talk(writer, max_output=4_000) as talk:
        for number in range(5):
            await talk.add(question(f"Tell me part {number}."), answer(rows(4 * 800)))
        await talk.add(question("And now?"))
        await talk.context()
        await talk.recover({"error": {"code": "context_length_exceeded", "message": "too long"}})
        assert writer.given == []
        assert [one.summary.kind for one in talk.receipts if one.summary] == ["extractive"]


@pytest.mark.feature("C12", "C16")
@pytest.mark.parametrize("update", ["", "Bring it up to date."])
async def test_prompts_can_be_replaced_and_one_serves_for_updates_too(update):
    prompts = {"prompt": "Sum it up, please."} | ({"updatePrompt": update} if update else {})
    asked = []

    def reply(received):
        said = received.messages[-1].text
        asked.extend(one for one in prompts.values() if one in said)
        return CHECKPOINT if asked and asked[-1] in said else "Fine."

    block = {**prompts, "model": "gpt-4o-mini"}
    flags = {"compaction_preset": "librechat", "compaction_summarization": [json_toml(block)]}
    async with (
        ScriptedUpstream(otherwise=reply) as upstream,
        served(upstream, window=8_000, **flags) as gate,
        gate.openai() as client,
    ):
        said = []
        for _ in range(2):
            said += long_request(22)
            await client.chat.completions.create(model="gpt-4o", messages=said)
            said.append(answer("Fine."))
    assert asked == ["Sum it up, please.", update or "Sum it up, please."]


@pytest.mark.feature("C12")
async def test_the_built_in_prompt_speaks_as_the_user():
    async with (
        ScriptedUpstream(otherwise=CHECKPOINT) as upstream,
        served(upstream, window=8_000, compaction_preset="librechat") as gate,
        gate.openai() as client,
    ):
        await client.chat.completions.create(model="gpt-4o", messages=long_request(40))
        asked = upstream.requests[0].messages[-1]
    assert asked.role == "user"
    assert "I want you to write me a checkpoint of all our work" in asked.text


@pytest.mark.feature("C13")
@pytest.mark.parametrize(
    ("tokens", "factor"), [(6_700, None), (6_900, 1.0), (7_300, 0.5), (7_700, 0.2), (8_420, 0.05)]
)
def test_results_fade_in_four_steps_as_the_window_fills(tokens, factor):
    talk = quartered(policy=presets.WITHOUT_SUMMARIES)
    count = 3
    for number in range(count):
        talk.add(*([question("Read.")] if not number else []), *result_of(f"read_{number}", rows(4 * 2_200)))
    call, result = result_of("count", "")
    talk.add(call)
    unread = "q" * 4 * (tokens - talk.measurement.content.tokens)
    talk.add({**result, "content": unread})
    *sent, newest = results_in(talk.context())
    assert newest == unread
    if factor is None:
        assert sent == [rows(4 * 2_200)] * count
        return
    newest = 4 * int(0.3 * max(1_024, 8_500 * factor))
    limits = [newest // 5, newest * 3 // 5, newest]
    for text, limit in zip(sent, limits, strict=True):
        assert min(len(rows(4 * 2_200)), limit) - 60 <= len(text) <= max(limit, 200)


@pytest.mark.feature("C15")
@pytest.mark.parametrize("window", [256, 300, 500])
@pytest.mark.parametrize("preset", presets.PRESETS)
def test_a_window_too_small_for_anything_is_a_clear_error(preset, window):
    def ask():
        talk = Conversation(
            "gpt-4o", preset=preset, window=window, system="You port code to version 7. " * 100
        )
        for number in range(4):
            talk.add(*turn(number))
        talk.add(question("And now?"))
        talk.context()

    with pytest.raises((refold.BudgetError, refold.DoesNotFit)) as caught:
        ask()
    assert caught.value.hint


@pytest.mark.feature("C15")
def test_in_an_emergency_the_room_is_divided_over_all_messages():
    """Nothing of the active turn may be dropped, and without summaries nothing else is left. What is older gives
    way to the newest result, in equal parts.
    """
    talk = quartered(window=3_000, max_output=100, policy=presets.WITHOUT_SUMMARIES)
    talk.add(question("Read them all."))
    for number in range(8):
        call, result = result_of(f"read_{number}", rows(4 * 600))
        talk.add({**call, "content": rows(4 * 600)}, result)
    messages = talk.context()["messages"]
    assert len(messages) == 17
    assert talk.measurement.free >= 0
    share = 4 * (3_000 - 100 - 150) // 17 * 3 // 4
    assert messages[-1]["content"] == rows(4 * 600)
    for message in messages:
        if message["role"] == "assistant":
            assert share - 25 < len(message["content"]) <= share


@pytest.mark.feature("C7", "C16")
@pytest.mark.parametrize(("value", "least"), [(0.25, 0.25), (0.6, 0.6), (1.0, 1.0)])
def test_a_token_ratio_fires_at_its_share_of_the_room(value, least):
    talk, size, _ = talk_with(trigger={"type": "token_ratio", "value": value})
    assert least * ROOM <= size <= least * ROOM + 250
    assert talk.receipts[0].summary is not None


@pytest.mark.feature("C7", "C16")
@pytest.mark.parametrize("value", [6_000, 2_000, 0])
def test_remaining_tokens_fire_when_so_few_are_left_of_the_room(value):
    talk, size, _ = talk_with(trigger={"type": "remaining_tokens", "value": value})
    assert ROOM - value <= size <= ROOM - value + 250
    assert talk.receipts[0].summary is not None


@pytest.mark.feature("C7", "C16")
def test_without_a_trigger_or_with_a_ratio_of_0_a_summary_waits_for_a_message_that_does_not_fit():
    for block in ({}, {"trigger": {"type": "token_ratio", "value": 0}}):
        talk, size, _ = talk_with(**block)
        assert ROOM < size <= ROOM + 250
        assert talk.receipts[0].summary is not None


@pytest.mark.feature("C7", "C16")
def test_too_few_messages_to_refine_are_dropped_with_a_note_and_without_a_summary():
    events = []
    policy = policy_with(trigger={"type": "messages_to_refine", "value": 8})
    talk = Conversation("gpt-4o", policy=policy, window=10_000, max_output=1_000, on_event=events.append)
    decisions = []
    for number in range(90):
        talk.add(question(f"Step {number}: " + "look at the next file and tell me what it does. " * 10))
        talk.context()
        decisions += [one.summary is not None for one in talk.receipts[len(decisions) :]]
        if decisions == [False]:
            sent = json.dumps(talk.context()["messages"])
            assert "No longer shown: #m" in sent
        if True in decisions:
            break
        talk.add(answer("It reads the settings and checks them. " * 6))
    assert decisions[:2] == [False, False]
    assert decisions[-1] is True  # after eight dropped messages, all originals are summarised
    assert len(decisions) <= 9
    assert talk.receipts[-1].summary.first == 0


@pytest.mark.feature("C16", "C8")
def test_the_turns_that_stay_are_set_by_retain_recent():
    for block, kept in (
        ({"turns": 1}, 1),
        ({"turns": 3}, 3),
        ({"turns": 3, "tokens": 250}, 1),
        ({"turns": 0}, 1),
    ):
        talk, _, _ = talk_with(retainRecent=block)
        shown = [one for one in talk.context()["messages"] if one["content"].startswith("Step ")]
        assert len(shown) == kept, block


@pytest.mark.feature("C16", "C2")
def test_a_reserve_of_0_leaves_the_whole_window():
    _, size, _ = talk_with(reserveRatio=0)
    assert 9_000 < size <= 9_250


@pytest.mark.feature("C16")
@pytest.mark.parametrize(
    ("provider", "address"),
    [
        ("azureOpenAI", "my-model@https://RESOURCE.openai.azure.com"),
        ("bedrock", "my-model@https://bedrock-runtime.REGION"),
        ("vertexai", "my-model@https://LOCATION-aiplatform"),
    ],
)
def test_a_provider_without_an_address_says_what_to_set_when_the_block_is_read(provider, address):
    with pytest.raises(refold.ConfigError, match=r"summarization\.provider") as error:
        policy_with(provider=provider, model="my-model")
    assert address in error.value.hint


@pytest.mark.feature("C16")
def test_the_names_of_providers_are_those_of_the_block():
    found = with_block({"provider": "google", "model": "m"}, ConversationSettings(model="gpt-4o"))
    assert [one.name for one in found.summarisers] == ["gemini"]
    with pytest.raises(refold.ConfigError, match="no known address"):
        policy_with(provider="my-box", model="m")


def settings_file(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "refold.toml").write_text(text)


def long_request(turns=14):
    said = [message for number in range(turns) for message in turn(number, lines=40)]
    return [*said, question("And now?")]


@pytest.mark.feature("C16", "C7")
async def test_the_block_is_a_table_of_the_settings_and_the_gateway_uses_it():
    block = {
        "trigger": {"type": "token_ratio", "value": 0.3},
        "model": "gpt-4o-mini",
        "prompt": "Sum it up, please.",
        "maxSummaryTokens": 700,
        "parameters": {"top_p": 0.5},
    }

    def reply(received):
        return CHECKPOINT if "Sum it up, please." in received.body.decode() else "Fine."

    async with (
        ScriptedUpstream(otherwise=reply) as upstream,
        served(
            upstream,
            window=20_000,
            compaction_preset="librechat",
            compaction_summarization=[json_toml(block)],
        ) as gate,
        gate.openai() as client,
    ):
        await client.chat.completions.create(model="gpt-4o", messages=long_request(40))
        asked, sent = (json.loads(one.body) for one in upstream.requests[-2:])
    assert asked["model"] == "gpt-4o-mini"
    assert asked["top_p"] == 0.5
    assert max(asked.get("max_tokens", 0), asked.get("max_completion_tokens", 0)) == 700
    assert "Get the shop running." in json.dumps(sent["messages"])
    assert sent["model"] == "gpt-4o"


LENGTHS = {
    "of the block": ({"maxSummaryTokens": 6_000}, 6_000),
    "of its parameters": ({"parameters": {"maxSummaryTokens": 6_000}}, 6_000),
    "of both": ({"maxSummaryTokens": 700, "parameters": {"maxSummaryTokens": 6_000}}, 700),
}


@pytest.mark.feature("C16")
@pytest.mark.parametrize("block, length", LENGTHS.values(), ids=LENGTHS)
async def test_the_length_of_a_summary_is_sent_as_it_is_set(block, length):
    async with (
        ScriptedUpstream(otherwise=CHECKPOINT) as upstream,
        served(
            upstream,
            window=64_000,
            compaction_preset="librechat",
            compaction_summarization=[json_toml(block)],
        ) as gate,
        gate.openai() as client,
    ):
        await client.chat.completions.create(model="gpt-4o", messages=long_request(200))
        *asked, _ = (json.loads(one.body) for one in upstream.requests)
    assert asked
    assert {one["max_tokens"] for one in asked} == {length}


def json_toml(value):
    """A value as an inline table of TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {json_toml(one)}" for name, one in value.items()) + "}"
    return json.dumps(value)


@pytest.mark.feature("C16", "C14")
def test_the_command_line_uses_the_block_of_the_settings(tmp_path, monkeypatch, capsys):
    settings_file(
        tmp_path,
        monkeypatch,
        '[compaction]\npreset = "librechat"\n'
        '[compaction.summarization]\ntrigger = { type = "token_ratio", value = 0.3 }\n',
    )
    (tmp_path / "t.json").write_text(json.dumps({"model": "gpt-4o", "messages": long_request(40)}))
    assert run(["compact", "t.json", "--window", "20000", "--max-output", "1000", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "preset librechat" in shown
    assert "30 % of" in shown


@pytest.mark.feature("C16")
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[compaction.summarization]\ntriger = 1", "triger"),
        ('[compaction.summarization]\ntrigger = { type = "token_ratio", value = 80 }', "trigger.value"),
        ('[compaction.summarization]\nprovider = "bedrock"\nmodel = "m"', "bedrock"),
        ('[compaction.summarization]\nprovider = "my-box"\nmodel = "m"', "my-box"),
    ],
)
def test_a_wrong_block_in_the_settings_names_the_key(tmp_path, monkeypatch, capsys, text, named):
    settings_file(tmp_path, monkeypatch, f'[compaction]\npreset = "librechat"\n{text}\n')
    assert run(["config", "check"]) != 0
    said = "".join(capsys.readouterr())
    assert "compaction.summarization" in said
    assert named in said


@pytest.mark.feature("C16")
@pytest.mark.parametrize(
    "trigger", ['{ type = "sk-PRIVATE", value = 1 }', "{ type = 5, value = 1 }", "{ value = 1 }"]
)
def test_a_wrong_type_of_a_trigger_is_told_the_types_and_not_repeated(tmp_path, monkeypatch, capsys, trigger):
    text = f'[compaction]\npreset = "librechat"\n[compaction.summarization]\ntrigger = {trigger}\n'
    settings_file(tmp_path, monkeypatch, text)
    assert run(["config", "check"]) != 0
    said = " ".join("".join(capsys.readouterr()).split())
    assert "trigger.type is one of: token_ratio, remaining_tokens, messages_to_refine" in said
    assert "PRIVATE" not in said


@pytest.mark.feature("C16")
def test_another_preset_does_not_take_the_block(tmp_path, monkeypatch, capsys):
    settings_file(tmp_path, monkeypatch, "[compaction.summarization]\nreserveRatio = 0.1\n")
    assert run(["config", "check"]) != 0
    said = "".join(capsys.readouterr())
    assert "compaction.summarization" in said
    assert "librechat" in said


BIG = "a line of the log that nobody reads again\n" * 1_300
"""More than 50,000 characters: position pruning leaves smaller results alone."""


def old_result(name="read_log"):
    return [question("Read the log."), chat_call(name, path="x.log"), chat_result(name, BIG), answer("Read.")]


@pytest.mark.feature("C14")
async def test_pruning_by_position_begins_at_its_soft_ratio_whatever_the_window():
    said = [*old_result(), *(message for number in range(4) for message in turn(number))]
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(
            upstream, window=200_000, compaction_preset="librechat", compaction_variant="by-position"
        ) as gate,
        gate.openai() as client,
    ):
        await client.chat.completions.create(model="gpt-4o", messages=[*old_result(), question("And?")])
        young = json.loads(upstream.requests[-1].body)["messages"][2]["content"]
        await client.chat.completions.create(model="gpt-4o", messages=[*said, question("And?")])
        old = json.loads(upstream.requests[-1].body)["messages"][2]["content"]
    assert young == BIG  # among the last three replies
    assert old.startswith("[Old tool result content cleared")
    assert "#m2" in old


@pytest.mark.feature("C13", "C14")
async def test_a_setting_turns_summaries_off():
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(
            upstream, window=6_000, compaction_preset="librechat", compaction_variant="without-summaries"
        ) as gate,
        gate.openai() as client,
    ):
        await client.chat.completions.create(model="gpt-4o", messages=long_request(40))
        assert len(upstream.requests) == 1  # no model is asked for a summary
        sent = json.dumps(json.loads(upstream.requests[-1].body)["messages"])
    assert "No longer shown: #m" in sent


@pytest.mark.feature("C9", "P3")
async def test_a_setting_places_the_summary_in_the_system_prompt():
    flags = {"compaction_preset": "librechat", "compaction_variant": "across-runs"}
    with pytest.raises(refold.SettingError, match="allow_system_summary"):
        async with ScriptedUpstream() as upstream, served(upstream, **flags):
            pass
    system = {"role": "system", "content": "You are brief."}
    async with (
        ScriptedUpstream(otherwise="Fine.") as upstream,
        served(
            upstream,
            window=6_000,
            summariser_enabled=False,
            compaction_allow_system_summary=True,
            **flags,
        ) as gate,
        gate.openai() as client,
    ):
        await client.chat.completions.create(model="gpt-4o", messages=[system, *long_request(40)])
        first, *rest = json.loads(upstream.requests[-1].body)["messages"]
    assert first["content"].startswith("You are brief.")
    assert "## Conversation Summary" in first["content"]
    assert not [one for one in rest if "## Conversation Summary" in str(one["content"])]


@pytest.mark.feature("C16")
def test_an_unknown_variant_is_refused_with_those_that_exist(tmp_path, monkeypatch, capsys):
    settings_file(tmp_path, monkeypatch, '[compaction]\npreset = "librechat"\nvariant = "half"\n')
    assert run(["config", "check"]) != 0
    said = "".join(capsys.readouterr())
    assert "compaction.variant" in said
    assert "by-position" in said


@pytest.mark.feature("N2", "C1", "C5")
def test_an_excerpt_of_a_result_names_the_original():
    talk = Conversation("gpt-4o", preset="librechat", window=8_000, max_output=800)
    for number in range(4):
        talk.add(*turn(number, lines=220))
        talk.add(question("And the next one?"), answer("Yes."))
    talk.add(question("And now?"))
    sent = talk.context()["messages"]
    cut = [one["content"] for one in sent if one["role"] == "tool" and "[truncated: " in one["content"]]
    assert cut
    for text in cut:
        handle = text.partition(" limit; ")[2].partition("]")[0]
        assert text.partition("\n")[0] in talk.recall(handle)["content"]


@pytest.mark.feature("C10", "C12")
async def test_every_checkpoint_is_asked_for_behind_the_messages_as_they_were_last_sent():
    """The provider's cache holds the prefix of the second and third question as well as that of the first."""
    tools = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}]
    text = f"{CHECKPOINT}\n## Progress\nThe files were read, one after the other."
    async with ScriptedUpstream(otherwise=text, window=10**6) as upstream:
        own = Provider("local", "gpt-4o", base_url=f"{upstream.url}/v1")
        settings = ConversationSettings(model="gpt-4o", preset="librechat", summarisers=(own,))
        async with (
            open_summariser(settings, own) as writer,
            refold.Conversation(
                "gpt-4o",
                preset="librechat",
                system="Be brief.",
                tools=tools,
                window=128_000,
                summariser=writer,
            ) as talk,
        ):
            for number in range(3):
                for step in range(8):
                    await talk.add(question(f"Step {number}.{step}: {'look at the next file. ' * 20}"))
                    await talk.context()
                    await talk.add(answer(f"File {number}.{step} reads the settings. " * 20))
                await talk.add(question("Get on."))
                sent = (await talk.context())["messages"]
                await talk.compact()
                asked = json.loads(upstream.requests[-1].body)
                assert len(upstream.requests) == number + 1
                covered = asked["messages"][:-1]
                assert covered == sent[: len(covered)]
                assert len(covered) >= 14
                assert asked["tools"] == tools
                told = asked["messages"][-1]["content"]
                assert ("once more" in told) is (number > 0)  # the update prompt
                await talk.add(answer("Well."))


WINDOW, OUTPUT, OVERHEAD = 10_000, 1_000, 3_004


def text(words, number):
    return " ".join(f"The {number + at} grey gulls flew out to sea." for at in range(words // 8))


def talk_on(talk, turns, first=0):
    """The sizes of the calls, output included, of a provider that counts the short instructions as very long ones."""
    counter, sizes = counter_for("gpt-4o"), []
    for number in range(first, first + turns):
        talk.add(question(text(250, number)))
        sent = [one for one in talk.context()["messages"] if one["role"] != "system"]
        prompt = sum(counter.text(str(one["content"])) for one in sent) + OVERHEAD
        sizes.append(prompt + OUTPUT)
        talk.record({"prompt_tokens": prompt, "completion_tokens": 10})
        talk.add(answer(text(100, 7_000 + number)))
    return sizes


@pytest.mark.feature("C3")
def test_no_call_is_larger_than_the_window_once_the_instructions_are_known():
    talk = Conversation("gpt-4o", preset="librechat", system="x " * 500, window=WINDOW, max_output=OUTPUT)
    sizes = talk_on(talk, 60)
    assert max(sizes) <= WINDOW
    assert max(sizes) > WINDOW * 0.75  # and not because little is sent
    assert talk.state.frame.instructions == pytest.approx(OVERHEAD, rel=0.15)
    assert any(one.decision == "summarise" for one in talk.receipts)


@pytest.mark.feature("C3")
def test_the_size_of_the_instructions_is_known_after_a_restart(tmp_path):
    settings = {
        "model": "gpt-4o",
        "preset": "librechat",
        "system": "x " * 500,
        "window": WINDOW,
        "max_output": OUTPUT,
    }
    with Engine(f"sqlite:///{tmp_path}/a.db", **settings) as engine:
        talk_on(engine.conversation("one"), 12)
    with Engine(f"sqlite:///{tmp_path}/a.db", **settings) as engine:
        talk = engine.conversation("one")
        assert max(talk_on(talk, 20, first=100)) <= WINDOW
        other = engine.conversation("two", system="Be brief.")
        other.add(question("Hello."))
        other.context()
        assert other.state.frame.instructions < 20  # other instructions: nothing is known about them
