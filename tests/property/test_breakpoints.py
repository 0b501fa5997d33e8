"""Whatever a client marked: at most four breakpoints leave, in a legal order, and nothing else about the request changes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.core.assemble import NO_LEAD, Lead, assemble
from refold.core.fold import FoldedBranch
from refold.core.prompt_cache import mark_window
from refold.core.stage import Room
from refold.core.stages import Prune
from refold.core.verify import verify_window
from refold.core.view import View
from refold.model.dialect import ANTHROPIC
from refold.model.message import user
from refold.wire import Request, decode_request, encode_message, encode_window
from tests.core.conversations import TextCounter
from tests.property.conversations import sound

pytestmark = pytest.mark.feature("L9")

LEADS = [NO_LEAD, Lead((user("what happened before"),)), Lead(block="what happened before")]
TTLS = st.sampled_from(["5m", "1h"])


def blocks_of(body: dict) -> list[dict]:
    """Everything that can carry a breakpoint, in the order in which a provider reads it."""
    found = list(body.get("tools", ()))
    for holder in ({"content": body.get("system", [])}, *body["messages"]):
        if isinstance(holder["content"], str):
            holder["content"] = [{"type": "text", "text": holder["content"]}]
        found += holder["content"]
    return found


def marks_of(body: dict) -> list[tuple[int, str]]:
    """Where breakpoints stand, and for how long; one for the request as a whole stands at the end."""
    blocks = [*blocks_of(body), body]
    marks = enumerate(block.get("cache_control") for block in blocks)
    return [(at, mark.get("ttl", "5m")) for at, mark in marks if mark]


def without_marks(body: dict) -> dict:
    if isinstance(body.get("system"), str):
        body["system"] = [{"type": "text", "text": body["system"]}]
    for block in (*blocks_of(body), body):
        block.pop("cache_control", None)
    return body


@st.composite
def bodies(draw) -> dict:
    messages = draw(sound(ANTHROPIC))
    if messages[-1].role == "assistant":
        messages.append(user("go on"))
    written = [json.loads(bytes(encode_message(message, ANTHROPIC))) for message in messages]
    tools = [
        {"name": name, "input_schema": {"type": "object"}} for name in draw(st.sampled_from(["", "a", "ab"]))
    ]
    system = draw(
        st.sampled_from([{}, {"system": "be kind"}, {"system": [{"type": "text", "text": "be kind"}]}])
    )
    return {"model": "m", "x": {"b": 1.50}, "tools": tools, **system, "messages": written}


def marked(body: dict, data: st.DataObject, most: int) -> dict:
    """The body with breakpoints of the client's own, the long ones first, as the provider demands it."""
    body = json.loads(json.dumps(body))
    blocks = [block for block in blocks_of(body) if "thinking" not in block.get("type", "")]
    if data.draw(st.booleans()):
        blocks.append(body)
    places = sorted(data.draw(st.sets(st.sampled_from(range(len(blocks))), max_size=most)))
    longer = data.draw(st.integers(0, len(places)))
    for number, place in enumerate(places):
        hour = {"ttl": "1h"} if number < longer else {}
        blocks[place]["cache_control"] = {"type": "ephemeral", **hour}
    return body


def shown_as(request: Request, lead: Lead, *, is_pruned: bool) -> FoldedBranch:
    folded = FoldedBranch.of(View.of(request.messages, ANTHROPIC, TextCounter())).lead_by((), lead)
    if not is_pruned:
        return folded
    room = Room(10**6, 0, TextCounter(), ANTHROPIC)
    return folded.show(Prune(force=True, keep=0).apply(folded.items, room).shown.items)


@given(bodies(), st.data(), st.sampled_from(LEADS), st.booleans(), TTLS)
def test_never_more_than_four_and_nothing_else_changes(body, data, lead, is_pruned, ttl):
    request = decode_request(json.dumps(marked(body, data, 4)).encode(), ANTHROPIC)
    folded = shown_as(request, lead, is_pruned=is_pruned)
    plain = assemble(request.fixed, folded.shown.messages(), lead)
    window = mark_window(plain, folded, ttl)
    before, after = json.loads(encode_window(request, plain)), json.loads(encode_window(request, window))
    marks = marks_of(after)
    assert len(marks) <= 4
    assert set(marks_of(before)) <= set(marks)
    assert [mark for _, mark in marks] == sorted(mark for _, mark in marks)
    assert marks
    assert verify_window(window) == ()
    assert without_marks(after) == without_marks(before)


@given(bodies(), st.data(), st.sampled_from([None, "5m"]))
def test_more_than_four_of_the_client_s_own_become_four_where_they_can(body, data, ttl):
    request = decode_request(json.dumps(marked(body, data, 12)).encode(), ANTHROPIC)
    folded = FoldedBranch.of(View.of(request.messages, ANTHROPIC, TextCounter()))
    plain = assemble(request.fixed, folded.shown.messages())
    window = mark_window(plain, folded, ttl)
    before, after = json.loads(encode_window(request, plain)), json.loads(encode_window(request, window))
    at_most = max(4, len(marks_of({**before, "messages": []})))
    assert len(marks_of(after)) <= at_most
    assert ttl or all(after.get(key) == before.get(key) for key in ("tools", "system", "cache_control"))
    assert without_marks(after) == without_marks(before)


@given(bodies(), st.data(), st.sampled_from(LEADS), TTLS)
def test_what_stands_before_a_breakpoint_comes_again_with_the_next_request(body, data, lead, ttl):
    request = decode_request(json.dumps(body).encode(), ANTHROPIC)
    folded = shown_as(request, lead, is_pruned=data.draw(st.booleans()))
    first = mark_window(assemble(request.fixed, folded.shown.messages(), lead), folded, ttl)
    more = [*data.draw(sound(ANTHROPIC)), user("go on")]
    grown = folded.extend(more)
    second = mark_window(assemble(request.fixed, grown.shown.messages(), lead), grown, ttl, first)
    before, after = json.loads(encode_window(request, first)), json.loads(encode_window(request, second))
    stable = {mark for mark in first.breakpoints if mark.reason != "tail"}
    is_crowded = any(mark.reason == "cached before" for mark in second.breakpoints)
    assert is_crowded or stable <= set(second.breakpoints)
    assert second.breakpoints[-1].index == len(second.summaries) + len(second.messages) - 1
    end = marks_of(before)[-1][0]
    then, now = blocks_of(without_marks(before)), blocks_of(without_marks(after))
    assert then[: end + 1] == now[: end + 1]
