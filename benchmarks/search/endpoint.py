"""A server with OpenAI's `/v1/embeddings` that gives real vectors: `python -m benchmarks.search.endpoint static`.

It serves the vectors of an installed embedder, so that a search through HTTP can be compared with the same vectors without it. Every
tenth request is refused with 429, as a busy provider does. `GET /stats` says what it was asked.
"""

import argparse
import asyncio
import base64
import json
import subprocess
import sys
import urllib.request
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

REFUSED = 10
"""Every so many requests, one is refused."""


def main() -> int:
    from aiohttp import web

    from refold.embeddings import installed

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.search.endpoint", description=__doc__.splitlines()[0]
    )
    parser.add_argument("vectors", choices=["static", "onnx"])
    parser.add_argument("--port", type=int, default=0)
    asked = parser.parse_args()
    model, stats = installed(asked.vectors), Counter()

    async def embed(request: web.Request) -> web.Response:
        body = await request.json()
        stats["requests"] += 1
        if stats["requests"] % REFUSED == 0:
            stats["refused"] += 1
            error = {"error": {"message": "Rate limit reached.", "type": "rate_limit_error"}}
            return web.json_response(error, status=429, headers={"retry-after": "0"})
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        vectors = await model.embed(texts)
        stats["texts"] += len(texts)
        stats["characters"] += sum(map(len, texts))
        stats["bytes"] += request.content_length or 0
        data = [
            {"object": "embedding", "index": place, "embedding": written(vector, body.get("encoding_format"))}
            for place, vector in enumerate(vectors)
        ]
        used = {"prompt_tokens": sum(len(text) // 4 for text in texts)}
        return web.json_response({"object": "list", "model": asked.vectors, "data": data, "usage": used})

    async def tell(_: web.Request) -> web.Response:
        return web.json_response(dict(stats))

    async def serve() -> None:
        app = web.Application(client_max_size=1 << 26)
        app.add_routes([web.post("/v1/embeddings", embed), web.get("/stats", tell)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", asked.port)
        await site.start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.to_thread(sys.stdin.read)  # until whoever started it ends
        await runner.cleanup()

    asyncio.run(serve())
    return 0


def written(vector: bytes, form: str | None) -> object:
    return base64.b64encode(vector).decode() if form == "base64" else list(array("f", vector))


@contextmanager
def served(vectors: str) -> Iterator[str]:
    """The address of such a server, in a process of its own, until the block ends."""
    command = [sys.executable, "-m", "benchmarks.search.endpoint", vectors]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.communicate()


def stats_of(address: str) -> dict:
    with urllib.request.urlopen(f"{address}/stats") as answer:
        return json.load(answer)


if __name__ == "__main__":
    sys.exit(main())
