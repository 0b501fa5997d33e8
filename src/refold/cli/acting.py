"""The commands that change stored conversations, and `refold db` for a store as a whole.

One idea: as in `app`, only words are here, so that help is instant; what a command does is in the module named after it.
"""

from __future__ import annotations

from typing import Annotated

import typer

from refold.cli.options import (
    MAX_BODY_BYTES,
    OWNER,
    BranchId,
    Conv,
    Diff,
    File,
    Format,
    Json,
    KeyEnv,
    MaxBody,
    MaxOutput,
    ModelName,
    Owner,
    PinHandle,
    Preset,
    StoreUrl,
    Summarizer,
    UnpinHandle,
    WindowTokens,
)

Path = Annotated[str, typer.Argument(metavar="PATH", help="A file.", show_default=False)]
Archive = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="A file of lines, JSONL; .gz is packed, - is a pipe.", show_default=False
    ),
]


def declare(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("import", epilog=IMPORT_EXAMPLES)(bring_in)
    app.command(epilog="Example: refold undo support-42")(undo)
    app.command(epilog="Example: refold pin support-42 '#m12'")(pin)
    app.command(epilog="Example: refold unpin support-42 '#m12'")(unpin)
    app.command(epilog=RERUN_EXAMPLES)(rerun)
    app.command(epilog="Example: refold new support-42")(new)
    app.command(epilog=RESUME_EXAMPLES)(resume)
    app.command(epilog="Example: refold delete support-42")(delete)
    app.command(epilog="Example: refold expire --older-than 90d --dry-run")(expire)
    db = typer.Typer(help="The store as a whole: upgrade, check, copy, move, clean.", rich_markup_mode=None)
    db.command("upgrade", epilog="Example: refold db upgrade --store sqlite:///chats.db")(upgrade)
    db.command("check", epilog="Example: refold db check")(check)
    db.command("backup", epilog="Example: refold db backup chats-backup.db")(backup)
    db.command("vacuum", epilog="Example: refold db vacuum")(vacuum)
    db.command("export", epilog="Example: refold db export chats.jsonl.gz")(export_all)
    db.command(
        "import", epilog="Example: refold db import chats.jsonl.gz --store postgresql://localhost/chats"
    )(import_all)
    app.add_typer(db, name="db")
    keys = typer.Typer(help="Who may use the gateway: make, list and revoke keys.", rich_markup_mode=None)
    keys.command("create", epilog="Example: refold keys create laptop")(create_key)
    keys.command("list", epilog="Example: refold keys list")(list_keys)
    keys.command("revoke", epilog="Example: refold keys revoke 4f0c2a9be1d7")(revoke_key)
    app.add_typer(keys, name="keys")


IMPORT_EXAMPLES = """\b
Examples:
  refold import examples/coding-agent.json --as shifts
  refold import ~/.claude/projects/my-project/session.jsonl --as my-project"""


def bring_in(
    file: File,
    name: Annotated[
        str, typer.Option("--as", metavar="CONV", help="The name to keep it under.", show_default=False)
    ],
    title: Annotated[
        str, typer.Option("--title", metavar="TEXT", help="What it is about.", show_default=False)
    ] = "",
    append: Annotated[
        bool, typer.Option("--append", help="Add to a conversation that has messages.")
    ] = False,
    format_name: Format = "",
    max_body_bytes: MaxBody = MAX_BODY_BYTES,
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """Keep a transcript as a stored conversation.

    A request, a list of messages, one message per line, or a session log of Claude Code, Codex, pi or opencode. Its messages keep
    their bytes and are stored all at once or not at all; its system prompt and tools are kept with them. A store that is not there
    yet is made.
    """
    from refold.cli.stored import Place
    from refold.cli.transfer import Order
    from refold.cli.transfer import bring_in as run

    order = Order(
        name=name,
        title=title,
        format_name=format_name,
        max_body_bytes=max_body_bytes,
        append=append,
        as_json=as_json,
    )
    return run(Place(store, owner), file, order)


def undo(
    conv: Conv,
    branch: BranchId = "",
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """Take back the last thing that was done to what is shown of a conversation.

    After a compaction, the messages before it are shown again and its session is no more; nothing that was said is touched by
    either. The exit code is 1 if there was nothing to undo.
    """
    from refold.cli.folding import undo as run
    from refold.cli.stored import Place

    return run(Place(store, owner), conv, branch=branch, as_json=as_json)


def pin(
    conv: Conv,
    handle: PinHandle = "",
    branch: BranchId = "",
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """Keep a message in the window: no stage and no summary takes it out until it is unpinned.

    Without a handle, list the messages that are pinned. A pin holds a message that is still shown; one that was folded already
    comes back with `refold undo` or `refold recall`.
    """
    from refold.cli.pin import pin as run
    from refold.cli.stored import Place

    return run(Place(store, owner), conv, handle, branch=branch, on=True, as_json=as_json)


def unpin(
    conv: Conv,
    handle: UnpinHandle,
    branch: BranchId = "",
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """Let a pinned message be shortened and folded again."""
    from refold.cli.pin import pin as run
    from refold.cli.stored import Place

    return run(Place(store, owner), conv, handle, branch=branch, on=False, as_json=as_json)


RERUN_EXAMPLES = """\b
Examples:
  refold rerun support-42 --preset lis --diff
  refold rerun support-42 --summarizer openai:gpt-4o-mini"""
RESUME_EXAMPLES = """\b
Examples:
  refold resume support-42
  refold resume support-42 3f2a91c0
  refold resume support-42 "the refund"
"""


def rerun(
    conv: Conv,
    preset: Preset = "refold",
    summarizer: Summarizer = "",
    key_env: KeyEnv = "",
    model: ModelName = "",
    window: WindowTokens = None,
    max_output: MaxOutput = None,
    diff: Diff = False,
    branch: BranchId = "",
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """Do the last compaction of the open session again, on the same messages: by another preset or another model.

    The one before is taken back for it. If the model fails or you stop it, that one is put back as it was; nothing that was said
    is touched in any case. The exit code is 1 if there is no compaction to do again.
    """
    from refold.cli import folding, sizing
    from refold.cli.stored import Place

    wish = sizing.Wish(model, window, max_output)
    order = folding.Order(
        preset=preset,
        summarizer=summarizer,
        key_env=key_env,
        wish=wish,
        branch=branch,
        diff=diff,
        as_json=as_json,
    )
    return folding.rerun(Place(store, owner), conv, order)


def new(
    conv: Conv,
    summarizer: Summarizer = "",
    key_env: KeyEnv = "",
    branch: BranchId = "",
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """Begin a new session of a conversation, which knows nothing of what was said before.

    The open one is closed with a digest, or with what a model writes about it. Nothing is lost: its messages stay, can be searched
    and recalled, and `refold resume` goes on with it.
    """
    from refold.cli.continuing import new as run
    from refold.cli.folding import Order
    from refold.cli.stored import Place

    order = Order(summarizer=summarizer, key_env=key_env, branch=branch, as_json=as_json)
    return run(Place(store, owner), conv, order)


def resume(
    conv: Conv,
    what: Annotated[
        str,
        typer.Argument(
            metavar="[SESSION|TEXT]",
            help="Its id, or words that were said in it. Without it the latest are listed.",
            show_default=False,
        ),
    ] = "",
    summarizer: Summarizer = "",
    key_env: KeyEnv = "",
    model: ModelName = "",
    window: WindowTokens = None,
    max_output: MaxOutput = None,
    branch: BranchId = "",
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """Go on with an earlier session of a conversation: all that it showed where that fits the window, else its summary.

    A new session begins with it; the earlier one stays as it is. Given words, it is the session that fits them best of those in
    which they were said; where nobody said any, nothing is changed. The first letters of an id are enough. With neither, the
    latest sessions that can be resumed are listed, and nothing is changed.
    """
    from refold.cli import continuing, folding, sizing
    from refold.cli.stored import Place

    wish = sizing.Wish(model, window, max_output)
    order = folding.Order(summarizer=summarizer, key_env=key_env, wish=wish, branch=branch, as_json=as_json)
    return continuing.resume(Place(store, owner), conv, what, order)


def delete(
    conv: Annotated[str, typer.Argument(metavar="[CONV]", help="The conversation.", show_default=False)] = "",
    everything: Annotated[bool, typer.Option("--all", help="Every conversation of the owner.")] = False,
    is_sure: Annotated[bool, typer.Option("--yes", help="Needed with --all.")] = False,
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """Delete a conversation for good: messages, summaries, search index, calls.

    It cannot be undone. Copies that you made (backups, exports) are yours to delete.
    """
    from refold.cli.purging import delete as run
    from refold.cli.stored import Place

    return run(Place(store, owner), conv, everything=everything, is_sure=is_sure, as_json=as_json)


def expire(
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="SPAN", help="Such as 90d, 4w, 12h or 30m.", show_default=False),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    is_sure: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """Delete the conversations that nothing happened in for so long.

    It asks first where they are more than a tenth of all, where the clock is days ahead of the last use of the store, and for 0d.
    Without a terminal it needs --yes then.
    """
    from refold.cli.purging import expire as run
    from refold.cli.stored import Place

    return run(Place(store, owner), older_than, dry_run=dry_run, is_sure=is_sure, as_json=as_json)


def upgrade(store: StoreUrl = "", as_json: Json = False) -> int:
    """Bring a store to the tables of this version. Every command does so when it opens one; a newer store is refused."""
    from refold.cli.database import upgrade as run

    return run(store, as_json=as_json)


def check(store: StoreUrl = "", as_json: Json = False) -> int:
    """Check the database itself: its structure, its references, the bytes of every message.

    The exit code is 1 if there is a fault. `refold doctor` checks what the rows mean.
    """
    from refold.cli.database import check as run

    return run(store, as_json=as_json)


def backup(path: Path, store: StoreUrl = "", as_json: Json = False) -> int:
    """Copy the database into a new file, as it is at one moment, while others go on writing.

    Never copy the file of a database in use by hand: part of it is beside it.
    """
    from refold.cli.database import backup as run

    return run(store, path, as_json=as_json)


def vacuum(store: StoreUrl = "", as_json: Json = False) -> int:
    """Write an SQLite file anew, without the room and the remains of what was deleted; others wait to write meanwhile.

    Up to 64 MB deleting does so itself.
    """
    from refold.cli.database import vacuum as run

    return run(store, as_json=as_json)


def export_all(
    path: Archive,
    owner: Annotated[
        str,
        typer.Option(
            "--owner", metavar="NAME", help="Only this owner's. Default: everybody's.", show_default=False
        ),
    ] = "",
    store: StoreUrl = "",
    as_json: Json = False,
) -> int:
    """Write every conversation as lines of JSON, to be put into any other store.

    Messages, sessions, summaries, calls and pins go along. What can be made again stays behind: the cache of paid summaries and
    what was learnt about models.
    """
    from refold.cli.database import take_out

    return take_out(store, path, owner, as_json=as_json)


def import_all(path: Archive, store: StoreUrl = "", as_json: Json = False) -> int:
    """Put the conversations of an archive into a store.

    Each is put in whole or not at all. One whose name is there already stays as it is, and the exit code is 1.
    """
    from refold.cli.database import bring_in as run

    return run(store, path, as_json=as_json)


def create_key(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="What it is for.", show_default=False)] = "",
    admin: Annotated[
        bool, typer.Option("--admin", help="Let it see the operations' settings: store, upstreams, files.")
    ] = False,
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """Make a key for a client of the gateway, and print it: this once, for it is not kept.

    Whoever has it sees and changes what is the owner's, and nothing else. With --admin its bearer sees the settings of the
    gateway's operation too, without their secrets, and nothing of other owners. From the first key on the gateway serves nobody
    without one, on this machine too. A store that is not there yet is made.
    """
    from refold.cli.keys import create as run
    from refold.cli.stored import Place

    return run(Place(store, owner), name, admin=admin, as_json=as_json)


def list_keys(store: StoreUrl = "", owner: Owner = OWNER, as_json: Json = False) -> int:
    """List an owner's keys by their ids, revoked ones too."""
    from refold.cli.keys import show_all as run
    from refold.cli.stored import Place

    return run(Place(store, owner), as_json=as_json)


def revoke_key(
    which: Annotated[
        str,
        typer.Argument(metavar="ID", help="Its id, or the first letters of it.", show_default=False),
    ],
    store: StoreUrl = "",
    owner: Owner = OWNER,
    as_json: Json = False,
) -> int:
    """End a key for good. A gateway that runs refuses it within five seconds."""
    from refold.cli.keys import revoke as run
    from refold.cli.stored import Place

    return run(Place(store, owner), which, as_json=as_json)
