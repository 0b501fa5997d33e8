"""The ledger: facts that are carried from summary to summary mechanically, not by a model.

The user's later messages, files, rules, errors, decisions, open tasks, ids and numbers are found by their form in each message, and are
never paraphrased and never dropped by chance. A file that was read and later modified counts as modified; a
rule stays as the user wrote it; an error stays until its call is made again. Of ids and numbers, those that
the user said rank first, then those that were said last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, zip_longest

from msgspec import Struct

from refold.core.digest.pieces import contains_word, ends, head, is_safe
from refold.core.digest.typed_text import is_typed, request_text, said_by_user, typed_passages
from refold.core.tool_use import COMMON_TOOLS, MAX_LINE, ToolKinds, call_key, file_accesses, stated_errors
from refold.model.message import Message, ToolCall

# The user's rules: sentences that state how work has to be done, found by their form and kept word
# for word. A paraphrased rule is a different rule, so sentences that order, forbid or limit
# something are copied unchanged, and so is every item of a list whose heading calls it rules. Code,
# including its comments, is no rule, and neither is a question. An order between quotation marks or
# inline tags is quoted and not given, though a rule may contain a quotation.

MAX_RULE = 400
"""Characters of one rule: a longer sentence is a text, and no rule to follow word for word."""
_MIN_WORDS = 3
_START = r"(?:^|[.!?,:;(*—-] ?|\b(?:please|pls|plz|you|but|and|so|then|bitte|absolutely|strictly) )"
"""Positions at which an order can begin."""
_WORDS = r"[^.,;:!?]{1,60}"
_NO_BAN = (
    r"(?:problems?|worr(?:y|ies)|thanks|ideas?|way|need|needs|doubts?|luck|rush|errors?|clues?|difference|one|matter|issues?|answers?|responses?|results?"
    r"|such|more (?:errors?|problems?|questions?|issues?|ideas?|time|than)|less|others?|news|chances?|signs?|reasons?|regrets|changes for|this|that['’]s|it['’]?s|there['’]s|these|those|as|was|is|has|does|yes|guess"
    r"|es|eres|tienes|puedes|sabes|has|estás|quieres|nos|los|las|les|\w{2,20}mos)\b"
)
"""What follows `no` in an answer or a statement. In Spanish, `no` also begins a sentence such as `no tienes`."""
_STATES = (
    r"(?:i|we|it|you|is|are|was|were|has|have|had|do|does|did|can|could|will|would|ran|works?|worked|found|fails?|failed|named|matched|appears?|shows?|exists?"
    r"|remains?|left(?! behind)|came|got|happen(?:s|ed)?|yet|so far|either|ist|sind|war|waren|hat|haben|wird|wurden?|gefunden)\b"
)
"""Words of a statement: `No tests were run` and `no errors so far` forbid nothing."""
_KEPT = (
    r"short|brief|concise|terse|small|simple|clean|minimal|unchanged|untouched|intact|as (?:is|it is|they are)|stable|compatible|consistent|working|green|private"
    r"|secret|separate|sorted|up to date|to|under|below|within|above|at|in|on|out of|away from|between"
)
"""What `keep` orders: a state or a limit. `Keep going` orders nothing."""
_LANGUAGES = (
    r"(?:(?:plain|simple|british|american|brazilian) )?(?:english|german|french|spanish|italian|portuguese|dutch|norwegian|swedish|danish|finnish|polish|russian"
    r"|turkish|arabic|hindi|chinese|japanese|korean|ukrainian|greek|czech|bullet points|full sentences|one sentence)\b"
)
_ORDER = re.compile(
    r"\b(?:always|never|must|mustn['’]t|make sure|be sure|ensure|avoid|prefer|remember to|from (?:now|here) on|at all times"
    r"|under no circumstances|no more than|not more than|no (?:longer|fewer|less|later|larger|wider) than|at most|at least|only use|use only"
    r"|only (?:if|when|after)|required to|off[- ]limits|refrain from|(?:please|kindly) not|nobody but"
    r"|not allowed|should(?: not|n['’]t| never| only)|(?:want|need|expect|i['’]d like|would like) you to|(?:may|can) (?:only|never|not)|ask me (?:before|first)"
    r"|you(?: are|['’]re) not to|we (?:do not|don['’]?t) (?:use|allow|accept|commit|mock|log|store|merge|push|ship)"
    r"|i (?:do not|don['’]?t) want (?:any|you|to see)|i want (?:all|every|each|only|no)"
    r"|(?:in|under|below|within|less than|fewer than) [0-9]{1,6} (?:words|lines|sentences|characters|chars|bullets|bullet points|paragraphs)"
    r"|niemals|auf keinen fall|(?:bitte|du musst) immer|darfst (?:nicht|kein\w{0,3})|en ningún caso|en aucun cas|in nessun caso"
    r"|bitte nicht|du (?:musst|sollst)|stelle? sicher|achte darauf|ich möchte,? dass du"
    r"|il ne faut (?:pas|jamais|plus)|(?:tu|vous) (?:ne )?(?:dois|devez)|merci de (?:ne|toujours)|assure-toi|assurez-vous|veille[rz]? à|interdi(?:t|ction) de"
    r"|debes|deberás|tienes que|asegúrate|preg[uú]ntame antes"
    r"|ab (?:jetzt|sofort)|von (?:jetzt|nun) an|vanaf nu|à partir de maintenant|a partir de ahora|de ahora en adelante|d['’]ora in poi|de agora em diante"
    r"|ни в коем случае|нельзя|nie wolno|asla|कभी मत|أبدا)\b"
    r"|(?:^|[.!?:;(] ?|\b(?:but|please) )you (?:have|need) to\b"
    "|必须|不要|禁止|务必|请勿|绝对不|絕對不|不得|不准|絶対に|しないでください|必ず|절대|하지 마|반드시",
)
"""An order, a ban or a limit. All three patterns are searched in lower case: a third of the time that a search without
regard to case takes."""
_ORDER_AT_START = re.compile(
    rf"{_START}(?:(?:do not|don['’]?t)\b|stop \w{{2,20}}ing\b|only (?:edit|change|touch|modify|work|commit|push|merge|deploy|run|write|add|delete|install|answer|reply)\b|let['’]s not\b|from (?:today|tomorrow),|use [^.,;:!?]{{1,60}}, not\b"
    r"|leave [^.,;:!?]{1,60} alone\b"
    rf"|no (?!{_NO_BAN})(?:[\w'’./-]{{1,30}} ){{0,3}}?(?:[\w'’./-]{{2,30}}(?:[^s\W]s|ing)|sql|code|markdown|html|css|javascript|typescript|jargon|boilerplate)\b(?![^.,;:!?]{{0,60}}? {_STATES})"
    rf"|(?:nothing|nobody|no one|none of|not a single)\b[^.,;:!?]{{0,60}} (?:may|must|should|shall)\b|nothing (?:outside|beyond|except)\b|hands off\b|stay away from\b"
    rf"|keep (?!(?:me|you|on|at|up)\b|\w{{2,20}}in[g'’]|(?:[\w'’-]{{1,20}} ){{0,4}}in (?:mind|touch)\b){_WORDS} (?:{_KEPT})\b|it(?:['’]s| is) (?:very |really )?(?:important|essential|crucial|vital|mandatory) that\b|(?:limit|restrict|cap|confine) {_WORDS} (?:to|at)\b"
    r"|max(?:imum)?\.? (?:of )?(?:[0-9]|one|two|three|four|five|six|ten)|be (?:brief|concise|terse|precise|polite|direct|explicit|consistent)\b"
    rf"|(?:every|each|all|any) (?!(?:i|you|we) ){_WORDS} (?:(?:has|have|needs?) to|needs?|requires?|should|shall)\b|all {_WORDS}, not\b"
    rf"|(?:add|include|write|run|update|put|give|show|cite|quote|use|start|end|begin|finish|report|list|mention|create|attach) {_WORDS} (?:for|with|before|after|in|to|on|per|at|of) (?:every|each|any)\b"
    rf"|(?:(?:before|after) (?:every|each|any)|(?:whenever|every time|each time|any ?time) you) {_WORDS}, (?!(?:it|i|we|they|the|this|that|there|he|she|my)\b)"
    rf"|(?:if|before you) {_WORDS}, (?:then )?(?:stop|ask|tell me|wait|say so|report it|leave it|skip it)\b|(?:when|if) (?:in doubt|unsure)\b"
    rf"|ask (?:us )?(?:before|first)\b|check with (?:me|us)\b|wait (?:for my|until i)\b|stick (?:to|with)\b"
    rf"|use {_WORDS} (?:throughout|everywhere|instead of|rather than|for everything)\b|treat {_WORDS} as\b|refer to {_WORDS} as\b"
    rf"|(?:call|address) me (?!back|later|when|if|at|on|today|tomorrow)\w"
    rf"|(?:answer|reply|respond|speak|talk)(?: [\w'’-]{{1,20}}){{0,3}} in {_LANGUAGES}|write (?:all|every|your|everything)\b{_WORDS} in {_LANGUAGES}"
    r"|\w{2,20} (?:it|this|that|them|the [^.,;:!?]{1,40}) without \w{2,20}ing\b)",
)
"""Words that order something at a position at which an order can begin: "I don't know" states a fact."""
_FOREIGN_ORDER_AT_START = re.compile(
    rf"{_START}(?:(?:nunca|jamás|siempre|sempre|nigdy nie|zawsze|никогда не|всегда|immer|nooit|altijd)\b"
    r"|(?:antworte|schreibe?|verwende|benutze|nutze|nimm|ändere|lösche?|füge|raak|gebruik|wijzig|verander|verwijder|schrijf|antwoord)\b(?! (?:ich|wir|ik|we)\b)"
    r"[^,;:!?]{0,60} (?:immer|nie|nicht|nur|keine?n?|nooit|altijd|niet|geen)\b"
    rf"|keine?n? (?!(?:ahnung|problem|sorge|frage|idee|zeit|lust|wunder)\b){_WORDS}(?<!\bist)(?<!\bsind)(?<!\bwar)(?<!\bmehr)(?:[.,;:!?]|$)"
    r"|nie (?:wieder )?[^.,;:!?]{1,60}en\b|frage? (?:mich|uns|vorher)\b|lasse? [^.,;:!?]{1,60} (?:in ruhe|unverändert)\b|(?:höchstens|maximal) \w"
    rf"|(?:jede[rsnm]?|alle) {_WORDS} (?:muss|müssen|soll|sollen|braucht|darf|dürfen)\b"
    r"|toujours \w{2,20}(?:er|ir|re)\b|ne (?:jamais|pas) \w{2,20}(?:er|ir|re)\b|(?:ne |n['’](?!(?:est|a|ai|y|était|avait)\b))\w{2,20} (?:jamais|pas|rien|plus|aucune?)\b|pas (?:de |d['’])(?!(?:problème|souci|idée|chance)s?\b)\w"
    rf"|évite[rz]?\b|demande[rz]?-(?:moi|nous) avant\b|limite[rz]? {_WORDS} à\b|(?:chaque|tous les|toutes les) {_WORDS} (?:doit|doivent)\b"
    rf"|nada de (?!nada\b)\w|evita\b|usa (?:solo|sólo|únicamente)\b|limita {_WORDS} a\b|(?:cada|todos los|todas las) {_WORDS} (?:debe|deben|tiene que|tienen que)\b"
    r"|non \w{2,20}re mai\b|не \w{2,20}(?:й|йте|ите)\b"
    r"|(?!(?:yo|él|ella|io|eu|je|il|on|ich|es|ik) )\w{3,20} (?:toujours|siempre|sempre|nunca|jamais)\b)",
)
"""The same in other languages."""
_SHORT_ORDER = re.compile(r"\W*+(?:no \w{2,30}s|be \w{3,12})\W*+", re.IGNORECASE)
"""A rule of two words."""
_NO_ORDER = re.compile(
    r"\b(?:it|he|she|i|they|this|who|which) (?:always|never)\b(?! (?:want|expect)\b)|\bnever mind\b|\b(?:do not|don['’]?t) (?:worry|bother|know|ask me (?:why|how))\b"
    r"|\bmust have been\b|\byou must be (?:tired|busy|bored|kidding|joking|new)\b|\balways (?:nice|good|great|fun|happy|a pleasure) to\b"
    r"|(?<!\bi )(?<!\bwe )(?<!\bi['’]d )(?<!\bnever )(?<!\bnot )(?<!\bto )"
    r"(?:\b(?:says|said|states|stated|claims|claimed|thinks|thought|complains|complained|warns|warned|insists|insisted|recommends|suggests|reads)"
    r"|\b(?:docs|documentation|they|people|pages|rules|notes|guidelines) (?:say|state|claim|think|recommend|suggest)"
    r"|\btold (?:me|us|him|her|them)|\baccording to [^,.;:]{1,40}?)"
    r"(?: that)? (?:[^,;—]|,(?! (?:so|but|hence|therefore)\b))*+",
)
"""What somebody does or what somebody else says, up to a conclusion of the user. Searched in lower case."""
_ORDER_AS_QUESTION = re.compile(
    r"(?:can|could|will|would) you (?:please )?(?:(?:make sure|ensure)(?: that)? you (?:never|always|do not|don['’]t)|never)\b"
    r"|(?:can|could|will|would) you please (?:always|not|stop|avoid|only|keep)\b",
    re.IGNORECASE,
)
"""A question that is an order."""
_TAG_QUESTION = re.compile(
    r"(?:,|\s[-–—]|\.{3}|…)\s?(?:(ok(?:ay)?|k|understood|please|pls|alright|all right|got it|(?:is that )?clear|will you|would you|can you|deal|agreed|verstanden|klar|bitte"
    r"|compris|d['’]accord|s['’]il te plaît|entendido|de acuerdo|por favor)|right|yes|yeah|ja|oui|vale)\s?[?？]$",
    re.IGNORECASE,
)
"""The end of an order that asks for no answer. Words outside of the group also ask whether a statement is true."""
_ASKS = re.compile(
    r"(?:so )?(?:should|does|did|is|are|was|were|can|could|may|might|will|would|shall|must|have|has|do (?!not\b)|why|what|which|who|when|where|how"
    r"|soll|darf|muss|kann|est-ce|dois|puis|debo|puedo|¿)",
    re.IGNORECASE,
)
_IMPERATIVE = re.compile(
    r"(?:(?:please|pls|and|but|so|also|ok|bitte),? )?(?:always|never|do not|don['’]?t|stop|leave|keep|no|ask|use|avoid|make|ensure|limit|under|run|add|write|answer|nie|niemals|immer)\b",
    re.IGNORECASE,
)
_HEADING = re.compile(
    r"(?:#+ |\*\*)?[^.!?]{0,60}\b(?:rules|constraints|requirements|guidelines|conventions|restrictions)\b[^.!?]{0,60}$",
    re.IGNORECASE,
)
_POINT = re.compile(r"\s*(?:[-*•]|\d+[.)])\s+(?=\S)")
_BULLET = re.compile(r"^[\s>*•-]*(?:\d+[.)]\s+)?")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
_QUOTED = re.compile(r"`[^`]*`")
_QUOTATION = re.compile(
    "“[^“”]*+”?|„[^„“”]*+[“”]?|«[^«»]*+»?|「[^「」]*+」?|『[^『』]*+』?"
    r"|(?<![\w\"])\"(?=\w)[^\"]*+\"?|<!--(?:[^-]|-(?!->))*+|<([a-z][\w-]{0,30}+)(?:\s[^<>]{0,200}+)?>[^<>]*+</"
    r"|\[quote\b[^\]]{0,80}\][^\[]*+|\[(?:image|file|photo|video|audio|attachment):[^\]]*+|\s//\s.*+"
    r"|\b(?:WARN|ERROR|INFO|DEBUG|FATAL)\b.*+|\b[Ee]rror [A-Z]{1,4}[0-9]{2,5}:.*+|\bERR!.*+|\bpanicked at\b.*+"
    r"|(?<![\w.*~/-])/\*[^*]*+(?:\*(?!/)[^*]*+)*+|\(\*\s[^*]*+(?:\*(?!\))[^*]*+)*+|\{#[^#]*+(?:#(?!\})[^#]*+)*+"
    r"|(?<=[(=,\[{])\s?'[^']*+'?|(?<=[(=,\[{ ])[rbfRBF]{1,2}(?:\"[^\"]*+\"?|'[^']*+'?)"
    r"|(?:^\s*+|[:\]>] )(?:[Ff]atal |[Ii]nternal |[Ss]yntax )?(?:[Ee]rror|[Ff]atal|[Pp]anic|[Dd]eprecated)(?:\[\w{1,12}\])?: [^`]*+"
    r"|(?<!\b[Aa] )(?<!\b[Aa]n )(?<!\b[Tt]he )(?<!\b[Oo]n )(?<!\b[Aa]ny )(?<!\b[Ee]ach )(?<!\b[Ee]very )(?<!\b[Tt]his )(?<!\b[Ff]or )(?<!\b[Oo]f )"
    r"\b[A-Z]\w{0,40}?(?:Error|Exception|Warning|Interrupt): [^`]*+"
)
"""A quotation within a line: between quotation marks, tags, brackets or the marks of a comment, a string of code, a comment
after code, or the text after a log level or the name of an error. An unclosed quotation continues to the end of the line."""
_COMMENT = re.compile(r"(?<=\S)(?:(?P<wide>(?:[ \t]{2,}+|\t)#+ )|[ \t]++(?P<mark>#+|-{2,}+|;+|%+)(?=[ \w]))")
"""Where a comment may begin behind code."""
_MAX_COMMENTS, _MAX_STATEMENT = 4, 200
"""Marks of a line that are examined, and characters before such a mark: a statement is short."""
_STATEMENT = re.compile(
    r"[\w.\[\]$*-]{1,60}(?: ?: ?[\w.\[\]]{1,40})? ?(?:[-+*/|&:.?]|<<|>>)?=[=>]? ?\S.*+|[^\s(]{1,60}\(.*\)[;,:{]?|.*[;{}]|[\w.$]{1,40}(?:\+\+|--)"
    r"|\\[a-z]{2,30}\b.*+"
    r"|(?:local|const|let|var|val|int|char|float|double|bool|auto|static|public|private|export)\s[^=]{0,60}=.*+"
    r"|(?i:select (?:[0-9*'].*|[\w.]{1,40}(?:, ?[\w.]{1,40}){0,20} from .*)|insert into .*|delete from .*|(?:create|alter|drop|truncate) (?:table|index|view|database)\b.*"
    r"|update \w{1,40} set .*|where \S{1,40} ?[=<>].*)"
)
"""Code that a comment may stand behind, whatever its mark."""
_INSTRUCTION = re.compile(
    r"\(\w.*\)|[a-z]{2,6} [%$*]?\w{1,12}, ?(?:[%$#*\[]\w|[0-9]|[er]?[abcds][xip]\b|[rxw][0-9]).{0,20}+"
)
"""Lisp and assembler, whose comments begin with a semicolon."""
_SCRIPT = re.compile(
    r"(?:return|import|from|raise|yield|await|assert|del|global|def|class|export|source|sudo|cd|ls|rm|cp|mv|git|npm|npx|yarn|pip3?|python3?|node|docker|kubectl|curl"
    r"|make|apt|apt-get|brew|cargo|echo|chmod|RUN|FROM|COPY|ENV|CMD|ENTRYPOINT|WORKDIR|EXPOSE)(?: \S{1,60}){1,6}|(?:pass|break|continue|else:|try:|finally:|end|fi|done)"
    r"|(?:if|elif|for|while|with|except|case)\b.{0,120}:|-?\s?[\w.-]{1,40}:(?: \S{1,60})?"
)
"""Code that a comment after `#` may stand behind."""
_OUTPUT = re.compile(
    r"\s*+(?:(?:[A-Za-z]:)?[\w./\\@+-]{1,200}\.\w{1,8}(?::[0-9]{1,7}(?::[0-9]{1,6})?:|\([0-9]{1,7}(?:,[0-9]{1,6})?\):)"
    r"|[0-9]{1,7}:[0-9]{1,6}\s{1,8}(?:error|warning|info|note)\b|[A-Z]{1,5}[0-9]{3,5}(?:| \([a-z]{4,8}\)): |-->\s|[EW]: |[a-z_]\w{0,40}(?:\.\w{1,40}){0,6}\.[A-Z]\w{0,60}: )"
)
"""A line of a compiler, a linter or a search in files: it begins with a place or the number of a message."""
_EMPHASIS = re.compile(r"</?(?:b|i|u|em|strong)>", re.IGNORECASE)
_HIDDEN = "\x1a"
_CODE_START = re.compile(
    r"\s*(?:#|//|/\*|\"\"\"|'''|>>>|\d+[:\t|]|;;|-- |REM |@echo|%%|\[\^?[\w-]{1,20}+\]:)"
)
_CODE_MARKS = frozenset("{}[]()<>=;|\\")
_MAX_MARKS = 0.05
"""A line with a higher share of code characters than this is code; a rule may name a call or an operator."""
_WRAPPED = 60
"""A line at least this long that ends in the middle of a sentence continues on the next line."""
_FAR_EAST = re.compile("[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")


def rules(text: str) -> Iterator[str]:
    """Yield the sentences of a user's text that state a rule, in order."""
    in_list = False
    for line in _join_wrapped(_EMPHASIS.sub("", text)):
        is_point = _POINT.match(line) is not None
        in_list = in_list and (is_point or not line.strip())
        if is_point and in_list and not _is_code(line):
            yield from (point for point in [_strip_bullet(line)] if len(point) <= MAX_RULE)
        elif _has_order(line) and not _is_code(line):
            yield from filter(_is_rule, map(_strip_bullet, sentences(line)))
        in_list = in_list or (_HEADING.match(line.strip()) is not None and not is_point)


