import pickle

import pytest

from refold.model import errors
from refold.model.errors import Overflow


def test_the_docstring_is_the_default_message():
    assert errors.Conflict().message == "another writer was first; load the conversation and try again"


def test_a_hint_follows_the_message():
    error = errors.ConfigError("the window is too small", hint="use a larger one")
    assert str(error) == "the window is too small\nhint: use a larger one"
    assert (error.message, error.hint) == ("the window is too small", "use a larger one")


def test_some_errors_bring_their_own_hint():
    assert "max_body_bytes" in errors.BodyTooLarge().hint


def test_a_wire_error_names_the_place():
    error = errors.WireError("expected a string", place="messages[3].content[0]")
    assert str(error) == "messages[3].content[0]: expected a string"
    assert error.place == "messages[3].content[0]"


def test_a_missing_extra_says_how_to_install_it():
    with pytest.raises(errors.ConfigError, match=r"pip install 'refold\[tokens\]'"):
        raise errors.MissingExtra("tokens", "exact counting")


def test_an_upstream_error_says_what_it_means():
    found = Overflow("input_too_long", limit=200_000)
    assert errors.ContextOverflow(overflow=found).overflow is found
    assert errors.RateLimited().overflow is None


@pytest.mark.parametrize(
    "error",
    [
        errors.MissingExtra("tokens", "counting"),
        errors.WireError("odd", place="input[2]", hint="look"),
        errors.SettingError("server.port", "it is out of range", place="refold.toml", hint="look"),
        errors.SettingFixed("cache.ttl", "the flag --cache-ttl"),
        errors.SettingLocked("store.url"),
        errors.ContextOverflow("too long", overflow=Overflow("input_too_long", limit=8)),
    ],
)
def test_errors_travel_between_processes(error):
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))
