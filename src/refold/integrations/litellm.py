"""LiteLLM: a callback that makes requests fit, in the proxy and in `litellm.acompletion`.

    litellm.callbacks = [RefoldCallback(refold.sync.Engine("sqlite:///chats.db"))]

It changes a request after LiteLLM has chosen the deployment and before it is sent, in the formats of Chat Completions, Responses and
Anthropic's Messages. The usage is recorded before the reply is returned; that of a stream when LiteLLM logs it. `wrap` is for calls that
LiteLLM shows to no callback.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from hashlib import sha256
from typing import Any, ParamSpec, TypeVar, cast
from uuid import uuid4

from refold.integrations.histories import PreparedCall, as_usage, named_by_client
from refold.integrations.sdk_clients import (
    HEADER,
    WrappedCalls,
    merged_arguments,
    observed,
    reported_usage,
    send_until_it_fits,
)
from refold.model.errors import ConfigError, MissingExtra
from refold.sync import Conversation, Engine

try:
    from litellm.integrations.custom_logger import CustomLogger
except ImportError:
    raise MissingExtra("litellm", "the callback of LiteLLM") from None

NAME = "refold_conversation"
"""The key in a request's `metadata` that names its conversation."""
OPEN_CALLS = 1_000
"""Calls whose usage is waited for: LiteLLM logs streams in the background, and never one that was cancelled."""
MASTER = "litellm_proxy_master_key"
"""LiteLLM's word in place of the hash of its master key."""
_LITELLM_HASH = re.compile("[0-9a-f]{64}")
_FORMATS = {"acompletion": "chat", "completion": "chat", "aresponses": "responses", "responses": "responses"}
_FORMATS["anthropic_messages"] = "anthropic"
P = ParamSpec("P")
R = TypeVar("R")


