"""Every trigger fires where users set it: in a policy of the library, and in the settings of the gateway."""

from __future__ import annotations

import pytest
from msgspec import structs

import refold
from examples.sources.topics import DIGRESSIONS, SUBJECTS
from refold import embeddings, presets
from refold.cli.main import run
from refold.config import flag_layer, resolve
from refold.engine import actions
from refold.model.errors import ConfigError, MissingExtra, SettingError
from refold.model.tokens import Usage
from refold.policies import AllOf, AnyOf, LastMessages, MessageCount, TokenRatio, TopicChange
from refold.testing import ScriptedUpstream, say
from tests.formats import answer, question
from tests.gateway.conftest import served

needs_vectors = pytest.mark.skipif(
    embeddings.installed("auto") is None, reason="the extra `search` is not installed"
)
BREAD, BICYCLE, GARDEN = (SUBJECTS[name] for name in ("bread", "bicycle", "garden"))
OTHER = "another topic since #m"


def policy_with(trigger, **changes):
    return structs.replace(presets.REFOLD, name="own", triggers={"turn_start": trigger}, **changes)


def topics(receipts):
    """The number of the first message of each new topic that was a reason for a compaction."""
    reasons = [one.reason for one in receipts]
    return [int(one.removeprefix(OTHER).split(",")[0]) for one in reasons if one.startswith(OTHER)]


async def tell(talk, turns):
    for asked, answered in turns:
        await talk.add(question(asked))
        sent = await talk.context()
        await talk.add(answer(answered))
    return sent


@needs_vectors
@pytest.mark.feature("X11")
async def test_a_change_of_topic_compacts_the_topic_before_once():
    async with refold.Conversation("gpt-4o", policy=policy_with(TopicChange())) as talk:
        await tell(talk, BREAD)
        assert talk.receipts == ()
        sent = await tell(talk, BICYCLE)
    assert topics(talk.receipts) == [2 * len(BREAD)]
    texts = [str(one["content"]) for one in sent["messages"]]
    assert "Earlier messages" in texts[0]
    assert BICYCLE[0][0] in texts
    assert BREAD[-1][0] not in texts


@needs_vectors
@pytest.mark.feature("X11")
@pytest.mark.parametrize("aside", DIGRESSIONS, ids=lambda aside: aside[0][0][:20])
async def test_a_digression_that_returns_is_no_change_of_topic(aside):
    async with refold.Conversation("gpt-4o", policy=policy_with(TopicChange())) as talk:
        await tell(talk, [*BREAD[:8], *aside, *BREAD[8:]])
    assert talk.receipts == ()


@needs_vectors
@pytest.mark.feature("X11")
async def test_no_preset_looks_for_changes_of_topic_by_itself(monkeypatch):
    monkeypatch.setattr(actions, "static_vector", lambda text: pytest.fail("a vector was made"))
    for preset in presets.PRESETS:
        async with refold.Conversation("gpt-4o", preset=preset) as talk:
            await tell(talk, [*BREAD, *BICYCLE[:4]])


@needs_vectors
@pytest.mark.feature("X11")
async def test_a_change_of_topic_is_found_once_by_programs_that_take_turns(tmp_path):
    """Each program opens the conversation for one turn: the topic is made anew from the messages."""
    found, at = [], f"sqlite:///{tmp_path / 'chats.db'}"
    for turn in (*BREAD, *BICYCLE):
        async with refold.Engine(at, model="gpt-4o", policy=policy_with(TopicChange())) as engine:
            talk = await engine.conversation("shop")
            await tell(talk, [turn])
            found += topics(talk.receipts)
    assert found == [2 * len(BREAD)]


@needs_vectors
@pytest.mark.feature("X11")
async def test_a_change_of_topic_that_was_undone_is_no_reason_any_more():
    async with refold.Conversation("gpt-4o", policy=policy_with(TopicChange())) as talk:
        await tell(talk, [*BREAD, *BICYCLE[:5]])
        assert len(topics(talk.receipts)) == 1
        await talk.undo()
        await tell(talk, BICYCLE[5:])
    assert len(topics(talk.receipts)) == 1


