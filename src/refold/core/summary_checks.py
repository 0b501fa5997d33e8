"""Accept, repair or reject the text that a model wrote as a summary.

Models write good prose and get facts wrong, so no draft is trusted. Each known way in which summaries fail
has its own check. Some faults are repaired by machine: reasoning around the answer and sentences with
invented names are removed (`refold.core.inventions`), missing facts are added. All other faults reject the draft.

A refusal begins in the first person and is about the task: an apology and "I can't", or "I can't" and the
request. Quotations, and reports that people of the conversation cannot do something, are no refusal. A text
with its own paths or numbers, or with further text under headings, is a summary, however it began.

Models that lose their task copy the transcript, continue the dialogue, think aloud or call tools. Each of
these has a form that a report does not have.

Letters identify a script, and common small words identify the languages that share the Latin script. Code,
paths, names and headings are equal in every language and are ignored. A conversation may have several
languages; a summary in any of them is valid.

`with_facts` adds the facts of the ledger. They stand in the result word for word, each once, under one heading,
as far as the summary has tokens for them, regardless of the text that the model wrote. Facts that the model kept
itself stay in their place. Rules and changed files come first; each kind has a share of the room before any kind
takes the rest.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import Literal, TypeAlias

from msgspec import Struct

from refold.core import summary_text
from refold.core.digest.facts import TermKind, single_terms
from refold.core.digest.ledger import EMPTY, Ledger, sentences, stated
from refold.core.digest.line_markers import QUOTE, is_rules_title, quoted_lines
from refold.core.digest.pieces import CJK, contains_word
from refold.core.digest.typed_text import said_by_user, typed_passages
from refold.core.inventions import KnownNames, invented, known_of, without_inventions
from refold.core.prompts import Count, Passage, defused
from refold.core.summary_text import (
    DECISIONS,
    ERRORS,
    IDS,
    MODIFIED,
    READ,
    RULES,
    SAID,
    TASKS,
    TITLES,
    headings_once,
    in_order_of_weight,
    is_heading,
    is_open,
    is_shown,
    lines_of,
    one_line,
    says_something,
    section_span,
)
from refold.model.message import visible

Fault: TypeAlias = Literal[
    "empty",
    "refusal",
    "cut_off",
    "reasoning_only",
    "tool_call",
    "not_smaller",
    "too_long",
    "other_language",
    "invented",
    "echo",
    "continuation",
]
FAULTS: dict[Fault, str] = {
    "empty": "it is empty",
    "refusal": "it is a refusal",
    "cut_off": "it is cut off before its end",
    "reasoning_only": "it has reasoning and no text",
    "tool_call": "it is a tool call",
    "not_smaller": "it is not smaller than the messages",
    "too_long": "it is too long",
    "other_language": "it is in another language than the messages",
    "invented": "it names things that the messages do not have",
    "echo": "it repeats the messages",
    "continuation": "it continues the conversation",
}
"""The faults of a summary, in words for a log."""
_CUT_OFF_REASONS = frozenset(
    {"length", "max_tokens", "max_output_tokens", "incomplete", "model_context_window_exceeded", "error"}
)
MAX_DRAFT = 64 * 1024
"""Limit of characters of a draft that is compared with its source, half a second of work: eight times the
usual summary. If a policy asks for longer summaries, the limit grows with `_LONGEST_TOKEN`."""
_LONGEST_TOKEN = 16
"""Characters of a draft that are allowed for each requested token."""
_LEAST_LETTERS = 12
"""Letters: fewer are a word or two, such as "Understood."; the shortest useful summaries have a few more."""
_LONG_SOURCE = 500
"""Tokens of a source: a word or two may be enough for a shorter one, never for a longer one."""
_LONG_TEXT = 4_000
"""Characters of the same. A merge is given short summaries, but stands for the transcript behind them."""
_REFUSAL_REASONS = frozenset({"refusal", "content_filter", "safety"})


class SummaryDraft(Struct, frozen=True):
    """The answer of a model."""

    text: str
    finish: str = ""
    """Why the model stopped, in the provider's word."""
    has_calls: bool = False
    has_reasoning: bool = False


class DraftSource(Struct, frozen=True, dict=True):
    """The texts that the draft is compared with."""

    told: str
    """The transcript, which has to be summarised and not repeated."""
    tokens: int
    """Tokens of the transcript and the previous summary."""
    previous: str = ""
    beside: str = ""
    """Other text that the model was shown: the rest of the window, the system prompt, the parts of a
    merge. Its names may be used."""
    asked: str = ""
    """The instructions and the focus: their names may be used too, but a handle in them is an example."""
    spoken: str = ""
    """All text of the user."""
    typed: str = ""
    """The part of it that the user typed: the only source of rules."""
    answered: str = ""
    """All text of the assistant. A summary has to be in a language of the user or the assistant."""
    ledger: Ledger | None = None
    """Facts that must be carried; None if facts are added later, to a longer text than this draft."""

    @cached_property
    def known(self) -> KnownNames:
        """The names that a draft may use. Cached: several drafts of one source may be checked."""
        return known_of(self.told, self.previous, self.beside, *_ledger_lines(self), asked=self.asked)


