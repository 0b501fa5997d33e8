"""What a provider keeps, behind one operator key and several owners: each reaches what is its own, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import pytest
from msgspec import structs
from openai import AsyncOpenAI, NotFoundError
from yarl import URL

from refold.config import UpstreamSettings
from refold.gateway import provider_state
from refold.gateway.upstreams import open_targets
from refold.model.errors import StoreError
from refold.stores.memory import MemoryStore
from tests.gateway.conftest import ALL, ServedModel, served
from tests.gateway.gates import make_key
from tests.gateway.stateful_provider import KeepingProvider, keeping

OPERATOR = "sk-operator"
ENVIRON = {"OPERATOR_KEY": OPERATOR}
SECRET = "the-code-is-4711"
JSON = "application/json"


class Answer(NamedTuple):
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        assert self.status == 200, self.body
        return self.json["id"]

    @property
    def error(self) -> str:
        return self.json["error"]["message"]


class Client:
    """An owner, or nobody in particular, and how it calls the gateway: by the bytes that are written here."""

    def __init__(self, gate: ServedModel, key: str, session: aiohttp.ClientSession) -> None:
        self._gate, self.key, self._session = gate, key, session

    async def call(
        self, method: str, path: str, body: object = None, data: object = None, **headers: str
    ) -> Answer:
        sent = {"x-refold-key": self.key} if self.key else {}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent.setdefault("content-type", JSON)
        address = URL(self._gate.url + path, encoded=True)
        async with self._session.request(
            method, address, data=data, headers=sent, allow_redirects=False
        ) as response:
            return Answer(response.status, await response.read())

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.call("GET", path, **headers)

    async def respond(self, text: str = "Hi.", **fields: object) -> Answer:
        return await self.call("POST", "/v1/responses", {"model": "m", "input": text, **fields})

    async def upload(self, content: bytes, purpose: str = "user_data", name: str = "a.jsonl") -> Answer:
        form = aiohttp.FormData()
        form.add_field("purpose", purpose)
        form.add_field("file", content, filename=name, content_type="application/octet-stream")
        return await self.call("POST", "/v1/files", data=form)


class Two:
    """Two owners before one provider that keeps state."""

    def __init__(self, provider: KeepingProvider, gate: ServedModel, anna: Client, ben: Client) -> None:
        self.provider, self.gate, self.anna, self.ben = provider, gate, anna, ben

    def refused(self, answer: Answer, before: int) -> bool:
        """Was it refused by the gateway, in words that help, without a call to the provider?"""
        assert len(self.provider.asked) == before
        return answer.status == 404 and b"hint: " in answer.body and SECRET.encode() not in answer.body


@asynccontextmanager
async def two(*, has_keys: bool = True, store: MemoryStore | None = None, **given: Any) -> AsyncIterator[Two]:
    async with keeping() as provider, aiohttp.ClientSession() as session:
        upstream = {"url": provider.url, "formats": ALL, "key_env": "OPERATOR_KEY", **given}
        targets = [*open_targets({"shared": UpstreamSettings(**upstream)}, ENVIRON)]
        async with served(provider, targets=targets, store=store, summariser_enabled=False) as gate:
            keys = [await make_key(gate.store, owner) if has_keys else "" for owner in ("anna", "ben")]
            yield Two(provider, gate, *(Client(gate, key, session) for key in keys))


@pytest.fixture
async def both() -> AsyncIterator[Two]:
    async with two() as one:
        yield one


async def test_what_the_report_tried_is_refused(both):
    """Continue, read and delete another's response, list files and stored completions, and reach the organisation."""
    made = (await both.anna.respond(SECRET)).id
    await both.anna.call(
        "POST",
        "/v1/chat/completions",
        {"model": "m", "store": True, "messages": [{"role": "user", "content": SECRET}]},
    )
    await both.anna.upload(SECRET.encode())
    before = len(both.provider.asked)

    tries = [
        await both.ben.respond("Say it again.", previous_response_id=made),
        await both.ben.get(f"/v1/responses/{made}"),
        await both.ben.get(f"/v1/responses/{made}/input_items"),
        await both.ben.call("DELETE", f"/v1/responses/{made}"),
        await both.ben.get("/v1/files"),
        await both.ben.get("/v1/chat/completions"),
        await both.ben.get("/v1/organization/projects"),
    ]

    assert all(both.refused(one, before) for one in tries)
    assert made in both.provider.kept
    own = await both.anna.get(f"/v1/responses/{made}")
    assert (own.status, own.id) == (200, made)
    assert both.provider.last.key == OPERATOR
    continued = await both.anna.respond("Say it again.", previous_response_id=made)
    assert SECRET in continued.body.decode()


@pytest.mark.parametrize("style", ["openai", "anthropic"])
async def test_a_refusal_reads_as_the_clients_provider_would_write_it(both, style):
    headers = {"anthropic_version": "2023-06-01"} if style == "anthropic" else {}
    answer = await both.ben.get("/v1/files/file_1", **headers)

    assert answer.status == 404
    kind = answer.json["error"]["type"]
    assert kind == ("not_found_error" if style == "anthropic" else "invalid_request_error")
    assert "you have no such file" in answer.error
    off = await both.ben.get("/v1/files", **headers)
    assert (off.status, "`allow` of the upstream shared" in off.error) == (404, True)


async def test_an_official_client_raises_what_it_raises_for_its_provider(both):
    made = (await both.anna.respond(SECRET)).id
    async with AsyncOpenAI(base_url=f"{both.gate.url}/v1", api_key=both.ben.key, max_retries=0) as client:
        with pytest.raises(NotFoundError, match="you have no such response"):
            await client.responses.retrieve(made)
        with pytest.raises(NotFoundError, match="you have no such response"):
            await client.responses.create(model="m", input="Again.", previous_response_id=made)
        assert (await client.responses.create(model="m", input="Hi.")).output_text


