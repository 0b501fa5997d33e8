"""Sessions, secrets and prompts of stored conversations, over restarts."""

import asyncio
import re

import pytest

from refold.engine.engine import Engine
from refold.model.errors import NotFound, StoreError
from refold.stores.memory import MemoryStore
from tests.engine.test_stored_conversation import answer, engine, long


@pytest.fixture
def store():
    return MemoryStore()


class Reading:
    """A summariser of one's own that remembers what it was given."""

    def __init__(self):
        self.read = []

    async def __call__(self, messages, *, previous, max_tokens):
        self.read.append(str(messages) + previous)
        return "They talked."


async def resumed(store, **settings):
    """A conversation whose first session was about zebras, and goes on after another one."""
    made = engine(store, window=20_000, **settings)
    talk = await made.conversation("chat")
    await talk.add("The zebra is called Zelda-77.", {"role": "assistant", "content": "A nice name."})
    await talk.start_session()
    await talk.add("Something else.")
    first = (await made.sessions("chat"))[0]
    await talk.resume(first)
    return made, talk


@pytest.mark.feature("L3")
async def test_what_was_resumed_is_in_the_next_digest(store):
    made, _ = await resumed(store)
    again = await made.conversation("chat")
    for number in range(6):
        await again.add(*answer(number))
    await again.add("and now?")
    sent = await again.compact()
    assert "Zelda-77" in str(sent)
    assert await made.examine("chat") == []


@pytest.mark.feature("L3")
async def test_what_was_resumed_is_read_by_the_model_that_sums_it_up(store):
    write = Reading()
    _, talk = await resumed(store, summariser=write)
    for number in range(6):
        await talk.add(*answer(number))
    await talk.add("and now?")
    await talk.compact()
    assert "Zelda-77" in write.read[-1]


async def test_only_sessions_of_the_same_branch_are_resumed(store):
    made = engine(store)
    one, two = await long(made, "one", 2), await long(made, "two", 2)
    await one.start_session()
    (first, _) = await made.sessions("one")
    with pytest.raises(NotFound, match="not one of this conversation"):
        await two.resume(first)
    fork = await made.conversation("one", branch=await made.fork("one", 4))
    with pytest.raises(NotFound):
        await fork.resume(first)


@pytest.mark.feature("L3")
async def test_a_fork_goes_on_with_sessions_from_before_it(store):
    made = engine(store, window=20_000)
    talk = await made.conversation("chat")
    await talk.add("The zebra is called Zelda-77.", {"role": "assistant", "content": "A nice name."})
    await talk.start_session()
    for number in range(3):
        await talk.add(*answer(number))
        await talk.context()
    await talk.start_session()
    zebra, files, _ = await made.sessions("chat")
    fork = await made.conversation("chat", branch=await made.fork("chat", files.last - 1))
    again = await made.conversation(
        "chat", branch=await made.fork("chat", files.last - 1, branch=fork.branch)
    )
    for branch in (fork, again):
        await branch.add("Something else.", {"role": "assistant", "content": "Yes?"})
        resumed = await branch.resume(zebra)
        await branch.add("go on")
        assert (resumed.carries, resumed.session.target) == ("full", zebra.id)
        assert "Zelda-77" in str(await branch.context())
        assert "Something else" not in str(await branch.context())
        with pytest.raises(NotFound, match="cannot be resumed here"):
            await branch.resume(files)
    assert "Zelda-77" in str(await (await engine(store).conversation("chat", branch=again.branch)).context())
    assert await made.examine("chat") == []


