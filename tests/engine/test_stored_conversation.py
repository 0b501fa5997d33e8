"""Conversations that are kept: opened by name in one program, gone on with in another."""

from itertools import pairwise

import pytest
from msgspec import structs

from refold.core.presets import PRESETS
from refold.engine.actions import Outcome
from refold.engine.engine import Engine
from refold.model.errors import ConfigError, NotFound, StoreError
from refold.stores.memory import MemoryStore
from refold.stores.sqlite.store import SqliteStore


def answer(number, size=300):
    """An exchange with one tool call, as a program has it."""
    call = {
        "id": f"c{number}",
        "type": "function",
        "function": {"name": "read_file", "arguments": f'{{"path": "src/f{number}.py"}}'},
    }
    return [
        {"role": "user", "content": f"question {number}, please look at src/f{number}.py"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": f"c{number}",
            "content": f"file {number}\n" + f"line {number} of code\n" * (size // 18),
        },
        {"role": "assistant", "content": f"answer {number}"},
    ]


@pytest.fixture(params=["memory", "sqlite"])
async def store(request, tmp_path):
    made = MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "talks.db")
    yield made
    await made.close()


def engine(store, **settings):
    return Engine(store, **{"window": 4_000, "max_output": 200, **settings})


def stated(limit):
    """An action that takes in the limit which a provider stated."""
    return lambda state: Outcome(
        state=structs.replace(state, limits=structs.replace(state.limits, own=limit))
    )


async def long(engine, name="chat", turns=30):
    talk = await engine.conversation(name)
    for number in range(turns):
        await talk.add(*answer(number))
        await talk.context()
    return talk


@pytest.mark.feature("L5", "X12")
async def test_a_conversation_goes_on_in_another_program(store):
    talk = await long(engine(store))
    await talk.add("and now?")
    before = await talk.context()
    again = await engine(store).conversation("chat")
    assert await again.context() == before
    await again.add({"role": "assistant", "content": "all done"})
    assert (await again.recall("#m0"))["content"].startswith("question 0")
    assert await engine(store).examine("chat") == []


@pytest.mark.feature("L1", "L5")
async def test_a_compaction_closes_the_session_and_opens_its_child_at_the_cut(store):
    await long(engine(store), turns=60)
    sessions = await engine(store).sessions("chat")
    assert len(sessions) > 2
    for parent, child in pairwise(sessions):
        assert (child.kind, child.parent, child.first) == ("compaction", parent.id, parent.last)
        (written,) = await engine(store).summaries([parent.summary])
        assert written.summary.last == child.first
    assert [one.last for one in sessions][-1] is None


@pytest.mark.feature("X12")
async def test_two_programs_write_into_one_conversation_in_turn(store):
    one, two = await engine(store).conversation("chat"), await engine(store).conversation("chat")
    await one.add("from the first")
    await two.add({"role": "assistant", "content": "from the second"})
    await one.add("again from the first")
    said = [message["content"] for message in (await two.context())["messages"]]
    assert said == ["from the first", "from the second", "again from the first"]


@pytest.mark.feature("N10")
async def test_undo_shows_again_what_was_shown_before_in_any_program(store):
    talk = await engine(store, window=100_000).conversation("chat")
    for number in range(10):
        await talk.add(*answer(number))
    await talk.add("and now?")
    before = await talk.context()
    compacted = await talk.compact()
    assert len(compacted["messages"]) < len(before["messages"])
    other = await engine(store, window=100_000).conversation("chat")
    assert await other.undo()
    assert await other.context() == before
    assert await talk.context() == before
    assert await engine(store).examine("chat") == []
    assert not await other.undo()


@pytest.mark.feature("N10")
async def test_what_was_undone_can_be_done_again(store):
    talk = await engine(store, window=100_000).conversation("chat")
    for number in range(10):
        await talk.add(*answer(number))
    await talk.add("and now?")
    compacted = await talk.compact()
    await talk.undo()
    assert await talk.compact() == compacted
    assert await engine(store).examine("chat") == []