def sentences(line: str) -> Iterator[str]:
    """Yield the sentences of a line. A quotation belongs to the sentence that contains it."""
    masked, start = _mask_quotations(line), 0
    for found in _SENTENCE.finditer(masked):
        yield line[start : found.start()]
        start = found.end()
    yield line[start:]


def stated(text: str) -> Iterator[str]:
    """Yield the lines and sentences of a user's text that are neither code nor only a quotation."""
    for line in (*text.splitlines(), *_join_wrapped(text)):
        if not _is_code(line):
            units = (line, *sentences(line))
            yield from (unit for unit in units if any(map(str.isalnum, _mask_quotations(unit))))


def _mask_quotations(line: str) -> str:
    """Return the line with every quotation, and a comment after code, masked by the same number of other characters."""
    masked = _QUOTATION.sub(lambda found: _HIDDEN * len(found[0]), line)
    comment = _comment_start(line)
    return masked[:comment] + _HIDDEN * (len(line) - comment)


def _comment_start(line: str) -> int:
    """Return the position of the comment behind the code of a line; the length of the line if there is none.

    People also type the marks of comments, so what stands before the mark has to be code.
    """
    for found in islice(_COMMENT.finditer(line), _MAX_COMMENTS):
        code = line[: found.start()].strip()
        if len(code) <= _MAX_STATEMENT and (found["wide"] or _is_statement(code, found["mark"])):
            return found.start()
    return len(line)


