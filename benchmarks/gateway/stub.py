"""An upstream that answers at once: `python -m benchmarks.gateway.stub [SECONDS]`. Prints its port; SECONDS
is the time of a summary.

It reads only the length of a request and whether it wants a stream, so that it takes hardly any time itself.
The reported usage follows from the number of received bytes, because a gateway may rely on it.
"""

import asyncio
import sys

SAID = (
    "The build fails because the test imports a module that was moved last week. I changed the import, ran the suite "
    "again and it is green; nothing else uses the old place. Should I also remove the empty package that is left over, "
    "or do you want to keep it for the next release?"
)
"""The reply to every request; a client sends it back with its next question."""
BYTES_PER_TOKEN = 3.2
CHUNKS, APART_S = 40, 0.001
"""Chunks of a stream, and the time between them: a fast model."""
_USED = b'"usage":{"prompt_tokens":%9d,"completion_tokens":60,"total_tokens":%9d,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}'
_ID = b'"id":"chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT","object":"%s","created":1741569952,"model":"gpt-4o-2024-08-06"'
_PLAIN = (
    b"{"
    + _ID % b"chat.completion"
    + b',"choices":[{"index":0,"message":{"role":"assistant","content":"'
    + SAID.encode()
    + b'","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],'
    + _USED
    + b',"service_tier":"default","system_fingerprint":"fp_50cad350e4"}'
)
_KEEP = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\nx-request-id: req_8f1\r\n%s\r\n\r\n"
_MODELS = b'{"object":"list","data":[{"id":"gpt-4o","object":"model","created":1,"owned_by":"stub"}]}'


def plain(tokens: int) -> bytes:
    body = _PLAIN % (tokens, tokens + 60)
    return _KEEP % (b"application/json", b"content-length: %d" % len(body)) + body


def events(tokens: int) -> list[bytes]:
    """A stream, in the pieces that are sent."""
    step = -(-len(SAID) // (CHUNKS - 3))
    texts = [SAID[at : at + step] for at in range(0, len(SAID), step)]
    said = [_event(b'{"role":"assistant","content":""}')]
    said += [_event(b'{"content":"%s"}' % text.encode()) for text in texts]
    used = b"{" + _ID % b"chat.completion.chunk" + b',"choices":[],' + _USED % (tokens, tokens + 60) + b"}"
    data = [*said, _event(b"{}", b'"stop"'), used, b"[DONE]"]
    chunks = [_chunk(b"data: " + one + b"\n\n") for one in data]
    head = _KEEP % (b"text/event-stream; charset=utf-8", b"transfer-encoding: chunked")
    # The opening event comes with the first word: a gateway may hold it back until then, and a pause between the two would
    # count as its own time.
    return [head + chunks[0] + chunks[1], *chunks[2:-1], chunks[-1] + b"0\r\n\r\n"]


def _event(delta: bytes, finish: bytes = b"null") -> bytes:
    choice = b',"choices":[{"index":0,"delta":%s,"logprobs":null,"finish_reason":%s}]' % (delta, finish)
    return b"{" + _ID % b"chat.completion.chunk" + choice + b"}"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Answering(asyncio.Protocol):
    """One connection. A client sends the next request when it has the answer."""

    summary_s = 0.0
    """Time of a summary."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._came: list[bytes] = []
        self._missing = -1

    def data_received(self, data: bytes) -> None:
        self._came.append(data)
        if self._missing < 0:
            whole = b"".join(self._came)
            end = whole.find(b"\r\n\r\n")
            if end < 0:
                return
            self._came, self._missing = [whole], _length(whole[:end]) - (len(whole) - end - 4)
        else:
            self._missing -= len(data)
        if self._missing == 0:
            whole, self._came, self._missing = b"".join(self._came), [], -1
            self._answer(whole)

    def _answer(self, whole: bytes) -> None:
        if whole.startswith(b"GET"):
            self._send(_KEEP % (b"application/json", b"content-length: %d" % len(_MODELS)) + _MODELS)
            return
        tokens = int(len(whole) / BYTES_PER_TOKEN)
        ends = (whole[:1_000] + whole[-1_000:]).replace(b" ", b"")
        if b'"stream":true' in ends:
            self._stream(events(tokens), 0)
        elif self.summary_s and b"Youwritecheckpoints" in ends:
            asyncio.get_running_loop().call_later(self.summary_s, self._send, plain(tokens))
        else:
            self._send(plain(tokens))

    def _stream(self, chunks: list[bytes], at: int) -> None:
        self._send(chunks[at])
        if at + 1 < len(chunks):
            asyncio.get_running_loop().call_later(APART_S, self._stream, chunks, at + 1)

    def _send(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    return 0


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answering, "127.0.0.1", 0, backlog=1_024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def run() -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve())
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


if __name__ == "__main__":
    Answering.summary_s = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    run()