@pytest.mark.feature("L2")
async def test_a_new_session_knows_nothing_and_loses_nothing(store):
    talk = await long(engine(store), turns=3)
    await talk.start_session()
    await talk.add("a fresh start")
    assert [one["content"] for one in (await talk.context())["messages"]] == ["a fresh start"]
    assert (await talk.recall("#m0"))["content"].startswith("question 0")
    assert "question 1" in await talk.recall("question 1 src/f1.py")
    first, second = await engine(store).sessions("chat")
    assert (first.last, second.first, second.kind, second.parent) == (12, 12, "new", "")
    assert first.summary
    assert await engine(store).examine("chat") == []


@pytest.mark.feature("L3")
async def test_a_session_that_fits_is_resumed_whole(store):
    talk = await long(engine(store), turns=2)
    shown = (await talk.context())["messages"]
    await talk.start_session()
    await talk.add("something else")
    first, _ = await engine(store).sessions("chat")
    opened = await talk.resume(first)
    assert opened.carries == "full"
    assert (await talk.context())["messages"] == shown
    again = await engine(store).conversation("chat")
    assert (await again.context())["messages"] == shown
    await again.add("and further")
    assert (await again.context())["messages"] == [*shown, {"role": "user", "content": "and further"}]
    assert await engine(store).examine("chat") == []


@pytest.mark.feature("L3")
async def test_a_session_that_does_not_fit_is_resumed_by_its_summary(store):
    big = engine(store, window=100_000)
    talk = await long(big, turns=20)
    await talk.start_session()
    first, _ = await big.sessions("chat")
    small = await engine(store, window=1_500).conversation("chat")
    opened = await small.resume(first)
    assert opened.carries == "summary"
    (message,) = (await small.context())["messages"]
    assert "question 0" in message["content"]
    assert await engine(store).examine("chat") == []


async def test_the_open_session_cannot_be_resumed(store):
    talk = await long(engine(store), turns=1)
    (only,) = await engine(store).sessions("chat")
    with pytest.raises(NotFound):
        await talk.resume(only)


async def test_a_fork_shares_what_was_said_and_goes_its_own_way(store):
    talk = await long(engine(store), turns=3)
    name = await engine(store).fork("chat", 4)
    fork = await engine(store).conversation("chat", branch=name)
    await fork.add("another way")
    said = (await fork.context())["messages"]
    assert len(said) == 5
    assert said[0]["content"].startswith("question 0")
    assert said[-1]["content"] == "another way"
    assert len((await talk.context())["messages"]) == 12
    assert await engine(store).examine("chat") == []


@pytest.mark.feature("N2", "L16")
async def test_everything_that_was_ever_said_is_found_by_its_words(store):
    await long(engine(store), name="one")
    await long(engine(store), name="two", turns=2)
    found = await engine(store).search("src/f7.py question")
    assert {one.conversation for one in found} == {"one"}
    assert any("src/f7.py" in one.text for one in found)
    cold = await engine(store).conversation("one")
    assert "#m28" in await cold.recall("question 7 about src/f7.py")


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb"])
async def test_a_name_that_cannot_work_is_refused(store, name):
    with pytest.raises(ConfigError):
        await engine(store).conversation(name)


async def test_what_is_sensitive_stays_so_after_a_restart(store):
    talk = await engine(store).conversation("chat")
    await talk.add("My number is 4242-1111.", sensitive=True)
    await talk.add({"role": "assistant", "content": "Noted."})
    await long(engine(store), turns=30)
    again = await engine(store).conversation("chat")
    sent = (await again.context())["messages"]
    assert not any("4242-1111" in str(message["content"]) for message in sent)
    assert await engine(store).search("4242-1111") == []
    assert (await again.recall("#m0"))["content"] == "My number is 4242-1111."


class CounterChoice:
    """A summariser of one's own that says how often it was asked."""

    def __init__(self):
        self.asked = 0

    async def __call__(self, messages, *, previous, max_tokens):
        self.asked += 1
        return f"They asked {len(messages)} things, about src/f0.py first."


