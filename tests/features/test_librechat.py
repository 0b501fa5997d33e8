"""The features of the preset `librechat`, through the doors that users have."""

from __future__ import annotations

import json

import pytest

import refold
from refold.cli.main import run
from refold.engine.settings import ConversationSettings, open_summariser, with_block
from refold.sync import Conversation, Engine
from refold.testing import ScriptedUpstream
from refold.tokens import counter_for
from refold.upstreams import Provider
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


@pytest.mark.feature("C9")
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
