from __future__ import annotations

import io
import sys

import pytest

from refold.cli.reading import decode, find_dialect, read_bytes
from refold.model.dialect import RESPONSES
from refold.model.errors import BodyTooLarge, ConfigError, WireError

LIMIT = 1_000


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
        decode(b'[{"role": "user", "content": "hi"}, {"role": 3}]', "a.json", limit=LIMIT)


def test_the_format_can_be_told():
    data = b'[{"role": "user", "content": "hi"}]'

    assert decode(data, "-", limit=LIMIT).dialect.name == "chat"
    assert decode(data, "-", format_name="anthropic", limit=LIMIT).dialect.name == "anthropic"


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
        decode(data, "a.json", limit=LIMIT)

    assert hint in caught.value.hint


def test_a_hint_that_knows_better_stays():
    with pytest.raises(WireError) as caught:
        decode(b"{}", "a.json", limit=LIMIT)

    assert caught.value.hint == "give a request body, a list of messages, or one message per line"


def test_what_may_not_be_read_has_a_hint(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_bytes(f"{tmp_path}/a\0b", limit=LIMIT)

    assert caught.value.hint
