import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from refold.core.secrets import find_secrets, is_clean, redact, redact_message, values_of
from refold.model.message import (
    File,
    Image,
    Message,
    Opaque,
    Origin,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    tool,
    user,
)

WORD = "aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA"
SECRETS = {
    "api key": [f"sk-{WORD}", f"sk-ant-api03-{WORD}", f"sk-proj-{WORD}-{WORD}"],
    "refold key": [f"rf_{'0a1b2c' * 2}_{'3d4e5f60' * 6}"],
    "github token": [f"ghp_{WORD}abcd", f"github_pat_{WORD}"],
    "gitlab token": ["glpat-abcdefGHIJ0123456789"],
    "slack token": ["xoxb-123456789012-abcdefABCDEF"],
    "aws key id": ["AKIAIOSFODNN7ABCDEFG"],
    "google key": ["AIza" + "SyA1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q"],
    "stripe key": ["sk_live_4eC39HqLyjWDarjtT1zdp7dc"],
    "npm token": ["npm_" + "a1" * 18],
    "hugging face token": ["hf_" + "aB" * 17],
    "json web token": [f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.{WORD}"],
}


@pytest.mark.feature("X19")
@pytest.mark.parametrize(("kind", "secret"), [(kind, one) for kind, many in SECRETS.items() for one in many])
def test_a_vendor_s_key_is_known_by_its_form(kind, secret):
    said = f"use {secret} for this, and go on"
    assert redact(said, "#m3") == f"use [{kind} in #m3] for this, and go on"
    assert redact(f'{{"value": "{secret}"}}') == f'{{"value": "[{kind}]"}}'


@pytest.mark.feature("X19")
@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("password: hunter2hunter2", "password: [secret]"),
        ('DB_PASSWORD="correct-horse"', 'DB_PASSWORD="[secret]"'),
        ("export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPx", "export AWS_SECRET_ACCESS_KEY=[secret]"),
        ('{"client_secret": "0123456789abcdef"}', '{"client_secret": "[secret]"}'),
        ("Authorization: Bearer abc.def-123456", "Authorization: Bearer [token]"),
        ("curl -H 'Authorization: Basic dXNlcjpwYXNz'", "curl -H 'Authorization: Basic [token]'"),
        ("postgres://app:s3cr3t@db.host/main", "postgres://app:[password]@db.host/main"),
        ("the password is Tr0ub4dor&3", "the password is [secret]"),
        ("api_key = 'abcdef123456'", "api_key = '[secret]'"),
    ],
)
def test_a_secret_is_known_by_the_word_before_it(said, kept):
    assert redact(said) == kept


@pytest.mark.feature("X19")
def test_a_private_key_goes_whole():
    body = "\n".join(["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ"] * 20)
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----"
    assert redact(f"here:\n{key}\nthanks", "#m1") == "here:\n[private key in #m1]\nthanks"
    assert redact(key.replace("\n", "\\n")) == "[private key]"
    assert redact(f"cut off: {key[:300]}") == "cut off: [private key]"


@pytest.mark.parametrize(
    "said",
    [
        "password = os.environ['DB']",
        "password: $DB_PASSWORD",
        "api_key=YOUR_API_KEY",
        "secret = None",
        "token: str = field()",
        "the secret of good code is patience",
        "https://example.org/path?x=1",
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
        "def password(self): ...",
        "sk-learn and task-list-of-many-things",
        "uuid 123e4567-e89b-12d3-a456-426614174000",
    ],
)
def test_what_only_looks_like_one_stays(said):
    assert find_secrets(said) == ()


@pytest.mark.feature("X19")
def test_every_part_of_a_message_is_cleaned_and_the_rest_is_as_it_was():
    key = SECRETS["api key"][0]
    message = Message("assistant", (Text(f"I use {key}"), ToolCall("c", "curl", f'{{"key": "{key}"}}')))
    cleaned = redact_message(message, 7)
    assert cleaned.parts[0] == Text("I use [api key in #m7]")
    assert cleaned.parts[1] == ToolCall("c", "curl", '{"key": "[api key in #m7]"}')
    result = redact_message(tool("c", f"ok {key}"), 8).results[0]
    assert (result.call_id, result.text) == ("c", "ok [api key in #m8]")
    clean = user("nothing here")
    assert redact_message(clean, 1) is clean