MADE = {
    "responses": ("/v1/responses", {"model": "m", "input": SECRET}),
    "chat/completions": (
        "/v1/chat/completions",
        {"model": "m", "store": True, "messages": [{"role": "user", "content": SECRET}]},
    ),
    "conversations": ("/v1/conversations", {"items": []}),
    "batches": ("/v1/batches", {"endpoint": "/v1/responses", "completion_window": "24h"}),
    "messages/batches": ("/v1/messages/batches", {"requests": []}),
    "vector_stores": ("/v1/vector_stores", {"name": "books"}),
    "containers": ("/v1/containers", {"name": "box"}),
}


@pytest.mark.parametrize("collection", MADE)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
@pytest.mark.parametrize("after", ["", "/cancel", "/content", "/a/b/c"])
async def test_whatever_is_made_is_reached_by_whoever_made_it(both, collection, method, after):
    path, body = MADE[collection]
    made = (await both.anna.call("POST", path, body)).id
    before = len(both.provider.asked)

    foreign = await both.ben.call(method, f"/v1/{collection}/{made}{after}")
    listed = await both.ben.get(f"/v1/{collection}")

    assert len(both.provider.asked) == before
    assert (foreign.status, listed.status) == (404, 404)
    own = await both.anna.call(method, f"/v1/{collection}/{made}{after}")
    assert own.status == 200
    assert (both.provider.last.method, both.provider.last.path) == (method, f"/v1/{collection}/{made}{after}")


async def test_an_id_is_one_of_its_kind_and_written_as_it_is(both):
    made = (await both.anna.respond()).id
    before = len(both.provider.asked)

    for path in (f"/v1/files/{made}", f"/v1/responses/{made.upper()}", f"/v1/batches/{made}"):
        assert both.refused(await both.anna.get(path), before)
    assert both.refused(await both.anna.respond(previous_response_id=f"{made} "), before)
    assert both.refused(await both.anna.respond(previous_response_id=made.upper()), before)
    assert both.refused(await both.anna.respond(conversation=made), before)


SPELLINGS = (
    "/v1/files", "/v1/files/", "/v1//files", "/v1/files//", "/v1///files", "/v1/./files", "/v1/files/.", "/v1/x/../files",
    "/v1/%66iles", "/v1/file%73", "/v1/%46iles", "/v1/Files", "/v1/FILES", "/v1/files;x=1", "/v1/files;", "/v1;/files",
    "/v1/files%3Fa", "/v1/files%3B", "/v1/files%23", "/v1/files%00", "/v1/files%20", "/v1/%20files", "/v1/files%09",
    "/v1/files%0d%0a", "/v1/files%2F", "/v1/%2Ffiles", "/v1/%2e/files", "/v1/%2e%2e/v1/files", "/v1/x/%2e%2e/files",
    "/v1/%252e%252e/files", "/v1/embeddings/..%2ffiles", "/v1/embeddings%2f..%2ffiles", "/v1/models/..%2ffiles",
    "/v1/models/%2e%2e/files", "/v1/models/%2e%2e%2ffiles", "/v1/models/%252e%252e/files", "/v1/models/x%5c..%5c..%5cfiles",
    "/v1/embeddings/../files", "/v1/models/../files", "/v1/files\\x", "/v1\\files", "/v1/%5cfiles", "/v1/files.json",
    "/v1/files.", "/v1/files*", "/v1/files?purpose=batch", "/v1/files?", "/v1/files%3fpurpose=batch", "/v1/files&x",
    "/v1/%C3%A4/files", "/v1/%EF%BC%8Ffiles", "/v1/f%C4%B1les", "/v1/%u0066iles", "/v1/%c0%ae%c0%ae/files",
    "/v1/files/{id}", "/v1/files/{id}/", "/v1/files/{id}/content", "/v1/files//{id}", "/v1/files/./{id}", "/v1/files/{id};x",
    "/v1/files/%66ile_1", "/v1/files/{id}%00", "/v1/files/{id}%20", "/v1/files/x%2F..%2F{id}", "/v1/files/{id}%2Fcontent",
    "/v1/Files/{id}", "/v1/files/{id}?x=1", "/v1/files%2F{id}", "/v1/embeddings/..;/files/{id}", "/v1/files/,{id}",
    "/v1/uploads", "/v1/uploads/upload_1", "/v1/assistants", "/v1/threads/thread_1", "/v1/fine_tuning/jobs", "/v1/evals",
    "/v1/organization/usage", "/v1/organization/admin_api_keys", "/v1/skills", "/v1/videos/video_1", "/v1/realtime/sessions",
    "/v1/audio/voices", "/v1/images", "/v1/audio", "/v1/key", "/v1/credits", "/v1/generation?id=gen-1", "/v1/responses",
    "/v1/messages", "/v1/chat", "/v1/agents", "/v1/batch", "/v1/prompts/pmpt_1", "/v1/models-x", "/v1/modelsx/files",
    "/v1/models%3Ax", "/v1/models%2Fx", "/v1/models:x", "/v1/models/", "/v1/models//x",
)  # fmt: skip


async def test_no_spelling_of_a_path_gets_around_it(both):
    made = (await both.anna.upload(SECRET.encode())).id
    before = len(both.provider.asked)

    answers = {path: await both.ben.get(path.replace("{id}", made)) for path in SPELLINGS}

    assert len(answers) >= 90
    assert [one.path for one in both.provider.asked[before:]] == []
    assert {one.status for one in answers.values()} <= {400, 403, 404}
    assert not [path for path, one in answers.items() if SECRET.encode() in one.body]


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "LIST"])
async def test_no_method_gets_around_it(both, method):
    await both.anna.upload(SECRET.encode())
    before = len(both.provider.asked)
    for path in ("/v1/files", "/v1/embeddings", "/v1/models", "/v1/responses"):
        answer = await both.ben.call(method, path)
        assert answer.status in (400, 404, 405)
    assert len(both.provider.asked) == before


async def test_headers_that_ask_for_something_else_do_not_reach_the_provider(both):
    tricks = {
        "x_http_method_override": "GET",
        "x_http_method": "DELETE",
        "x_method_override": "GET",
        "x_original_url": "/v1/files",
        "x_rewrite_url": "/v1/files",
        "x_forwarded_path": "/v1/files",
    }
    answer = await both.ben.call("POST", "/v1/embeddings", {"model": "m", "input": "a"}, **tricks)

    assert answer.status == 200
    assert not {name.replace("_", "-") for name in tricks} & set(both.provider.last.headers)


