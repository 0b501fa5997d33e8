from __future__ import annotations

import re

import pytest

from refold.config.formats import SHARE_TEXT, TOKENS_TEXT, schema
from refold.config.tree import KEYS, UPSTREAM_KEYS

PROPERTIES = schema()["properties"]


def form_of(key):
    table = PROPERTIES["upstreams"]["additionalProperties"] if key.is_upstream else PROPERTIES[key.section]
    return table["properties"][key.field]


@pytest.mark.feature("L14")
@pytest.mark.parametrize("key", [*KEYS.values(), *UPSTREAM_KEYS.values()], ids=lambda key: key.name)
def test_every_setting_is_in_the_schema(key):
    form = form_of(key)
    assert form["description"] == key.what
    assert ({"const": "default"} in form.get("anyOf", [])) == key.is_optional
    assert {"type": "null"} not in form.get("anyOf", [])


def test_tables_take_nothing_else():
    assert schema()["additionalProperties"] is False
    for table in (
        *(PROPERTIES[name] for name in ("server", "compaction")),
        PROPERTIES["upstreams"]["additionalProperties"],
    ):
        assert table["additionalProperties"] is False


def test_ranges_are_in_the_schema():
    port = form_of(KEYS["server.port"])
    assert (port["type"], port["minimum"], port["maximum"], port["default"]) == ("integer", 0, 65_535, 7336)


@pytest.mark.parametrize(
    ("text", "is_tokens", "is_share"),
    [
        ("4k", True, False),
        ("4_000", True, False),
        ("80%", False, True),
        ("1.5m", True, False),
        ("0.8", False, True),
        ("80", True, False),
    ],
)
def test_texts_of_sizes(text, is_tokens, is_share):
    assert bool(re.fullmatch(TOKENS_TEXT, text)) is is_tokens
    assert bool(re.fullmatch(SHARE_TEXT, text)) is is_share
