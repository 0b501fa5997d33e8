from __future__ import annotations

import io
import sys

import pytest

from refold.cli.options import SizeOptions, TranscriptOptions
from refold.cli.transcript import (
    DEFAULT_MODEL,
    choose_max_output,
    choose_model,
    decode,
    find_dialect,
    read_bytes,
    size_up,
)
from refold.model.dialect import RESPONSES
from refold.model.errors import BodyTooLarge, BudgetError, ConfigError, WireError
from refold.wire import Request, decode_transcript

LIMIT = 1_000
READS = TranscriptOptions(max_body_bytes=LIMIT)


def test_a_file_is_read_whole(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"x" * LIMIT)

    assert read_bytes(str(path), limit=LIMIT) == b"x" * LIMIT


def test_a_dash_is_stdin(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"[]")))

    assert read_bytes("-", limit=LIMIT) == b"[]"


def test_a_closed_stdin_is_an_error(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)

    with pytest.raises(ConfigError, match="no stdin"):
        read_bytes("-", limit=LIMIT)


def test_a_file_over_the_limit_is_refused(tmp_path):
    path = tmp_path / "big.json"
    path.write_bytes(b"x" * (LIMIT + 1))

    with pytest.raises(BodyTooLarge, match=r"big\.json has more than 1,000 bytes\nhint: .*--max-body-bytes"):
        read_bytes(str(path), limit=LIMIT)


def test_an_endless_file_is_not_read_to_its_end():
    with pytest.raises(BodyTooLarge):
        read_bytes("/dev/zero", limit=LIMIT)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.json", "there is no file"),
        ("", "is a directory"),
        ("a\0b", "cannot be read: not a path"),
        ("n" * 5000, "cannot be read"),
        ("file.json/inside", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, name, message):
    (tmp_path / "file.json").touch()

    with pytest.raises(ConfigError, match=message) as caught:
        read_bytes(f"{tmp_path}/{name}", limit=LIMIT)

    assert str(tmp_path) in caught.value.message


def test_a_name_cannot_take_over_the_terminal():
    with pytest.raises(ConfigError) as caught:
        read_bytes("evil\x1b[2J\udcff.json", limit=LIMIT)

    assert str(caught.value).isascii() is False
    assert "\x1b" not in str(caught.value)
    assert "\udcff" not in str(caught.value)


def test_an_error_names_the_file_and_the_place():
    with pytest.raises(WireError, match=r"^a\.json: messages\[1\]\.role: "):
        decode(b'[{"role": "user", "content": "hi"}, {"role": 3}]', "a.json", READS)


def test_the_format_can_be_told():
    data = b'[{"role": "user", "content": "hi"}]'

    assert decode(data, "-", READS).dialect.name == "chat"
    assert decode(data, "-", TranscriptOptions("anthropic", LIMIT)).dialect.name == "anthropic"


def test_formats_have_names():
    assert find_dialect("") is None
    assert find_dialect("responses") is RESPONSES
    with pytest.raises(ConfigError, match="use one of: chat, responses, anthropic"):
        find_dialect("Chat")


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        (b"", "a list of messages"),
        (b" \n", "a list of messages"),
        (b"\xe9t\xe9", "text in UTF-8"),
        (b"\xff\xfe[\x00]\x00", "iconv -f UTF-16 -t UTF-8"),
        (b"\x1f\x8b\x08\x00", "gunzip"),
        (b"[1, 2, 3]", "objects with a role"),
        (b'{"messages": 7}', "objects with a role"),
        (b'"text"', "objects with a role"),
        (b'{"messages": [', "cut short"),
        (b"Dear Sir or Madam", "mend the JSON"),
        (b'{"role": "user", "content": "a"}\nhello\n', "mend the JSON"),
        (b'{"role": "user", "content": "a"}\n{"role": "us\n', "cut short"),
    ],
)
def test_whatever_is_wrong_with_a_file_there_is_a_hint(data, hint):
    with pytest.raises(WireError) as caught:
        decode(data, "a.json", READS)

    assert hint in caught.value.hint


def test_a_hint_that_knows_better_stays():
    with pytest.raises(WireError) as caught:
        decode(b"{}", "a.json", READS)

    assert caught.value.hint == "give a request body, a list of messages, or one message per line"


def test_what_may_not_be_read_has_a_hint(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_bytes(f"{tmp_path}/a\0b", limit=LIMIT)

    assert caught.value.hint


def request(fields: str = "") -> Request:
    body = f'{{{fields}"messages": [{{"role": "user", "content": "hi"}}]}}'
    return decode_transcript(body.encode())


@pytest.mark.parametrize(
    ("fields", "sizes", "chosen"),
    [
        ("", SizeOptions(), (DEFAULT_MODEL, "default")),
        ('"model": "gpt-4.1", ', SizeOptions(), ("gpt-4.1", "file")),
        ('"model": "gpt-4.1", ', SizeOptions(model="o3"), ("o3", "option")),
    ],
)
def test_whoever_asks_for_a_model_wins(fields, sizes, chosen):
    assert choose_model(request(fields), sizes) == chosen


@pytest.mark.parametrize(
    ("fields", "sizes", "tokens"),
    [
        ("", SizeOptions(), 0),
        ('"max_tokens": 300, ', SizeOptions(), 300),
        ('"max_tokens": 300, ', SizeOptions(max_output=0), 0),
        ('"max_completion_tokens": 70, ', SizeOptions(), 70),
    ],
)
def test_the_reply_gets_what_the_request_asks_for(fields, sizes, tokens):
    assert choose_max_output(request(fields), sizes) == tokens


def test_an_output_that_cannot_be_is_refused():
    with pytest.raises(BudgetError, match="--max-output"):
        choose_max_output(request(f'"max_tokens": {"9" * 400}, '), SizeOptions())


def test_the_window_is_the_wanted_one_or_that_of_the_model():
    wanted, known = size_up(request(), SizeOptions(window=5000)), size_up(request(), SizeOptions())

    assert (wanted.budget.window, wanted.window_source) == (5000, "override")
    assert (known.budget.window, known.window_source) == (128_000, "catalogue")
    assert wanted.warning == known.warning == ""


def test_a_guess_comes_with_a_warning():
    assert "is unknown" in size_up(request(), SizeOptions(model="nobody-knows-it")).warning