def _is_statement(code: str, mark: str) -> bool:
    """Return True if a text is code behind which a comment with this mark may stand."""
    if _STATEMENT.fullmatch(code):
        return True
    return (mark[0] == "#" and _SCRIPT.fullmatch(code) is not None) or (
        mark[0] == ";" and _INSTRUCTION.fullmatch(code) is not None
    )


def _join_wrapped(text: str) -> Iterator[str]:
    """Yield the lines of a text; a sentence that was wrapped by hand becomes one line again."""
    held = _WrappedLine("")
    for line in text.splitlines():
        said = line.strip()
        if said[:1].islower() and held.goes_on:
            held.add(said)
        else:
            if held.length:
                yield " ".join(held.parts)
            held = _WrappedLine(line.rstrip())
    if held.length:
        yield " ".join(held.parts)


class _WrappedLine:
    """Consecutive lines that are one wrapped line, with running counts of code characters.

    Counting from the start for each added line would take quadratic time.
    """

    def __init__(self, line: str) -> None:
        self.parts, self.length = [line], len(line)
        self._is_comment = _CODE_START.match(line) is not None
        self._marks = self._size = 0
        self._quoted: tuple[int, int] | None = None
        """The same counts since an unclosed backtick: they are dropped when it is closed."""
        self._count(line)

    def add(self, line: str) -> None:
        self.parts.append(line)
        self.length += len(line) + 1
        self._count(f" {line}")

    def _count(self, line: str) -> None:
        for at, piece in enumerate(line.split("`")):
            marks, size = sum(map(_CODE_MARKS.__contains__, piece)), len(piece)
            if at:
                self._quoted = None if self._quoted else (0, 1)
            if self._quoted:
                self._quoted = self._quoted[0] + marks, self._quoted[1] + size
            else:
                self._marks, self._size = self._marks + marks, self._size + size

    @property
    def goes_on(self) -> bool:
        """True if the line is broken in the middle of a sentence and is not code."""
        is_broken = self.length >= _WRAPPED and self.parts[-1][-1:].isalnum()
        if not is_broken or self._is_comment:
            return False
        marks, size = self._quoted or (0, 0)
        return self._marks + marks <= _MAX_MARKS * (self._size + size)


