"""The corpus of real transcripts: where it is, if it is here at all.

It is no part of the project (its licences differ); tests that read it skip where it is absent.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("REFOLD_DATA", _ROOT.parent / "shared" / "data"))
TRANSCRIPTS = DATA / "transcripts.jsonl.gz"


def transcripts() -> Iterator[bytes]:
    """One JSON object for each conversation, as it stands in the file."""
    with gzip.open(TRANSCRIPTS) as lines:
        yield from lines
