"""What conversations are called where nobody has said it."""

import pytest

from refold.engine.engine import Engine
from refold.engine.journal import MAX_TITLE, title_of
from refold.model.message import Image, Message, Text, user
from refold.stores.memory import MemoryStore
from refold.stores.url import open_store
from tests.engine.test_stored_conversation import engine

REPLY = {"role": "assistant", "content": "ok"}


async def title(store):
    return (await store.conversations("local"))[0].title


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Where is my order?", "Where is my order?"),
        ("  Where\n\n is\tmy   order?\n", "Where is my order?"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 57 + "..."),
        ("word " * 40, "word " * 11 + "wo..."),
        ("x" * 56 + ". And then more", "x" * 56 + "..."),
        ("a\x00b\x1b[31mc\u202ed", "ab[31mcd"),
        ("", ""),
    ],
)
def test_a_title_is_one_line_of_the_question(text, told):
    assert title_of(user(text)) == told
    assert len(told) <= MAX_TITLE


def test_a_secret_is_in_no_title():
    assert "hunter2222" not in title_of(user("My password is hunter2222, can you log in?"))
    assert (
        title_of(Message("user", (Image(url="https://x.example/i.png"), Text("What is this?"))))
        == "What is this?"
    )


async def test_a_conversation_is_called_by_its_first_question_and_keeps_that_name(tmp_path):
    for store in (MemoryStore(), await open_store(f"sqlite:///{tmp_path / 'chats.db'}")):
        talk = await engine(store).conversation("chat")
        await talk.add({"role": "system", "content": "You are kind."})
        assert await title(store) == ""
        await talk.add("Where is\nmy order?", REPLY, "And my refund?")
        await talk.start_session()
        await talk.add("Something else.")
        assert await title(store) == "Where is my order?"
        assert [one.id for one in await engine(store).conversations(words="ORDER")] == ["chat"]
        await store.close()


async def test_a_title_that_was_given_stays():
    store = MemoryStore()
    await (await engine(store).conversation("chat", title="Shop")).add("Where is my order?")
    assert await title(store) == "Shop"


async def test_what_is_sensitive_is_in_no_title():
    store = MemoryStore()
    talk = await Engine(store, sensitive=[r"salary"]).conversation("chat")
    await talk.add("I earn 4,242 a month.", sensitive=True)
    await talk.add(REPLY, "Is my salary fair?", REPLY)
    assert await title(store) == ""
    await talk.add("What is the weather like?")
    assert await title(store) == "What is the weather like?"


async def test_where_nothing_may_be_kept_there_is_no_title():
    store = MemoryStore()
    await (await engine(store, keeps_content=False).conversation("chat")).add("Where is my order?")
    assert await title(store) == ""
