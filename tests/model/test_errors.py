import pytest

from refold.model import errors


def test_the_docstring_is_the_default_message():
    assert str(errors.Conflict()) == "Another writer was first; load the conversation and try again."


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