class AcceptedSummary(Struct, frozen=True):
    """A text that may be used if it has no fault; `mended` lists the repairs made by machine."""

    text: str
    fault: Fault | None = None
    reason: str = ""
    """Why it may not be used, in words that a model understands and without quoting the draft."""
    mended: tuple[str, ...] = ()


def accept(
    draft: SummaryDraft, source: DraftSource, *, most: int, count: Count, is_last_try: bool = False
) -> AcceptedSummary:
    """Check a draft, and repair it if possible, within `most` tokens.

    On the last try, sentences with invented names are removed; before that, the draft is rejected so that the
    model can try again.
    """
    said = without_thoughts(draft.text)
    if len(said) > max(MAX_DRAFT, most * _LONGEST_TOKEN):
        return AcceptedSummary("", "too_long", "it is many times longer than it may be")
    text = visible("\n".join(said.splitlines()))
    for fault, reason in _faults(draft, text, source, count):
        return AcceptedSummary(text, fault, reason)
    notes = ("reasoning taken out",) if said != draft.text.strip() else ()
    plain = quoted_lines(defused(text), "summary", begins_line=True)
    found = _without_inventions(AcceptedSummary(plain, mended=notes), source, is_last_try=is_last_try)
    return found if found.fault else _add_facts(found, source, most, count)


def _faults(draft: SummaryDraft, text: str, source: DraftSource, count: Count) -> Iterator[tuple[Fault, str]]:
    """Yield the faults that cannot be repaired, the most obvious first."""
    if draft.has_calls or is_call(text):
        yield "tool_call", "it calls a tool instead of writing a checkpoint"
    if not text and (draft.has_reasoning or draft.text.strip()):
        yield "reasoning_only", "it is nothing but reasoning"
    if not says_something(text):
        yield "empty", "it is empty or has only headings"
    if draft.finish.lower() in _CUT_OFF_REASONS or ends_open(text, tuple(_ledger_lines(source))):
        yield "cut_off", "it was cut off before its end; be briefer"
    if draft.finish.lower() in _REFUSAL_REASONS or is_refusal(text):
        yield "refusal", "it declines to write a checkpoint"
    if letters(text) < _LEAST_LETTERS and (source.tokens > _LONG_SOURCE or len(source.told) > _LONG_TEXT):
        yield "empty", "it is a word or two"
    if count(text) >= source.tokens:
        yield "not_smaller", "it is no shorter than the transcript"
    yield from _report_faults(text, source)


def _report_faults(text: str, source: DraftSource) -> Iterator[tuple[Fault, str]]:
    """Yield the faults of a text that is no report of the conversation, or not in its language."""
    if is_echo(text, source.told) or is_echo(text, source.asked):
        yield "echo", "it repeats what it was given instead of summarising it"
    if continues(text):
        yield "continuation", "it goes on with the conversation instead of summarising it"
    if is_other_language(text, (source.spoken, source.answered)):
        yield "other_language", "it is not in the language of the conversation"


def _ledger_lines(source: DraftSource) -> Iterator[str]:
    for lines in fact_lines(source.ledger or EMPTY).values():
        yield from lines


def _without_inventions(found: AcceptedSummary, source: DraftSource, *, is_last_try: bool) -> AcceptedSummary:
    known = source.known
    made_up = invented(found.text, known)
    if not made_up:
        return found
    if not is_last_try:
        what = "a name or number" if len(made_up) == 1 else f"{len(made_up)} names or numbers"
        return AcceptedSummary(found.text, "invented", f"it holds {what} that the transcript does not")
    text = without_inventions(found.text, known)
    if not says_something(text):
        return AcceptedSummary(text, "invented", "nothing is left of it without its inventions")
    return AcceptedSummary(text, mended=(*found.mended, "lines with invented names taken out"))


def _add_facts(found: AcceptedSummary, source: DraftSource, most: int, count: Count) -> AcceptedSummary:
    once, notes = headings_once(found.text), found.mended
    if once != found.text:
        notes = (*notes, "headings that stood twice joined")
    if source.ledger is None:
        return AcceptedSummary(once, mended=notes)
    full = with_facts(once, source.ledger, most=most, count=count, said=source.typed)
    return AcceptedSummary(full, mended=(*notes, "facts from the ledger added") if full != once else notes)


# Checks of a finished summary: whether it is good enough to replace the messages it covers.

CheckName: TypeAlias = Literal["says_something", "is_smaller", "headings_once", "keeps_facts"]


class Verdict(Struct, frozen=True):
    check: CheckName
    passed: bool
    reason: str = ""
    """Why it failed, without quoting the summary."""


def check_summary(
    text: str, *, tokens: int, source_tokens: int, must_keep: Iterable[str] = ()
) -> tuple[Verdict, ...]:
    """Run every check of a summary that takes `tokens` and replaces messages that took `source_tokens`."""
    return (
        check_says_something(text),
        is_smaller(tokens, source_tokens),
        check_headings_once(text),
        keeps_facts(text, must_keep),
    )


def passes(verdicts: Iterable[Verdict]) -> bool:
    return all(verdict.passed for verdict in verdicts)