def _has_order(text: str) -> bool:
    text = text.lower()
    return any(pattern.search(text) for pattern in (_ORDER, _ORDER_AT_START, _FOREIGN_ORDER_AT_START))


def _is_rule(sentence: str) -> bool:
    if len(sentence) > MAX_RULE:
        return False
    said = _NO_ORDER.sub(_HIDDEN, _mask_quotations(sentence).lower())
    if not _has_order(said) or (sentence.endswith(("?", "？")) and not _orders_as_question(sentence)):
        return False
    is_short = len(sentence.split(maxsplit=_MIN_WORDS)) < _MIN_WORDS
    return not is_short or bool(_FAR_EAST.search(sentence) or _SHORT_ORDER.fullmatch(sentence))


def _orders_as_question(sentence: str) -> bool:
    """Return True if a sentence with a question mark gives an order, such as `never push to main, ok?`."""
    if _ORDER_AS_QUESTION.match(sentence):
        return True
    tag = _TAG_QUESTION.search(sentence)
    if not tag or _ASKS.match(sentence):
        return False
    return tag[1] is not None or _IMPERATIVE.match(sentence) is not None


def _strip_bullet(sentence: str) -> str:
    return _BULLET.sub("", sentence).strip()


def _is_code(line: str) -> bool:
    if _CODE_START.match(line) or _OUTPUT.match(line):
        return True
    said = _QUOTED.sub("", line)
    return sum(map(_CODE_MARKS.__contains__, said)) > _MAX_MARKS * len(said)


