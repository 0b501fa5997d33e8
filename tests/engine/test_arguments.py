"""Arguments of a wrong type are refused where they are given, by an error that names them and says what helps."""

from __future__ import annotations

from functools import partial

import pytest

import refold
from refold.model.errors import ConfigError, NotFound

WRONG = [3, None, b"#m0", ["#m0"]]


@pytest.fixture
async def engine():
    async with refold.Engine("memory:", model="gpt-4o") as opened:
        talk = await opened.conversation("tides")
        await talk.add("When is high tide?", {"role": "assistant", "content": "At noon."})
        yield opened


async def refused(call, *args, **kwargs) -> ConfigError:
    with pytest.raises(ConfigError) as told:
        await call(*args, **kwargs)
    assert told.value.hint
    return told.value


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_handle_or_words_of_another_type(engine, wrong):
    talk = await engine.conversation("tides")
    for call in (talk.pin, talk.unpin, talk.recall):
        error = await refused(call, wrong)
        assert "a handle must be a text" in error.message
    assert "words must be a text" in (await refused(talk.search, wrong)).message
    assert "key must be a text" in (await refused(talk.add, "hello", key=wrong)).message
    assert "focus must be a text" in (await refused(talk.compact, focus=wrong)).message
    assert talk.size == 2


async def test_a_focus_that_is_a_text_and_no_sentence(engine):
    talk = await engine.conversation("tides")
    error = await refused(talk.compact, focus="password is 'x' " * 300)
    assert error.message == "focus is longer than 4,000 characters"
    await talk.compact(focus="x" * 4_000)


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_name_of_another_type(engine, wrong):
    for call in (engine.conversation, engine.delete, engine.examine, engine.sessions):
        assert "name" in (await refused(call, wrong)).message
    await refused(engine.fork, wrong, 1)
    await refused(engine.recall, wrong, "#m0")
    for call in (engine.search, engine.find_sessions):
        await refused(call, wrong)
        await refused(call, "tide", name=wrong)
    await refused(engine.conversations, words=wrong)
    await refused(engine.conversation, "other", title=wrong)
    assert [one.id for one in await engine.conversations()] == ["tides"]


@pytest.mark.parametrize("wrong", ["x", 2.5, float("nan"), -1])
async def test_a_number_that_is_none(engine, wrong):
    talk = await engine.conversation("tides")
    await refused(talk.recall, "tide", max_tokens=wrong)
    await refused(talk.search, "tide", max_tokens=wrong)
    await refused(talk.compact, keep=wrong)


@pytest.mark.parametrize("wrong", ["x", 5])
async def test_a_record_or_an_object_of_another_type(engine, wrong):
    talk = await engine.conversation("tides")
    for call in (talk.resume, talk.diff, talk.window_of, talk.ask, talk.count, talk.set_instructions):
        await refused(call, wrong)
    await refused(talk.preview, policy=wrong)
    await refused(talk.rerun, policy=wrong)
    await refused(engine.summaries, wrong)
    await refused(engine.expire, "yesterday")


@pytest.mark.parametrize(
    "setting",
    [
        {"model": 5},
        {"tools": "x"},
        {"tools": None},
        {"policy": "refold"},
        {"max_output": "x"},
        {"thinking_budget": None},
        {"limit": 2.5},
        {"counter": 5},
        {"sensitive": [5]},
        {"sensitive": (one for one in ["salary"])},
        {"summariser": 5},
        {"summariser_timeout_s": "x"},
        {"summariser_timeout_s": True},
        {"summariser_timeout_s": 0},
        {"summariser_timeout_s": -1},
        {"summariser_timeout_s": 3_601},
        {"summariser_timeout_s": 10**400},
        {"summariser_timeout_s": float("nan")},
        {"summariser_timeout_s": float("inf")},
        {"on_event": 5},
        {"max_spend": "x"},
        {"max_spend": True},
        {"max_spend": -0.01},
        {"max_spend": float("nan")},
    ],
    ids=lambda given: next(iter(given)),
)
async def test_a_setting_of_another_type(engine, setting):
    (name,) = setting
    with pytest.raises(ConfigError, match=name) as told:
        refold.Conversation(**{"model": "gpt-4o", **setting})
    assert told.value.hint
    with pytest.raises(ConfigError, match=name):
        async with refold.Engine("memory:", **{"model": "gpt-4o", **setting}):
            pass
    if setting[name] is not None:
        await refused(engine.conversation, "other", **setting)
    assert [one.id for one in await engine.conversations()] == ["tides"]


async def listen(event: refold.Event) -> None: ...


class AsyncListener:
    async def __call__(self, event: refold.Event) -> None: ...


@pytest.mark.parametrize(
    "listener", [listen, partial(listen), AsyncListener()], ids=["function", "partial", "object"]
)
async def test_an_async_listener_is_refused(engine, listener):
    for make in (refold.Conversation, refold.sync.Conversation):
        with pytest.raises(ConfigError, match="on_event must be a plain function") as told:
            make("gpt-4o", on_event=listener)
        assert "create_task" in told.value.hint
    await refused(engine.conversation, "other", on_event=listener)


@pytest.mark.parametrize("spend", [None, 0, 0.5, float("inf")])
def test_a_limit_of_dollars(spend):
    refold.sync.Conversation("gpt-4o", max_spend=spend)


@pytest.mark.parametrize(
    "setting",
    [
        {"store": 5},
        {"owner": None},
        {"clock": 5},
        {"new_id": "x"},
        {"embedder": "x"},
        {"keep_days": "x"},
        {"max_expired_share": "x"},
    ],
    ids=lambda given: next(iter(given)),
)
def test_a_setting_of_the_engine_of_another_type(setting):
    with pytest.raises(ConfigError) as told:
        refold.Engine(**{"store": "memory:", **setting})
    assert told.value.hint


async def test_a_fork_of_no_conversation_names_the_conversation(engine):
    with pytest.raises(NotFound, match="there is no conversation 'ebbs'") as told:
        await engine.fork("ebbs", 1)
    assert "refold conversations" in told.value.hint
    with pytest.raises(NotFound, match="the conversation 'tides' has no branch 'none'"):
        await engine.fork("tides", 1, branch="none")
    with pytest.raises(NotFound, match="there is no message 3 to fork at: the conversation has 2"):
        await engine.fork("tides", 3)
    assert "a whole number" in (await refused(engine.fork, "tides", "1")).message


def test_without_await_it_is_the_same():
    chat = refold.sync.Conversation("gpt-4o")
    with pytest.raises(ConfigError, match="a handle must be a text"):
        chat.pin(3)


HALF = "tides \ud800"


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("focus", lambda engine, talk: talk.compact(focus=HALF)),
        ("key", lambda engine, talk: talk.add("And low tide?", key=HALF)),
        ("title", lambda engine, talk: engine.conversation("ebb", title=HALF)),
        ("model", lambda engine, talk: engine.conversation("ebb", model=HALF)),
        ("system", lambda engine, talk: engine.conversation("ebb", system=HALF)),
    ],
)
async def test_a_text_that_is_no_unicode_is_refused_by_name(engine, name, call):
    error = await refused(call, engine, await engine.conversation("tides"))
    assert error.message == f"{name} holds half of a surrogate pair"


def test_an_owner_that_is_no_unicode_is_refused():
    with pytest.raises(ConfigError, match="owner holds half of a surrogate pair"):
        refold.Engine("memory:", owner=HALF)