def check_says_something(text: str) -> Verdict:
    """Check that the text is more than white space and headings."""
    said = summary_text.says_something(text)
    return Verdict("says_something", said, "" if said else "it is empty or has only headings")


def is_smaller(tokens: int, source_tokens: int) -> Verdict:
    """Check that the summary is smaller than its source: one of the same size saves nothing and loses the
    exact words.
    """
    smaller = tokens < source_tokens
    reason = "" if smaller else f"it takes {tokens:,} tokens, its source {source_tokens:,}"
    return Verdict("is_smaller", smaller, reason)


def check_headings_once(text: str) -> Verdict:
    """Check that no heading occurs twice: a repeated one is a sign that an earlier summary was copied into a
    later one.
    """
    repeated = summary_text.count_repeated(text)
    return Verdict(
        "headings_once", not repeated, f"{repeated} headings stand there twice" if repeated else ""
    )


def keeps_facts(text: str, must_keep: Iterable[str]) -> Verdict:
    """Check that every fact that must be carried is present word for word, and not as a part of a longer
    name.
    """
    lost = sum(not contains_word(text, fact) for fact in must_keep)
    return Verdict("keeps_facts", not lost, f"{lost} facts that had to stay are missing" if lost else "")


# Refusals

_OPENING = 240
"""Characters at the beginning in which a refusal shows itself."""
_SHORT = 30
"""Letters of a text that is only an apology."""
_BRIEF = 260
"""Letters: a refusal up to this length may contain a name from the declined request."""
_FEW = 60
"""Letters: "I cannot do that" in no more than these contains nothing further."""
_EMPTY = 12
"""Letters under another heading that do not turn a refusal into a checkpoint: "none", "n/a"."""
_CJK_WEIGHT = 3
"""A Chinese character counts as much as three letters."""
_FAR_EAST = re.compile(f"[{CJK}]")
_QUOTED = re.compile(
    '"[^"\n]{0,300}"|“[^”\n]{0,300}”|«[^»\n]{0,300}»|„[^“”\n]{0,300}[“”]|「[^」\n]{0,300}」|`[^`\n]{0,300}`'
)
_LEAD = re.compile(r"(?:[\W_]|\d+[.)])*")

_APOLOGIES = (
    r"(?:i['’]m|i am|we['’]re|we are) (?:\w+ )?(?:sorry|afraid)(?! for)", r"(?:my )?apologies", r"(?:i )?apologi[sz]e", r"sorry\b",
    r"as an? (?:ai|artificial|large|language)", r"(?:很|非常|十分)?(?:抱歉|对不起|對不起|不好意思)", "作为(?:一个|一名|一款)?(?:AI|人工智能|语言模型)",
    "(?:大変|誠に)?(?:申し訳|すみません|すいません|ごめんなさい|恐れ入り)", "(?:정말 |대단히 )?(?:죄송|미안)", "AI로서",
    "(?:извините|простите|прошу прощения|приношу извинения|сожалею|мне (?:очень )?жаль)", "как (?:ии|искусственный|языковая)",
    r"(?:es )?tut mir (?:\w+ )?leid", r"entschuldigung", r"als (?:ki|sprachmodell)", r"(?:je suis (?:\w+ )?)?(?:désolée?|navrée?)\b",
    r"en tant qu['’](?:ia|intelligence)", r"(?:lo siento|lo lamento|perdón|disculp[ae])", r"como (?:una? )?(?:ia|ai|modelo|inteligencia)",
    r"(?:desculp[ae]|lamento|sinto muito|peço desculpas?)", r"(?:mi dispiace|sono spiacente|mi scuso|spiacente)", r"come (?:ia|modello)",
)  # fmt: skip
_HEDGES = (
    "unfortunately", "regrettably", "很遗憾", "遗憾的是", "残念ながら", "안타깝게도", "к сожалению", "leider", "bedauerlicherweise",
    "malheureusement", "lamentablemente", "desafortunadamente", "infelizmente", "purtroppo", "sfortunatamente", "i", "we",
)  # fmt: skip
_CANNOT = (
    r"\b(?:i|we) (?:\w+ )?(?:can['’]?t|cannot|can not|could not|couldn['’]t|won['’]t|will not|must decline|have to decline|decline)\b",
    r"\b(?:i['’]m|i am|we['’]re|we are) (?:\w+ )?(?:unable|not able|not allowed|not permitted|not comfortable)\b",
    r"\bi (?:do not|don['’]t) (?:have|see|feel)\b", r"\b(?:unable|not able) to\b", "(?:无法|不能|没办法|没有办法|無法|不可以)",
    "(?:できません|できかね|致しかね|いたしかね|出来ません)", "(?:수 없|수는 없|어렵습니다|못합니다)",
    r"\b(?:не могу|не можем|не в состоянии|не способен|не имею возможности|не смогу)\b",
    r"\b(?:kann ich|ich kann|können wir|wir können|darf ich|ich darf)\b[^.!?]{0,60}\b(?:nicht|keine?)", r"\bich bin nicht in der lage\b",
    r"\bje ne (?:peux|puis|suis pas en mesure|suis pas autorisé)", r"\bne peux pas\b", r"\b(?:no puedo|no podemos|no me es posible|no podré)\b",
    r"\bnão (?:posso|consigo|podemos|sou capaz|me é possível|poderei)\b", r"\bnon (?:posso|possiamo|sono in grado|riesco|mi è possibile)\b",
)  # fmt: skip
_TASKS = (
    r"(?:help|assist|comply|engage|fulfil\w*) (?:you )?(?:with|in|by )?\s?(?:this|that|your|the|such|it\b)", r"\b(?:help|assist) you\b",
    r"summar\w+", r"checkpoint", r"transcript", r"\b(?:the|this|your|any) (?:conversation|request|dialogue)\b",
    "总结|摘要|概括|總結|对话|您的请求|你的请求|这个请求|该请求|请求|帮助您|帮助你|协助", "要約|お手伝い|お応え|お答え|ご依頼|ご要望|リクエスト|会話|対応",
    "요약|도와|도움|요청|대화", r"помо(?:чь|гать)|подвести итог|резюм|пересказ|эт(?:у|от) (?:просьбу|запрос|разговор)|ваш\w* (?:просьб|запрос)",
    r"helfen|zusammenfass\w*|diese[rnms]? (?:bitte|anfrage|unterhaltung|gespräch)|ihre[rn]? anfrage|dabei",
    r"(?:vous|t['’])\s?aider|résum\w+|cette (?:demande|conversation)|votre demande", r"ayudar(?:te|le|lo)?\b|resum\w+|esta (?:solicitud|petición|conversación)|su solicitud",
    r"ajudar|resum\w+|ess[ae] (?:pedido|conversa|solicitação)|est[ae] (?:pedido|conversa)|seu pedido", r"aiutar\w*|riassu\w+|quest[ao] (?:richiesta|conversazione)|sua richiesta",
)  # fmt: skip
_NO_SOURCE = re.compile(
    r"(?:(?:it (?:seems|looks like|appears)(?: that| as if)? )?(?:there(?: is|['’]s| was| are) )?no (?:\w{1,12} ){0,2}"
    r"(?:conversation|transcript|history|messages?|text)(?: history)?(?: (?:to|provided|given|available|found|yet|here|so far)\b|[.!,;]|$)"
    r"|(?:i (?:don['’]t|do not|cannot|can['’]t) see (?:any|a|the)|(?:it (?:seems|looks like|appears)(?: that)? )?you (?:haven['’]t|have not|didn['’]t)"
    r"|please (?:provide|share|paste|send)|could you (?:please )?(?:provide|share|paste|send))"
    r"[^.!?]{0,60}\b(?:conversation|transcript|history|messages?|text|checkpoint)\b)"
    "|(?:请|請)(?:您)?(?:提供|发送|粘贴)[^。]{0,20}(?:对话|文本|内容|記錄|记录)|(?:会話|本文)を(?:ご提供|送って|共有)",
    re.IGNORECASE,
)
"""Claims that there is nothing to summarise."""

