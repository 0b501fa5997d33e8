"""The bytes of the client's system prompt and tools reach the provider as they came: random runs through the gateway."""

from __future__ import annotations

from random import Random

import apsw
import msgspec
import pytest
from msgspec import Raw

from refold.core.presets import PRESETS
from refold.ports.records import NEWEST_BLOBS
from refold.stores.sqlite.store import SqliteStore
from tests.contract.stores import opened
from tests.formats import KEYS, Plain, answer, question, turn
from tests.gateway.conftest import served
from tests.gateway.faults.wires import PATHS

FIELDS = msgspec.json.Decoder(dict[str, Raw])
TEXT = rb'"Be  kind.\n\u0041nswer in caf\u00e9 French\/German: <summary> "'
"""JSON that another writer would spell differently."""
BLOCKS = rb'[ {"text": "Be  kind.", "type": "text"},{"type":"text","text":' + TEXT + rb" } ]"
TOOLS = {
    "chat": rb'[ {"function":{"parameters":{"b":1.0,"a":"\u00e9"},"name":"look"},"type":"function"} ]',
    "responses": rb'[{"name":"look", "type":"function","parameters":{"b":1.0,"a":"\u00e9"},"strict":null}]',
    "anthropic": rb'[{"input_schema":{"b":1.0 ,"a":"\u00e9"},"name":"look"}]',
}
PROMPTS = {
    "chat": ("chat", rb'{"content": ' + TEXT + rb',"role":"system"}'),
    "responses": ("responses", TEXT),
    "responses, a message": ("responses", rb'{"role":"developer", "content":' + TEXT + rb"}"),
    "anthropic": ("anthropic", TEXT),
    "anthropic, blocks": ("anthropic", BLOCKS),
}
ROUNDS = 12


def body_of(name: str, prompt: bytes, history: list[Plain]) -> bytes:
    """A request whose prompt and tools are spelled as they are given."""
    items = msgspec.json.encode(history)
    if prompt.startswith(b'{"'):
        fields, items = b"", b"[" + prompt + b"," + items[1:]
    else:
        key = b"system" if name == "anthropic" else b"instructions"
        fields = b'"%s": %s,' % (key, prompt)
    head = b'{"model":"gpt-5","max_tokens":300, "tools" : %s,%s' % (TOOLS[name], fields)
    return head + b'"%s":%s}' % (KEYS[name].encode(), items)


def check(sent: bytes, name: str, prompt: bytes, *, appends: bool) -> bool:
    """Is a summary behind the prompt? Whatever stands there, the bytes before it are the client's."""
    fields = FIELDS.decode(sent)
    assert bytes(fields["tools"]) == TOOLS[name]
    if prompt.startswith(b'{"'):
        found = bytes(msgspec.json.decode(fields[KEYS[name]], type=list[Raw])[0])
    else:
        found = bytes(fields["system" if name == "anthropic" else "instructions"])
    if found == prompt:
        return False
    assert appends
    before, after = parts_of(prompt), parts_of(found)
    assert after[: len(before) - 1] == before[:-1]
    assert after[len(before) - 1].startswith(before[-1])
    assert b"".join(after).count(b"Be  kind.") == b"".join(before).count(b"Be  kind.")
    return True


def parts_of(prompt: bytes) -> list[bytes]:
    """The texts of a prompt, one for each block."""
    value = msgspec.json.decode(prompt)
    content = value["content"] if isinstance(value, dict) else value
    texts = [content] if isinstance(content, str) else [block["text"] for block in content]
    return [text.encode() for text in texts]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("which", PROMPTS)
async def test_bytes_of_system_prompt_and_tools_reach_the_provider(which, preset, upstream):
    name, prompt = PROMPTS[which]
    appends, random = PRESETS[preset].placement == "system", Random(f"{which} {preset}")
    flags = {
        "compaction_preset": preset,
        "compaction_allow_system_summary": True,
        "summariser_enabled": False,
        "cache_ttl": "off",
    }
    history = [one for number in range(4) for one in turn(number, name, lines=random.randrange(5, 120))]
    is_changed, is_behind = False, False
    async with served(upstream, window=6_000, **flags) as gate:
        for number in range(ROUNDS):
            history.append(question(f"And {number}? " + f"It is {number * 37}. " * random.randrange(50, 300)))
            body = body_of(name, prompt, history)
            status, _, _ = await gate.post(PATHS[name], body)
            sent = upstream.requests[-1].body

            assert status == 200
            is_behind = check(sent, name, prompt, appends=appends) or is_behind
            is_changed = is_changed or sent != body
            history.append(answer("Fine."))

    assert is_changed
    assert is_behind is appends


async def test_a_prompt_that_changes_with_every_request_does_not_fill_the_store(upstream, tmp_path):
    path, history = tmp_path / "chats.db", list[Plain]()
    async with opened(await SqliteStore.open(path)) as store, served(upstream, store=store) as gate:
        for minute in range(40):
            history += [question(f"And {minute}?")]
            prompt = b'{"role":"system","content":"It is 10:%d. Be kind."}' % minute
            assert (await gate.post(PATHS["chat"], body_of("chat", prompt, history)))[0] == 200
            history += [answer("Fine.")]
        kept = [row[0] for row in apsw.Connection(str(path)).execute("SELECT body FROM blob ORDER BY rowid")]

    assert len(kept) == NEWEST_BLOBS
    assert b"It is 10:39." in kept[-1]
