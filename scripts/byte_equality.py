"""Sends random conversations through the gateway and compares what leaves with what came, byte by byte.

.venv/bin/python scripts/byte_equality.py                            1,000 conversations in every preset, cache.ttl off
.venv/bin/python scripts/byte_equality.py --ttl 5m                   with cache breakpoints
.venv/bin/python scripts/byte_equality.py --presets lis --seed 41 --count 1 --show

The conversations fit and meet no trigger, in all three formats: with tools, images, thinking, odd characters, empty texts,
nulls and unknown fields, in any JSON spelling. With `cache.ttl = off` the bytes have to be the same; otherwise nothing may
differ but `cache_control` and the form of a text that carries it: one block instead of a string. Each conversation is sent
several times, as it grows. A difference is printed with its seed, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import re
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

from refold.config import flag_layer, resolve
from refold.core.presets import PRESETS
from refold.gateway.admin import Admin
from refold.gateway.app import Gateway
from refold.gateway.auth import Rules
from refold.gateway.server import build
from refold.gateway.upstreams import Target, Targets
from refold.stores.memory import MemoryStore
from refold.testing import ScriptedUpstream, sign

Plain = dict[str, Any]

WINDOW = 128_000
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
KEYS = {"chat": "messages", "responses": "input", "anthropic": "messages"}
MODELS = {
    "chat": ("gpt-4o", "a-model"),
    "responses": ("gpt-5", "a-model"),
    "anthropic": ("claude-sonnet-4-5", "a-model"),
}
MOST_MESSAGES = 18
"""The preset picoclaw summarises more than 20."""
TOOL_CHARACTERS = 9_000
"""Of one conversation: the preset lis prunes more than 8,000 tokens, and odd characters take two tokens each."""
ODD = [
    "",
    " ",
    "\n",
    "a",
    "\x00\x01\x7f",
    "e\u0301\u200d\u200b\ufeff",
    "\u2028\u2029\x85",
    "\U0001f469\u200d\U0001f467 \U0001f3f4\U000e0067\U000e007f",
    "نص من اليمين \u202e abc",
    "日本語のテキスト。",
    "</summary> <system-reminder>x</system-reminder> [Earlier messages #m1, shortened]",
    "#m3 user: Task #m0: `recall` opens a handle",
    '{"role": "system", "content": "x", "n": 1.0}',
    "a/b\\c\t\r\n\f\b\"'",
    "0.10 1e5 -0 12345678901234567890",
]


LONE = "\ud800"
"""Half of a character: JSON can spell it, UTF-8 cannot. The gateway passes such a request on without reading it."""


class Draw:
    """Random parts of a conversation in one format."""

    def __init__(self, name: str, seed: str) -> None:
        self.name, self.random = name, random.Random(seed)
        self.odd = [*ODD, LONE] if name != "anthropic" and self.chance(0.05) else ODD  # it cannot be signed
        self.left = TOOL_CHARACTERS
        self._ids = count(1)

    def one(self, *values: Any) -> Any:
        return self.random.choice(values)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def text(self, most: int = 4_000, *, is_blank: bool = False) -> str:
        """A text; one that is blank only where the format accepts it."""
        words = [self.one(*self.odd) if self.chance(0.2) else self.one("crate", "hall", "Öl", "é", "x=1;")]
        words += [
            self.one("ship", "blue", "17", "src/a.py", *self.odd) for _ in range(self.random.randrange(8))
        ]
        found = self.one(" ", "\n", "").join(words)
        if self.chance(0.1):
            found = (found or "long ") * (int(self.random.random() ** 3 * most) // max(1, len(found)) + 1)
        return found if is_blank or found.strip() else f"Is it {found}?"

    def result(self) -> str:
        found = self.text(3_000, is_blank=self.name == "responses")[: self.left]
        self.left -= len(found)
        return found if found.strip() or self.name == "responses" else "ok"

    def unknown(self) -> Plain:
        """Fields that no format has."""
        if not self.chance(0.2):
            return {}
        value = self.one(None, [], {}, "", 1.0, 10**25, {"a": [None, {"b": self.one(*self.odd)}]}, True)
        return {self.one("x_note", "extra", "_meta"): value}

    def id(self, prefix: str) -> str:
        return f"{prefix}_{next(self._ids)}"

    def media(self) -> str:
        return self.one("iVBORw0KGgo=", "/9j/4AAQSkZJRg==", "R0lGODlhAQABAAAAACw=")

    # Messages

    def question(self) -> list[Plain]:
        text = self.text(20_000)
        if self.chance(0.5):
            named = {"name": "anna"} if self.name == "chat" and self.chance(0.2) else {}
            return [{"role": "user", "content": text, **named, **self.unknown()}]
        kind = "input_text" if self.name == "responses" else "text"
        parts = [{"type": kind, "text": text, **self.unknown()}]
        parts += [self._attachment() for _ in range(self.random.randrange(3))]
        self.random.shuffle(parts)
        typed = {"type": "message"} if self.name == "responses" and self.chance(0.5) else {}
        return [{**typed, "role": "user", "content": parts, **self.unknown()}]

    def _attachment(self) -> Plain:
        data = f"data:image/png;base64,{self.media()}"
        if self.name == "chat":
            address = {"url": self.one(data, "https://example.com/a.png"), "detail": self.one("low", "auto")}
            sound = {"type": "input_audio", "input_audio": {"data": self.media(), "format": "wav"}}
            return self.one({"type": "image_url", "image_url": address}, sound)
        if self.name == "responses":
            image = {"type": "input_image", "image_url": data, "detail": "auto", "file_id": None}
            return self.one(
                image,
                {
                    "type": "input_file",
                    "filename": "a.pdf",
                    "file_data": f"data:application/pdf;base64,{self.media()}",
                },
            )
        image = {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": self.media()},
        }
        source = {"type": "text", "media_type": "text/plain", "data": self.text()}
        document = {
            "type": "document",
            "source": source,
            "title": self.one(None, "a"),
            "citations": {"enabled": True},
        }
        marked = {**image, "cache_control": {"type": "ephemeral"}}
        return self.one(image, document, marked if self.chance(0.3) else image)

    def tool_loop(self) -> list[Plain]:
        """Calls and their results."""
        return {"chat": self._chat_loop, "responses": self._items, "anthropic": self._blocks}[self.name]()

    def _arguments(self) -> Plain:
        return {"path": self.text(300, is_blank=True), "n": self.one(1, 1.5, None, [], {})}

    def _chat_loop(self) -> list[Plain]:
        calls, results = [], []
        for _ in range(self.random.randint(1, 3)):
            name, arguments = self.id("call"), self.one("{}", '{ "a" : 1.0 }', json.dumps(self._arguments()))
            function = {"name": self.one("read", "write_file"), "arguments": arguments}
            calls.append({"id": name, "type": "function", "function": function, **self.unknown()})
            text: Any = self.result()
            content = [{"type": "text", "text": text}] if self.chance(0.3) else text
            results.append({"role": "tool", "tool_call_id": name, "content": content, **self.unknown()})
        said: Plain = {"role": "assistant", "content": self.one(None, "", self.text()), "tool_calls": calls}
        if self.chance(0.3):
            said |= {"refusal": None, "annotations": [], "audio": None}
        if self.chance(0.3):
            said["reasoning_content"] = self.text()
        return [said, *results]

    def _items(self) -> list[Plain]:
        found: list[Plain] = []
        results: list[Plain] = []
        if self.chance(0.4):
            summary = self.one([], [{"type": "summary_text", "text": "A thought."}])
            sealed = sign("A thought." if summary else "")
            found.append(
                {"type": "reasoning", "id": self.id("rs"), "summary": summary, "encrypted_content": sealed}
            )
        if self.chance(0.2):
            action = {"type": "search", "query": self.text()}
            found.append(
                {"type": "web_search_call", "id": self.id("ws"), "status": "completed", "action": action}
            )
        for _ in range(self.random.randint(1, 3)):
            name, is_custom = self.id("call"), self.chance(0.2)
            kind = "custom_tool_call" if is_custom else "function_call"
            given = {"input": self.text()} if is_custom else {"arguments": json.dumps(self._arguments())}
            more = {"id": self.id("fc"), "status": "completed"} if self.chance(0.5) else {}
            found.append({"type": kind, "call_id": name, "name": "read", **given, **more, **self.unknown()})
            results.append(
                {"type": f"{kind}_output", "call_id": name, "output": self.result(), **self.unknown()}
            )
        return [*found, *results]

    def _blocks(self) -> list[Plain]:
        thought = self.text()
        said: list[Plain] = []
        results: list[Plain] = []
        if self.chance(0.5):
            said.append({"type": "thinking", "thinking": thought, "signature": sign(thought)})
        if self.chance(0.1):
            said.append({"type": "redacted_thinking", "data": "c2VhbGVk"})
        if self.chance(0.5):
            said.append({"type": "text", "text": self.text(), **self.unknown()})
        if self.chance(0.2):
            name, kind = self.id("srvtoolu"), "web_search_result"
            said.append(
                {"type": "server_tool_use", "id": name, "name": "web_search", "input": {"query": "x"}}
            )
            page = {"type": kind, "url": "https://example.com", "title": "", "encrypted_content": "c2VhbGVk"}
            said.append({"type": "web_search_tool_result", "tool_use_id": name, "content": [page]})
        for _ in range(self.random.randint(1, 3)):
            name = self.id("toolu")
            said.append({"type": "tool_use", "id": name, "name": "read", "input": self._arguments()})
            result: Plain = {"type": "tool_result", "tool_use_id": name}
            if self.chance(0.9):
                text = self.result()
                image = {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": self.media()},
                }
                blocks = [{"type": "text", "text": text}, *([image] if self.chance(0.3) else [])]
                result["content"] = self.one(text, blocks)
            results.append(result | self.one({}, {"is_error": self.one(True, False)}))
        if self.chance(0.2):
            results.append({"type": "text", "text": self.text()})
        return [
            {"role": "assistant", "content": said},
            {"role": "user", "content": results, **self.unknown()},
        ]

    def answer(self) -> list[Plain]:
        text = self.text()
        if self.name == "responses" and self.chance(0.5):
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            whole = {"type": "message", "id": self.id("msg"), "status": "completed"}
            return [{**whole, "role": "assistant", "content": [part]}]
        if self.name == "anthropic" and self.chance(0.5):
            return [{"role": "assistant", "content": [{"type": "text", "text": text, "citations": None}]}]
        return [{"role": "assistant", "content": text, **self.unknown()}]

    def fields(self) -> Plain:
        """The fields of the request besides its messages."""
        sizes = {"chat": "max_tokens", "responses": "max_output_tokens", "anthropic": "max_tokens"}
        found: Plain = {"model": self.one(*MODELS[self.name])}
        if self.name == "anthropic" or self.chance(0.5):
            found[sizes[self.name]] = self.random.randint(1, 4_000)
        found |= self.one(
            {}, {"temperature": 1.0}, {"seed": 12345678901234567890}, {"stop": None, "user": ""}
        )
        found |= self.one({}, {}, {"stream": False}, {"stream": True}, {"metadata": {"user_id": "u"}})
        found |= self.unknown()
        prompt = self.text()
        if self.name == "anthropic" and self.chance(0.6):
            found["system"] = self.one(prompt, [{"type": "text", "text": prompt}])
        if self.name == "responses" and self.chance(0.6):
            found["instructions"] = self.one(prompt, None)
        if self.chance(0.5):
            found["tools"] = [self._tool()]
        return found

    def _tool(self) -> Plain:
        schema = {"type": "object", "properties": {"path": {"type": "string", "description": self.text()}}}
        about = {"name": "read", "description": self.text()}
        if self.name == "anthropic":
            return {**about, "input_schema": schema}
        if self.name == "responses":
            return {"type": "function", **about, "parameters": schema, "strict": self.one(None, False)}
        return {"type": "function", "function": {**about, "parameters": schema}}

    def opening(self) -> list[Plain]:
        """System messages in the list of messages."""
        if self.name == "anthropic" or self.chance(0.4):
            return []
        return [{"role": self.one("system", "developer"), "content": self.text(), **self.unknown()}]

    def spelled(self, value: Plain) -> bytes:
        """JSON in one of many spellings."""
        keys = [*value]
        self.random.shuffle(keys)
        indent = self.one(None, None, 1, "\t")
        separators = self.one((",", ":"), (", ", ": "), (" ,", " :  "))
        text = json.dumps(
            {key: value[key] for key in keys}, ensure_ascii=True, indent=indent, separators=separators
        )
        if self.chance(0.5):
            text = re.sub(r"(?<!\\)(?:\\\\)*\\u(?!d[89a-f])([0-9a-f]{4})", self._unescaped, text)
        return (text.replace("/", "\\/") if self.chance(0.2) else text).encode()

    @staticmethod
    def _unescaped(found: re.Match[str]) -> str:
        code = int(found[1], 16)
        return found[0] if code < 0x80 or found[0].count("\\") > 1 else chr(code)


def conversation(name: str, seed: str) -> list[bytes]:
    """The requests of one conversation, as it grows."""
    draw = Draw(name, seed)
    fields, opening = draw.fields(), draw.opening()
    messages: list[Plain] = []
    bodies: list[bytes] = []
    while len(messages) < MOST_MESSAGES - 9:
        messages += draw.question()
        if draw.chance(0.6):
            bodies.append(draw.spelled({**fields, KEYS[name]: [*opening, *messages]}))
            messages += draw.tool_loop()
        whole: Any = [*opening, *messages]
        if name == "responses" and len(whole) == 1 and draw.chance(0.3):
            whole = draw.text()
            messages = [{"role": "user", "content": whole}]
        bodies.append(draw.spelled({**fields, KEYS[name]: whole}))
        if draw.chance(0.3):
            break
        messages += draw.answer() if draw.chance(0.5) else [{"role": "assistant", "content": "Fine."}]
    return bodies[-draw.random.randint(1, 3) :]


# Comparison of two JSON texts without a word lost: strings and numbers stay as they are spelled

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}:,]|[^\s\[\]{}:,"]+')


def tree(text: str) -> Any:
    """Objects as lists of pairs, arrays as tuples, and everything else as it is spelled."""
    tokens = iter(TOKEN.findall(text))

    def value(token: str) -> Any:
        if token == "{":
            pairs = []
            for key in tokens:
                if key == "}":
                    break
                if key != ",":
                    next(tokens)
                    pairs.append((key, value(next(tokens))))
            return pairs
        if token == "[":
            items = []
            for one in tokens:
                if one == "]":
                    break
                if one != ",":
                    items.append(value(one))
            return tuple(items)
        return token

    return value(next(tokens))


MARK = '"cache_control"'


def difference(sent: Any, given: Any, place: str = "") -> str:
    """The place of the first difference, apart from `cache_control` and the form of a text that carries it."""
    if isinstance(sent, list) and isinstance(given, list):
        if MARK not in dict(given):
            sent = [pair for pair in sent if pair[0] != MARK]
        if [key for key, _ in sent] != [key for key, _ in given]:
            return f"{place}, keys"
        pairs = (
            (one, other, f"{place}.{key[1:-1]}") for (key, one), (_, other) in zip(sent, given, strict=True)
        )
    elif isinstance(sent, tuple) and isinstance(given, tuple):
        if len(sent) != len(given):
            return f"{place}, length"
        pairs = (
            (one, other, f"{place}[{at}]") for at, (one, other) in enumerate(zip(sent, given, strict=True))
        )
    elif isinstance(sent, tuple) and isinstance(given, str):
        block = dict(sent[0]) if len(sent) == 1 and isinstance(sent[0], list) else {}
        is_form = set(block) == {'"type"', '"text"', MARK} and block['"text"'] == given
        return "" if is_form else f"{place}, form: {str(given)[:80]} -> {str(sent)[:120]}"
    else:
        return "" if sent == given else f"{place}: {str(given)[:80]} -> {str(sent)[:80]}"
    return next(filter(None, (difference(*pair) for pair in pairs)), "")


# The gateway


async def send(app: Any, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str]]:
    """One request to the application, without a server between."""
    told: list[Any] = []
    given = {
        "host": "localhost",
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
        **headers,
    }
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 50_000), "server": ("127.0.0.1", 7336), "scheme": "http", "root_path": "", "state": {},
    }  # fmt: skip
    parts = asyncio.Queue[Any]()
    parts.put_nowait({"type": "http.request", "body": body, "more_body": False})

    async def note(message: Any) -> None:
        told.append(message)

    await app(scope, parts.get, note)
    return told[0]["status"], {name.decode(): value.decode() for name, value in told[0]["headers"]}


async def campaign(preset: str, seeds: Sequence[int], ttl: str, *, show: bool) -> Counter[str]:
    """Send the conversations of all seeds, in turn in the three formats."""
    found = Counter[str]()
    async with ScriptedUpstream(otherwise="Fine.", window=None, validates=False) as provider:
        flags = {
            "cache.ttl": ttl,
            "compaction.preset": preset,
            "compaction.allow_system_summary": True,
            "summariser.enabled": False,
        }
        target = Target(
            "scripted", provider.url, ("chat", "responses", "anthropic"), is_private=True, window=WINDOW
        )
        gateway = Gateway(MemoryStore(), resolve([flag_layer(flags)]), Targets([target]))
        app = build(gateway, Admin(gateway, "unchanged"), Rules())
        try:
            for seed in seeds:
                name = tuple(PATHS)[seed % 3]
                found["conversations"] += 1
                changes = await differences(app, provider, name, preset, seed, ttl)
                found["requests"] += len(changes)
                found["changed"] += any(changes)
                for number, change in enumerate(changes):
                    if change:
                        print(f"{preset} {name} seed {seed}, request {number + 1}: {change}", flush=True)
                        if show:
                            print(provider.requests[number].body.decode())
                provider.requests.clear()
        finally:
            await gateway.close()
    return found


def compare(left: bytes, came: bytes, *, is_marked: bool) -> str:
    if left == came:
        return ""
    place = difference(tree(left.decode()), tree(came.decode())) or "" if is_marked else "spelling"
    return place and f"changed at {place}"


async def differences(
    app: Any, provider: ScriptedUpstream, name: str, preset: str, seed: int, ttl: str
) -> list[str]:
    """What is wrong with each request of a conversation; empty strings if nothing is."""
    found: list[str] = []
    for body in conversation(name, f"{preset} {seed}"):
        sent = len(provider.requests)
        status, headers = await send(app, PATHS[name], body, {"x-refold-conversation": f"{preset}-{seed}"})
        if len(provider.requests) != sent + 1:
            found.append(f"not sent, status {status}")
            continue
        action, left = headers["x-refold-action"], provider.requests[-1].body
        if action not in ("passed", "folded") and not (action == "unparsed" and b"\\ud800" in body):
            found.append(f"action {action}")
        else:
            found.append(compare(left, body, is_marked=ttl != "off"))
    return found


async def main(presets: Sequence[str], seeds: Sequence[int], ttl: str, *, show: bool) -> bool:
    total = Counter[str]()
    for preset in presets:
        found = await campaign(preset, seeds, ttl, show=show)
        total += found
        print(
            f"{preset:10} cache.ttl {ttl:4} {found['conversations']:6,} conversations, {found['requests']:6,} requests, "
            f"{found['changed']:4} changed",
            flush=True,
        )
    return not total["changed"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--presets", nargs="+", default=list(PRESETS), choices=list(PRESETS))
    parser.add_argument("--count", type=int, default=1_000, help="conversations in each preset")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--ttl", default="off", choices=["off", "5m", "1h"])
    parser.add_argument("--show", action="store_true", help="print the bytes that left")
    given = parser.parse_args()
    logging.getLogger("refold").setLevel(logging.ERROR)
    wanted = range(given.seed, given.seed + given.count)
    sys.exit(not asyncio.run(main(given.presets, wanted, given.ttl, show=given.show)))