_VAGUE_OBJECT = re.compile(
    r"[^.!?]{0,20}?\b(?:(?:do|perform|produce|provide|process|write|generate|create|give|answer|complete|fulfil\w*|handle|discuss|go|continue|proceed)"
    r"(?: (?:to|with|on))?(?: (?:this|that|it|so|such|any of this|anything)\b.{0,30})?"
    r"|(?:tun|machen|leisten|fortfahren|weitermachen)|(?:faire|continuer)(?: (?:cela|ça|ceci))?|hacer(?:lo)?(?: (?:eso|esto))?|continuar|fazer(?: (?:isso|isto))?"
    r"|far(?:lo|e)(?: (?:questo|ciò))?|continuare|(?:это(?:го)? )?сделать(?: это(?:го)?)?|продолжать)[.!]?\s*"
    "|(?:这样做|这么做|這樣做|做到?这[个件]?事?|继续|繼續|执行|完成|提供|回答)[。！]?\\s*|(?:습니다|어요|다)?[。！.]?\\s*",
    re.IGNORECASE,
)
"""The end of a sentence with no object but "that", after the statement that it cannot be done."""
_SUBJECT = re.compile(
    r"(?:(?:unfortunately|regrettably|no(?=,)|leider|malheureusement|lamentablemente|purtroppo|infelizmente|к сожалению|很遗憾|残念ながら|안타깝게도)[,，、]?\s{0,2})?"
    r"(?:das |dies |esto |eso |isso |я |это |yo |eu |我|这我|それは|これは|その?ような?ことは|그건 |그것은 |그렇게 (?:는 )?할 )?",
    re.IGNORECASE,
)
_FORBIDDEN = re.compile(
    r"(?:this|that|your|the|such an?) (?:request|content|conversation|prompt|message|input|query|task)\b[^.!?]{0,30}"
    r"\b(?:violates?|is against|goes against|conflicts? with|breach\w*)\b (?:[\w'’]{1,16} ){0,4}(?:polic|guideline|terms\b)"
    r"|(?:(?:this|your|the) )?(?:request|content|prompt|response) (?:is |was |has been )?(?:declined|denied|blocked|refused|rejected|filtered|flagged)\W*$"
    r"|as an? (?:ai|artificial|large|language)[^.!?]{0,60}?\bi(?:['’]m| am| do|['’]ve)? ?(?:not|don['’]t|never|have no)\b"
    "|作为(?:一个|一名|一款)?(?:AI|人工智能|语言模型)[^。]{0,20}不|als (?:ki|sprachmodell)\\b[^.!?]{0,60}\\b(?:nicht|keine?)\\b"
    r"|en tant qu['’](?:ia|intelligence)[^.!?]{0,60}\bne\b",
    re.IGNORECASE,
)
"""Claims that the request is forbidden, or that an AI does not do it."""


