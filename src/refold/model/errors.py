"""Every error Refold raises, in one tree.

    RefoldError
    ├── ConfigError               a setting, a policy or an argument that cannot work
    │   ├── BudgetError           sizes that leave no room for a conversation
    │   ├── MissingExtra          the optional dependency of a feature is not installed
    │   └── SettingError          an invalid value in the settings; `key` names it
    │       ├── SettingFixed      a flag or the environment overrides it; `origin` names it
    │       └── SettingLocked     a setting that cannot be changed over HTTP
    ├── WireError                 JSON that is not a valid conversation; `place` locates it
    │   ├── BodyTooLarge
    │   ├── BodyEncoded           a compressed request
    │   ├── BodyTooSlow           a request that took too long to arrive
    │   └── WebSocketRefused      a client that asks the gateway for a WebSocket
    ├── AccessError               a request from a place that the gateway does not accept
    │   └── KeyRefused            no key, or no valid one
    ├── Busy                      the gateway has no room for a request now; `retry_s` says when to try again
    │   └── TooManyRequests       the owner of the request has too many under way, or sends them too fast
    ├── WindowError               a window that must not be sent
    │   ├── InvalidWindow         verification found violations
    │   └── DoesNotFit            nothing more can be taken away
    ├── UpstreamError             a provider's response that is not a reply; `overflow` classifies it
    │   ├── ContextOverflow
    │   ├── OutputCapExceeded
    │   ├── RateLimited
    │   ├── MalformedHistory
    │   └── UpstreamUnavailable
    ├── RecoverySpent             the input is still too long after the last recovery
    │   └── NotAnOverflow         the provider refused it for another reason than its length
    ├── PluginError               a plugin that fails closed has failed, and the request ends
    │   └── PluginRefused         a plugin does not let the request or the answer through
    ├── SummaryError              no summary could be made; the history is unchanged
    ├── Stopping                  a request to a gateway that is being stopped
    └── StoreError                a stored conversation that cannot be read or written
        ├── NotFound
        ├── Damaged               the stored data differs from the data written
        ├── HeldElsewhere         another branch holds the same history
        └── Conflict              another writer was first; load and try again

The caller can fix `ConfigError`, `WireError` and `AccessError`; the other errors happen at run time. The
docstring of a class is its default message, in lower case and without a full stop. No message contains
conversation content or a key. The place of the fault (a file, a host, a database) is for the operator only and
is kept apart, in `location`: commands and tracebacks show it, `str(error)` and the gateway's responses do not.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    pass
from typing import Literal, TypeAlias

from msgspec import Struct, structs


class RefoldError(Exception):
    """Refold cannot continue."""

    default_hint: ClassVar[str] = ""

    def __init__(self, message: str = "", *, hint: str = "", location: str = "") -> None:
        self.message = message or _default_message(type(self))
        self.hint = hint or self.default_hint
        self.location = location
        super().__init__(self.message)
        if location:
            self.add_note(location)

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    @property
    def located(self) -> str:
        """The message with the location. For the operator, never for a client of the gateway."""
        return f"{self.message}: {self.location}" if self.location else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), self.args, self.__dict__)


def _default_message(kind: type[RefoldError]) -> str:
    """The docstring of the class in the voice of all messages: lower case, no full stop."""
    text = (kind.__doc__ or "").strip().removesuffix(".")
    return text if text.startswith("Refold") else text[:1].lower() + text[1:]


def _restore(kind: type[RefoldError], args: tuple[object, ...], state: dict[str, object]) -> RefoldError:
    """Unpickle an error of any class, independent of its constructor's parameters."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    error.args = args
    return error


class ConfigError(RefoldError):
    """A setting cannot work."""


class BudgetError(ConfigError):
    """The budget leaves no room for a conversation."""


class MissingExtra(ConfigError):
    """An optional dependency is not installed."""

    def __init__(self, extra: str, what: str) -> None:
        self.extra = extra
        super().__init__(
            f"{what} needs the extra '{extra}'", hint=f"install it with: pip install 'refold[{extra}]'"
        )

    def hint_for(self, python: str) -> str:
        """The hint with the pip of this Python: the `pip` of a shell may belong to another environment."""
        return f"install it with: {python} -m pip install 'refold[{self.extra}]'"


