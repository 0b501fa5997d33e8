import pytest

from refold.core.summary.redact import find_secrets, redact, redact_message
from refold.model.message import Message, Text, ToolCall, ToolResult, tool, user

WORD = "aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA"
SECRETS = {
    "api key": [f"sk-{WORD}", f"sk-ant-api03-{WORD}", f"sk-proj-{WORD}-{WORD}"],
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
        "a-" * 100_000,
        "password" * 40_000,
        "eyJ" * 80_000,
        "-----BEGIN PRIVATE KEY-----" * 8_000,
        "x_" * 100_000 + "password=",
        "http://a:" * 25_000,
        "sk-" * 80_000,
        "authorization: bearer " * 10_000,
    ],
)
def test_a_hostile_text_is_read_to_its_end(hostile):
    """With a pattern that backtracks without end, this would not come back."""
    assert redact(f"{hostile} AKIAIOSFODNN7ABCDEFG").count("[") >= 1


def test_redacting_twice_changes_nothing_more():
    text = "password: hunter2hunter2 and sk-" + WORD
    once = redact(text, "#m1")
    assert redact(once, "#m1") == once


@pytest.mark.parametrize(
    "said", ["error: password is incorrect", "The token is required here", "the api key is missing"]
)
def test_what_is_said_about_a_secret_is_none(said):
    assert redact(said, "#m1") == said


def test_a_placeholder_stays_what_it_is():
    once = redact("the password is hunter2222", "#m4")
    assert once == "the password is [secret in #m4]"
    assert redact(once) == once