def _alternatives(patterns: tuple[str, ...]) -> str:
    return "(?:" + "|".join(patterns) + ")"


_SORRY = re.compile(rf"{_alternatives(_APOLOGIES)}", re.IGNORECASE)
_CANNOT_AT_ALL = re.compile(
    _alternatives((*_CANNOT, r"\b(?:i|we) (?:(?:must|have to) )?(?:decline|refuse)(?: to)?")), re.IGNORECASE
)
_SORRY_CANNOT = re.compile(
    rf"{_alternatives(_APOLOGIES)}.{{0,120}}?{_alternatives(_CANNOT)}", re.IGNORECASE | re.DOTALL
)
_CANNOT_DO = re.compile(
    rf"(?:{_alternatives(_HEDGES)}[,，、]?\s{{0,2}})?.{{0,12}}?{_alternatives(_CANNOT)}.{{0,80}}?{_alternatives(_TASKS)}"
    rf"|.{{0,24}}?{_alternatives(_TASKS)}.{{0,40}}?{_alternatives(_CANNOT)}",
    re.IGNORECASE,
)


def is_refusal(text: str) -> bool:
    """Return True if every section of the text declines the task or is empty."""
    bodies = [body for body in _bodies(text) if letters(body)]
    refused = [_declines(body) for body in bodies]
    return any(refused[:1]) and all(
        refused[number] or letters(body) <= _EMPTY for number, body in enumerate(bodies)
    )


def _declines(body: str) -> bool:
    said = _QUOTED.sub(" … ", body[: 2 * _OPENING])[:_OPENING]
    said = said[_LEAD.match(said).end() :] if not said.startswith(" …") else ""  # type: ignore[union-attr]
    size = letters(body)
    if _SORRY.match(said) and size <= _SHORT:
        return True
    is_brief = size <= _BRIEF
    if is_brief and (_NO_SOURCE.match(said) or _FORBIDDEN.match(said)):
        return True
    if size <= _FEW and _cannot_do_that(said):
        return True
    return bool(_SORRY_CANNOT.match(said) or _declines_task(said)) and (is_brief or not _has_facts(body))


def _declines_task(said: str) -> bool:
    """Return True if the writer states in the first sentence that it cannot do the task."""
    first = re.split(r"[.!?。！？\n]", said, maxsplit=1)[0]
    return _CANNOT_DO.match(first) is not None


def _cannot_do_that(said: str) -> bool:
    """Return True if the writer states that it cannot do "that", without naming the task."""
    start = _SUBJECT.match(said)
    found = _CANNOT_AT_ALL.match(said, start.end() if start else 0)
    return found is not None and _VAGUE_OBJECT.fullmatch(said, found.end()) is not None


def _has_facts(text: str) -> bool:
    return any(kind in (TermKind.LITERAL, TermKind.NUMBER) for _, kind in single_terms(text))


def letters(text: str) -> int:
    """Return the length of a text in letters, with a higher weight for Chinese characters."""
    return sum(map(str.isalnum, text)) + (_CJK_WEIGHT - 1) * len(_FAR_EAST.findall(text))


def _bodies(text: str) -> Iterator[str]:
    held: list[str] = []
    for line, is_code in lines_of(text):
        if not is_code and is_heading(line):
            yield "\n".join(held)
            held = []
        else:
            held.append(line)
    yield "\n".join(held)


# Pieces of a conversation

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


# Languages

