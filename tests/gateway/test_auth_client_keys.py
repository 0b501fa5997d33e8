"""Keys of clients: how they are made, what is kept of them, and that they are compared with care."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import refold.gateway.auth
from refold.gateway.auth import digest_of, mint
from refold.model.errors import ConfigError

SECRET = re.compile("key|token(?!s)|secret|digest|credential|password", re.IGNORECASE)
GATEWAY = Path(refold.gateway.auth.__file__).parent
GUARDED = sorted(GATEWAY.rglob("*.py"))


def named_in(node: ast.AST) -> set[str]:
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return names | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def compared_names(source: str) -> set[str]:
    """The names in every `==` and `!=`."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
            found |= named_in(node)
    return found


@pytest.mark.parametrize("path", GUARDED, ids=lambda path: path.name)
def test_no_secret_is_compared_in_a_way_that_takes_longer_the_better_it_is(path):
    assert not {name for name in compared_names(path.read_text()) if SECRET.search(name)}


def test_such_a_comparison_would_be_noticed():
    assert compared_names("if key.digest == given: pass") == {"key", "digest", "given"}
    assert compared_names("hmac.compare_digest(key.digest, given)") == set()


def test_a_key_is_long_enough_and_what_is_kept_does_not_give_it_away():
    text, kept = mint("anna", name="laptop", at=1.0)
    other, _ = mint("anna", at=1.0)

    assert re.fullmatch(r"rf_[0-9a-f]{12}_[0-9a-f]{48}", text)
    assert int(text.split("_")[2], 16).bit_length() <= 192
    assert text.split("_")[1:] != other.split("_")[1:]
    assert kept.digest == digest_of(text)
    assert text.split("_")[2] not in repr(kept)
    for wrong in ("", "a\nb", "x" * 201):
        with pytest.raises(ConfigError):
            mint(wrong, at=1.0)