@needs_vectors
@pytest.mark.feature("X11")
async def test_a_change_of_topic_counts_in_any_and_in_all():
    """In `all_of` it waits until the other condition is met: the old topic leaves then."""
    both = AllOf((TopicChange(), MessageCount(36, ">=")))
    either = AnyOf((TopicChange(), MessageCount(36, ">=")))
    made = {}
    for trigger in (both, either):
        async with refold.Conversation("gpt-4o", policy=policy_with(trigger)) as talk:
            made[trigger] = []
            for turn in (*BREAD, *BICYCLE):
                await tell(talk, [turn])
                made[trigger].append(topics(talk.receipts))
        assert topics(talk.receipts) == [2 * len(BREAD)]
    first = {trigger: next(at for at, one in enumerate(found) if one) for trigger, found in made.items()}
    assert (first[either], first[both]) == (len(BREAD) + 4, 18)


@needs_vectors
@pytest.mark.feature("X11")
async def test_the_new_topic_stays_where_the_policy_would_keep_less():
    policy = policy_with(TopicChange(), cut=LastMessages(2))
    async with refold.Conversation("gpt-4o", policy=policy) as talk:
        sent = await tell(talk, [*BREAD, *BICYCLE[:5]])
    assert topics(talk.receipts) == [2 * len(BREAD)]
    asked = [one["content"] for one in sent["messages"] if one["role"] == "user"]
    assert asked[-5:] == [question for question, _ in BICYCLE[:5]]


@needs_vectors
@pytest.mark.feature("X11")
async def test_a_sensitive_message_gets_no_vector(monkeypatch):
    texts = []
    make = actions.static_vector
    monkeypatch.setattr(actions, "static_vector", lambda text: (texts.append(text), make(text))[1])
    settings = {"policy": policy_with(TopicChange()), "sensitive": ["hydration"]}
    async with refold.Conversation("gpt-4o", **settings) as talk:
        await tell(talk, BREAD)
        await talk.add(question("My PIN is 4711."), sensitive=True)
        await talk.context()
    assert any("starter" in one for one in texts)
    assert not [one for one in texts if "hydration" in one or "4711" in one]


@pytest.mark.feature("X11")
def test_a_missing_extra_is_named_at_the_start(monkeypatch):
    monkeypatch.setattr(embeddings, "_folder", lambda: None)
    for make in (
        lambda: refold.Engine("memory:", model="gpt-4o", policy=policy_with(TopicChange())),
        lambda: refold.Conversation("gpt-4o", policy=policy_with(AllOf((TopicChange(), TokenRatio(0.5))))),
        lambda: resolve(
            [flag_layer({"compaction.extra_triggers": '{ turn_start = { type = "topic_change" } }'})]
        ),
    ):
        with pytest.raises(MissingExtra, match="search") as caught:
            make()
        assert "refold[search]" in caught.value.hint


@needs_vectors
@pytest.mark.feature("X11")
def test_two_different_triggers_by_topic_are_refused():
    trigger = AnyOf((TopicChange(), TopicChange(turns=5)))
    with pytest.raises(ConfigError, match="two different"):
        refold.Conversation("gpt-4o", policy=policy_with(trigger))


@pytest.mark.parametrize(
    "extra",
    [
        '{ turn_start = { type = "topic" } }',
        "{ turn_start = 1 }",
        "turn_start=topic_change",
        '{ turn_start = { type = "age" } }',
        '{ turn_start = { type = "age", seconds = -1 } }',
        '{ turn_start = { type = "topic_change", distance = 0.3, hysteresis = 0.4 } }',
        '{ noon = { type = "age", seconds = 5 } }',
        '{ turn_start = { type = "topic_change", min_turn = 3 } }',
        '{ turn_start = { type = "all_of", triggers = [] } }',
        '{ turn_start = { type = "any_of", triggers = [] } }',
    ],
)
@pytest.mark.feature("X11")
def test_a_trigger_that_cannot_be_read_is_refused_by_name(extra):
    with pytest.raises(SettingError) as caught:
        resolve([flag_layer({"compaction.extra_triggers": extra})])
    assert "compaction.extra_triggers" in str(caught.value)
    assert caught.value.hint