MAX_READ = 40_000
"""Characters that are read, half from the beginning and half from the end: enough for detection."""
_MIN_LETTERS = 20
"""Fewer letters do not identify a script."""
_MIN_SCRIPT_SHARE = 0.25
"""Minimum share of the letters: a script with less does not count as one of the conversation's."""
_MIN_EXPECTED_SHARE = 0.10
"""Minimum share of a summary's letters in scripts of the conversation: foreign words may be most of a
technical text."""
_MIN_WORDS = 10
"""At least this many small words identify a language, if they are also the share `_DENSITY` of all words."""
_DENSITY = 0.12
_MUCH_MORE = 4
"""A text is in another language if it has more than this many times as many small words of it."""
_SCRIPTS = {
    "han": re.compile("[\u3400-\u9fff]"),
    "kana": re.compile("[\u3040-\u30ff]"),
    "korean": re.compile("[\uac00-\ud7af]"),
    "cyrillic": re.compile("[\u0400-\u04ff]"),
    "greek": re.compile("[\u0370-\u03ff]"),
    "arabic": re.compile("[\u0600-\u06ff]"),
    "hebrew": re.compile("[\u0590-\u05ff]"),
    "devanagari": re.compile("[\u0900-\u097f]"),
    "thai": re.compile("[\u0e00-\u0e7f]"),
    "latin": re.compile("[A-Za-z\u00c0-\u024f]"),
}
_HEAVY = frozenset({"han", "kana", "korean"})
_CODE = re.compile(r"`[^`\n]{0,400}`")
_NAME = re.compile(r"[^\s、，。；：！？「」“”（）\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_WORD = re.compile(r"[^\W\d_]+")
_NOT_A_WORD = re.compile(
    r"\w[/\\_@=<>{}.:]\w|[/\\@_=<>{}\[\]|]|\w\(|[a-z][A-Z]|[A-Za-z]\d|\d[A-Za-z]|^[A-Z]{2}"
)
_SMALL_WORDS = {
    "english": "the and to that for with this are be have it on by not from which has been were should will would when but or of",
    "german": "der die das und ist nicht mit ein eine einen auf für von zu den dem sich auch wird werden wurde noch nach bei aus "
    "ich sind soll oder wenn",
    "french": "le les des et est une pour dans sur pas avec que qui du au il ne par ce cette sont été mais ou nous aux doit",
    "spanish": "el los las y una para con por que se del es no su lo como más pero está fue al sin son este esta debe hay",
    "portuguese": "o os um uma para com por que não se do da dos das em no na é mas como mais foi ao são está este deve pelo",
    "italian": "il gli di che è un una per con non si del della nel alla sono ma come più ha le dei questo deve anche stato",
}
_LANGUAGE_OF: dict[str, tuple[str, ...]] = {
    word: tuple(name for name, words in _SMALL_WORDS.items() if word in words.split())
    for word in " ".join(_SMALL_WORDS.values()).split()
}


def is_other_language(text: str, said: Iterable[str]) -> bool:
    """Return True if the text is in a language that neither side used.

    Each of `said` is the text of one side.
    """
    plain, known = _plain(text), [_plain(part) for part in said]
    expected = {script for part in known for script in scripts_of(part)}
    found = _letters_of(plain)
    if not expected or sum(found.values()) < _MIN_LETTERS:
        return False
    if sum(found[script] for script in expected) < _MIN_EXPECTED_SHARE * sum(found.values()):
        return True
    return _is_other_latin(plain, known) if scripts_of(plain) == {"latin"} else _is_other_han(plain, known)


def scripts_of(text: str) -> set[str]:
    """Return the scripts of a substantial part of a text; empty if it has too few letters."""
    found = _letters_of(text)
    total = sum(found.values())
    return (
        {name for name, count in found.items() if count >= _MIN_SCRIPT_SHARE * total}
        if total >= _MIN_LETTERS
        else set()
    )


def latin_languages(text: str) -> Counter[str]:
    """Return the number of small words of each language; empty if there are too few for detection."""
    words = [word.casefold() for word in _WORD.findall(text)]
    found = Counter(name for word in words for name in _LANGUAGE_OF.get(word, ()))
    least = max(_MIN_WORDS, _DENSITY * len(words))
    return found if found and max(found.values()) >= least else Counter()


def _is_other_latin(text: str, known: Iterable[str]) -> bool:
    expected = {name for part in known for name in _likely_languages(latin_languages(part))}
    found = latin_languages(text)
    if not expected or not found:
        return False
    return _MUCH_MORE * max(found[name] for name in expected) < max(found.values())


def _likely_languages(found: Counter[str]) -> set[str]:
    most = max(found.values(), default=0)
    return {name for name, count in found.items() if _MUCH_MORE * count >= most}


def _is_other_han(text: str, known: Iterable[str]) -> bool:
    """Return True if a text is Chinese and not Japanese as expected, or the reverse: only Japanese
    has kana.
    """
    shared = {"han", "kana"}
    expected = {_has_kana(part) for part in known if scripts_of(part) and scripts_of(part) <= shared}
    return bool(expected) and scripts_of(text) <= shared and _has_kana(text) not in expected


def _has_kana(text: str) -> bool:
    found = _letters_of(text)
    return found["kana"] >= _MIN_EXPECTED_SHARE * (found["han"] + found["kana"])


def _letters_of(text: str) -> Counter[str]:
    counts = {name: len(pattern.findall(text)) for name, pattern in _SCRIPTS.items()}
    return Counter(
        {name: count * (_CJK_WEIGHT if name in _HEAVY else 1) for name, count in counts.items() if count}
    )


def _plain(text: str) -> str:
    """Return the words of a text, without headings, code, names and paths."""
    text = text if len(text) <= MAX_READ else f"{text[: MAX_READ // 2]}\n{text[-MAX_READ // 2 :]}"
    prose = "\n".join(line for line, is_code in lines_of(text) if not is_code and not is_heading(line))
    return _NAME.sub(_drop_names, _CODE.sub(" ", prose))


def _drop_names(match: re.Match[str]) -> str:
    return " " if _NOT_A_WORD.search(match[0]) else match[0]


# The facts of the ledger

_SHARES = {
    RULES: 0.3, SAID: 0.2, MODIFIED: 0.15, IDS: 0.1, TASKS: 0.1, ERRORS: 0.1, DECISIONS: 0.05, READ: 0.0,
}  # fmt: skip
"""The order of priority, and the guaranteed share of the room for each kind: files that were only read can
be read again."""
_SLACK = 2
"""Tokens by which a line may cost more in its place than by itself."""
_POINT = re.compile(r"\s*(?:[-*•]|\d{1,3}[.)])\s+(?=\S)")
_MARKS = re.compile(r"(?:[\s>*_+•◦|`–—-]|\[[ xX]?\]|(?:[0-9]{1,3}|[a-zA-Z])[.)](?=\s))*+")
"""The marks that may precede a list item."""
_HEADING_MARKS = "#> \t"
_SMALLER = re.compile(
    r"\s{0,3}(?:\*\*|__|<h[1-6]>)?([A-Z][\w &'’/-]{1,40}+)(?::?\*\*:?|__:?|:|</h[1-6]>)\s*+"
)
"""The forms that some models write instead of a heading."""
_SHORTEST_RULE = 12
"""Characters: a shorter string may occur in any text by chance."""


class _FactInserter:
    """A text that is being filled with facts, up to a number of tokens."""

    def __init__(self, text: str, most: int, count: Count) -> None:
        self.text, self.most, self.count = text, most, count
        self.used, self.is_exact = count(text), True
        self.added: dict[str, dict[int, str]] = {}
        """The lines under each heading, by their places in the ledger."""
        self.shown = text

    def whole(self, title: str = "", line: str = "") -> str:
        """Return the text with all added lines, and one line more."""
        text, joint = self.text, "\n\n" if self.text else ""
        for name in TITLES:
            added = self.added.get(name, {})
            lines = [*(added[at] for at in sorted(added)), *([line] if name == title else [])]
            if lines and (place := section_span(text, name)):
                text = _insert_lines(text, place[1], lines)
            elif lines:
                text, joint = "\n".join((f"{text}{joint}{name}", *lines)), "\n"
        return text

    def fill(self, title: str, lines: Sequence[str], limit: int) -> None:
        """Add the lines that the text does not contain, the most important first, while there is room."""
        is_file = title in (MODIFIED, READ)  # that the user speaks of a file does not say that it was changed
        for at in in_order_of_weight(title, lines):
            line = lines[at]
            shown = self.text if is_file else self.shown
            is_new = not is_shown(title, line[2:].removeprefix(QUOTE), shown)
            if is_new and self._fits(title, line, min(limit, self.most)):
                self.added.setdefault(title, {})[at] = line
                self.shown = f"{self.shown}\n{line}"

    def _fits(self, title: str, line: str, limit: int) -> bool:
        is_new = title not in self.added and section_span(self.text, title) is None
        cost = self.count(f"\n{line}") + (self.count(f"\n{title}") if is_new else 0)
        if self.used + cost + _SLACK <= limit:
            self.used, self.is_exact = self.used + cost + _SLACK, False
            return True
        if not self.is_exact:
            self.used, self.is_exact = self.count(self.whole()), True
        if self.used + cost - _SLACK > limit:
            return False
        tokens = self.count(self.whole(title, line))
        self.used = tokens if tokens <= limit else self.used
        return tokens <= limit

    def trimmed(self) -> str:
        """Return the whole text within its tokens, also if lines cost more together than one by one."""
        text = self.whole()
        for name in reversed(tuple(_SHARES)):
            while (added := self.added.get(name)) and self.count(text) > self.most:
                places = sorted(added)
                del added[places[len(places) // 2] if name == RULES else places[0]]
                text = self.whole()
        return text


def with_facts(text: str, ledger: Ledger, *, most: int, count: Count, said: str = "") -> str:
    """Return the text with the facts of the ledger that it lacks, within `most` tokens.

    `said` is the text that the user typed (`typed_by_user`): a rule that occurs there may stay in the text.
    """
    facts = fact_lines(ledger)
    page = _FactInserter(_without_wrong_items(text, facts, said), most, count)
    room = most - page.used
    for title, share in _SHARES.items():
        page.fill(title, facts[title], page.used + int(room * share))
    for title in _SHARES:
        if title != SAID:  # whole messages of the user would take all the room that a model left
            page.fill(title, facts[title], most)
    return page.trimmed()


def typed_by_user(passages: Sequence[Passage]) -> str:
    """Return the text that the user typed in some passages.

    Rules that were typed before these passages are in the ledger. The rules that an earlier summary lists are
    not used: a model may have written them.
    """
    first = passages[0].number if passages else 0
    replies = (passage.number for passage in passages if passage.message.role == "assistant")
    reply = next(replies, 0 if first else len(passages))
    said = (
        "\n".join(typed_passages(said, is_task=not first and passage.number < reply))
        for passage in passages
        if (said := said_by_user(passage.message))
    )
    return "\n".join(said)


def fact_lines(ledger: Ledger) -> dict[str, list[str]]:
    """Return the ledger's facts as list items, under the heading of each kind."""
    found = {
        RULES: ledger.rules,
        SAID: ledger.said,
        IDS: ledger.ids,
        MODIFIED: ledger.modified,
        READ: ledger.read,
        ERRORS: ledger.errors,
        DECISIONS: ledger.decisions,
        TASKS: ledger.tasks,
    }
    return {title: _list_items(entries) for title, entries in found.items()}


def _list_items(entries: Iterable[str]) -> list[str]:
    """Return each entry as a line of its own, without anything that could be taken for a mark of Refold."""
    return [f"- {defused(said)}" for entry in entries if (said := one_line(entry))]


def _insert_lines(text: str, at: int, lines: Sequence[str]) -> str:
    whole = text.splitlines()
    return "\n".join((*whole[:at], *lines, *whole[at:]))


def _without_wrong_items(text: str, facts: dict[str, list[str]], said: str) -> str:
    """Return the text without list items that contradict the ledger: rules that the user did not give, words
    that the user did not say, modified files as only read.
    """
    rules, own, modified, read = (
        [line[2:] for line in facts[title]] for title in (RULES, SAID, MODIFIED, READ)
    )
    return _without_points(
        _without_points(_with_given_rules(text, rules, said), SAID, lambda point: point not in own),
        READ,
        lambda point: (
            point not in read and any(contains_word(point, path.removeprefix(QUOTE)) for path in modified)
        ),
    )


def _with_given_rules(text: str, rules: Sequence[str], said: str) -> str:
    """Return the text with its lists of rules rebuilt: an item stays if all of it was said by the user."""
    if not any(map(is_rules_title, text.splitlines())):
        return text
    exact, known = frozenset(rules), frozenset((*map(_normalise, rules), *_typed_units(said)))
    kept: list[str] = []
    point: list[str] = []
    in_list = is_below = False  # below: under a smaller heading that the list had
    for line, is_code in (*lines_of(text), (RULES, False)):  # a last heading ends the last list
        is_title = is_rules_title(line)
        smaller = _SMALLER.fullmatch(line) if in_list and not is_title and not is_code else None
        if point and (is_title or smaller or is_heading(line) or not _continues_item(line)):
            kept += _given_item(point, exact, known)
            point = []
        if is_title and is_code:
            # Quoted in place of its hashes: not longer than it was, and the same when it is checked again.
            kept += () if in_list else (f"{QUOTE}{line.lstrip(_HEADING_MARKS)}",)
        elif is_title:
            in_list, is_below = True, False
            kept.append(RULES)
        elif smaller:
            in_list = False
            kept.append(f"## {smaller[1]}")
        elif is_heading(line) and not is_code:
            is_below = (in_list or is_below) and line.startswith("###")
            in_list = False
            kept.append(f"## {line.lstrip('#').strip()}" if is_below else line)
        elif in_list and line.strip():
            point.append(line)
        else:
            kept.append(line)
    return headings_once("\n".join(_without_empty(kept[:-1])).strip())


def _continues_item(line: str) -> bool:
    """Return True if a line continues a wrapped list item and is no item of its own."""
    return line[:1].isspace() and bool(line.strip()) and _POINT.match(line) is None


def _given_item(point: Sequence[str], rules: frozenset[str], known: frozenset[str]) -> list[str]:
    """Return an item of a list of rules, if it or each of its sentences was given; an empty list if not."""
    whole = " ".join(map(str.strip, point))
    if whole.startswith("- ") and whole[2:] in rules:
        return [whole]  # the ledger's own item, marks at its beginning included
    bare = whole[_after_marks(whole) :]
    said = [plain for one in sentences(bare) if (plain := _normalise(one))]
    is_given = _normalise(bare) in known or known.issuperset(said)
    return [f"- {bare}"] if said and is_given else []


def _without_empty(lines: Sequence[str]) -> list[str]:
    """Return the lines without headings of rules that have nothing under them."""
    found: list[str] = []
    for line in (*lines, "#"):
        if line == "#" or is_heading(line):
            last = next((at for at in range(len(found), 0, -1) if found[at - 1].strip()), 0)
            if last and found[last - 1] == RULES:
                del found[last - 1 :]
        found.append(line)
    return found[:-1]


def _without_points(text: str, title: str, is_wrong: Callable[[str], bool]) -> str:
    """Return the text without the wrong items of the list under a heading, and without the heading if nothing
    is left.
    """
    place = section_span(text, title)
    if place is None:
        return text
    start, stop = place
    lines = text.splitlines()
    points = ((line, _POINT.match(line)) for line in lines[start:stop])
    kept = [line for line, mark in points if not (mark and is_wrong(line[mark.end() :]))]
    if len(kept) == stop - start:
        return text
    is_left = any(line.strip() for line in kept)
    rest = (*lines[:start], *kept) if is_left else lines[: start - 1]
    return headings_once("\n".join((*rest, *lines[stop:])).strip())


def _typed_units(said: str) -> Iterator[str]:
    """Yield the typed text as lines and as sentences: a smaller part may say the contrary of the whole."""
    for unit in stated(said):
        plain = _normalise(unit[_after_marks(unit) :])
        if len(plain) >= _SHORTEST_RULE:
            yield plain


def _after_marks(line: str) -> int:
    found = _MARKS.match(line)
    return found.end() if found else 0


def _normalise(text: str) -> str:
    """Return a text in lower case, without markup and surrounding punctuation."""
    return " ".join(text.casefold().replace("*", "").replace("`", "").split()).strip("\"'“”«».!。！ ")
