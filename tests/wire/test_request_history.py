import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.model.dialect import DIALECTS
from refold.model.errors import WireError
from refold.wire.request import decode_messages, read_history, same_items

CHAT = DIALECTS["chat"]


def array(*texts, separator=b","):
    items = [msgspec.json.encode({"role": "user", "content": text}) for text in texts]
    return b"[" + separator.join(items) + b"]"


def texts(messages):
    return [message.text for message in messages]


def test_all_of_a_history_is_read_the_first_time():
    reading = read_history(array("a", "b"), CHAT)
    assert (reading.known, texts(reading.messages), len(reading.history)) == (0, ["a", "b"], 2)
    assert bytes(reading.history.item(1)) == b'{"role":"user","content":"b"}'


@pytest.mark.parametrize("separator", [b",", b" , ", b",\n\t"])
def test_only_what_is_new_is_read_after_that(separator):
    before = read_history(array("a", "b", separator=separator), CHAT).history
    whole = array("a", "b", "c", "d", separator=separator)
    reading = read_history(whole, CHAT, before)
    assert (reading.known, texts(reading.messages)) == (2, ["c", "d"])
    assert [bytes(reading.history.item(index)) for index in range(4)] == [
        msgspec.json.encode({"role": "user", "content": text}) for text in "abcd"
    ]


def test_what_a_client_wrote_another_way_is_read_again_with_all_that_follows():
    before = read_history(array("a", "b", "c"), CHAT).history
    changed = array("a", "b", "c", "d").replace(
        b'"content":"b"', b'"content":[{"type":"text","text":"b","cache_control":{"type":"ephemeral"}}]'
    )
    reading = read_history(changed, CHAT, before)
    assert (reading.known, texts(reading.messages)) == (1, ["b", "c", "d"])


def test_an_item_that_only_begins_alike_is_not_the_same():
    before = read_history(array("a", "b"), CHAT).history
    assert same_items(before, array("a", "bc")) == 1
    assert same_items(before, array("x")) == 0
    assert same_items(before, array("a")) == 1


def test_a_fault_in_what_is_new_is_told():
    before = read_history(array("a"), CHAT).history
    with pytest.raises(WireError):
        read_history(b'[{"role":"user","content":"a"},{"role":"nobody"}]', CHAT, before)
    with pytest.raises(WireError):
        read_history(b'[{"role":"user","content":"a"} {"role":"user","content":"b"}]', CHAT, before)


WORDS = st.lists(st.text(max_size=6), max_size=8)


@given(WORDS, WORDS, WORDS)
def test_it_says_what_reading_all_of_it_says(common, old, new):
    before = read_history(array(*common, *old), CHAT).history
    whole = array(*common, *new)
    reading = read_history(whole, CHAT, before)
    assert reading.known >= len(common)
    assert reading.messages == decode_messages(whole, CHAT)[reading.known :]
    assert [bytes(reading.history.item(i)) for i in range(len(reading.history))] == [
        bytes(raw) for raw in msgspec.json.decode(whole, type=list[msgspec.Raw])
    ]
