from __future__ import annotations

import pytest

from refold.config.keys import KEYS, SECTIONS, TUNABLE, UPSTREAM_KEYS, all_keys, find_key, nearest
from refold.config.spans import expected
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
    locked = {name for name in KEYS if name.partition(".")[0] in ("server", "store")}
    locked |= {
        "summariser.models",
        "summariser.max_spend",
        "compaction.sensitive",
        "compaction.allow_system_summary",
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
