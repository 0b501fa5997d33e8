"""Secrets that need no name before them."""

from __future__ import annotations

import pytest

from refold.core.secrets import redact

P = "hunter2222"
WORD = "aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA"
HEX = "0123456789abcdef" * 2


@pytest.mark.feature("X19")
@pytest.mark.parametrize(
    "secret",
    [
        f"gsk_{WORD}",
        f"xai-{WORD}",
        f"glsa_{WORD}",
        f"shpat_{HEX}",
        f"dop_v1_{HEX}{HEX}",
        f"ya29.{WORD}",
        f"GOCSPX-{WORD}",
        f"abc8Q~{WORD}",
        f"whsec_{WORD}",
        f"hvs.{WORD}",
        f"dapi{HEX}",
        f"key-{HEX}",
        f"SG.{WORD[:22]}.{WORD}{WORD[:11]}",
        f"123456789:AA{WORD}a",
        f"eyJ{WORD}.eyJ{WORD}.{WORD}",
        f"eyJ{WORD}.eyJ{WORD}",
        "AGE-SECRET-KEY-1" + "Q8" * 28,
    ],
)
def test_what_vendors_issue_is_known_in_any_surroundings(secret):
    for said in (f"use {secret} now", f'{{"a": "x\\n{secret}"}}', f"key={secret}&x=1", f"({secret})"):
        kept = redact(said)
        assert secret not in kept
        assert WORD not in kept
        assert redact(said.replace(secret, "")) == said.replace(secret, "")


@pytest.mark.feature("X19")
@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (f"redis://:{P}@host:6379/0", "redis://:[password]@host:6379/0"),
        ("postgres://app:p@ssw0rd@host/x", "postgres://app:[password]@host/x"),
        (f"https://{WORD}@github.com/a/b.git", "https://[password]@github.com/a/b.git"),
        (f"curl -s -u bob:{P} https://x", "curl -s -u bob:[password] https://x"),
        (f"mysql -u root -p{P} db", "mysql -u root -p[password] db"),
        (f"sshpass -p '{P}' ssh x", "sshpass -p '[password]' ssh x"),
        (f"echo {P} | docker login --password-stdin", "echo [password] | docker login --password-stdin"),
        (f"openssl enc -passin pass:{P}", "openssl enc -passin pass:[password]"),
        (f"X-Auth: Bearer {WORD}", "X-Auth: Bearer [token]"),
        (f"Authorization: {WORD}", "Authorization: [token]"),
        (rf"{{\"Authorization\": \"Bearer {P}abc\"}}", r"{\"Authorization\": \"Bearer [token]\"}"),
        (f"Cookie: sessionid={P}; theme=dark", "Cookie: [cookie]"),
        (f"https://b.host/c?sv=1&sig={WORD}%3D", "https://b.host/c?sv=1&[azure signature]"),
        (f"?X-Amz-Signature={HEX}{HEX}&x=1", "?X-Amz-Signature=[signature]&x=1"),
        (f"hooks.slack.com/services/{WORD}", "hooks.slack.com/[slack hook]"),
    ],
)
def test_a_secret_is_known_by_its_place(said, kept):
    assert redact(said) == kept


@pytest.mark.feature("X19")
def test_the_armour_of_a_private_key_may_be_of_many_kinds():
    body = "\n".join([WORD * 2] * 4)
    for name in ("RSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "PGP PRIVATE KEY BLOCK", "ENCRYPTED PRIVATE KEY"):
        key = f"-----BEGIN {name}-----\n\n{body}\n-----END {name}-----"
        assert redact(f"a\n{key}\nb") == "a\n[private key]\nb"
        assert redact(key.replace("\n", "\\n")) == "[private key]"


def test_a_key_that_is_cut_off_takes_nothing_else_along():
    said = f"-----BEGIN RSA PRIVATE KEY-----\n{WORD * 2}\n{WORD * 2}\n\nThe log ends here, and so on."
    assert redact(said) == "[private key]The log ends here, and so on."


@pytest.mark.parametrize(
    "said",
    [
        'if "-----BEGIN RSA PRIVATE KEY-----" in text: raise ValueError("a key was committed")',
        "https://{user}:{password}@host",
        "http://localhost:8080/@vite/client",
        "git@github.com:foo/bar.git",
        "Bearer authentication is required",
        "Authorization: Bearer ${TOKEN}",
        '"Authorization": f"Bearer {token}"',
        "sk-learn-and-many-other-packages",
        "xoxb-your-slack-token",
        "a task-list-of-many-things-to-do-today",
        "see #m12 and [the secret] of it",
    ],
)
def test_what_only_looks_like_a_form_stays(said):
    assert redact(said) == said