STATELESS = (
    ("GET", "/v1/models"), ("GET", "/v1/models/gpt-5"), ("GET", "/v1/models/meta/llama-3"), ("GET", "/v1/models/meta%2Fllama-3"),
    ("GET", "/v1/models/ft:gpt-4o:org::abc"), ("GET", "/v1/models/ft%3Agpt-4o"), ("POST", "/v1/messages/count_tokens"), ("POST", "/v1/responses/input_tokens"),
    ("POST", "/v1/embeddings"), ("POST", "/v1/moderations"), ("POST", "/v1/audio/speech"), ("POST", "/v1/audio/transcriptions"),
    ("POST", "/v1/images/generations"), ("POST", "/v1/images/edits"), ("POST", "/v1/completions"), ("POST", "/v1/rerank"),
    ("POST", "/v1/chat/completions"), ("POST", "/v1/responses"), ("POST", "/v1/messages"),
)  # fmt: skip


@pytest.mark.parametrize(("method", "path"), STATELESS)
async def test_what_keeps_nothing_stays_open(both, method, path):
    body = {
        "model": "m",
        "input": "a",
        "prompt": "b",
        "voice": "alloy",
        "messages": [{"role": "user", "content": "c"}],
    }
    answer = await both.ben.call(method, f"{path}?beta=true", body if method == "POST" else None)

    assert answer.status == 200
    assert both.provider.last.path == f"{path}?beta=true"
    assert both.provider.last.key == OPERATOR


async def test_forms_of_what_keeps_nothing_pass(both):
    form = aiohttp.FormData()
    form.add_field("model", "whisper-1")
    form.add_field("file", b"\0\1 some sound \\u0066", filename="a.wav", content_type="audio/wav")
    assert (await both.ben.call("POST", "/v1/audio/transcriptions", data=form)).status == 200


