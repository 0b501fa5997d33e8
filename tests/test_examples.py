"""The transcripts in examples/ are what their script writes, and valid requests."""

from __future__ import annotations

import pytest

from examples.make_transcripts import FOLDER, transcripts
from refold.core.verify import verify_window
from refold.model.window import Window
from refold.wire.transcript import decode_transcript

TRANSCRIPTS = transcripts()


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_the_file_is_what_the_script_writes(name):
    written = (FOLDER / name).read_text(encoding="utf-8")

    assert written == TRANSCRIPTS[name], "run: python -m examples.make_transcripts"


def test_the_examples_stay_small():
    assert (
        sum(path.stat().st_size for path in FOLDER.rglob("*") if path.suffix in {".json", ".jsonl"}) < 250_000
    )


@pytest.mark.parametrize(
    ("name", "dialect"),
    [
        ("coding-agent.json", "chat"),
        ("support-chat.anthropic.json", "anthropic"),
        ("research.responses.jsonl", "responses"),
    ],
)
def test_a_transcript_could_be_sent(name, dialect):
    request = decode_transcript((FOLDER / name).read_bytes())

    assert request.dialect.name == dialect
    assert verify_window(Window(request.fixed, request.messages), as_request=True) == ()