@pytest.mark.feature("X19")
def test_a_message_that_somebody_marked_says_only_where_it_is():
    marked = Message("tool", (ToolResult("c", (Text("my diary"),)),))
    assert redact_message(marked, 4, hidden=[4]).results[0] == ToolResult("c", (Text("[withheld: #m4]"),))
    assert redact_message(user("my diary"), 5, hidden=[4, 5]).text == "[withheld: #m5]"
    assert redact_message(user("my diary"), 6, hidden=[4, 5]).text == "my diary"


@pytest.mark.parametrize(
    "hostile",
    [
        "a-",
        "password",
        "eyJ",
        "-eyJaaaaaaaaaa.eyJ",
        "-----BEGIN PRIVATE KEY-----",
        "x_",
        "http://a:",
        "sk-",
        "authorization: bearer ",
        'password="',
        "password for a b c d ",
        "secret\n \n ",
        "key\\n\\n",
        "curl -u a",
        "密码是",
        "passphrase: word word word word ",
        "hunter22 is my secret ",
        "\\",
    ],
)
def test_a_hostile_text_is_read_to_its_end(hostile):
    """With a pattern that backtracks without end, this would not come back."""
    text = hostile * (60_000 // len(hostile))
    assert redact(f"{text} AKIAIOSFODNN7ABCDEFG").count("[") >= 1


FRAGMENTS = st.sampled_from(
    [
        "password", "DB_PASSWORD", "token", "api_key", "secret", "pin", "Authorization: Bearer ", "密码", "hunter2222", "4821",
        f"sk-{WORD}", f"ghp_{WORD}abcd", "correct horse battery staple", "postgres://app:", "@host", "curl -u bob:", "Cookie: a=",
        "=", ": ", " is ", " is my ", '"', '\\"', "'", " ", "\n", "\\n", ", ", "(", ")", "[", "]", "&", "?", "<", ">", "|", "/", "#m7]",
        "[secret]", "[secret in #m4]", "[api key in #m12]", "[withheld: #m3]", "-----BEGIN PRIVATE KEY-----", WORD, "a",
        "-----END PRIVATE KEY-----", "value", "login ", "\\u003d", "\\\\u043fароль", " / ", "passphrase: ", "--password ", "$", "*",
    ]
)  # fmt: skip


@pytest.mark.feature("X19")
@given(st.lists(FRAGMENTS, max_size=24).map("".join), st.sampled_from(["", "#m4"]))
def test_redacting_twice_changes_nothing_more(text, place):
    once = redact(text, place)
    assert redact(once, place) == redact(once) == redact(once, "#m9") == once


@pytest.mark.parametrize(
    "said", ["error: password is incorrect", "The token is required here", "the api key is missing"]
)
def test_what_is_said_about_a_secret_is_none(said):
    assert redact(said, "#m1") == said


def test_a_placeholder_stays_what_it_is():
    once = redact("the password is hunter2222", "#m4")
    assert once == "the password is [secret in #m4]"
    assert redact(once) == once


@pytest.mark.feature("X19")
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_name_that_json_has_escaped_is_read_as_it_is_meant(depth):
    text = "пароль: hunter2222"
    for _ in range(depth):
        text = json.dumps({"body": text})
    kept = redact(text, "#m1")
    assert "hunter2222" not in kept
    for _ in range(depth):
        kept = json.loads(kept)["body"]
    assert kept == "пароль: [secret in #m1]"
    assert redact(r'{"q": "password\u003dhunter2222\u0026x\u003d1"}') == '{"q": "password=[secret]"}'


@pytest.mark.feature("X19")
def test_secrets_that_overlap_leave_nothing_between_them():
    said = f"Cookie: sid={WORD}; token=ghp_{WORD}abcd/{WORD}"
    assert WORD not in redact(said)


@pytest.mark.feature("X19")
def test_what_was_found_once_is_known_wherever_it_stands():
    known = values_of(user("my password for prod is hunter2222, the pin is 4821"))
    assert known == {"hunter2222"}  # four digits stand in too many places by chance
    assert redact("logged in: hunter2222@10.0.0.1", "#m9", known) == "logged in: [secret in #m9]@10.0.0.1"
    assert (
        redact_message(tool("c", "typed hunter2222"), 9, known=known).results[0].text
        == "typed [secret in #m9]"
    )


@pytest.mark.feature("X19")
def test_the_lines_of_a_private_key_are_known_without_its_armour():
    line = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ"
    last = "NxjZHEcuwDrUrRrhd0XkhH0r"
    known = values_of(user(f"-----BEGIN PRIVATE KEY-----\n{line}\n{last}==\n-----END PRIVATE KEY-----"))
    assert redact(f"line 2 is {line}", known=known) == "line 2 is [secret]"
    assert last not in redact(f"the last is {last}", known=known), "it is shorter than the others"


@pytest.mark.parametrize(
    "part",
    [
        File(text="password=hunter2222", name="a.env"),
        File(data=base64.b64encode(b"password=hunter2222").decode(), media_type="text/plain"),
        File(url="https://bob:hunter2222@files.host/a.txt"),
        Image(url="https://x.host/a.png?api_key=hunter2222"),
        Reasoning("The password is hunter2222, so I log in."),
        Opaque("server_tool_use", raw=Raw(b'{"input": {"password": "hunter2222"}}')),
        ToolResult("c", (File(text="password=hunter2222"), Text("ok"))),
        ToolCall("c", "write", '{"content": "PASSWORD=\\"hunter2222\\""}'),
    ],
    ids=lambda part: type(part).__name__,
)
@pytest.mark.feature("X19")
def test_no_part_takes_a_secret_along(part):
    message = Message("assistant", (part,))
    cleaned = redact_message(message, 3)
    assert cleaned != message
    assert not is_clean(message)
    assert is_clean(cleaned)
    assert "hunter2222" not in str(cleaned)
    assert "#m3]" in str(cleaned)


@pytest.mark.feature("X19")
@pytest.mark.parametrize("hidden", [(), (3,)])
def test_not_even_a_tool_is_called_by_a_secret(hidden):
    message = Message("assistant", (ToolCall("c1", f"sk-{WORD}", "{}"),))
    assert not is_clean(message)
    assert redact_message(message, 3, hidden).calls[0].name == "[api key in #m3]"
    assert values_of(message) == {f"sk-{WORD}"}


@pytest.mark.feature("X19")
def test_a_field_that_nobody_reads_may_hold_a_secret_too():
    raw = Raw(b'{"role": "user", "content": "hi", "note": "password=hunter2222"}')
    assert not is_clean(Message("user", (Text("hi"),), Origin("chat", raw)))
    signed = Raw(b'{"role": "assistant", "content": [{"signature": "Ab3dEf6hIj9lMn2pQr5t"}]}')
    thought = Message("assistant", (Reasoning("well", "Ab3dEf6hIj9lMn2pQr5t"),), Origin("anthropic", signed))
    assert is_clean(thought)


def test_a_name_at_the_beginning_of_a_line_is_not_part_of_the_word_before_it():
    text = "token: 7311d8a3c2ce6f447ed4d57b\ntoken: c9e9c616612e7696a6cecc1b\n"
    assert [text[one.start : one.stop] for one in find_secrets(text)] == text.split()[1::2]


CHAIN = "password=x9Y8z7W6v5: hunter22:'hunter22\n"
"""Each replacement exposes the next secret."""
PROSE = "The ship left the harbour at dawn and nobody saw it. " * 700


@pytest.mark.parametrize(
    "text",
    [
        f"{CHAIN}{PROSE}",
        f"{PROSE}{CHAIN}",
        f"{PROSE}{CHAIN}{PROSE}{CHAIN}{CHAIN}{PROSE}",
        f"{CHAIN * 500}{PROSE}{CHAIN}",
        f"{PROSE}{CHAIN}{PROSE}Cookie: a={WORD}",
        f"{PROSE}{CHAIN}{PROSE}\\u0070assword=x9Y8z7W6v5",
    ],
)
@pytest.mark.parametrize("known", [(), ("nobody-1887", "harbour at dawn")])
def test_a_search_near_the_last_replacements_finds_what_a_search_of_the_whole_text_finds(text, known):
    whole = text.replace("\\u0070", "p")
    while found := find_secrets(whole, known):
        for one in reversed(found):
            whole = f"{whole[: one.start]}[{one.kind}]{whole[one.stop :]}"

    assert redact(text, known=known) == whole
    assert "hunter22" not in whole
