import sys

import pytest
from msgspec import Raw

from refold.core.identity import identity
from refold.core.view import View
from refold.model.dialect import ANTHROPIC, CHAT, RESPONSES
from refold.model.message import Image, Message, Text, ToolCall, ToolResult, tool, user
from refold.model.tokens import TokenCount
from tests.core.conversations import FlatCounter, TextCounter, talk, view_of


def test_appending_leaves_the_old_view_as_it_was():
    one = view_of("u a")
    two = one.append(user("more"))
    assert (len(one), len(two)) == (2, 3)
    assert one.messages() == tuple(talk("u a"))
    assert list(one.turn_starts) == [0]
    assert list(two.turn_starts) == [0, 2]


def test_two_views_can_grow_from_one_without_meeting():
    base = view_of("u a:x t:x")
    left = base.append(user("left"))
    right = base.extend([*talk("a:y t:y"), user("right")])
    assert left.messages()[-1].text == "left"
    assert right.messages()[-1].text == "right"
    assert left.messages()[:3] == right.messages()[:3]
    assert (left.tokens.tokens, right.tokens.tokens) == (40, 60)


def test_a_fork_does_not_know_the_calls_of_the_other_branch():
    base = View.of(talk("u a"), ANTHROPIC, FlatCounter())
    base.extend(talk("u a:x t:x"))
    fork = base.extend(talk("u a:x t:x"))
    assert fork.violations() == ()
    assert [broken.rule for broken in fork.extend(talk("u a:x t:x")).violations()] == ["duplicate_call_id"]


def test_a_prefix_is_the_view_as_it_was():
    messages = talk("u a:x t:x a u t:q a u")
    view = View.of(messages, CHAT, FlatCounter())
    for size in range(len(messages) + 1):
        fresh = View.of(messages[:size], CHAT, FlatCounter())
        prefix = view.prefix(size)
        assert prefix == fresh
        assert prefix.violations(as_request=True) == fresh.violations(as_request=True)
        assert (prefix.chain, list(prefix.turn_starts)) == (fresh.chain, list(fresh.turn_starts))


@pytest.mark.parametrize("order", [(5, 2, 8, 3), (8, 1), (2, 6, 4)])
def test_a_hash_does_not_depend_on_the_hashes_asked_for_before(order):
    messages = talk("u a:x t:x a u t:q a u")
    view = View.of(messages, CHAT, FlatCounter(), key=b"key")
    for size in order:
        fresh = View.of(messages[:size], CHAT, FlatCounter(), key=b"key")
        assert view.prefix(size).chain == fresh.chain
    fork = view.prefix(4).append(user("other"))
    assert fork.chain == View.of([*messages[:4], user("other")], CHAT, FlatCounter(), key=b"key").chain
    assert view.chain == View.of(messages, CHAT, FlatCounter(), key=b"key").chain


def test_sums_over_ranges():
    view = View.of([user("a"), user("bbb"), user("cc")], CHAT, TextCounter())
    assert view.tokens == TokenCount(counted=6)
    assert view.tokens_between(1, 3) == TokenCount(counted=5)
    assert view.tokens_between(2, 2) == TokenCount()
    assert [view.suffix_within(tokens) for tokens in (0, 1, 2, 4, 5, 6, 99)] == [3, 3, 2, 2, 1, 0, 0]


def test_tool_results_are_summed_on_their_own():
    view = view_of("u a:x t:x u a:y t:y t:z")
    assert view.result_tokens_between(0, 7).tokens == 30
    assert view.result_tokens_between(3, 6).tokens == 10


def test_violations_are_those_of_a_full_verification():
    view = view_of("u t:q a:x u")
    assert [(broken.rule, broken.index) for broken in view.violations()] == [
        ("orphan_result", 1),
        ("unanswered_call", 2),
    ]


def test_the_counter_sees_every_message_once():
    seen = []

    class Spy(FlatCounter):
        def message(self, message, /):
            seen.append(message)
            return 1

    view = View(CHAT, Spy())
    for message in talk("u a u a"):
        view = view.append(message)
        view.violations(as_request=True)
        assert view.tokens.tokens == len(view)
    assert len(seen) == 4


def test_entries_stay_small_however_many_calls_are_open():
    for dialect in (CHAT, RESPONSES):
        many = 2_000
        calls = [Message("assistant", (ToolCall(f"c{number}", "look"),)) for number in range(many)]
        if dialect is CHAT:
            calls = [Message("assistant", tuple(call.parts[0] for call in calls))]
        view = View.of(
            [user("go"), *calls, *(tool(f"c{number}", "1") for number in range(many))], dialect, FlatCounter()
        )
        assert view.violations(as_request=True) == ()
        assert max(sys.getsizeof(entry.progress) for entry in view) == sys.getsizeof(view[0].progress)
        assert view.progress_at(len(calls) + 1).open_calls == many
        assert len(view.prefix(len(calls) + 1).violations(as_request=True)) == many


