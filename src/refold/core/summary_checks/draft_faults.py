"""Detect drafts that are no summary: refusals, pieces of a conversation, and texts in another language.

A refusal begins in the first person and is about the task: an apology and "I can't", or "I can't" and the
request. Quotations, and reports that people of the conversation cannot do something, are no refusal. A text
with its own paths or numbers, or with further text under headings, is a summary, however it began.

Models that lose their task copy the transcript, continue the dialogue, think aloud or call tools. Each of
these has a form that a report does not have.

Letters identify a script, and common small words identify the languages that share the Latin script. Code,
paths, names and headings are equal in every language and are ignored. A conversation may have several
languages; a summary in any of them is valid.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from refold.core.digest.terms import CJK, TermKind, single_terms
from refold.core.summary_text import is_heading, is_open, lines_of

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
