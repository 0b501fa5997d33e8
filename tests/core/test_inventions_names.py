import pytest

from refold.core.inventions import claims


def named(text: str) -> list[str]:
    return [claim.name for claim in claims(text) if not claim.is_pair]


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("src/a.py", ["src/a.py"]),
        ("see /etc/passwd", ["etc/passwd"]),
        ("MAX_RETRIES and session_store", ["MAX_RETRIES", "session_store"]),
        ("SessionStore.refresh()", ["SessionStore.refresh"]),
        ("sessionStore, PostgreSQL", ["sessionStore", "PostgreSQL"]),
        ("ORD-99123, gpt-4o-mini", ["ORD-99123", "gpt-4o-mini"]),
        ("bob@example.com at evil.example", ["bob@example.com", "evil.example"]),
        ("the service billing-gateway", ["billing-gateway"]),
        ("restart `billing-gateway`", ["billing-gateway"]),
        ("DBPROD is down, host ALPHA too", ["DBPROD", "ALPHA"]),
        ("a.py and x.go", ["a.py", "x.go"]),
        ("WP14-WP20", ["WP14", "WP20"]),
        ("SessionStore-Klasse", ["SessionStore"]),
        ("文件src/a.py已修改", ["src/a.py"]),
        ("3fa85f64", ["3fa85f64"]),
    ],
)
def test_names_are_known_by_their_form(text, names):
    assert named(text) == names


@pytest.mark.feature("N3")
@pytest.mark.parametrize(
    "text",
    [
        "e.g. this, i.e. that, z.B. dies, d.h. das, p.ej. a.k.a. w.r.t. a.m. Ph.D. U.S. vs.",
        "and/or read/write client/server he/she und/oder y/o",
        "Follow-up, non-blocking, end-to-end, E-Mail, API-Schlüssel, T-shirt, billing-related",
        "the database is read-only, the server up-to-date",
        "APIs, URLs, PRs, TODO, NEVER, IMPORTANT, README, JSON, NutzerInnen",
        "1st 2nd 3rd 21st 100th 1er 2ème 3º 5GB 10k 200ms 16hex 2fa v2 Q3 S3",
        "24/7, 3/5, 100-200, 256-bit, 10-minute, mid-2024, top-100, 1.2, 1.234",
        "GitHub, JavaScript, UTF-8, SHA-256, e2e, i18n, Node.js, macOS",
        "Step-3, Phase2, Option 4, Teil-1",
        "_never_ and __init__ and *this*",
        "Пользователь и ВАЖНО, 用户无法登录",
    ],
)
def test_ordinary_words_claim_nothing(text):
    assert named(text) == []


def test_two_words_with_a_slash_may_be_a_path():
    assert [(claim.name, claim.is_pair) for claim in claims("src/billing")] == [("src/billing", True)]
    assert [claim.is_pair for claim in claims("`src/billing` or ./src/billing")] == [False, False]