def test_appending_copies_nothing():
    view = view_of("u a u")
    assert view.append(user("more")).log is view.log
    assert view.append(user("another way")).log is not view.log


def test_turn_starts_do_not_grow_with_another_view():
    view = view_of("u a")
    starts = view.turn_starts
    view.append(user("more"))
    assert list(starts) == [0]
    assert (len(starts), starts[-1], starts[0:1]) == (1, 0, [0])
    with pytest.raises(IndexError):
        starts[1]


def test_a_view_of_another_owner_is_another_view():
    assert View(CHAT, FlatCounter(), b"one") != View(CHAT, FlatCounter(), b"two")
    assert View(CHAT, FlatCounter(), b"one") == View(CHAT, FlatCounter(), b"one")


def test_a_prefix_has_no_more_than_its_messages():
    prefix = view_of("u a:x t:x t:y a").prefix(3)
    assert prefix.messages(-1) == (prefix[2].message,)
    assert prefix.result_tokens_between(0, 9).tokens == 10
    assert prefix.tokens_between(0, 9).tokens == 30
    assert prefix.progress_at(9).size == 3


def test_a_view_that_continues_what_the_provider_holds():
    assert View.of(talk("t:x u"), RESPONSES, FlatCounter(), continues=True).violations() == ()
    fork = View.of(talk("t:x u a"), RESPONSES, FlatCounter(), continues=True).prefix(2).extend(talk("t:y"))
    assert fork.violations() == ()


@pytest.mark.parametrize("index", [3, -4])
def test_an_index_outside_of_the_view(index):
    with pytest.raises(IndexError):
        view_of("u a u a").prefix(3)[index]


@pytest.mark.parametrize("asked", [(), (3,), (5,), (6,)])
@pytest.mark.parametrize("known", [0, 1, 3, 6])
def test_known_identities_change_no_chain(known, asked):
    messages = talk("u a:x t:x a u a")
    anew = View.of(messages, CHAT, FlatCounter(), key=b"key")
    view = View.of(messages[: 6 - known], CHAT, FlatCounter(), key=b"key")
    assert view.chain == anew.prefix(6 - known).chain

    view = view.extend(messages[6 - known :])
    view.note_identities([*map(identity, messages[6 - known :])])
    for size in asked:
        assert view.chain_at(size) == anew.chain_at(size)
    more, other = view.append(user("more")), view.append(user("other"))
    assert [one.chain for one in (view, more, other)] == [
        one.chain for one in (anew, anew.append(user("more")), anew.append(user("other")))
    ]


def test_equal_content_under_another_key_has_another_chain():
    messages = talk("u a")
    chains = {View.of(messages, CHAT, FlatCounter(), key=key).chain for key in (b"", b"one", b"two")}
    assert len(chains) == 3


def _answer(text: str, *, call_id: str = "a", raw: bytes | None = None, media: bool = False) -> Message:
    inner = (Text(text), Image(data="iVBO", media_type="image/png")) if media else (Text(text),)
    return Message("tool", (ToolResult(call_id, inner, raw=Raw(raw) if raw else None),))


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, ANTHROPIC])
@pytest.mark.parametrize(
    "answer",
    [
        _answer("cut"),
        _answer("cut", call_id="other"),
        _answer("cut", media=True),
        _answer("cut", raw=b'{"cache_control": {"type": "ephemeral"}}'),
        user("no result"),
        Message("tool", ()),
    ],
)
@pytest.mark.parametrize("before", [_answer("all of the output"), _answer("a picture", media=True)])
def test_a_view_of_changed_messages_is_as_if_they_were_read_anew(dialect, before, answer):
    call = Message("assistant", (ToolCall("a", "read"),))
    messages = [user("read it"), call, before, user("again"), call, before, user("go on"), call]
    changed = [*messages[:2], answer, *messages[3:]]
    view = View.of(messages, dialect, TextCounter())
    tokens = [3 * number for number in range(len(changed))]
    anew = View(dialect, TextCounter()).extend(changed, tokens)
    found = view.with_messages(changed, tokens)
    assert list(found) == list(anew)
    assert found.chain == anew.chain
    assert found.violations(as_request=True) == anew.violations(as_request=True)
    assert list(found.turn_starts) == list(anew.turn_starts)
    more = _answer("more")
    assert list(found.append(more)) == list(anew.append(more)), "the open call is known to both"
    assert view.messages() == tuple(messages), "the view itself is unchanged"
    assert list(view.with_messages(changed[:-1], tokens[:-1])) == list(anew)[:-1], (
        "fewer messages are read anew"
    )