@pytest.mark.feature("N4", "L17")
async def test_a_summary_that_was_paid_for_is_used_after_a_restart(store):
    write = CounterChoice()
    talk = await engine(store, summariser=write).conversation("chat")
    number = 0
    while not write.asked:
        await talk.add(*answer(number))
        await talk.ready()
        number += 1
    assert not [one for one in await engine(store).sessions("chat") if one.kind == "compaction"]

    again = await engine(store, summariser=write).conversation("chat")
    while len(await engine(store).sessions("chat")) == 1:
        await again.add({"role": "user", "content": "go on " * 40})
        await again.add({"role": "assistant", "content": "I do " * 40})
    assert write.asked == 1
    (first, _) = await engine(store).sessions("chat")
    (written,) = await engine(store).summaries([first.summary])
    assert written.summary.kind == "model"
    assert written.summary.text.startswith("Task #m0: question 0")
    assert written.summary.own_text.startswith("They asked")
    assert await engine(store).examine("chat") == []


async def test_a_model_that_fails_again_and_again_is_asked_no_more(store):
    asked = []

    async def broken(messages, *, previous, max_tokens):
        asked.append(len(messages))
        raise RuntimeError("down")

    talk = await engine(store, summariser=broken).conversation("chat")
    for number in range(80):
        await talk.add(*answer(number))
        await talk.ready()
    status = await talk.status()
    assert len(asked) == status.failures == 3
    assert status.is_stopped
    assert status.compactions > 0


async def test_no_more_is_spent_than_allowed(store):
    write = CounterChoice()
    talk = await engine(store, summariser=write, max_spend=0.0).conversation("chat")
    for number in range(40):
        await talk.add(*answer(number))
        await talk.ready()
    assert write.asked == 0
    assert (await talk.status()).is_stopped


@pytest.mark.feature("X2")
async def test_how_a_conversation_is_doing_is_known_after_a_restart(store):
    talk = await long(engine(store))
    again = await engine(store).conversation("chat")
    assert await again.status() == await talk.status()
    status = await again.status()
    assert status.messages == 120
    assert status.compactions == 1
    assert 0 < status.ratio <= 1


@pytest.mark.feature("L3")
async def test_sessions_are_found_by_what_was_said_in_them_and_by_their_id(store):
    talk = await long(engine(store), turns=3)
    await talk.start_session()
    await talk.add("Something about zebras.")
    first, second = await engine(store).sessions("chat")
    assert await engine(store).find_sessions("zebras") == [("chat", second)]
    assert await engine(store).find_sessions(first.id[:8]) == [("chat", first)]


@pytest.mark.feature("N10")
async def test_a_preview_changes_nothing(store):
    talk = await engine(store, window=100_000).conversation("chat")
    for number in range(10):
        await talk.add(*answer(number))
    await talk.add("and now?")
    before = await talk.context()
    preview = await talk.preview()
    assert preview.after < preview.before
    assert preview.receipt.summary.text
    assert await talk.context() == before
    assert len(await engine(store).sessions("chat")) == 1


@pytest.mark.feature("N10")
async def test_a_compaction_is_run_again_by_another_policy_on_the_same_messages(store):
    talk = await engine(store, window=100_000).conversation("chat")
    for number in range(10):
        await talk.add(*answer(number))
    await talk.add("and now?")
    await talk.compact()
    (_, child) = await engine(store).sessions("chat")
    assert await talk.rerun(policy=PRESETS["lis"])
    sessions = await engine(store).sessions("chat")
    assert [(one.first, one.state) for one in sessions[1:]] == [
        (child.first, "undone"),
        (child.first, "live"),
    ]
    assert (await talk.context())["messages"][0]["role"] == "assistant"
    assert await engine(store).examine("chat") == []


async def test_what_may_not_be_kept_is_counted_and_not_kept(store, tmp_path):
    secretive = engine(store, keeps_content=False)
    talk = await secretive.conversation("chat")
    for number in range(30):
        await talk.add(*answer(number))
        await talk.context()
    assert "question" not in str(vars(store))
    assert not any(b"question" in path.read_bytes() for path in tmp_path.iterdir())
    assert (await talk.status()).messages == 120
    assert await secretive.examine("chat") == []
    with pytest.raises(StoreError, match="is not stored"):
        await engine(store).conversation("chat")