@pytest.mark.feature("X11")
def test_a_wrong_moment_and_a_text_that_is_no_table_are_told_the_form_and_the_moments(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    for given in ('{ noon = { type = "age", seconds = 5 } }', "turn_start", "turn_start=topic_change"):
        assert run(["serve", "--compaction-extra-triggers", given]) == 2
        told = capsys.readouterr().err
        assert "turn_start, before_call or after_call" in told
        assert 'turn_start = { type = "age", seconds = 3600 }' in told
    assert run(["serve", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert 'In TOML: turn_start={ type = "age", seconds = 3600 }' in told


@pytest.mark.feature("X11")
def test_triggers_are_given_as_pairs_of_toml_too():
    given = 'turn_start={ type = "age", seconds = 5 }, after_call={ type = "reported_overflow" }'
    settings = resolve([flag_layer({"compaction.extra_triggers": given})]).settings
    assert [*settings.compaction.extra_triggers] == ["turn_start", "after_call"]


class Clock:
    def __init__(self):
        self.now = 1_000_000.0

    def __call__(self):
        return self.now


async def reasons_in(gate):
    async with refold.Engine(gate.store, owner="local", model="gpt-4o") as engine:
        (listed,) = await engine.conversations()
        talk = await engine.conversation(listed.id)
        return [one.reason for one in await talk.compactions()]


async def ask(gate, turns, until=None):
    """Each turn as a request with the whole history, as a client without memory sends it."""
    said = []
    async with gate.openai() as client:
        for at, (asked, answered) in enumerate(turns):
            said.append({"role": "user", "content": asked})
            await client.chat.completions.create(model="gpt-4o", messages=said, max_tokens=200)
            said.append({"role": "assistant", "content": answered})
            if until is not None:
                until(at)


@needs_vectors
@pytest.mark.feature("X11")
async def test_the_gateway_takes_a_change_of_topic_from_its_settings():
    """The compaction stays in the turns that follow, although everything would fit."""
    turns = [*BREAD, *BICYCLE]
    async with (
        ScriptedUpstream(*(say(answered) for _, answered in turns)) as upstream,
        served(
            upstream,
            summariser_enabled=False,
            compaction_extra_triggers='{ turn_start = { type = "topic_change" } }',
        ) as gate,
    ):
        await ask(gate, turns)
        (reason,) = await reasons_in(gate)
    assert reason.startswith(f"{OTHER}{2 * len(BREAD)},")
    assert not any(BREAD[0][0] == message.text for message in upstream.requests[-1].messages)


@pytest.mark.feature("X11")
async def test_the_gateway_takes_an_age_from_its_settings():
    clock, turns = Clock(), [*BREAD[:3], *GARDEN[:3], *BICYCLE[:3]]

    def rest(at):
        clock.now += 1_800 if at == 7 else 60

    async with (
        ScriptedUpstream(*(say(answered) for _, answered in turns)) as upstream,
        served(
            upstream,
            clock=clock,
            compaction_preset="picoclaw",
            compaction_allow_system_summary=True,
            summariser_enabled=False,
            compaction_extra_triggers='{ turn_start = { type = "age", seconds = 1800 } }',
        ) as gate,
    ):
        await ask(gate, turns, rest)
        reasons = await reasons_in(gate)
    assert reasons == ["1,800.0 seconds without a call >= 1,800.0"]


@pytest.mark.feature("X11")
async def test_the_gateway_takes_a_reported_overflow_from_its_settings():
    turns = [*BREAD, *BICYCLE]
    replies = [
        say(answered, usage=Usage(input=2_001 if at == 20 else 900, output=30))
        for at, (_, answered) in enumerate(turns)
    ]
    async with (
        ScriptedUpstream(*replies) as upstream,
        served(
            upstream,
            window=2_000,
            summariser_enabled=False,
            compaction_extra_triggers='{ after_call = { type = "reported_overflow" } }',
        ) as gate,
    ):
        await ask(gate, turns)
        reasons = await reasons_in(gate)
    assert reasons == ["2,001 reported tokens > 2,000"]


@pytest.mark.feature("X11")
async def test_the_gateway_takes_messages_to_refine_from_its_settings():
    """A long reply after which two messages and more do not fit."""
    long = " ".join(answered for _, answered in (*GARDEN, *BICYCLE, *BREAD))
    turns = [*BREAD, (GARDEN[0][0], long), GARDEN[1]]
    async with (
        ScriptedUpstream(*(say(answered) for _, answered in turns)) as upstream,
        served(
            upstream,
            window=1_500,
            summariser_enabled=False,
            compaction_extra_triggers='{ after_call = { type = "messages_to_refine", messages = 2 } }',
        ) as gate,
    ):
        await ask(gate, turns)
        reasons = await reasons_in(gate)
    assert len(reasons) == 1
    assert reasons[0].endswith("messages to refine >= 2")
