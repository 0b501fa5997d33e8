from __future__ import annotations

import pytest
from msgspec import Raw

from refold.model.errors import WireError
from refold.model.message import Text
from refold.wire.json_codec import patch, verbatim, write, write_content

ORIGINAL = Raw(b'{ "b" : 1.50, "x": {"n": 1e2, "url" : "u"}, "a":"old" }')


@pytest.mark.parametrize(
    "before, after, result",
    [
        ({"a": "old"}, {"a": "old"}, bytes(ORIGINAL)),
        ({"a": "old"}, {"a": "new"}, b'{"b":1.50,"x":{"n": 1e2, "url" : "u"},"a":"new"}'),
        ({"a": "old"}, {}, b'{"b":1.50,"x":{"n": 1e2, "url" : "u"}}'),
        ({}, {"c": True}, b'{"b":1.50,"x":{"n": 1e2, "url" : "u"},"a":"old","c":true}'),
        ({"x": {"url": "u"}}, {"x": {"url": "v"}}, b'{"b":1.50,"x":{"n":1e2,"url":"v"},"a":"old"}'),
        ({"x": {"url": "u"}}, {"x": "flat"}, b'{"b":1.50,"x":"flat","a":"old"}'),
        ({"gone": 1}, {}, b'{"b":1.50,"x":{"n": 1e2, "url" : "u"},"a":"old"}'),
    ],
)
def test_only_the_difference_is_written(before: dict[str, object], after: dict[str, object], result: bytes):
    assert bytes(patch(ORIGINAL, before, after)) == result


def test_half_a_surrogate_pair_cannot_be_written():
    for call in (lambda: write("\ud800"), lambda: write({"a": ["\udfff"]}), lambda: verbatim("\ud800")):
        with pytest.raises(WireError, match="surrogate"):
            call()


def test_content_is_a_string_only_where_one_text_says_it_all():
    def block(part: object) -> Raw:
        return Raw(b'"block"')

    assert write_content((), block) == ""
    assert write_content((), block, empty=None) is None
    assert write_content((Text("a"),), block) == "a"
    assert write_content((Text("a", raw=Raw(b"{}")),), block) == (Raw(b'"block"'),)
    assert write_content((Text("a"), Text("b")), block) == (Raw(b'"block"'), Raw(b'"block"'))