class SettingError(ConfigError):
    """A setting cannot be used."""

    def __init__(self, key: str, what: str = "", *, place: str = "", hint: str = "") -> None:
        self.key, self.what, self.place = key, what or _default_message(type(self)), place
        super().__init__(f"{key}: {self.what}", hint=hint, location=place)

    @property
    def located(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class SettingFixed(SettingError):
    """It was fixed when the program was started, and cannot be changed while it runs."""

    def __init__(self, key: str, origin: str) -> None:
        self.origin = origin
        super().__init__(key, f"it is fixed by {origin}", hint="start the program without that to change it")


class SettingLocked(SettingError):
    """It is never changed while the gateway runs."""

    def __init__(self, key: str) -> None:
        hint = "set it in a file, in the environment or with a flag"
        super().__init__(key, "it is never changed while the gateway runs", hint=hint)


class WireError(RefoldError):
    """The JSON is not a valid conversation."""

    def __init__(self, message: str = "", *, place: str = "", hint: str = "") -> None:
        self.place = place
        super().__init__(message, hint=hint)
        if place:
            self.message = f"{place}: {self.message}"
            self.args = (self.message,)


class BodyTooLarge(WireError):
    """The body is larger than the limit."""

    default_hint = "raise max_body_bytes, or send media by reference instead of inline"


class BodyEncoded(WireError):
    """The body is compressed."""

    default_hint = "send it without Content-Encoding"


class BodyTooSlow(WireError):
    """The body took too long to arrive."""

    default_hint = "send the request again, over a faster connection"


class WebSocketRefused(WireError):
    """The gateway speaks HTTP, and no WebSocket."""

    default_hint = "send the request by POST; clients that try a WebSocket first do so by themselves"


class AccessError(RefoldError):
    """The gateway does not accept requests from this place."""


class KeyRefused(AccessError):
    """The request has no valid key for this gateway."""

    default_hint = (
        "make one with `refold keys create`, and send it as a bearer token, as x-api-key or as X-Refold-Key"
    )


class Busy(RefoldError):
    """The gateway has no room for the request now."""

    def __init__(self, message: str = "", *, hint: str = "", location: str = "", retry_s: int = 1) -> None:
        super().__init__(message, hint=hint, location=location)
        self.retry_s = retry_s


class TooManyRequests(Busy):
    """The owner of the request has too many under way."""


class WindowError(RefoldError):
    """The window must not be sent."""


class InvalidWindow(WindowError):
    """The window breaks a rule of its dialect."""


class DoesNotFit(WindowError):
    """The window does not fit, and nothing more can be taken away."""

    default_hint = "use a model with a larger window, or shorten the system prompt and the tool definitions"


class UpstreamError(RefoldError):
    """The provider did not give a reply. `reason` says why in a few words, such as `answered 401`, without the
    provider's name and its text.
    """

    def __init__(
        self, message: str = "", *, overflow: Overflow | None = None, reason: str = "", hint: str = ""
    ) -> None:
        self.overflow, self.reason = overflow, reason
        super().__init__(message, hint=hint)


class ContextOverflow(UpstreamError):
    """The provider says that the input is too long."""


class OutputCapExceeded(UpstreamError):
    """The request asks for more output tokens than the model can write."""

    default_hint = "lower max_tokens"


class RateLimited(UpstreamError):
    """The provider asks to slow down."""


class MalformedHistory(UpstreamError):
    """The provider refuses the order or the pairing of the messages."""

    default_hint = "run `refold check --as-request` on the conversation"


class UpstreamUnavailable(UpstreamError):
    """The provider cannot be reached."""


class RecoverySpent(RefoldError):
    """The input is still too long after the last recovery."""

    default_hint = "start a new session, or use a model with a larger window"


class Stopping(RefoldError):
    """The gateway is being stopped."""

    default_hint = "ask again: another gateway answers, or this one after its restart"


class NotAnOverflow(RecoverySpent):
    """The provider refused a request for another reason than its length: a smaller one would not help."""

    default_hint = "raise the provider's own error"


class PluginError(RefoldError):
    """A plugin has failed, and no request is sent without it."""

    default_hint = "the log of Refold says why; `refold plugins check` tries it"


class PluginRefused(PluginError):
    """A plugin does not let it through."""

    default_hint = "the plugin's own documentation says what it accepts"


class SummaryError(RefoldError):
    """No summary could be made; the history is unchanged."""


class StoreError(RefoldError):
    """The stored conversation cannot be read or written."""

    default_hint = "run `refold doctor` to check what is stored"


class NotFound(StoreError):
    """There is no such conversation, session or message."""

    default_hint = "it may have been deleted meanwhile; `refold conversations` lists those that there are"


class Damaged(StoreError):
    """The stored data cannot be read."""

    default_hint = "run `refold doctor` to see what is damaged, and restore it from a backup"

    def __init__(
        self,
        what: str = "",
        *,
        conversation: str = "",
        seq: int | None = None,
        hint: str = "",
        location: str = "",
    ) -> None:
        self.what, self.conversation, self.seq = what or _default_message(type(self)), conversation, seq
        is_named = f"the conversation {conversation[:80]!r} is damaged: " if conversation else ""
        super().__init__(is_named + self.what, hint=hint, location=location)


class HeldElsewhere(StoreError):
    """Another branch holds this history already."""

    default_hint = "go on with that branch"


class Conflict(StoreError):
    """Another writer was first; load the conversation and try again."""

    default_hint = "another program may be writing to the same conversation"


# The classified meaning of a provider's refusal for the size of a window.

OverflowKind: TypeAlias = Literal[
    "input_too_long",
    "input_plus_output",
    "bytes_too_large",
    "output_cap",
    "rate_limit",
    "malformed_history",
    "other",
]
LimitOf: TypeAlias = Literal["window", "minute", "item"]


MIN_WINDOW, MAX_TOKENS = 256, 100_000_000
"""The windows that models have, in tokens. A smaller number in a setting is a percent, a larger one a typing error. A refusal
that states another window has a wrong number, and must not shrink or lift the window of the model."""
NOT_TOKENS = "is not a number of tokens from {:,} to {:,}"
"""What is said of a value outside of its range: the same words in the library, the settings, the options and the gateway."""


class Overflow(Struct, frozen=True):
    """A classified error response, with the numbers that the provider stated (None for those it did not state)."""

    kind: OverflowKind
    limit: int | None = None
    """The largest size the provider accepts, in tokens (bytes for `bytes_too_large`, output tokens for `output_cap`)."""
    limit_of: LimitOf = "window"
    """The scope of the limit. Only the window's is worth remembering: a minute's is the account's, an item's one image's."""
    requested: int | None = None
    """The size of the whole request, including the output if the provider counts it."""
    prompt: int | None = None
    """The size of the input alone."""
    output: int | None = None
    """The requested output tokens."""
    evidence: str = ""
    """The rule that decided, for receipts and tests; never the provider's text."""

    @property
    def window(self) -> int | None:
        """The window that was stated; None if none was, or one that no model has."""
        is_stated = self.limit is not None and self.limit_of == "window" and self.is_overflow
        return self.limit if is_stated and MIN_WINDOW <= (self.limit or 0) <= MAX_TOKENS else None

    @property
    def is_overflow(self) -> bool:
        """True if a smaller window solves the refusal."""
        return self.kind in ("input_too_long", "input_plus_output")

    def without(self, tokens: int) -> Overflow:
        """The same refusal as if prompt and window had so many tokens less."""
        if not tokens or not self.is_overflow:
            return self
        is_window = self.limit_of == "window"
        return structs.replace(
            self,
            limit=max(1, self.limit - tokens) if self.limit and is_window else self.limit,
            requested=max(0, self.requested - tokens) if self.requested else self.requested,
            prompt=max(0, self.prompt - tokens) if self.prompt else self.prompt,
        )


def error_location(error: BaseException) -> str:
    """The type of an error and where it was raised, without its text, which may hold content. A syntax error is raised
    by the compiler, so its place is the line of the file that cannot be read.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__} at {error.filename.rpartition('/')[2]}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"
