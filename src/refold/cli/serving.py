"""What `refold serve` says once it answers.

One idea: whoever starts a gateway should see at a glance what it does with which upstream, whose key goes there, and what to type
next. The address alone is data, on stdout; the rest is beside it, and needs no colour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from refold.cli.columns import align
from refold.cli.output import plain

FIRST_WORDS = '{"model": "local", "messages": [{"role": "user", "content": "Say hello."}]}'


class Upstream(Struct, frozen=True):
    """An upstream, as it is told."""

    name: str
    formats: Sequence[str]
    models: Sequence[str]
    key: str
    """Whose key goes there, the first that there is."""
    place: str
    """Where it is, in words or as an address."""


class Notice(Struct, frozen=True):
    """A gateway that is ready."""

    address: str
    upstreams: tuple[Upstream, ...]
    preset: str
    """Empty: nothing is compacted."""
    summaries: str
    store: str
    needs_key: bool
    has_local: bool

    @property
    def clients(self) -> str:
        return "those that have a key of Refold's" if self.needs_key else "this machine only, without a key"


def told(notice: Notice) -> str:
    """The notice, for people."""
    return "\n".join(
        (
            "Refold is ready. Change the base URL of your client, and nothing else:\n",
            *(f"  export {line}" for line in base_urls(notice)),
            "",
            _upstreams(notice.upstreams),
            *(f"{name:<11} {plain(value)}" for name, value in _facts(notice)),
            f"\nTry it:\n\n{first_call(notice)}\n\nCtrl-C ends it.",
        )
    )


def base_urls(notice: Notice) -> Iterator[str]:
    """The variables that the providers' own clients read, for the formats that somebody speaks here."""
    spoken = {name for one in notice.upstreams for name in one.formats}
    if spoken & {"chat", "responses"}:
        yield f"OPENAI_BASE_URL={notice.address}/v1"
    if "anthropic" in spoken:
        yield f"ANTHROPIC_BASE_URL={notice.address}"


def first_call(notice: Notice) -> str:
    """A command that answers, whatever is served."""
    key = ' -H "x-refold-key: $REFOLD_KEY"' if notice.needs_key else ""
    if not notice.has_local:
        return f"  curl {notice.address}/v1/models{key}"
    address = f"{notice.address}/v1/chat/completions"
    return f"  curl {address}{key} -H 'content-type: application/json' \\\n    -d '{FIRST_WORDS}'"


def _facts(notice: Notice) -> tuple[tuple[str, str], ...]:
    compaction = f"preset {notice.preset}" if notice.preset else "off: everything passes as it came"
    return (
        ("compaction", compaction),
        ("summaries", notice.summaries),
        ("store", notice.store),
        ("clients", notice.clients),
    )


def _upstreams(upstreams: Sequence[Upstream]) -> str:
    head = ("upstream", "speaks", "models", "key", "where")
    rest = "any other" if any(one.models for one in upstreams) else "any"
    rows = [
        (
            plain(one.name),
            ", ".join(one.formats),
            plain(", ".join(one.models), 40) or rest,
            plain(one.key),
            plain(one.place),
        )
        for one in upstreams
    ]
    return align(head, rows, frozenset())
