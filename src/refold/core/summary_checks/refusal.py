"""Detect drafts that decline to write a summary.

A refusal begins in the first person and is about the task: an apology and "I can't", or "I can't" and the
request. Quotations, and reports that people of the conversation cannot do something, are no refusal. A text
with its own paths or numbers, or with further text under headings, is a summary, however it began.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from refold.core.digest.terms import CJK, TermKind, terms
from refold.core.summary_checks.headings import is_heading, lines_of

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
    return any(kind in (TermKind.LITERAL, TermKind.NUMBER) for _, kind in terms(text))


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
