"""Settings that are fine by themselves and do not go together.

One idea: whatever can be known to fail is told when the settings are read, and not when the first request comes.
"""

from __future__ import annotations

import re

from refold.config.tree import Settings, Upstream
from refold.core.regex_safety import ambiguity
from refold.model.budget import Share, Tokens
from refold.model.errors import SettingError

KEY_HEADERS = ("authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def check(settings: Settings) -> None:
    """
    Raises:
        SettingError: something cannot work; `key` says what.
    """
    _check_sizes(settings)
    _check_patterns(settings)
    for name, upstream in settings.upstreams.items():
        _check_upstream(settings, name, upstream)
    _check_policy(settings)
    _check_summarisers(settings)


def _check_sizes(settings: Settings) -> None:
    chosen = settings.compaction
    if chosen.limit in (Tokens(0), Share(0.0)):
        raise SettingError(
            "compaction.limit", "nothing would be left to use", hint="give more, or leave it out"
        )
    if chosen.trigger == Share(0.0):
        raise SettingError(
            "compaction.trigger", "it would compact without end", hint="give more than 0%, such as 80%"
        )


def _check_patterns(settings: Settings) -> None:
    for at, pattern in enumerate(settings.compaction.sensitive, 1):
        try:
            if ambiguity(re.compile(pattern)):
                raise SettingError(
                    "compaction.sensitive",
                    f"number {at} could take for ever on some text",
                    hint="it can read one text in several ways: write .{0,200} for .*, and no repetition inside of another",
                )
        except re.error as error:
            # What `re` says quotes the pattern, which is as private as what it is to hide.
            position = "" if error.pos is None else f" (at character {error.pos + 1})"
            raise SettingError(
                "compaction.sensitive",
                f"number {at} is no regular expression{position}",
                hint=r"such as '(?i)\bsalary\b'; a backslash before what is meant letter for letter",
            ) from None


def _check_upstream(settings: Settings, name: str, upstream: Upstream) -> None:
    from refold.config.upstream import completed

    place = f"upstreams.{name}"
    for header in upstream.headers:
        if header.lower() in KEY_HEADERS:
            hint = "name the variable that holds it with key_env, or a command with key_command"
            raise SettingError(f"{place}.headers", "a key does not belong here", hint=hint)
        if not _HEADER_NAME.fullmatch(header):
            raise SettingError(f"{place}.headers", "a header has no proper name", hint="such as X-Title")
    if upstream.key_env and upstream.key_command:
        raise SettingError(f"{place}.key_command", "there is a key_env already", hint="give one of the two")
    for other in upstream.fallback:
        if other == name or other not in settings.upstreams:
            known = ", ".join(one for one in settings.upstreams if one != name) or "there are no others"
            raise SettingError(
                f"{place}.fallback", "it names no other upstream", hint=f"choose from: {known}"
            )
    completed(name, upstream, {})


def _check_policy(settings: Settings) -> None:
    from refold.config.policy import policy_of

    policy_of(settings)


def _check_summarisers(settings: Settings) -> None:
    if settings.summariser.models:
        from refold.config.upstream import summarisers_of

        summarisers_of(settings)