async def test_what_comes_twice_under_one_key_is_there_once(store):
    talk = await engine(store).conversation("chat")
    for _ in range(3):
        await talk.add("only once", key="request-7")
    other = await engine(store).conversation("chat")
    await other.add("only once", key="request-7")
    assert len((await other.context())["messages"]) == 1


@pytest.mark.feature("C3")
async def test_what_was_learnt_about_a_model_serves_the_next_conversation(store):
    talk = await engine(store, window=100_000).conversation("one", model="gpt-4o")
    for number in range(12):
        await talk.add(*answer(number, size=900))
        sent = await talk.context()
        await talk.record({"prompt_tokens": 1_000 + len(str(sent)) // 2, "completion_tokens": 5})
    learnt = talk._state.calibration.ratio
    assert learnt > 1.2
    other = await engine(store).conversation("two", model="gpt-4o")
    assert other._state.calibration.ratio == pytest.approx(learnt, abs=0.02)
    assert (await engine(store).conversation("three", model="gpt-4.1"))._state.calibration.ratio == 1


@pytest.mark.feature("L6")
async def test_reported_counts_are_kept_for_each_message(store):
    talk = await engine(store, window=100_000).conversation("chat")
    await talk.add("a question")
    await talk.context()
    await talk.record({"prompt_tokens": 50, "completion_tokens": 7})
    await talk.add({"role": "assistant", "content": "an answer"})
    await talk.add("another question")
    await talk.context()
    await talk.record({"prompt_tokens": 70, "completion_tokens": 9})
    await talk.add({"role": "assistant", "content": "another answer"})
    again = await engine(store, window=100_000).conversation("chat")
    found = [(one.tokens, one.source) for one in await again.message_usage()]
    assert found[1:] == [(7, "reported"), (13, "derived"), (9, "reported")]


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
async def test_an_error_about_a_deleted_conversation_has_a_hint(tmp_path, url):
    async with Engine(url if url == "memory:" else tmp_path / "chats.db", model="gpt-4o") as engine:
        talk = await engine.conversation("tides")
        await talk.add("hello")
        await engine.delete("tides")
        for act in (lambda: talk.add("again"), talk.undo, lambda: talk.pin("#m0"), talk.start_session):
            with pytest.raises(StoreError) as told:
                await act()
            assert told.value.hint


async def test_the_messages_of_a_turn_keep_their_numbers_in_another_program(store):
    """The user adds to a question while the agent works. Each addition is found by its own number after a compaction, a
    reopened conversation and the next compaction.
    """
    words = " ".join(f"plank {number}," for number in range(60))
    first = await engine(store).conversation("chat")
    await first.add("Mend the boat.", {"role": "assistant", "content": "What is wrong with it?"})
    await first.add(f"Paint the hull: {words}", f"Tar the deck: {words}", *answer(0)[1:3])
    await first.add("Go on.", *answer(1)[1:3])
    await first.compact(keep=100)

    again = await engine(store).conversation("chat")
    await again.add("Is it done?", *answer(2)[1:3])
    shown = str(await again.compact(keep=100))

    assert "Question #m2: Paint the hull" in shown
    assert "Question #m3: Tar the deck" in shown


async def test_a_tool_with_a_number_that_nothing_can_hold_ends_no_conversation(store):
    """A gateway stores what a client sent, also if the provider refuses it."""
    tools = (
        b'{"tools": [{"type": "function", "function": {"name": "look", "parameters": {"maximum": 1e400}}}]}'
    )
    talk = await Engine(store, model="m-1", window=8_000).conversation("talk")
    await talk.set_instructions(tools)
    await talk.add({"role": "user", "content": "hello"})
    again = await Engine(store, model="m-1", window=8_000).conversation("talk")

    assert (await again.context())["tools"][0]["function"]["name"] == "look"