MAX_ENTRIES = 36
"""Limit of carried errors, decisions and tasks: the newest are mostly in messages that are still shown, and a summary
lists those before them."""
MAX_IDS = 24
"""Limit of carried ids and numbers of each source: more than a summary has room for."""
MAX_RULES = 100
"""More rules than a user states. Of a longer list, the oldest half and the newest half of this number are
kept: the first rules of a user apply to everything after them, and no amount of later text may displace
them."""
MAX_FILES = 1_000
"""Limit of carried files of each kind, far more than any summary has room for. Of a longer list, the
oldest half and the newest half of this number are kept."""
MAX_SAID = 40
"""Later messages of the user: more than a summary has room for."""
MAX_MESSAGE_RULES = 25
"""Limit of rules that one message may add: no message can fill more than a fourth of the list."""
_SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+")
_DECISION = re.compile(
    r"\b(?:decided|decision|going with|go with|will use|instead of|switch(?:ed|ing)? to|chose|settled on)\b",
    re.IGNORECASE,
)
_OPEN = re.compile(r"\s*+(?:[-*]|\d+\.)?+\s*+(?:\[ \]|TODO:?|Next(?: steps?)?:|Remaining:)\s*+(?=\S)")
_DONE = re.compile(r"\s*+(?:[-*]|\d+\.)?+\s*+\[[xX]\]\s*+(?=\S)")


