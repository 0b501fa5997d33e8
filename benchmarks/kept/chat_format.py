"""Contexts in the model's own chat format, and their token ids; both are read from the GGUF file of the weights.

A rendered conversation is split before every start-of-message token. A tokenizer takes such tokens out of the
text first, so that the pieces have the same ids alone as together: each is tokenised and stored once, although
most contexts share most of their messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Message = Mapping[str, Any]
Encode = Callable[[str], list[int]]

START = "<|im_start|>"
_PIECES = re.compile(rf"(?={re.escape(START)})")
_QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How the tokenizers of Qwen 2 and 2.5 split text into words (`pre` in GGUF has only the name of it)."""
_CONTROL, _USER_DEFINED = 3, 4
"""Token types of GGUF: tokens that stand for themselves in a text."""


class ChatFormat:
    """A chat template, applied as the `transformers` library applies it."""

    def __init__(self, template: str) -> None:
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(template)

    def text(
        self, messages: Sequence[Message], tools: Sequence[Message] = (), *, prompt: bool = False
    ) -> str:
        """The conversation; with `prompt` also the beginning of the next reply."""
        return self._template.render(
            messages=[plain(message) for message in messages],
            tools=list(tools) or None,
            add_generation_prompt=prompt,
        )

    def segments(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> list[str]:
        return split(self.text(messages, tools))

    def header(self) -> str:
        """The beginning of a reply, which ends every context."""
        before = [{"role": "user", "content": ""}]
        return self.text(before, prompt=True).removeprefix(self.text(before))

    def reply(self, message: Message) -> str:
        """A recorded reply, from after the header to the end-of-message token."""
        before: list[Message] = [{"role": "user", "content": ""}]
        whole, start = self.text([*before, message]), self.text(before, prompt=True)
        if not whole.startswith(start):
            raise ValueError("this chat template does not begin a recorded reply as it begins a new one")
        return whole[len(start) :].rstrip("\n")


def split(text: str) -> list[str]:
    return [piece for piece in _PIECES.split(text) if piece]


def plain(message: Message) -> dict[str, Any]:
    """A Chat Completions message with what templates read: text as one string, arguments as values."""
    role = "system" if message["role"] == "developer" else message["role"]
    out = {"role": role, "content": text_of(message)}
    calls = [call["function"] for call in message.get("tool_calls") or () if "function" in call]
    if calls:
        out["tool_calls"] = [
            {"function": {"name": call["name"], "arguments": _value(call["arguments"])}} for call in calls
        ]
    return out


def text_of(message: Message) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "") for block in content)


def _value(arguments: object) -> object:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def read_gguf(path: Path) -> tuple[ChatFormat, Encode]:
    """The chat format and the tokenizer of the weights.

    The tokenizer is built from the vocabulary in the file, so that contexts can be written without torch and
    `transformers`; the ids of the tokens that stand for themselves are checked.
    """
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    kind = fields["tokenizer.ggml.pre"].contents()
    if kind != "qwen2":
        raise ValueError(f"{path.name} has a tokenizer of the kind {kind!r}; only qwen2 is known here")
    tokenizer = _tokenizer(
        *(fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type", "merges"))
    )
    return ChatFormat(fields["tokenizer.chat_template"].contents()), tokenizer


def _tokenizer(tokens: list[str], types: list[int], merges: list[str]) -> Encode:
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    made = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(tokens)}, merges=pairs))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    whole = [token for token, kind in zip(tokens, types, strict=True) if kind in (_CONTROL, _USER_DEFINED)]
    made.add_tokens([AddedToken(token, normalized=False) for token in whole])
    moved = [token for token in whole if tokens[made.token_to_id(token)] != token]
    if moved:
        raise ValueError(f"{len(moved)} tokens have other ids than in the weights")
    return lambda text: made.encode(text, add_special_tokens=False).ids
