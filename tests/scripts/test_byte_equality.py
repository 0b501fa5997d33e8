"""A short run of the campaign, and a check that it would find a change."""

from __future__ import annotations

import json

import pytest

from refold.core.presets import PRESETS
from scripts.byte_equality import PATHS, compare, conversation, main


@pytest.mark.feature("X5")
@pytest.mark.parametrize("ttl", ["off", "5m"])
async def test_conversations_that_fit_leave_as_they_came(ttl):
    assert await main(tuple(PRESETS), range(9), ttl, show=False)


@pytest.mark.parametrize("name", PATHS)
def test_conversations_are_varied_and_can_be_made_again(name):
    bodies = [body for seed in range(40) for body in conversation(name, f"{seed}")]
    assert bodies == [body for seed in range(40) for body in conversation(name, f"{seed}")]
    assert all(json.loads(body) for body in bodies)
    joined = b"".join(bodies)
    wanted = {"chat": (b"image_url", b"tool_calls"), "responses": (b"input_image", b"function_call"), "anthropic": (b"base64", b"thinking")}  # fmt: skip
    assert all(word in joined for word in (*wanted[name], b"null", b'""', b"x_note", b"\\u2028"))


MARK = b'"cache_control":{"type":"ephemeral"}'


@pytest.mark.parametrize(
    ("left", "came", "is_marked", "is_found"),
    [
        (b'{"a": 1}', b'{"a":1}', False, True),
        (b'{"a": 1}', b'{"a":1}', True, False),
        (b'{"a":1.0}', b'{"a":1}', True, True),
        (rb'{"a":"A"}', rb'{"a":"\u0041"}', True, True),
        (b'{"a":[{"type":"text","text":"x",%s}]}' % MARK, b'{"a":"x"}', True, False),
        (b'{"a":[{"type":"text","text":"x"}]}', b'{"a":"x"}', True, True),
        (b'{"a":[{"type":"text","text":"y",%s}]}' % MARK, b'{"a":"x"}', True, True),
        (b'{"a":{"b":1,%s}}' % MARK, b'{"a":{"b":1}}', True, False),
        (b'{"a":{"b":1,%s}}' % MARK, b'{"a":{"b":1,"cache_control":null}}', True, True),
        (b'{"a":[]}', b'{"a":[1]}', True, True),
        (b'{"a":1}', b'{"a":1,"b":null}', True, True),
    ],
)
def test_a_change_is_found(left, came, is_marked, is_found):
    assert bool(compare(left, came, is_marked=is_marked)) == is_found
