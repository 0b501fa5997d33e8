"""The commands that look at stored conversations and change nothing.

One idea: as in `app`, only words are here, so that help is instant; what a command does is in the module named after it.
"""

from __future__ import annotations

from typing import Annotated

import typer

from refold.cli.options import OWNER, BranchId, Conv, Json, Owner, StoreUrl
from refold.model.errors import ConfigError

Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, help="How many at most.")]


def declare(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(epilog="Example: refold conversations support")(conversations)
    app.command(epilog="Example: refold sessions support-42")(sessions)
    app.command(epilog=SHOW_EXAMPLES)(show)
    app.command(epilog=SEARCH_EXAMPLES)(search)
    app.command(epilog="Example: refold recall support-42 '#m12'")(recall)
    app.command(epilog="Example: refold diff support-42")(diff)
    app.command(epilog="Example: refold export support-42 > support-42.json")(export)
    app.command(epilog="Example: refold doctor --json")(doctor)


SHOW_EXAMPLES = """\b
Examples:
  refold show support-42
  refold show support-42 --session 3f2a
  refold show support-42 --calls
  refold show support-42 --as-sent 7"""

SEARCH_EXAMPLES = """\b
Examples:
  refold search "refund policy" --in support-42
  refold search --sessions "money that was given back" """


def conversations(
    words: Annotated[
        str,
        typer.Argument(metavar="[WORDS]", help="Words in the name or the title.", show_default=False),
    ] = "",
    limit: Limit = 50,
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """List stored conversations, the latest first.

    Each with its messages and sessions, how often it was compacted, and what its calls read, wrote and cost. The exit code is
    1 if no name or title holds the words.
    """
    from refold.cli.listing import conversations as run
    from refold.cli.stored import Place

    return run(Place(store, owner), words, limit=limit, as_json=as_json)


def sessions(
    conv: Conv,
    branch: BranchId = "",
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """List the sessions of a conversation, with what each took.

    A session is a range of messages. A compaction closes one and opens the next, which begins with its summary; so does whoever
    begins anew or resumes an earlier one. No message is ever outside of them.
    """
    from refold.cli.listing import sessions as run
    from refold.cli.stored import Place

    return run(Place(store, owner), conv, branch=branch, as_json=as_json)


def show(
    conv: Conv,
    as_sent: Annotated[
        str,
        typer.Option(
            "--as-sent",
            metavar="CALL",
            help="What left with this call: its number or its id.",
            show_default=False,
        ),
    ] = "",
    session: Annotated[
        str,
        typer.Option(
            "--session", metavar="ID", help="Only what was said in this session.", show_default=False
        ),
    ] = "",
    calls: Annotated[bool, typer.Option("--calls", help="List the calls instead.")] = False,
    branch: BranchId = "",
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """Show what was said: every message as it came, whatever was folded away since.

    With --as-sent, what the provider was sent with one call: put together again from the change that was in effect then, with
    its summaries and everything that was shortened.
    """
    from refold.cli.stored import Place
    from refold.cli.telling import Order
    from refold.cli.telling import show as run

    order = Order(as_sent=as_sent, session=session, calls=calls, branch=branch, as_json=as_json)
    return run(Place(store, owner), conv, order)


def search(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Words that were said.")],
    name: Annotated[
        str, typer.Option("--in", metavar="CONV", help="Only in this conversation.", show_default=False)
    ] = "",
    sessions: Annotated[
        bool, typer.Option("--sessions", help="Find sessions instead, by words and by meaning.")
    ] = False,
    words_only: Annotated[
        bool, typer.Option("--words-only", help="With --sessions: not by meaning.")
    ] = False,
    limit: Limit = 20,
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """Find what was said, in every conversation, with handles to bring it back.

    Messages that hold all of the words come first; where there are none, those that hold some. With --sessions whole sessions are
    found, closed ones also by what they were about, in other words too (extra `search`). The exit code is 1 if nothing is found.
    """
    from refold.cli import finding
    from refold.cli.stored import Place

    place = Place(store, owner)
    if words_only and not sessions:
        raise ConfigError("--words-only is for --sessions", hint="messages are found by their words anyhow")
    if not sessions:
        return finding.search(place, text, name=name, limit=limit, as_json=as_json)
    return finding.search_sessions(
        place, text, name=name, limit=limit, by_meaning=not words_only, as_json=as_json
    )


def recall(
    conv: Conv,
    handle: Annotated[
        str, typer.Argument(metavar="HANDLE", help="Such as #m12 (quote it), #m12.2 or #s0, or words.")
    ],
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", min=1, help="For passages that fit words.")
    ] = 1_000,
    branch: BranchId = "",
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """Bring back an original by its handle, as it came.

    #m12 is a message, #m12.2 the second of its parts, #s0 an older summary. Given words instead, it answers with the passages
    that fit them.
    """
    from refold.cli.finding import recall as run
    from refold.cli.stored import Place

    return run(Place(store, owner), conv, handle, branch=branch, max_tokens=max_tokens, as_json=as_json)


def diff(
    conv: Conv,
    compaction: Annotated[
        str, typer.Argument(metavar="[COMPACTION]", help="Its id. Default: the newest.", show_default=False)
    ] = "",
    lists: Annotated[
        bool, typer.Option("--list", help="List what was done to the conversation instead.")
    ] = False,
    branch: BranchId = "",
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """Show what a compaction did: every message that was shown before it, and what is shown of it after.

    A blank stands for kept, ~ for cut, - for gone and + for what stands there now. The exit code is 1 if nothing was done yet.
    """
    from refold.cli.folding import diff as run
    from refold.cli.stored import Place

    return run(Place(store, owner), conv, compaction, branch=branch, lists=lists, as_json=as_json)


def export(
    conv: Conv,
    format_name: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="chat, responses or anthropic. Default: its own.",
            show_default=False,
        ),
    ] = "",
    lines: Annotated[bool, typer.Option("--lines", help="One message to a line (JSONL).")] = False,
    branch: BranchId = "",
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """Write a conversation as a transcript to stdout.

    In its own format every message has the bytes it came with. In another one it is written anew from what it says: thinking and
    what only one provider knows stay behind. The answer is JSON with or without --json.
    """
    from refold.cli.stored import Place
    from refold.cli.transfer import take_out

    if as_json and lines:
        lines = False
    return take_out(Place(store, owner), conv, branch=branch, format_name=format_name, lines=lines)


def doctor(
    conv: Annotated[
        str, typer.Argument(metavar="[CONV]", help="Default: every conversation.", show_default=False)
    ] = "",
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """Look stored conversations over: is everything that was said where it belongs, once, and reachable?

    Every finding comes with the rule that it breaks and what to do. Nothing is changed. The exit code is 1 if there is any.
    """
    from refold.cli.doctor import run
    from refold.cli.stored import Place

    return run(Place(store, owner), conv, as_json=as_json)
