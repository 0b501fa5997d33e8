from __future__ import annotations

from typing import Annotated

import pytest
from msgspec import Meta, defstruct

from refold.config.parse import expected
from refold.config.tree import (
    KEYS,
    SECTIONS,
    TUNABLE,
    UPSTREAM_KEYS,
    SettingMask,
    _keys,
    all_keys,
    find_key,
    nearest,
    parts_of,
    takes_text,
)
from tests.config.samples import ALL, SAMPLES


@pytest.mark.feature("L14")
def test_every_setting_has_a_variable_and_a_flag_of_its_own():
    for names in ([key.variable for key in ALL], [flag for key in ALL for flag in key.flags]):
        assert len(set(names)) == len(names)
    assert KEYS["compaction.keep_recent"].variable == "REFOLD_COMPACTION_KEEP_RECENT"
    assert KEYS["compaction.keep_recent"].flags == ("--compaction-keep-recent",)
    assert KEYS["server.port"].flags == ("--server-port", "--port")
    assert UPSTREAM_KEYS["key_env"].variable == "REFOLD_UPSTREAMS_<NAME>_KEY_ENV"
    assert UPSTREAM_KEYS["key_env"].flag == "--upstreams-key-env"


@pytest.mark.feature("L14")
@pytest.mark.parametrize("key", all_keys(), ids=lambda key: key.name)
def test_every_setting_says_what_it_does_and_what_it_takes(key):
    assert key.what.endswith(".")
    assert expected(key)
    assert bool(key.unset) == (key.default is None)


def test_every_setting_is_tried():
    assert set(SAMPLES) == {key.name for key in ALL}


@pytest.mark.feature("X1")
def test_nothing_that_leads_elsewhere_or_protects_is_changed_over_http():
    assert set(KEYS) >= TUNABLE
    locked = {name for name in KEYS if name.partition(".")[0] in ("server", "store", "plugins", "cluster")}
    locked |= {
        "summariser.models",
        "summariser.max_spend",
        "summariser.timeout_s",
        "compaction.sensitive",
        "compaction.allow_system_summary",
        "compaction.summarization",
        "compaction.extra_triggers",
    }
    assert not TUNABLE & locked
    assert not [key for key in UPSTREAM_KEYS.values() if key.is_tunable]
    assert set(KEYS) == TUNABLE | locked


def test_names_of_upstreams_do_not_matter():
    assert find_key("upstreams.my-box.url") is UPSTREAM_KEYS["url"]
    assert find_key("upstreams.My_Box.url") is None
    assert find_key("upstreams.openai") is None


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("compaction.prset", "compaction.preset"),
        ("compation.preset", "compaction.preset"),
        ("preset", "compaction.preset"),
        ("gateway.port", "server.port"),
        ("upstreams.openai.ulr", "upstreams.openai.url"),
        ("servr", "server"),
        ("zzz", ""),
    ],
)
def test_the_nearest_name_is_known(wrong, right):
    assert nearest(wrong) == right


def test_every_section_says_what_it_is_for():
    assert all((kind.__doc__ or "").endswith(".") for kind in SECTIONS.values())


def test_every_setting_that_takes_text_says_how_it_is_shown():
    """Whether it may hold an address, a command or a pattern is decided where it is declared, once for every door."""
    texts = {key.name: key for key in ALL if takes_text(key.type)}

    assert {name for name, key in texts.items() if key.mask.hides} == {
        *("store.url", "compaction.sensitive", "compaction.summarization", "summariser.models"),
        *(f"upstreams.NAME.{field}" for field in ("url", "key_env", "key_command", "headers")),
    }
    assert not [
        key.name
        for key in texts.values()
        if not any(type(mark) is SettingMask for mark in parts_of(key.type))
    ]


@pytest.mark.parametrize("kind", [str, str | None, tuple[str, ...], dict[str, str], dict[str, int]])
def test_a_setting_that_takes_text_and_is_not_marked_is_refused(kind):
    described = Annotated[kind, Meta(description="Something new.")]
    section = defstruct("Section", [("secret", described, "")])
    with pytest.raises(TypeError, match=r"new\.secret takes text"):
        list(_keys(section, "new", "new"))


def test_what_may_hold_a_secret_is_never_changed_over_http():
    """So whoever is no admin, and sees only what can be changed so, sees none of it."""
    assert not [key.name for key in ALL if key.mask.hides and key.is_tunable]
