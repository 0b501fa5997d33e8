"""Dialects: the rules of the three wire formats, as data.

Code asks the dialect for a rule instead of testing for a format. Each rule is one that a provider of the
format enforces with a 400 response. If servers of one format differ, the strictest known one decides.
"""

from __future__ import annotations

from functools import cache

from msgspec import Struct, structs

from refold.model.message import DialectName, Role


class Dialect(Struct, frozen=True):
    name: DialectName
    roles: frozenset[Role]
    """Roles that may stand in the list of messages."""
    messages_key: str
    """The request field that holds the messages."""
    starts_with_user: bool = False
    """The first message must be the user's, and hold no tool results."""
    spreads_calls: bool = False
    """One reply may be several items in a row, so a batch of parallel calls may be too."""
    results_at_once: bool = True
    """Results must stand directly after the calls they answer, with nothing in between."""
    joint_results: bool = False
    """All results of a batch must be in one message."""
    unique_call_ids: bool = False
    """No call id may come twice in one request, not even in different turns."""
    object_arguments: bool = False
    """Call arguments must be a JSON object; in other formats they are text that should hold JSON."""
    signed_thinking: bool = False
    """Thinking without its signature is refused."""
    refuses_prefill: bool = False
    """The last message must not be the assistant's: newer models refuse to continue from there."""
    refuses_blank_text: bool = False
    """A text block must contain a word, even beside other blocks."""
    system_follows_user: bool = False
    """A system message after the first message must follow a user message (tool results are the user's) or a
    reply that ends with the result of a provider's own tool, and must be last or stand before an assistant
    message; two in a row are refused. One that only sets an option, without content, may stand anywhere."""
    alternates: bool = False
    """User and assistant must take turns, and the user begins: the chat templates of many open models refuse
    everything else. No format has this rule by itself; see `alternating`."""
    media_in_results: bool = True
    """Tool results may hold images and files."""
    plain_call_ids: bool = False
    """Call ids are letters, digits, `_` and `-` only."""
    max_call_id: int = 0
    """The longest call id; 0 if none is published or servers differ."""
    max_body_bytes: int = 0
    """The largest body that the provider accepts; 0 if none is published."""
    max_breakpoints: int = 0
    """Number of cache breakpoints that one request may carry."""


CHAT = Dialect(
    name="chat",
    roles=frozenset({"system", "developer", "user", "assistant", "tool"}),
    messages_key="messages",
    media_in_results=False,
)

RESPONSES = Dialect(
    name="responses",
    roles=frozenset({"system", "developer", "user", "assistant", "tool"}),
    messages_key="input",
    spreads_calls=True,
    results_at_once=False,
    max_call_id=64,
)

ANTHROPIC = Dialect(
    name="anthropic",
    roles=frozenset({"system", "user", "assistant", "tool"}),
    messages_key="messages",
    starts_with_user=True,
    joint_results=True,
    unique_call_ids=True,
    object_arguments=True,
    signed_thinking=True,
    refuses_prefill=True,
    refuses_blank_text=True,
    system_follows_user=True,
    plain_call_ids=True,
    max_body_bytes=32 * 1024 * 1024,
    max_breakpoints=4,
)


@cache
def alternating(dialect: Dialect) -> Dialect:
    """The dialect of a server that wants user and assistant in turn."""
    return structs.replace(dialect, alternates=True)


DIALECTS: dict[DialectName, Dialect] = {dialect.name: dialect for dialect in (CHAT, RESPONSES, ANTHROPIC)}
