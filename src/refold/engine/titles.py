"""What a conversation is called where nobody has said it.

One idea: people know a conversation by what they asked first. So its first question is its title: one line of it, without
secrets, and none of it where the question is sensitive or nothing that was said may be kept.
"""

from __future__ import annotations

from refold.core.summary.redact import redact
from refold.model.message import Message

MOST = 60
"""Characters: what a line of a list has room for beside the numbers."""
READ = 4_000
"""Characters that are looked at: a question may bring a whole file along."""
READ_ON = 4 * MOST
"""And of those, once white space is gone: few of them cannot be printed."""
_MORE = "..."


def title_of(message: Message) -> str:
    """The first words of a question, on one line; empty where it has none."""
    said = redact(message.text[:READ])
    line = "".join(char for char in " ".join(said.split())[:READ_ON] if char.isprintable())
    return line if len(line) <= MOST else f"{line[: MOST - len(_MORE)].rstrip()}{_MORE}"