async def test_a_fork_sees_a_session_as_it_was_shown_before_what_the_fork_says(store):
    made = engine(store)
    talk = await made.conversation("chat")
    while not (closed := [one for one in await made.sessions("chat") if one.last]):
        await talk.add(*answer(talk.state.folded.size // 4))
        await talk.context()
    fork = await made.conversation("chat", branch=await made.fork("chat", closed[0].last))
    await fork.add("OTHERWISE " * 40, {"role": "assistant", "content": "Yes?"})
    assert (await fork.resume(closed[0])).session.target == closed[0].id
    await fork.add("go on")
    assert "OTHERWISE" not in str(await fork.context())
    assert await made.examine("chat") == []


async def test_a_system_prompt_that_was_said_serves_after_a_restart(store):
    for wire in ("chat", "responses"):
        talk = await engine(store, format=wire).conversation(wire)
        await talk.add({"role": "system", "content": "Talk like a pirate."})
        await talk.add({"role": "user", "content": "Hello."})
        before = await talk.context()
        assert "pirate" in str(before)
        assert await (await engine(store).conversation(wire)).context() == before


async def test_a_secret_that_was_told_once_is_known_after_a_restart(store):
    write = Reading()
    talk = await engine(store, summariser=write).conversation("chat")
    await talk.add("The password is hunter2222.", {"role": "assistant", "content": "I will use it."})
    await long(engine(store), turns=30)
    again = await engine(store, summariser=write).conversation("chat")
    assert again._state.folded.origin > 0
    await again.add("Say hunter2222 again?", {"role": "assistant", "content": "It was hunter2222."})
    for number in range(6):
        await again.add(*answer(number))
    await again.add("and now?")
    await again.compact()
    assert write.read
    assert not any("hunter2222" in read for read in write.read)


async def test_what_may_not_be_kept_is_not_kept_by_anybody(store):
    made = engine(store, keeps_content=False, summariser=Reading())
    talk = await made.conversation("chat")
    for number in range(12):
        await talk.add(*answer(number))
        await talk.ready()
    await talk.compact()
    with pytest.raises(StoreError):
        await talk.undo()
    await talk.start_session()
    await talk.add("A fresh start.")
    assert [one["content"] for one in (await talk.context())["messages"]] == ["A fresh start."]
    (first, *_) = await made.sessions("chat")
    with pytest.raises(StoreError):
        await talk.resume(first)
    await talk.add({"role": "assistant", "content": "Indeed."})
    assert not any(word in str(vars(store)) for word in ("They talked", "question", "fresh start"))
    assert await made.examine("chat") == []


@pytest.mark.parametrize("act", ["start_session", "resume"])
async def test_a_message_that_is_added_behind_a_new_session_belongs_to_it(act):
    """Closing a session and opening the next is one act: nothing that comes meanwhile lands in the old one."""
    made = engine(MemoryStore())
    talk = await made.conversation("chat")
    await talk.add("first", {"role": "assistant", "content": "said"})
    first = (await made.sessions("chat"))[0]
    if act == "resume":
        await talk.start_session()
        await talk.add("second", {"role": "assistant", "content": "said"})
    opening = talk.start_session() if act == "start_session" else talk.resume(first)
    opened, _ = await asyncio.gather(opening, talk.add("the newest words"))
    session = opened if act == "start_session" else opened.session
    sessions = {one.id: one for one in await made.sessions("chat")}
    assert sessions[session.id].last is None
    assert sessions[session.id].first == talk.size - 1
    sent = [message["content"] for message in (await talk.context())["messages"]]
    assert sent[-1] == "the newest words"
    assert ("second" in sent, "first" in sent) == (False, act == "resume")


TIDES = "The tide tables of the northern harbours list wind, depth and swell for every hour. " * 10


async def _headings(sizes: list[int], resumed: int, later: int) -> list[str]:
    """The messages that are named before the summary, after sessions of so many turns, a resume of one, and more turns."""
    async with Engine(MemoryStore(), model="gpt-5", window=4_000) as engine:
        talk = await engine.conversation("ships")

        async def say(turns: int) -> str:
            for turn in range(turns):
                await talk.add({"role": "user", "content": f"{turn}? {TIDES}"})
                await talk.add({"role": "assistant", "content": f"{turn}. {TIDES}"})
            (opening, *_) = (await talk.context())["messages"]
            found = re.match(r"\[Earlier messages (.*), shortened]", opening["content"])
            return found[1] if found else ""

        told = [await say(sizes[0])]
        for size in sizes[1:]:
            await talk.start_session()
            told.append(await say(size))
        known = await engine.sessions("ships")
        await talk.resume(
            [one for one in known if one.last is not None and one.kind != "compaction"][resumed]
        )
        return [*told, await say(0), await say(later)]


@pytest.mark.parametrize(
    ("sizes", "resumed", "later", "headings"),
    [
        pytest.param([8, 3], 0, 8, ["", "", "#m0 to #m15", "#m0 to #m15, #m22 to #m26"], id="summary"),
        pytest.param([3, 8, 2], 1, 0, ["", "", "", "#m6 to #m21", "#m6 to #m21"], id="later session"),
        pytest.param([2, 2], 0, 8, ["", "", "", "#m0 to #m3, #m8 to #m11"], id="whole"),
        pytest.param([3, 12], 0, 0, ["", "#m6 to #m13", "", ""], id="new"),
    ],
)
async def test_a_summary_names_only_the_messages_of_its_sessions(sizes, resumed, later, headings):
    assert await _headings(sizes, resumed, later) == headings
