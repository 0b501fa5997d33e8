"""Every recorded conversation of the corpus is read, and leaves as it came."""

from __future__ import annotations

import json

import pytest

from refold.model.dialect import CHAT
from refold.wire import decode_message, decode_transcript, encode_message, encode_request
from tests.corpus import TRANSCRIPTS, transcripts

pytestmark = pytest.mark.skipif(
    not TRANSCRIPTS.exists(), reason="the corpus of transcripts is not on this machine"
)


def test_every_transcript_is_read_and_leaves_as_it_came():
    for line in transcripts():
        request = decode_transcript(line)
        assert request.dialect is CHAT
        assert encode_request(request) == line
        assert [
            json.loads(bytes(encode_message(message, CHAT)))
            for message in (*request.system, *request.messages)
        ] == (json.loads(line)["messages"])


def test_every_message_built_anew_from_what_it_says_says_the_same():
    for line in transcripts():
        for message in decode_transcript(line).messages:
            again = decode_message(encode_message(message.bare(), CHAT), CHAT)
            assert again.bare() == message.bare()