class Ledger(Struct, frozen=True):
    """Facts found in messages. Every list is in the order of first mention, without repeats."""

    read: tuple[str, ...] = ()
    """Files that were read and never modified."""
    modified: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    """Sentences of the user that state a rule, word for word."""
    said: tuple[str, ...] = ()
    """The user's messages after the first reply, each as one line: they may change the task."""
    errors: tuple[str, ...] = ()
    error_calls: tuple[str, ...] = ()
    """The key of the call behind each error, in the same order; empty if it is not known."""
    called: tuple[str, ...] = ()
    """Keys of the calls whose results were read: their earlier errors are out of date. Not carried on."""
    decisions: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    """Tasks that were named and not ticked off."""
    done: tuple[str, ...] = ()
    """Tasks that were ticked off: they close those named before."""
    given: tuple[str, ...] = ()
    """Ids and numbers that the user said, with the words around them."""
    seen: tuple[str, ...] = ()
    """Ids in replies and results, with the words around them. A repeated one counts as new."""

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids and numbers, the least important first."""
        return self.seen + self.given


EMPTY = Ledger()


def entries(
    message: Message,
    tools: ToolKinds = COMMON_TOOLS,
    *,
    is_task: bool = False,
    calls: Mapping[str, ToolCall] = {},
) -> Ledger:
    """Return the entries that one message adds to the ledger.

    Files count by the calls of the assistant, regardless of the result; rules count by text that a user typed
    into a message, also beside tool results and never inside of one. A user message before the first reply of
    the assistant `is_task`. `calls` holds the calls that the message answers, by their ids: the content of a
    file that was read states no error and no id.
    """
    match message.role:
        case "user":
            return Ledger(
                rules=typed_rules(message, is_task=is_task),
                said=() if is_task else _said_later(message),
                given=_typed_ids(message, is_task=is_task),
            )
        case "assistant":
            text = message.text
            touched = [access for call in message.calls for access in file_accesses(call, tools)]
            modified = _unique([access.path for access in touched if access.kind == "write"])
            read = _unique([access.path for access in touched if access.kind == "read"])
            return Ledger(
                read=_without(read, modified),
                modified=modified,
                decisions=_unique(map(_shorten_entry, _decisions(text))),
                tasks=_listed(text, _OPEN.match),
                done=_listed(text, _DONE.match),
                seen=identifiers(text, by_user=False),
            )
        case "tool":
            return _result_entries(message, tools, calls)
        case _:
            return EMPTY


def _result_entries(message: Message, tools: ToolKinds, calls: Mapping[str, ToolCall]) -> Ledger:
    errors, seen, called = dict[str, str](), list[str](), list[str]()
    for result in message.results:
        call = calls.get(result.call_id)
        is_content = call is not None and any(access.kind == "read" for access in file_accesses(call, tools))
        key = call_key(call, tools) if call else ""
        called += [key] if key else []
        errors |= dict.fromkeys(stated_errors(result, is_content=is_content), key)
        seen += () if is_content else identifiers(result.text, by_user=False)
    return Ledger(
        rules=typed_rules(message),
        said=_said_later(message),
        errors=tuple(errors),
        error_calls=tuple(errors.values()),
        called=tuple(called),
        given=_typed_ids(message),
        seen=tuple(seen),
    )


def typed_rules(message: Message, *, is_task: bool = False) -> tuple[str, ...]:
    """Return the rules that a user typed into a message, in order."""
    text = message.text
    if not text or next(rules(text), None) is None:
        return ()  # the usual case: finding the typed text would be wasted
    found = (rule for stretch in typed_passages(message, is_task=is_task) for rule in rules(stretch))
    return tuple(islice(dict.fromkeys(found), MAX_MESSAGE_RULES))


def _typed_ids(message: Message, *, is_task: bool = False) -> tuple[str, ...]:
    """Return the ids and numbers that a user typed into a message."""
    text = message.text
    if not text or not identifiers(text, by_user=True):
        return ()  # finding the typed text would be wasted
    return identifiers("\n".join(typed_passages(message, is_task=is_task)), by_user=True)


# The user's later messages. They are few, and each may change what the work is about.

_FEW_WORDS = 3
"""Words of a message that is carried on: "yes" and "go on" answer a reply that is gone."""
_PLAIN = re.compile(r"[^<>`\"“”„«»「」『』\[\]\n]*+")
"""A text without anything that could be a quotation: all of it was typed."""
_TASK_CHANGE = re.compile(
    r"\b(?:actually|instead|forget|scrap|drop the|no longer|not any ?more|never mind|nevermind|scratch that|change of plans?"
    r"|changed? (?:my mind|the (?:task|plan|goal|scope))|(?:task|plan|goal|scope) (?:has |is )?(?:changed|new|different)|new (?:task|plan|goal|priority)"
    r"|rather than|switch to|start over|from now on|stattdessen|vergiss|doch lieber|plutôt|oublie[zr]?|en vez de|en lugar de|olvida|invece|dimentica)\b"
    "|改成|改为|不用了|忘掉|代わりに|やめて|대신",
    re.IGNORECASE,
)
"""Words by which a user takes back what was asked before."""


def _said_later(message: Message) -> tuple[str, ...]:
    """Return what the user said in a message after the first reply, as one line; empty if it says too little."""
    said = said_by_user(message)
    if said is None or not is_typed(said):
        return ()
    text = request_text(said)
    if len(text) > MAX_LINE or not _PLAIN.fullmatch(text):
        text = "\n".join(typed_passages(said))
    text = _shorten_entry(text)
    is_enough = text.count(" ") >= _FEW_WORDS - 1 or (not text.isascii() and len(text) > 2 * _FEW_WORDS)
    return (text,) if is_enough else ()


@lru_cache(maxsize=1_024)
def is_task_change(said: str) -> bool:
    """Return True if the user's words take back what was asked before."""
    return _TASK_CHANGE.search(said) is not None


