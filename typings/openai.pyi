# The part of the OpenAI SDK that `refold demo` uses, for mypy alone.
#
# The SDK itself is 2,000 modules, and reading them took longer than checking Refold. What is written here is tried against
# the real SDK by the tests of `refold demo`.

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

class _HttpResponse:
    headers: Mapping[str, str]

class APIStatusError(Exception):
    response: _HttpResponse
    status_code: int
    code: str | None
    type: str | None

class _Message:
    def model_dump(self, *, exclude_none: bool = ...) -> dict[str, Any]: ...

class _Choice:
    message: _Message

class _Completion:
    choices: list[_Choice]

class _RawResponse:
    headers: Mapping[str, str]
    def parse(self) -> _Completion: ...

class _RawCompletions:
    async def create(self, **fields: Any) -> _RawResponse: ...

class _Completions:
    with_raw_response: _RawCompletions

class _Chat:
    completions: _Completions

class AsyncOpenAI:
    chat: _Chat
    def __init__(self, *, base_url: str, api_key: str, max_retries: int) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
