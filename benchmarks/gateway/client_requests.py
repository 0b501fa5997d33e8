"""The requests of clients: conversations as bytes, which grow as a real client's do."""

import json
from collections.abc import Iterator
from itertools import count

from benchmarks.conversation import Writer, conversation
from benchmarks.gateway.stub import SAID

MODEL = "gpt-4o"
SMALL_BYTES = 1_000
TURNS = 10
"""Questions after which a conversation ends and a new one starts: 1 KB becomes 5."""
LARGE_MESSAGES, LARGE_SCALE = 2_000, 0.87
"""800 KB."""
_REPLY = b"," + json.dumps({"role": "assistant", "content": SAID}).encode()
_WRITER = Writer(3)
_NUMBERS = count(1)


class Talk:
    """One conversation. `items` are its messages as they stand in the list, without the brackets."""

    def __init__(self, items: bytes, *, is_stream: bool = False, headers: bytes = b"") -> None:
        self._items, self._headers = items, headers
        self._tail = b'],"model":"%s","max_tokens":512' % MODEL.encode()
        self._tail += b',"stream":true}' if is_stream else b"}"

    def request(self) -> bytes:
        """The request as it goes over the wire."""
        body = b'{"messages":[' + self._items + self._tail
        return (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer sk-bench\r\n"
            b"content-type: application/json\r\naccept: application/json\r\nuser-agent: OpenAI/Python 2.8.0\r\n"
            b"%scontent-length: %d\r\n\r\n%s" % (self._headers, len(body), body)
        )

    def go_on(self) -> bytes:
        """The next request: the last answer, and another question."""
        asked = {"role": "user", "content": f"And then, number {next(_NUMBERS)}? " + _WRITER.prose(60)}
        self._items += _REPLY + b"," + json.dumps(asked).encode()
        return self.request()


def small(*, is_stream: bool = False) -> Talk:
    """A new conversation: a system prompt and a question, together a body of 1 KB. No two are alike."""
    first = {"role": "system", "content": _WRITER.prose(600)}
    asked = {"role": "user", "content": f"Question {next(_NUMBERS)}: " + _WRITER.prose(240)}
    return Talk(f"{json.dumps(first)},{json.dumps(asked)}".encode(), is_stream=is_stream)


def same() -> Iterator[bytes]:
    """One request over and over."""
    request = small().request()
    while True:
        yield request


def growing(*, is_stream: bool = False) -> Iterator[bytes]:
    """A client whose conversation continues."""
    while True:
        talk = small(is_stream=is_stream)
        yield talk.request()
        for _ in range(TURNS - 1):
            yield talk.go_on()


def fresh() -> Iterator[bytes]:
    """A new conversation with every request."""
    while True:
        yield small().request()


def many(talks: int) -> Iterator[bytes]:
    """A number of conversations in turn, each of which continues when it is its turn again."""
    live = [small() for _ in range(talks)]
    yield from (talk.request() for talk in live)
    for turn in count(1):
        for at in range(talks):
            if turn % TURNS:
                yield live[at].go_on()
            else:
                live[at] = small()
                yield live[at].request()


class Large:
    """Conversations of 2,000 messages. Every message has unique words, so that none was seen before."""

    def __init__(self) -> None:
        self._messages = conversation(LARGE_MESSAGES - 1, scale=LARGE_SCALE)

    def talk(self, window: int) -> Talk:
        """`window` concerns only Refold: it decides whether a compaction is due."""
        mark = f"{next(_NUMBERS)}: "
        texts = [{**one, "content": mark + (one["content"] or "")} for one in self._messages]
        asked = {"role": "user", "content": mark + "What is left to do?"}
        items = json.dumps([*texts, asked], ensure_ascii=False)[1:-1].encode()
        return Talk(items, headers=b"x-refold-window: %d\r\n" % window)
