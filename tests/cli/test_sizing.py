from __future__ import annotations

import pytest

from refold.cli.sizing import DEFAULT_MODEL, Wish, choose_max_output, choose_model, size_up
from refold.model.errors import BudgetError
from refold.wire import Request, decode_transcript


def request(fields: str = "") -> Request:
    body = f'{{{fields}"messages": [{{"role": "user", "content": "hi"}}]}}'
    return decode_transcript(body.encode())


@pytest.mark.parametrize(
    ("fields", "wish", "chosen"),
    [
        ("", Wish(), (DEFAULT_MODEL, "default")),
        ('"model": "gpt-4.1", ', Wish(), ("gpt-4.1", "file")),
        ('"model": "gpt-4.1", ', Wish(model="o3"), ("o3", "option")),
    ],
)
def test_whoever_asks_for_a_model_wins(fields, wish, chosen):
    assert choose_model(request(fields), wish) == chosen


@pytest.mark.parametrize(
    ("fields", "wish", "tokens"),
    [
        ("", Wish(), 0),
        ('"max_tokens": 300, ', Wish(), 300),
        ('"max_tokens": 300, ', Wish(max_output=0), 0),
        ('"max_completion_tokens": 70, ', Wish(), 70),
    ],
)
def test_the_reply_gets_what_the_request_asks_for(fields, wish, tokens):
    assert choose_max_output(request(fields), wish) == tokens


def test_an_output_that_cannot_be_is_refused():
    with pytest.raises(BudgetError, match="--max-output"):
        choose_max_output(request(f'"max_tokens": {"9" * 400}, '), Wish())


def test_the_window_is_the_wanted_one_or_that_of_the_model():
    wanted, known = size_up(request(), Wish(window=5000)), size_up(request(), Wish())

    assert (wanted.budget.window, wanted.window_source) == (5000, "override")
    assert (known.budget.window, known.window_source) == (128_000, "catalogue")
    assert wanted.warning == known.warning == ""


def test_a_guess_comes_with_a_warning():
    assert "is unknown" in size_up(request(), Wish(model="nobody-knows-it")).warning