class RefoldCallback(CustomLogger):
    """Sends each history through a conversation. Put it into `litellm.callbacks`, or name it in the proxy's configuration.

    Args:
        engine: keeps the conversations, with the window and the other settings; by default in memory.
    """

    def __init__(self, engine: Engine | None = None) -> None:
        super().__init__()
        self._calls = WrappedCalls(engine, "")
        self._open: OrderedDict[str, PreparedCall] = OrderedDict()
        self.refold_id = uuid4().hex
        """LiteLLM logs to one callback of a class only, unless they differ in a public text."""

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> dict[str, Any]:
        """Replace the messages of a request."""
        wire, asked = _FORMATS.get(getattr(call_type, "value", call_type) or ""), _call_id(kwargs)
        if (
            wire is None or asked in self._open
        ):  # LiteLLM translates some calls, and shows them in both formats
            return kwargs
        call = await asyncio.to_thread(self._prepare, wire, kwargs)
        if call is not None and call.conversation is not None:
            self._open[asked] = call
            if len(self._open) > OPEN_CALLS:
                self._open.popitem(last=False)
        return merged_arguments(call, kwargs)

    def wrap(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return `litellm.completion`, `acompletion` or another function of LiteLLM with its requests made to fit, also if its
        arguments are given by position.

        LiteLLM shows its callbacks no call of `completion`, and no arguments by position. A request of `completion` that the provider
        refuses as too long is sent again, smaller.

        Raises:
            ConfigError: the function asks no model.
        """
        name = getattr(function, "__name__", "")
        if name not in _FORMATS:
            raise ConfigError(
                f"{name or 'this'} is no function of LiteLLM that asks a model",
                hint="give litellm.completion, acompletion, responses or aresponses",
            )
        names = [*inspect.signature(function).parameters]
        ask = cast("Callable[..., Any]", function)

        async def observed_later(given: dict[str, Any]) -> Any:
            reply = await ask(**given)
            has_usage = name == "aresponses" or (given.get("stream_options") or {}).get("include_usage")
            if not hasattr(reply, "__anext__") or not has_usage:
                return reply  # the usage is recorded by a hook
            return observed(reply, self._open.pop(_call_id(given), None), is_async=True)

        @wraps(function)
        def call_by_name(*args: P.args, **kwargs: P.kwargs) -> Any:
            given = {**dict(zip(names, args, strict=False)), **kwargs}
            if name == "completion":
                call = self._prepare("chat", given)
                reply = send_until_it_fits(lambda: ask(**merged_arguments(call, given)), call)
                return observed(reply, call)
            given.setdefault("litellm_call_id", str(uuid4()))
            if name != "responses":
                return observed_later(given)
            reply = ask(**given)  # the hooks are called
            return observed(reply, self._open.pop(_call_id(given), None))

        return call_by_name

    def _prepare(self, wire: str, given: Mapping[str, Any]) -> PreparedCall | None:
        """Take the history of a call; None where it is to be passed on as it is."""
        name, owner = _named(given)
        named = {**given, "model": str(given.get("model") or "").rpartition("/")[2], NAME: name}
        return self._calls.prepare(wire, named, owner=owner)[0]

    async def async_post_call_success_deployment_hook(
        self,
        request_data: Mapping[str, Any],
        response: Any,
        call_type: Any,  # noqa: ARG002  # the framework's signature
    ) -> None:
        """Record the usage of a call. LiteLLM waits for this hook, and does not call it for streams."""
        await self._record(request_data, response)

    async def async_log_success_event(
        self,
        kwargs: dict[str, Any],
        response_obj: Any,
        start_time: Any,  # noqa: ARG002  # the framework's signature
        end_time: Any,  # noqa: ARG002
    ) -> None:
        """Record the usage of a stream. LiteLLM logs in the background, in the event loop of its latest call: where that one ends soon,
        as with `responses` or `asyncio.run`, the log may be lost.
        """
        await self._record(kwargs, response_obj)

    async def _record(self, kwargs: Mapping[str, Any], reply: Any) -> None:
        usage = reported_usage(reply)
        call = self._open.pop(_call_id(kwargs), None) if usage is not None else None
        if call is None:
            return
        if (
            prompt := getattr(usage, "prompt_tokens", None)
        ) is not None:  # LiteLLM's own report, in every format
            cached = getattr(getattr(usage, "prompt_tokens_details", None), "cached_tokens", None)
            usage = as_usage(prompt, usage.completion_tokens, cached)
        await asyncio.to_thread(call.record, usage)

    async def async_post_call_failure_deployment_hook(
        self,
        request_data: Mapping[str, Any],
        exception: Exception,
        call_type: Any,  # noqa: ARG002  # the framework's signature
        fallback_depth: int | None = None,  # noqa: ARG002
    ) -> None:
        """Learn from a refusal for the length: the next request, also a retry of LiteLLM, is smaller."""
        call = self._open.pop(_call_id(request_data), None)
        if call is not None:
            await asyncio.to_thread(call.recover, exception)

    def conversation(
        self,
        messages: Sequence[object] = (),
        *,
        name: str = "",
        format: str = "chat",  # noqa: A002  # the word users know
    ) -> Conversation | None:
        """Return the conversation of a name, or the one that these messages belong to; None if there is none."""
        return self._calls.conversation(messages, name=name, format=format)

    def recall(
        self,
        arguments: str | Mapping[str, object],
        messages: Sequence[object] = (),
        *,
        name: str = "",
        format: str = "chat",  # noqa: A002  # the word users know
    ) -> str:
        """Return the answer to a model's call of `refold.recall_tool`, in the conversation of a name or of these messages."""
        return self._calls.recall(arguments, messages, name=name, format=format)


def _call_id(kwargs: Mapping[str, Any]) -> str:
    return str(kwargs.get("litellm_call_id"))


def _named(kwargs: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name of a request's conversation, which may be empty, and its owner: from its metadata, the header of the gateway, or
    LiteLLM's session. In the proxy both belong to the client, so that no client finds another one's.
    """
    found, owner = "", ""
    for field in ("metadata", "litellm_metadata"):
        metadata = kwargs.get(field)
        if isinstance(metadata, Mapping):
            found = found or str(metadata.get(NAME) or "")
            owner = owner or _owner(metadata)
    request = kwargs.get("proxy_server_request")
    headers = request.get("headers") if isinstance(request, Mapping) else None
    if isinstance(headers, Mapping):
        found = found or str({str(key).lower(): value for key, value in headers.items()}.get(HEADER) or "")
    found = found or str(kwargs.get("litellm_session_id") or "")
    is_of_client = bool(owner) or isinstance(request, Mapping)
    return named_by_client(owner, found) if found and is_of_client else found, owner


def _owner(metadata: Mapping[str, Any]) -> str:
    """Return what stands for a client of the proxy before the names of its conversations; empty outside of a proxy. LiteLLM hashes
    its own keys; what a `custom_auth` returns may be a key in plain, or a user without one. LiteLLM drops these fields from what a
    client sends.
    """
    if key := str(metadata.get("user_api_key_hash") or ""):
        is_shown = key == MASTER or _LITELLM_HASH.fullmatch(key)
        return key[:12] if is_shown else sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    user = str(metadata.get("user_api_key_user_id") or "")
    return sha256(f"user {user}".encode("utf-8", "surrogatepass")).hexdigest()[:32] if user else ""