def in_bodies(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Requests that name a file, each in another place."""
    said = {"model": "m", "max_tokens": 9}
    user = lambda part: {**said, "messages": [{"role": "user", "content": [part]}]}  # noqa: E731
    item = lambda part: {**said, "input": [{"role": "user", "content": [part]}]}  # noqa: E731
    source = {"type": "file", "file_id": name}
    return [
        ("/v1/responses", item({"type": "input_file", "file_id": name})),
        ("/v1/responses", item({"type": "input_image", "file_id": name})),
        ("/v1/responses", {**said, "input": [{"type": "function_call_output", "call_id": "c", "output": [source]}]}),
        (
            "/v1/responses",
            {**said, "input": "Hi.", "tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["x", name]}}]},
        ),
        (
            "/v1/responses",
            {**said, "input": "Hi.", "tools": [{"type": "image_generation", "input_image_mask": {"file_id": name}}]},
        ),
        ("/v1/responses/input_tokens", item({"type": "input_file", "file_id": name})),
        ("/v1/chat/completions", user({"type": "file", "file": {"file_id": name}})),
        ("/v1/messages", user({"type": "document", "source": source})),
        ("/v1/messages", user({"type": "image", "source": source})),
        ("/v1/messages", user({"type": "container_upload", "file_id": name})),
        (
            "/v1/messages",
            user({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "document", "source": source}]}),
        ),
        ("/v1/messages/count_tokens", user({"type": "document", "source": source})),
        (
            "/v1/messages/batches",
            {"requests": [{"custom_id": "1", "params": user({"type": "document", "source": source})}]},
        ),
        ("/v1/batches", {"input_file_id": name, "endpoint": "/v1/responses", "completion_window": "24h"}),
        ("/v1/vector_stores", {"file_ids": [name]}),
        ("/v1/images/edits", {"prompt": "p", "images": [{"file_id": name}]}),
        ("/v1/ocr", {"model": "m", "document": {"type": "file", "file_id": name}}),
    ]  # fmt: skip


@pytest.mark.parametrize("at", range(len(in_bodies(""))))
async def test_a_file_is_named_only_by_whoever_brought_it(both, at):
    made = (await both.anna.upload(SECRET.encode())).id
    own = (await both.ben.upload(b"ours")).id
    before = len(both.provider.asked)
    path, body = in_bodies(made)[at]

    assert both.refused(await both.ben.call("POST", path, body), before)
    fine = json.loads(json.dumps(in_bodies(own)[at][1]).replace('"x", ', ""))
    assert (await both.ben.call("POST", path, fine)).status == 200


def naming(kind: str, name: str) -> dict[str, Any]:
    said = {"model": "m", "input": "Hi."}
    return {
        "previous_response_id": {**said, "previous_response_id": name},
        "conversation": {**said, "conversation": name},
        "conversation object": {**said, "conversation": {"id": name}},
        "vector store": {**said, "tools": [{"type": "file_search", "vector_store_ids": [name]}]},
        "container": {**said, "tools": [{"type": "code_interpreter", "container": name}]},
        "shell": {**said, "tools": [{"type": "shell", "environment": {"type": "container_reference", "container_id": name}}]},
        "prompt": {**said, "prompt": {"id": name, "version": "2"}},
        "item": {**said, "input": [{"type": "item_reference", "id": name}]},
        "item without a type": {**said, "input": [{"id": name}]},
        "item of type null": {**said, "input": [{"type": None, "id": name}]},
        "reasoning": {**said, "input": [{"type": "reasoning", "id": name, "summary": []}]},
        "picture": {**said, "input": [{"type": "image_generation_call", "id": name}]},
        "search": {**said, "input": [{"type": "web_search_call", "id": name, "status": "completed"}]},
        "cached": {**said, "extra_body": {"google": {"cached_content": name}}},
        "audio": {"model": "m", "messages": [{"role": "assistant", "audio": {"id": name}}]},
        "skill": {**said, "container": {"skills": [{"type": "custom", "skill_id": name}]}},
    }[kind]  # fmt: skip


@pytest.mark.parametrize("kind", [
    "previous_response_id", "conversation", "conversation object", "vector store", "container", "shell", "prompt", "item",
    "item without a type", "item of type null", "reasoning", "picture", "search", "cached", "audio", "skill",
])  # fmt: skip
async def test_nothing_that_a_provider_looks_up_is_named_by_a_stranger(both, kind):
    answered = (await both.anna.respond(SECRET)).json
    names = [answered["id"], answered["output"][0]["id"]]
    names += [(await both.anna.call("POST", path, body)).id for path, body in MADE.values()]
    before = len(both.provider.asked)

    for name in names:
        assert both.refused(await both.ben.call("POST", "/v1/responses", naming(kind, name)), before)


async def test_an_owner_names_what_is_its_own(both):
    answered = (await both.anna.respond(SECRET)).json
    store, box, talk = [
        (await both.anna.call("POST", *MADE[name])).id
        for name in ("vector_stores", "containers", "conversations")
    ]
    own = {
        "previous_response_id": answered["id"],
        "conversation": talk,
        "conversation object": talk,
        "vector store": store,
        "container": box,
        "shell": box,
        "item": answered["output"][0]["id"],
        "item without a type": answered["output"][0]["id"],
        "reasoning": answered["output"][0]["id"],
    }
    for kind, name in own.items():
        assert (await both.anna.call("POST", "/v1/responses", naming(kind, name))).status == 200, kind


HARMLESS = (
    {"model": "m", "input": "Hi.", "metadata": {"file_id": "file_1", "conversation": "c"}},
    {"model": "m", "input": 'The "previous_response_id" of it is "resp_1", and "file_id" is "file_1".'},
    {"model": "m", "input": [{"type": "reasoning", "id": "rs_9", "summary": [], "encrypted_content": "x"}]},
    {"model": "m", "input": [{"type": "reasoning", "id": "rs_9", "content": [{"type": "reasoning_text", "text": "t"}]}]},
    {"model": "m", "input": [{"role": "user", "content": "Hi."}, {"type": "message", "role": "assistant", "id": "msg_9", "content": [
        {"type": "output_text", "text": "t", "annotations": [{"type": "file_citation", "file_id": "file_1"}]}]}]},
    {"model": "m", "input": [{"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": '{"file_id":"file_1"}'}]},
    {"model": "m", "input": [{"role": "user", "id": "mine", "content": "Hi."}]},
    {"model": "m", "input": "Hi.", "previous_response_id": None, "conversation": None, "prompt": None},
    {"model": "m", "input": "Hi.", "tools": [{"type": "function", "name": "f", "parameters": {
        "type": "object", "properties": {"file_id": {"type": "string", "default": "file_1"}}, "examples": [{"file_id": "file_1"}]}}]},
    {"model": "m", "input": "Hi.", "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
)  # fmt: skip


@pytest.mark.parametrize("at", range(len(HARMLESS)))
async def test_words_schemas_and_what_says_itself_name_nothing(both, at):
    await both.anna.upload(SECRET.encode())
    assert (await both.ben.call("POST", "/v1/responses", HARMLESS[at])).status == 200
    assert both.provider.last.json == HARMLESS[at]


async def test_what_a_tool_was_called_with_names_nothing(both):
    call = {"type": "tool_use", "id": "t", "name": "open", "input": {"file_id": "file_1", "container": "c"}}
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "assistant", "content": [call]}]}
    assert (await both.ben.call("POST", "/v1/messages", body)).status == 200


def spelt(name: str) -> list[bytes]:
    """Bodies that one reader takes for one thing and another for another."""
    plain = f'"previous_response_id":"{name}"'
    return [
        f'{{"model":"m","input":"a","previous\\u005fresponse_id":"{name}"}}'.encode(),
        f'{{"model":"m","input":"a","\\u0070revious_response_id":"{name}"}}'.encode(),
        f'{{"model":"m","input":"a",{plain.replace(name, name.replace("_", chr(92) + "u005f"))}}}'.encode(),
        f'{{"model":"m","input":"a",{plain},"previous_response_id":null}}'.encode(),
        f'{{"model":"m","input":"a","previous_response_id":null,{plain}}}'.encode(),
        f'{{"model":"m","input":"a","Previous_Response_Id":"{name}"}}'.encode(),
        f'{{"model":"m","input":"a","previou\u017f_re\u017fponse_id":"{name}"}}'.encode(),
        f'{{"model":"m","input":"a","previou\\u017f_response_id":"{name}"}}'.encode(),
        f'{{"model":"m","input":[{{"type":"message","type":"item_reference","id":"{name}"}}]}}'.encode(),
        f'{{"model":"m","input":[{{"Type":"message","type":"item_reference","id":"{name}"}}]}}'.encode(),
        f'{{"model":"m","input":[{{"id":"x","ID":"{name}"}}]}}'.encode(),
        f'{{"model":"m","input":"a",{plain},}}'.encode(),
        f'{{"model":"m","input":"a",{plain}}} //'.encode(),
        f'\ufeff{{"model":"m","input":"a",{plain}}}'.encode(),
        f'{{"model":"m","input":"a",{plain}}}'.encode("utf-16"),
        f'{{"model":"m","input":"a",{plain}}}'.encode("utf-16-le"),
        f'{{"model":"m","input":"a",{plain}}}'.encode("utf-32"),
        f'{{"model":"m","input":"a",{plain},"x":"\xff"}}'.encode("latin-1"),
        (f'{{"model":"m","input":"a","x":{"[" * 2000}1{"]" * 2000},{plain}}}').encode(),
    ]  # fmt: skip


async def test_a_body_that_reads_in_two_ways_is_not_sent(both):
    made = (await both.anna.respond(SECRET)).id
    before = len(both.provider.asked)

    for body in spelt(made):
        answer = await both.ben.call("POST", "/v1/responses", body)
        assert answer.status in (400, 404), body[:80]
        assert SECRET.encode() not in answer.body
    assert len(both.provider.asked) == before


@pytest.mark.parametrize("kind", [
    "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json; charset=utf-7",
    "application/json; charset=utf-16", 'application/json; charset="ibm037"', "application/octet-stream", "",
])  # fmt: skip
async def test_no_content_type_gets_around_it(both, kind):
    made = (await both.anna.respond(SECRET)).id
    before = len(both.provider.asked)

    body = json.dumps({"model": "m", "input": "a", "previous_response_id": made}).encode()
    answer = await both.ben.call("POST", "/v1/responses", body, content_type=kind)
    assert answer.status in (400, 404)
    form = b'--x\r\nContent-Disposition: form-data; name="file_id"\r\n\r\nfile_1\r\n--x--\r\n'
    box = (await both.ben.call("POST", "/v1/containers", {"name": "box"})).id
    before += 1
    taken = await both.ben.call(
        "POST", f"/v1/containers/{box}/files", form, content_type="multipart/form-data; boundary=x"
    )
    assert taken.status == 400
    lying = b'{"file\\u005fid":"file_1"}'
    taken = await both.ben.call(
        "POST", f"/v1/containers/{box}/files", lying, content_type="multipart/form-data; boundary=x"
    )
    assert taken.status == 404
    assert len(both.provider.asked) == before


async def test_a_long_body_is_looked_through_too(both):
    made = (await both.anna.respond(SECRET)).id
    before = len(both.provider.asked)

    long = [{"role": "user", "content": "word " * 100_000}, {"type": "item_reference", "id": made}]
    assert both.refused(await both.ben.respond(long), before)
    assert (await both.ben.respond(long[:1])).status == 200


async def test_a_request_that_names_too_much_is_refused(both):
    many = [{"type": "item_reference", "id": f"item_{n}"} for n in range(10_001)]
    answer = await both.ben.respond(many)
    assert (answer.status, "more than 10,000" in answer.error) == (400, True)
    assert both.provider.asked == []


LINES = {
    "harmless": ('{{"custom_id":"1","method":"POST","url":"/v1/responses","body":{{"model":"m","input":"Hi."}}}}', True),
    "another's": ('{{"custom_id":"1","url":"/v1/responses","body":{{"previous_response_id":"{foreign}"}}}}', False),
    "its own": ('{{"custom_id":"1","url":"/v1/responses","body":{{"previous_response_id":"{own}"}}}}', True),
    "an escape": ('{{"body":{{"previous\\u005fresponse_id":"{foreign}"}}}}', False),
    "an item": ('{{"body":{{"input":[{{"id":"{foreign}"}}]}}}}', False),
    "twice": ('{{"body":{{"previous_response_id":"{own}","previous_response_id":"{foreign}"}}}}', False),
    "no JSON": ("{{'previous_response_id': '{foreign}', \"file_id\"", False),
    "text": ("A text about ships.", True),
}  # fmt: skip


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("is_long", [False, True])
async def test_a_file_is_run_as_a_batch_only_if_its_requests_name_what_is_their_owners(both, line, is_long):
    foreign, own = (await both.anna.respond(SECRET)).id, (await both.ben.respond()).id
    text, can_run = LINES[line]
    harmless = LINES["harmless"][0].format() + "\n"
    content = harmless * (2_000 if is_long else 2) + text.format(foreign=foreign, own=own) + "\r\n" + harmless
    uploaded = (await both.ben.upload(content.encode(), "batch")).id
    before = len(both.provider.asked)

    body = {"input_file_id": uploaded, "endpoint": "/v1/responses", "completion_window": "24h"}
    answer = await both.ben.call("POST", "/v1/batches", body)

    assert answer.status == (200 if can_run else 404)
    assert len(both.provider.asked) == before + can_run
    assert can_run or "cannot be run as a batch" in answer.error
    assert (await both.ben.get(f"/v1/files/{uploaded}/content")).status == 200


@pytest.mark.parametrize(
    "form",
    [
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\nContent-Transfer-Encoding: base64\r\n\r\ne30=\r\n--x--',
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        + '{"body":{}}'.encode("utf-16")
        + b"\r\n--x--",
    ],
)
async def test_a_file_that_cannot_be_looked_through_is_kept_and_not_run(both, form):
    made = await both.ben.call("POST", "/v1/files", form, content_type="multipart/form-data; boundary=x")
    body = {"input_file_id": made.id, "endpoint": "/v1/responses", "completion_window": "24h"}

    assert (await both.ben.call("POST", "/v1/batches", body)).status == 404
    assert (await both.ben.get(f"/v1/files/{made.id}")).status == 200


async def test_what_comes_of_a_batch_is_its_owners(both):
    batch = (await both.anna.call("POST", *MADE["batches"])).json
    results = batch["output_file_id"]
    before = len(both.provider.asked)

    assert both.refused(await both.ben.get(f"/v1/files/{results}/content"), before)
    assert (await both.anna.get(f"/v1/files/{results}/content")).status == 200
    late = both.provider.make("file_", object="file", content=SECRET)["id"]
    both.provider.kept[batch["id"]]["error_file_id"] = late
    assert (await both.anna.get(f"/v1/files/{late}/content")).status == 404
    await both.anna.get(f"/v1/batches/{batch['id']}")
    assert (await both.anna.get(f"/v1/files/{late}/content")).body == SECRET.encode()
    assert (await both.ben.get(f"/v1/files/{late}/content")).status == 404


async def read_until(response: aiohttp.ClientResponse, words: bytes) -> bytes:
    seen = b""
    while words not in seen:
        chunk = await response.content.readany()
        assert chunk, seen
        seen += chunk
    return seen


STREAMS = {
    "responses": ("/v1/responses", {"model": "m", "input": SECRET, "stream": True}, "resp_"),
    "completions": (
        "/v1/chat/completions",
        {"model": "m", "store": True, "stream": True, "messages": [{"role": "user", "content": SECRET}]},
        "chatcmpl_",
    ),
}


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("size", [0, 300_000])
async def test_an_id_is_the_owners_when_its_first_byte_arrives(both, kind, size):
    """While the stream is still open; also where the first event is long, as it repeats the instructions."""
    path, body, prefix = STREAMS[kind]
    both.provider.pause = asyncio.Event()
    both.provider.edit = lambda made: {**made, "instructions": "x" * size}
    async with aiohttp.ClientSession() as session:
        sent = {"x-refold-key": both.anna.key, "content-type": JSON}
        async with session.post(f"{both.gate.url}{path}", data=json.dumps(body), headers=sent) as response:
            seen = await read_until(response, prefix.encode())
            made = next(name for name in both.provider.kept if name.startswith(prefix))
            assert made.encode() in seen
            both.provider.edit = lambda made: made
            assert (await both.anna.get(f"{path}/{made}")).status == 200
            assert (await both.ben.get(f"{path}/{made}")).status == 404
            both.provider.pause.set()
            rest = await response.read()

    assert rest
    assert (await both.ben.get(f"{path}/{made}")).status == 404


class Watched(MemoryStore):
    """A store that calls somebody before it keeps whose an id is."""

    async def before(self) -> None: ...

    async def learn(self, owner, topic, key, value, at):
        if topic.startswith("provider_"):
            await self.before()
        await super().learn(owner, topic, key, value, at)


@pytest.mark.parametrize("call", MADE)
async def test_an_answer_is_not_there_before_its_row(call):
    store = Watched()
    async with two(store=store) as both:
        answer = asyncio.ensure_future(both.anna.call("POST", *MADE[call]))
        was_there: list[bool] = []

        async def look() -> None:
            await both.ben.get("/v1/models")  # whatever was sent before this has arrived by now
            was_there.append(answer.done())

        store.before = look
        assert (await answer).status == 200
        assert was_there
        assert not any(was_there)


async def test_items_of_a_stream_are_the_owners_too(both):
    await both.anna.respond(SECRET, stream=True)
    (item,) = [name for name in both.provider.kept if name.startswith("item_")]

    assert (await both.ben.respond([{"type": "item_reference", "id": item}])).status == 404
    again = await both.anna.respond([{"type": "item_reference", "id": item}])
    assert SECRET in again.body.decode()


async def test_a_response_that_is_watched_again_hands_out_its_items(both):
    """One that was begun in the background: its items come later, by another call."""
    made = await both.anna.respond(SECRET, background=True, store=True)
    item = both.provider.make("item_", type="reasoning", summary=[SECRET])
    both.provider.kept[made.id]["output"].append(item)

    assert (await both.anna.respond([{"type": "item_reference", "id": item["id"]}])).status == 404
    watched = await both.anna.get(f"/v1/responses/{made.id}?stream=true")
    assert item["id"] in watched.body.decode()
    assert (await both.anna.respond([{"type": "item_reference", "id": item["id"]}])).status == 200
    assert (await both.ben.respond([{"type": "item_reference", "id": item["id"]}])).status == 404


EXECUTED = {
    "type": "bash_code_execution_tool_result",
    "tool_use_id": "t",
    "content": {
        "type": "bash_code_execution_result",
        "stdout": "",
        "content": [{"type": "bash_code_execution_output", "file_id": "file_made"}],
    },
}
CLAIMED = {"type": "tool_use", "id": "t", "name": "open", "input": {"file_id": "file_claimed", "container": {"id": "box"}}}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_files_and_containers_of_a_program_are_the_owners_and_what_a_model_says_is_not(both, stream):
    both.provider.kept |= {name: {"id": name} for name in ("file_made", "file_claimed", "container_1", "box")}
    text = [{"type": "text", "text": '{"file_id": "file_claimed"}'}]
    both.provider.edit = lambda made: {
        **made,
        "content": [EXECUTED, CLAIMED, *text],
        "container": {"id": "container_1", "expires_at": "2030-01-01T00:00:00Z"},
    }
    tools = [{"type": "code_execution_20250825", "name": "code_execution"}]
    said = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Run it."}],
        "tools": tools,
    }
    await both.anna.call("POST", "/v1/messages", {**said, "stream": stream})
    both.provider.edit = lambda made: made

    assert (await both.anna.get("/v1/files/file_made/content")).status == 200
    assert (await both.ben.get("/v1/files/file_made/content")).status == 404
    assert (await both.anna.get("/v1/files/file_claimed/content")).status == 404
    assert (await both.anna.call("POST", "/v1/messages", {**said, "container": "container_1"})).status == 200
    assert (await both.ben.call("POST", "/v1/messages", {**said, "container": "container_1"})).status == 404
    assert (await both.anna.call("POST", "/v1/messages", {**said, "container": {"id": "box"}})).status == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_spoken_answers_are_the_owners(both, stream):
    said = {
        "role": "assistant",
        "content": None,
        "audio": {"id": "audio_1", "data": "", "transcript": SECRET},
    }
    both.provider.edit = lambda made: {**made, "choices": [{"index": 0, "message": said}]}
    asked = {"model": "m", "modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
    again = {**asked, "messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}
    first = {**asked, "stream": stream, "messages": [{"role": "user", "content": "Hi."}]}
    await both.anna.call("POST", "/v1/chat/completions", first)

    assert (await both.anna.call("POST", "/v1/chat/completions", again)).status == 200
    assert (await both.ben.call("POST", "/v1/chat/completions", again)).status == 404


@pytest.mark.parametrize("how", ["body", "escaped", "header"])
async def test_an_id_that_the_client_chose_is_not_taken_for_its_own(both, how):
    """Some servers let a client name its request: that must not make it the owner of what another has under this name."""
    made = (await both.anna.respond(SECRET)).id
    both.provider.edit = lambda answered: {**answered, "id": made}
    sent = {"x_request_id": made.removeprefix("resp_")} if how == "header" else {}
    name = made.replace("_", "\\u005f") if how == "escaped" else made
    body = f'{{"model":"m","input":"a","request_id":"{name if how != "header" else ""}"}}'.encode()
    await both.ben.call("POST", "/v1/responses", body, **sent)
    both.provider.edit = lambda answered: answered

    assert (await both.ben.get(f"/v1/responses/{made}")).status == 404
    assert (await both.anna.get(f"/v1/responses/{made}")).status == 200


async def test_what_is_not_stored_has_no_row(both):
    await both.anna.respond(store=False)
    await both.anna.call("POST", "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "a"}]})  # fmt: skip
    made = [*both.provider.kept]

    for name in made:
        assert (await both.anna.get(f"/v1/responses/{name}")).status == 404
        assert (await both.anna.get(f"/v1/chat/completions/{name}")).status == 404


@pytest.mark.parametrize(
    ("allow", "opened", "closed"),
    [
        (["GET /v1/files"], [("GET", "/v1/files")], [("DELETE", "/v1/files"), ("GET", "/v1/batches")]),
        (["/v1/uploads*"], [("GET", "/v1/uploads/u"), ("POST", "/v1/uploads")], [("GET", "/v1/files")]),
        (["/v1/files/*"], [("GET", "/v1/files/{id}/content")], [("GET", "/v1/files"), ("GET", "/v1/%66iles/{id}")]),
        (["*"], [("GET", "/v1/files"), ("GET", "/v1/files/"), ("GET", "/v1/organization/x")], []),
    ],
)  # fmt: skip
async def test_an_allow_list_opens_more(allow, opened, closed):
    async with two(allow=tuple(allow)) as both:
        made = (await both.anna.upload(SECRET.encode())).id
        for calls, count in ((opened, 1), (closed, 0)):
            for method, path in calls:
                before = len(both.provider.asked)
                await both.ben.call(method, path.replace("{id}", made))
                assert len(both.provider.asked) == before + count, path


async def test_a_call_that_is_allowed_may_name_anything():
    async with two(allow=("POST /v1/responses",)) as both:
        made = (await both.anna.respond(SECRET)).id
        assert (await both.ben.respond(previous_response_id=made)).status == 200
        assert (await both.ben.get(f"/v1/responses/{made}")).status == 404


async def test_without_keys_there_is_one_owner_and_everything_passes_and_is_noted_all_the_same():
    async with two(has_keys=False) as both:
        made = (await both.anna.respond(SECRET)).id
        for path in (
            "/v1/files",
            "/v1/files/",
            f"/v1/responses/{made}",
            "/v1/responses/unknown",
            "/v1/%66iles",
        ):
            before = len(both.provider.asked)
            await both.anna.get(path)
            assert both.provider.last.path == path
            assert len(both.provider.asked) == before + 1
        assert (await both.anna.respond(previous_response_id="resp_unknown")).status == 200

        # Now keys are made. What was made before is the owner's who was here before.
        both.anna.key = await make_key(both.gate.store, "local")
        both.ben.key = await make_key(both.gate.store, "ben")
        assert (await both.anna.get(f"/v1/responses/{made}")).status == 200
        assert (await both.ben.get(f"/v1/responses/{made}")).status == 404


async def test_with_a_key_of_its_own_a_client_reaches_whatever_the_provider_shows_it():
    async with two(key_env="", pass_key=None) as both:
        own = {"authorization": "Bearer sk-ben"}
        for path in ("/v1/files", "/v1/responses/resp_1", "/v1/organization/x"):
            await both.ben.get(path, **own)
            assert (both.provider.last.path, both.provider.last.key) == (path, "sk-ben")
        before = len(both.provider.asked)
        assert both.refused(await both.ben.get("/v1/files"), before)  # without one it is everybody's


async def test_what_was_made_with_a_clients_own_key_is_not_reached_with_the_operators():
    async with two(pass_key=True) as both:
        own = {"authorization": "Bearer sk-ben"}
        made = (await both.ben.call("POST", "/v1/responses", {"model": "m", "input": SECRET}, **own)).id
        assert (await both.ben.get(f"/v1/responses/{made}", **own)).status == 200
        assert both.provider.last.key == "sk-ben"
        before = len(both.provider.asked)
        assert both.refused(await both.ben.get(f"/v1/responses/{made}"), before)


class Failing(MemoryStore):
    """A store that cannot keep whose an id is, or cannot say it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = self.reads = True

    async def learn(self, owner, topic, key, value, at):
        if not self.writes and topic.startswith("provider_"):
            raise StoreError("The disk is full.")
        await super().learn(owner, topic, key, value, at)

    async def learnt(self, owner, topic, key):
        if not self.reads and topic.startswith("provider_"):
            raise StoreError("The disk is gone.")
        return await super().learnt(owner, topic, key)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_id_that_cannot_be_noted_leaves_and_leads_nowhere(caplog, stream):
    store = Failing()
    async with two(store=store) as both:
        store.writes = False
        answer = await both.anna.respond(SECRET, stream=stream)
        assert answer.status == 200
        (made,) = [name for name in both.provider.kept if name.startswith("resp_")]
        assert made in answer.body.decode()
        store.writes = True

        assert (await both.anna.get(f"/v1/responses/{made}")).status == 404
        assert (await both.ben.get(f"/v1/responses/{made}")).status == 404
    assert "the owner of an id could not be stored: StoreError" in caplog.text


async def test_where_it_cannot_be_said_whose_an_id_is_nobody_reaches_it():
    store = Failing()
    async with two(store=store) as both:
        store.reads = False
        before = len(both.provider.asked)
        assert (await both.anna.get("/v1/responses/resp_7")).status == 503
        assert (await both.anna.respond(previous_response_id="resp_7")).status == 503
        assert len(both.provider.asked) == before
        assert (await both.anna.respond()).status == 200
        assert (await both.anna.get("/v1/models")).status == 200


async def test_after_a_restart_an_id_is_still_the_owners():
    store = MemoryStore()
    async with two(store=store) as both:
        made = (await both.anna.respond(SECRET)).json
    async with two(store=store) as again:
        again.provider.kept[made["id"]] = made
        assert (await again.anna.get(f"/v1/responses/{made['id']}")).status == 200
        assert (await again.ben.get(f"/v1/responses/{made['id']}")).status == 404


async def test_a_sweep_bounds_the_rows_of_an_owner(monkeypatch):
    monkeypatch.setattr(provider_state, "MOST_STORED", 3)
    async with two() as both:
        made = [(await both.anna.respond(f"Hi {number}.")).id for number in range(8)]
        others = (await both.ben.respond("Hi.")).id
        await both.gate.gateway.sweep()
        rows = [key for key, _ in await both.gate.store.all_learnt("anna", "provider_response")]
        assert sorted(rows) == sorted(made[-3:])
        assert (await both.anna.get(f"/v1/responses/{made[-1]}")).status == 200
        assert (await both.ben.get(f"/v1/responses/{others}")).status == 200


async def test_what_an_owner_deleted_is_reached_by_nobody():
    store = MemoryStore()
    async with two(store=store) as both:
        made = (await both.anna.respond(SECRET)).json
        await store.delete("anna")
    async with two(store=store) as again:
        again.provider.kept[made["id"]] = made
        assert (await again.anna.get(f"/v1/responses/{made['id']}")).status == 404
        assert (await again.ben.get(f"/v1/responses/{made['id']}")).status == 404


@asynccontextmanager
async def several(**more: Any) -> AsyncIterator[tuple[KeepingProvider, KeepingProvider, Client, Client]]:
    """Two upstreams, each with a key of the operator's; the second is a fallback of the first, and serves models of its own."""
    async with keeping() as first, keeping() as second, aiohttp.ClientSession() as session:
        upstreams = {
            "first": UpstreamSettings(
                url=first.url, formats=ALL, key_env="OPERATOR_KEY", fallback=("second",)
            ),
            "second": UpstreamSettings(
                url=second.url, formats=ALL, key_env="OPERATOR_KEY", models=("second-*",)
            ),
        }
        upstreams = {name: structs.replace(one, **more.get(name, {})) for name, one in upstreams.items()}
        targets = [*open_targets(upstreams, ENVIRON)]
        async with served(first, targets=targets, summariser_enabled=False) as gate:
            anna, ben = [Client(gate, await make_key(gate.store, name), session) for name in ("anna", "ben")]
            yield first, second, anna, ben


async def test_what_names_an_id_goes_to_the_upstream_that_made_it():
    async with several() as (first, second, anna, ben):
        made = (await anna.respond(SECRET, model="second-7")).id
        assert made in second.kept
        assert (await anna.get(f"/v1/responses/{made}")).status == 200
        assert (await anna.respond("Again.", previous_response_id=made)).status == 200
        assert first.asked == []
        asked = [one.method for one in second.asked if one.path.startswith("/v1/responses")]
        assert asked == ["POST", "GET", "POST"]
        assert (await ben.get(f"/v1/responses/{made}")).status == 404
        assert first.asked == []
        other = (await anna.respond(SECRET)).id
        second.kept[other] = {"id": other}  # of this name, and somebody else's
        body = {"model": "m", "input": "a", "previous_response_id": other}
        seen = len(second.asked)
        assert (await anna.call("POST", "/v1/responses", body, x_refold_upstream="second")).status == 404
        assert len(second.asked) == seen


async def test_what_a_fallback_made_is_found_there_again():
    async with several() as (first, second, anna, ben):
        first.status = 503
        made = (await anna.respond(SECRET)).id
        first.status = 200
        assert (await anna.get(f"/v1/responses/{made}")).status == 200
        assert len(second.asked) == 2
        assert (await ben.get(f"/v1/responses/{made}")).status == 404


async def test_a_call_that_names_an_id_is_not_sent_to_a_fallback_that_does_not_have_it():
    async with several() as (first, second, anna, _):
        made = (await anna.respond(SECRET)).id
        first.status = 503
        assert (await anna.respond("Again.", previous_response_id=made)).status == 503
        assert second.asked == []
        assert (await anna.respond("Something else.")).status == 200
        assert len(second.asked) == 1


async def test_a_fallback_with_the_operators_key_is_guarded_where_the_first_has_the_clients():
    async with several(first={"key_env": ""}) as (first, second, _, ben):
        second.make("resp_", output=[SECRET])
        first.status = 503
        own = {"authorization": "Bearer sk-ben"}
        assert (await ben.get("/v1/responses/resp_1", **own)).status == 503
        assert (await ben.get("/v1/files", **own)).status == 503
        assert second.asked == []
        body = {"model": "m", "input": "Hi."}
        assert (await ben.call("POST", "/v1/responses", body, **own)).status == 200
        assert [one.key for one in second.asked] == [OPERATOR]


async def test_a_clients_key_is_not_sent_along_to_a_fallback_that_made_something():
    async with several(first={"key_env": ""}, second={"key_env": ""}) as (first, second, anna, _):
        first.status = 503
        own = {"authorization": "Bearer sk-anna"}
        body = {"model": "m", "input": "Hi."}
        made = (await anna.call("POST", "/v1/responses", body, **own)).id
        await anna.get(f"/v1/responses/{made}", **own)
        assert [one.key for one in second.asked] == ["", ""]


NO_JSON = [
    ("/v1/responses", "application/x-www-form-urlencoded", "model=m&input=x&previous_response_id={id}"),
    ("/v1/batches", "application/x-www-form-urlencoded", "input_file_id={id}&endpoint=/v1/responses"),
    ("/v1/responses", "application/yaml", "model: m\nprevious_response_id: {id}\n"),
    ("/v1/responses", "application/json", "{{model: 'm', previous_response_id: '{id}'}}"),
    ("/v1/responses", "multipart/form-data; boundary=b", "--b\r\ncontent-disposition: form-data; name=previous_response_id\r\n\r\n{id}\r\n--b--"),
    ("/v1/images/edits", "multipart/form-data; boundary=b", "--b\r\ncontent-disposition: form-data;  name*=utf-8''file%5Fid\r\n\r\n{id}\r\n--b--"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "kind", "body"), NO_JSON)
async def test_what_is_no_json_is_not_sent(both, path, kind, body):
    made = (await both.anna.respond("mine")).id
    before = len(both.provider.asked)

    answer = await both.ben.call("POST", path, body.format(id=made).encode(), content_type=kind)

    assert answer.status == 400
    assert len(both.provider.asked) == before