def most_telling(said: Sequence[str]) -> list[int]:
    """Return the places of the user's messages, the most important first: changes of the task, then the others,
    each with the newest first.
    """
    newest_first = range(len(said) - 1, -1, -1)
    return sorted(newest_first, key=lambda at: not is_task_change(said[at]))


def _merge_said(earlier: tuple[str, ...], later: tuple[str, ...]) -> tuple[str, ...]:
    """Return the messages of both lists; a repeated one counts as new. Beyond `MAX_SAID` the least important leave."""
    found = [*dict.fromkeys((*(one for one in earlier if one not in later), *later))]
    while len(found) > MAX_SAID:  # mostly the first leaves: the rest need not be looked at with every message
        del found[next((at for at, one in enumerate(found) if not is_task_change(one)), 0)]
    return tuple(found)


def merge(earlier: Ledger, later: Ledger) -> Ledger:
    """Return one ledger with the entries of both."""
    if later == EMPTY:
        return earlier
    modified, read = (
        _merge_entries(earlier.modified, later.modified),
        _merge_entries(earlier.read, later.read),
    )
    if read is not earlier.read or modified is not earlier.modified:
        modified = _oldest_and_newest(modified, MAX_FILES)
        read = _oldest_and_newest(_without(read, modified), MAX_FILES)
    errors, calls = earlier.errors, earlier.error_calls
    if later.errors or (errors and later.called):
        merged = _merge_errors(earlier, later)
        errors, calls = tuple(merged), tuple(merged.values())
    tasks = earlier.tasks
    if later.tasks or (tasks and later.done):
        tasks = _newest((*_without(tasks, later.done), *_without(later.tasks, later.done)))
    return Ledger(
        read=read,
        modified=modified,
        rules=_oldest_and_newest(_merge_entries(earlier.rules, later.rules), MAX_RULES),
        said=_merge_said(earlier.said, later.said) if later.said else earlier.said,
        errors=errors,
        error_calls=calls,
        decisions=_with_newest(earlier.decisions, later.decisions),
        tasks=tasks,
        done=_with_newest(earlier.done, later.done),
        given=_merge_ids(earlier.given, later.given, keeps_oldest=True),
        seen=_merge_ids(earlier.seen, later.seen),
    )


def _merge_errors(earlier: Ledger, later: Ledger) -> dict[str, str]:
    """Return the newest errors with the keys of their calls, without those of calls that were made again."""
    again = frozenset(later.called)
    old = zip_longest(earlier.errors, earlier.error_calls[: len(earlier.errors)], fillvalue="")
    found = {line: key for line, key in old if not key or key not in again}
    for line, key in zip_longest(later.errors, later.error_calls[: len(later.errors)], fillvalue=""):
        found.pop(line, None)  # a repeated one counts as new
        found[line] = key
    return dict(islice(found.items(), max(0, len(found) - MAX_ENTRIES), None))


def _merge_ids(
    earlier: tuple[str, ...], later: tuple[str, ...], *, keeps_oldest: bool = False
) -> tuple[str, ...]:
    """Return the entries of both lists, within `MAX_IDS`. An entry about known ids only is not added: it moves
    the known entry to the end of the list instead.
    """
    if not later:
        return earlier
    found = list(earlier)
    for entry in later:
        names = names_in(entry, by_user=keeps_oldest)
        holders = [one for one in found if any(contains_word(one, name) for name in names)]
        if not all(any(contains_word(one, name) for one in holders) for name in names):
            found.append(entry)
        elif not keeps_oldest:
            found.remove(holders[0])
            found.append(holders[0])
    return _oldest_and_newest(tuple(found), MAX_IDS) if keeps_oldest else tuple(found[-MAX_IDS:])


def _merge_entries(earlier: tuple[str, ...], later: tuple[str, ...]) -> tuple[str, ...]:
    """Return both lists without repeats; mostly nothing is new, and the earlier one is returned itself."""
    new = _without(later, earlier)
    return earlier + new if new else earlier


def _without(found: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    if not (found and others):
        return found
    known = others if len(found) == 1 else frozenset(others)
    return tuple([entry for entry in found if entry not in known])


def _oldest_and_newest(entries: tuple[str, ...], most: int) -> tuple[str, ...]:
    """Return the oldest and the newest entries, `most` in total."""
    half = most // 2
    return entries if len(entries) <= most else entries[: most - half] + entries[-half:]


def from_both_ends(count: int) -> Iterator[int]:
    """Yield the positions of a list alternately from its ends: the newest, the oldest, the newest but one,
    and so on.
    """
    for at in range((count + 1) // 2):
        yield count - 1 - at
        if at < count - 1 - at:
            yield at


def _decisions(text: str) -> Iterator[str]:
    if not _DECISION.search(text):
        return  # the usual case
    for line in text.splitlines():
        if _DECISION.search(line):
            yield from (sentence for sentence in _SENTENCE_END.split(line) if _DECISION.search(sentence))


def _listed(text: str, match: Callable[[str], re.Match[str] | None]) -> tuple[str, ...]:
    """Return the rest of every line whose beginning matches."""
    found = ((line, match(line)) for line in text.splitlines())
    return _unique([_shorten_entry(line[begun.end() :]) for line, begun in found if begun])


def _shorten_entry(text: str) -> str:
    return head(" ".join(head(text, 4 * MAX_LINE).split()), MAX_LINE)


def _unique(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, found)))


def _with_newest(earlier: tuple[str, ...], later: tuple[str, ...]) -> tuple[str, ...]:
    """Return the newest entries of both lists."""
    return _newest((*earlier, *later)) if later else earlier


