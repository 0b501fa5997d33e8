"""Detect drafts that are a piece of a conversation instead of a report about it.

Models that lose their task copy the transcript, continue the dialogue, think aloud or call tools. Each of
these has a form that a report does not have.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import islice

from refold.core.summary_checks.headings import is_heading, is_open, lines_of

_LONG = 80
"""Characters: shorter lines are names, rules and errors, which a summary has to copy."""
_MUCH = 300
"""Characters that may be copied in any case."""
_LINES = 400
"""Limit of long lines that are looked up: a summary has fewer."""
_LABEL = re.compile(r"(?:User|Assistant|Human|AI|System|Tool)(?: #m\d{1,9})?:\s")
_ENTRY = re.compile(
    r"\[(?:User|Assistant|Tool|System|Developer|Result|Failed result)(?: calls [^\]\s]{1,80})? #m\d{1,9}(?:\.\d{1,9})?\]"
)
"""The beginning of a message in the transcript that a model is shown."""
_TEMPLATE = re.compile(r"<\|[a-z_]{2,30}\|>|\[/?INST\]|<(?:start|end)_of_turn>")
_SPEAKER = re.compile(
    r"(?:\*\*)?(?:User|Human|Assistant|AI|Nutzer|Benutzer|Assistent|Utilisateur|Usuario|Usuário|Asistente|Assistente|Utente"
    r"|Пользователь|Ассистент|用户|助手|ユーザー|アシスタント|사용자)(?:\*\*)?\s?[:：]",
)
_FIRST_PERSON = re.compile(
    r"\b(?:i|i['’](?:ll|m|ve|d)|you|your|my|me|let['’]s|please|ich|du|sie|bitte|je|vous|tu|yo|usted|por favor|eu|você|io|lei|я|вы|ты)\b"
    r"|[我你您]|请(?!求)|私|ください|저는|해주세요",
    re.IGNORECASE,
)
_ANSWER = re.compile(
    r"(?:(?:sure|okay|ok|of course|certainly|great|alright|got it|understood|absolutely|no problem)\b[,!. ]{0,3}"
    r"(?:i['’]ll|i will|let me|let['’]s|i['’]m going to|here(?:['’]s| is) the (?:updated |fixed |new )?(?:code|file|fix))"
    r"|(?:let me|i['’]ll|i will) (?:now |first |then |start by |begin by )?(?:take|look|check|read|open|run|fix|start|begin|try|see|search|update|create)"
    r"|(?:gerne|klar|natürlich)[,!] (?:ich|lass)|ich (?:sehe|schaue) mir (?:jetzt|zuerst)|bien sûr[,!] je|claro[,!] (?:voy|vou)|certo[,!] (?:ora|adesso)"
    r"|конечно[,!] (?:я|сейчас)|好的[，,]我(?:来|会|将|现在|这就)|はい、|わかりました。|承知しました|네, )",
    re.IGNORECASE,
)
_ABOUT_ITSELF = re.compile(
    r"summar|checkpoint|recap|zusammenfass|résum|resum|riassu|итог|резюм|总结|總結|摘要|要約|요약",
    re.IGNORECASE,
)
_CALL = re.compile(
    r"(?:<(?:tool_call|function_calls?|invoke|tool_use|function=|\|tool_call|\|python_tag\|)|\[TOOL_CALLS\]|<\|python_tag\|>"
    r"|\{\s{0,20}\"(?:name|tool|function|tool_name|action|type)\"\s{0,4}:)"
)
_CALL_KEYS = re.compile(
    r"\"(?:arguments|parameters|input|args|action_input|tool_input|function|tool_calls)\"\s{0,4}:"
)
_THINKING = re.compile(r"<(think|thinking|thought|reasoning|scratchpad)>", re.IGNORECASE)
_THOUGHT = re.compile(
    r"^\s{0,4}</(?:think|thinking|thought|reasoning|scratchpad)>", re.IGNORECASE | re.MULTILINE
)
_OPEN_END = ("，", "、", ",", "(", "（", "[", "「", "“", "—", "–", ";")
_MOST_ASIDE = 200
"""A tool call with at most this many characters before it is no summary."""


def without_thoughts(text: str) -> str:
    """Return the answer of a model without its reasoning; empty if the reasoning never ended."""
    text = text.strip()
    opening = _THINKING.match(text)
    if opening:
        _, closed, rest = text.partition(f"</{opening[1]}>")
        return rest.strip() if closed else ""
    ends = list(islice(_THOUGHT.finditer(text), 2))
    return (
        text[ends[0].end() :].strip()
        if len(ends) == 1 and not _THINKING.search(text, 0, ends[0].start())
        else text
    )


def is_echo(text: str, transcript: str) -> bool:
    """Return True if most of the text is copied in long passages.

    A checkpoint quotes names, not paragraphs.
    """
    lines = (
        line.strip()
        for line, is_code in lines_of(text)
        if not is_code and not line.lstrip().startswith((">", '"', "`"))
    )
    long = islice((_LABEL.sub("", line, count=1) for line in lines if len(line) > _LONG), _LINES)
    copied = sum(len(line) for line in long if line in transcript)
    return copied > max(_MUCH, len(text) // 2)


def continues(text: str) -> bool:
    """Return True if the text continues the conversation instead of reporting it."""
    lines = [line.strip() for line, is_code in lines_of(text) if not is_code and line.strip()]
    entries = sum(_ENTRY.match(line) is not None for line in lines)
    if entries > 1 or any(map(_ENTRY.match, lines[:1])) or any(map(_TEMPLATE.match, lines)):
        return True
    spoken = [line for line in lines if _SPEAKER.match(line)]
    said = sum(_FIRST_PERSON.search(line[:400]) is not None for line in spoken)
    return (len(spoken) > 1 and 2 * said > len(spoken)) or _is_next_reply(lines)


def _is_next_reply(lines: list[str]) -> bool:
    """Return True if the text reads as the next reply of the assistant."""
    opening = lines[0][:200] if lines else ""
    is_answer = _ANSWER.match(opening) is not None and not _ABOUT_ITSELF.search(opening)
    return is_answer and not any(map(is_heading, lines))


def is_call(text: str) -> bool:
    """Return True if the text is a tool call written out as text."""
    bare = text.strip().removeprefix("```json").strip("`\n ")
    if bare.startswith(("{", "[{")) and _CALL.match(bare.lstrip("[")) and _CALL_KEYS.search(bare, 0, 4_000):
        return True
    beside = 0
    for line, is_code in lines_of(text):
        if not is_code and line.startswith(("<", "[")) and _CALL.match(line):
            return beside <= _MOST_ASIDE
        beside += len(line)
    return False


def ends_open(text: str, copied: Collection[str] = ()) -> bool:
    """Return True if the text stops in the middle: after a comma, an open bracket, or in an unclosed block of
    code.

    Lines that were `copied` may end in any way.
    """
    last = text.rstrip().rpartition("\n")[2]
    return is_open(text) or (last.endswith(_OPEN_END) and last not in copied)
