"""Bodies that nobody should send: each with a name, made for the path that it goes to."""

from __future__ import annotations

import msgspec

from tests.gateway.faults.wires import PATHS

DEEP = 100_000
KEYS = {"chat": "messages", "responses": "input", "anthropic": "messages"}


def around(name: str, messages: bytes, more: bytes = b"") -> bytes:
    """A request of a format around its list of messages."""
    return b'{"model":"gpt-5","max_tokens":50,"%s":%s%s}' % (KEYS[name].encode(), messages, more)


def said(content: bytes, role: bytes = b'"user"', more: bytes = b"") -> bytes:
    return b'[{"role":%s,"content":%s%s}]' % (role, content, more)


HI = said(b'"hi"')
FIELDS = {
    "a huge integer": b',"max_tokens":1%s' % (b"0" * 400),
    "a number that is no number": b',"temperature":1e999',
    "NaN": b',"temperature":NaN',
    "Infinity": b',"top_p":-Infinity',
    "the same field twice": b',"model":"other","model":"gpt-5"',
    "a negative limit": b',"max_tokens":-1',
    "a limit beyond all measure": b',"max_tokens":1e308',
    "a stream that is a word": b',"stream":"yes"',
    "tools that are a number": b',"tools":5',
    "tools of numbers": b',"tools":[1,2]',
    "tools of nothing": b',"tools":[{},{}]',
    "a deep tool": b',"tools":[%s1%s]' % (b'{"function":' * 200, b"}" * 200),
    "many tools": b',"tools":[%s{}]' % (b'{"type":"function"},' * 20_000),
    "a model that is a list": b',"model":["gpt-5"]',
    "a model with a NUL": b',"model":"gpt\\u0000-5"',
    "a model of a megabyte": b',"model":"%s"' % (b"m" * 1_000_000),
    "a model that is half a character": b',"model":"\\ud83d"',
    "a name with a NUL": b',"metadata":{"session_id":"a\\u0000b"},"prompt_cache_key":"\\u0000"',
    "metadata that is a list": b',"metadata":[[]],"prompt_cache_key":5',
    "options that are a word": b',"stream":true,"stream_options":"all"',
    "a system prompt of numbers": b',"system":[1,2],"instructions":[3]',
    "a system prompt that is an object": b',"system":{"text":"x"},"instructions":{}',
    "marks everywhere": b',"cache_control":[1],"system":[{"type":"text","text":"x","cache_control":"now"}]',
    "a conversation that is elsewhere": b',"previous_response_id":7,"conversation":{"id":[]}',
    "half a character as a key": b',"\\ud800":1',
    "a key of a megabyte": b',"%s":1' % (b"k" * 1_000_000),
}
LISTS = {
    "no messages": b"[]",
    "messages that are null": b"null",
    "messages that are an object": b"{}",
    "messages that are a number": b"7",
    "messages of nothing": b"[null]",
    "messages of lists": b"[[],[]]",
    "messages of numbers": b"[1,2,3]",
    "empty messages": b"[{},{}]",
    "a message without content": b'[{"role":"user"}]',
    "an unknown role": said(b'"hi"', b'"wizard"'),
    "a role that is a number": said(b'"hi"', b"5"),
    "half a character": said(b'"\\ud800"'),
    "half a character in a role": said(b'"hi"', b'"\\udc00"'),
    "a NUL in a text": said(b'"a\\u0000b"'),
    "a raw NUL": said(b'"a\x00b"'),
    "raw control characters": said(b'"a\x01\x1f\x7fb"'),
    "bytes that are no text": said(b'"\xff\xfe\x80"'),
    "half of a byte sequence": said(b'"\xf0\x9f\x8e"'),
    "an overlong character": said(b'"\xc0\xaf"'),
    "a surrogate in bytes": said(b'"\xed\xa0\x80"'),
    "content that is a number": said(b"12"),
    "content of numbers": said(b"[1,2]"),
    "content of lists": said(b"[[],[]]"),
    "blocks of unknown kinds": said(b'[{"type":"x"},{"type":5},{}]'),
    "a result without a call": said(b'"hi"', b'"tool"'),
    "calls that are a word": said(b"null", b'"assistant"', b',"tool_calls":"all"'),
    "calls of nothing": said(b"null", b'"assistant"', b',"tool_calls":[{},null]'),
    "arguments that are no JSON": said(
        b"null",
        b'"assistant"',
        b',"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{"}}]',
    ),
    "only a system prompt": said(b'"hi"', b'"system"'),
    "a very long text": said(b'"%s"' % (b"word " * 200_000)),
    "nested lists": said(b"[" * DEEP + b"]" * DEEP),
    "nested objects": said(b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    "nested lists that never end": b"[" * DEEP,
    "many images in one message": said(
        b"[%s]"
        % b",".join([b'{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}'] * 20_000)
    ),
    "many calls in one message": said(
        b"null",
        b'"assistant"',
        b',"tool_calls":[%s]'
        % b",".join([b'{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}'] * 20_000),
    ),
    "many small messages": b"[%s]" % b",".join([b'{"role":"user","content":"a"}'] * 20_000),
}
WHOLE = {
    "nothing": b"",
    "white space": b" \n\t ",
    "null": b"null",
    "a list": b"[]",
    "a word": b'"hi"',
    "a number": b"1",
    "half an object": b'{"model":"gpt-5","messages":[',
    "two objects": b"{}{}",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"model":"gpt-5"}'.encode("utf-16"),
    "a form": b"model=gpt-5&messages=hi",
    "only brackets": b"[" * DEEP + b"]" * DEEP,
    "only braces": b'{"a":' * DEEP,
}


def bodies(name: str) -> dict[str, bytes]:
    """Everything, for a format."""
    return (
        {what: around(name, HI, field) for what, field in FIELDS.items()}
        | {what: around(name, listed) for what, listed in LISTS.items()}
        | WHOLE
    )


def is_own_shape(path: str, answer: bytes) -> bool:
    """Is it an error as the format of a path spells it?"""
    try:
        told = msgspec.json.decode(answer)
    except msgspec.DecodeError:
        return False
    error = told.get("error") if isinstance(told, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return False
    if path.startswith(PATHS["anthropic"]):
        return told.get("type") == "error" and isinstance(error.get("type"), str)
    return {"message", "type", "param", "code"} <= error.keys()