def _newest(found: Iterable[str]) -> tuple[str, ...]:
    """Return the newest entries; a repeated entry counts as new."""
    last_first = tuple(dict.fromkeys(reversed(tuple(entry for entry in found if entry))))
    return tuple(reversed(last_first[:MAX_ENTRIES]))


# Ids and numbers with the words around them. An order number or an amount is a single word of a
# conversation, and the conversation cannot go on without it. Two sources are read: the user's text, in
# which every id and every number of some size counts, and the text of replies and results, in which
# only ids of a strict form and labelled ones count, because results are full of numbers.

MAX_SEARCHED = 4_000
"""Characters of a message that are searched, three quarters from its beginning and one quarter from its end."""
MAX_PER_TEXT = 4
"""Limit of entries of one text: a list of orders must not displace all others."""
_BEFORE = 30
_AFTER = 30
"""Characters quoted before and after an id: a few words."""
_WHOLE_LINE = 80
_ID_CODE = re.compile(r"-[0-9]{2,12}(?:-[A-Z0-9]{1,12}){0,3}(?![\w-])")
"""The rest of `ORD-99123` and `INV-2024-0017`. Each pattern begins with the rarest part of an id, so that a
search skips most of a text; the part before it is matched backwards."""
_ID_CODE_START = re.compile(r"(?<![\w.@/#-])[A-Z][A-Z0-9]{1,9}(?:-[A-Z]{1,6})?\Z")
_TOKEN = re.compile(r"_(?=[A-Za-z0-9]{0,9}[0-9])[A-Za-z0-9]{10,40}(?![\w-])")
"""The rest of `ch_3NqF5eLkdIwHu7ix`."""
_TOKEN_START = re.compile(r"(?<![\w.@/#-])[a-z]{2,8}\Z")
_UUID = re.compile(r"-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(?![\w-])")
_UUID_START = re.compile(r"(?<![\w.@/#-])[0-9a-f]{8}\Z")
_FORMS = ((_ID_CODE, _ID_CODE_START), (_TOKEN, _TOKEN_START), (_UUID, _UUID_START))
_LONGEST_START = 20
_LABELLED = re.compile(r"[:=#]\s{0,3}[\"'#]?(?=[A-Za-z-]{0,12}[0-9])([A-Za-z0-9-]{4,40})(?![\w.-])")
_LABEL = re.compile(r"(?<![a-z])(?:id|number|code|reference|ref|no\.)[\"']?\s{0,3}\Z", re.IGNORECASE)
"""`order_id: 99123`, `Confirmation code: XK7P2Q`."""
_NUMBER = re.compile(r"(?<![\w.,:/@-])[#$€£¥]?[0-9][0-9.,:/-]*+(?![\w@])")
_UNITS = re.compile(
    r"\s?(?:%|€|£|\$|¥|(?:percent|eur|usd|gbp|chf|euros?|dollars?|k|kg|km|gb|mb|ms)\b)", re.IGNORECASE
)
_STANDARDS = (
    "UTF-16 UTF-32 ISO-8601 ISO-8859-1 SHA-256 SHA-384 SHA-512 AES-128 AES-256 BASE-64 COVID-19 X86-64"
)
_EVERYDAY = frozenset(_STANDARDS.split())
"""Names of standards in common use."""


def identifiers(text: str, *, by_user: bool) -> tuple[str, ...]:
    """Return the ids and numbers of a text, each with the words around it, at most `MAX_PER_TEXT`.

    A reply or a result with more ids is a list, and is known by its first.
    """
    text = ends(text, MAX_SEARCHED)
    spans: dict[str, tuple[int, int]] = {}
    for start, stop in _spans(text, by_user=by_user):
        spans.setdefault(text[start:stop], (start, stop))
        if len(spans) > MAX_PER_TEXT:
            break
    most = MAX_PER_TEXT if by_user or len(spans) <= MAX_PER_TEXT else 1
    found: list[str] = []
    for name, (start, stop) in islice(spans.items(), most):
        if not any(contains_word(entry, name) for entry in found):
            found.append(_words_around(text, start, stop))
    return tuple(found)


def are_stated(entry: str, text: str) -> bool:
    """Return True if a text contains every id and number of an entry."""
    return all(contains_word(text, name) for name in names_in(entry, by_user=True))


def names_in(entry: str, *, by_user: bool) -> list[str]:
    """Return the ids of an entry, and its numbers if `by_user`; the whole entry if it has none."""
    return [entry[start:stop] for start, stop in _spans(entry, by_user=by_user)] or [entry]


def _spans(text: str, *, by_user: bool) -> Iterator[tuple[int, int]]:
    """Yield the places of ids, and then those of numbers if a user said them."""
    for rest, beginning in _FORMS:
        for match in rest.finditer(text):
            found = beginning.search(text, max(0, match.start() - _LONGEST_START), match.start())
            if found and text[found.start() : match.end()] not in _EVERYDAY:
                yield found.start(), match.end()
    for match in _LABELLED.finditer(text):
        if _LABEL.search(text, max(0, match.start() - _LONGEST_START), match.start()):
            yield match.span(1)
    if by_user:
        for match in _NUMBER.finditer(text):
            number = match[0].rstrip(".,:/-")
            stop = match.start() + len(number)
            if sum(map(str.isdigit, number)) > 2 or number[0] in "$€£¥" or _UNITS.match(text, stop):
                yield match.start(), stop


def _words_around(text: str, start: int, stop: int) -> str:
    """Return the line of an id if it is short, or the words next to the id."""
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", stop)
    last = len(text) if last < 0 else last
    if last - first > _WHOLE_LINE:
        left, right = max(first, start - _BEFORE), min(last, stop + _AFTER)
        while first < left < start and not is_safe(text, left):
            left += 1
        while stop < right < last and not is_safe(text, right):
            right -= 1
        first, last = left, right
    return " ".join(text[first:last].split())
