"""Separate the text that a user typed from text that was pasted, attached or added by a program.

Rules of the user are carried through a whole conversation, so only typed text may state one. A message does
not record which of its text was typed, so every passage with a sign of another origin is left out:

- parts other than text;
- marked blocks: code between fences, text between tags, quotation marks or delimiter lines, quoted lines,
  settings. A block ends at the last mark of its kind, because pasted text may contain the mark itself;
- all text above a last line that refers to it ("Summarise the above");
- all text after a line that announces it ("Summarise this page:") or says where it comes from ("from slack"), to
  the end of the message, unless a marked block follows at once;
- the text from the first sign of a document to the end: a mail header, lines of data, a diff, a terminal, a
  log or a chat, the links of a page, the title of a page above points, a letter with its greeting and its end,
  a heading that is not the first line of a short message;
- everything except a short first paragraph, if the message is longer than people type.

Quotations within a line are handled by `rules`. Pasted text that has none of these signs and is no longer
than a typed message counts as typed.

The user messages before the first reply of the assistant are the task. People prepare tasks, so headings,
sections and more length are allowed there. If a task consists only of blocks between tags, as programs write
them, the blocks that are named as instructions are read.

The time is linear in the length of the text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice, takewhile

from msgspec import Struct

from refold.model.message import Message, Text, is_within, visible

# Names of the tags around blocks that clients are known to add to a user's message. A request does
# not say which program or person wrote a block, and people write tags too: `<context>`,
# `<output_format>`, a component of their own. A name is listed only if a client in use writes such
# blocks itself, and if people hardly use the name for their own text: a block that is removed from
# the task by mistake is lost to the model, a block that is kept by mistake only costs tokens. So
# the wrappers around the user's own text (`<user_query>`, `<userRequest>`, `<command-args>`) are
# not listed, nor common words (`<context>`, `<env>`, `<user_info>`, `<file_content>`).

_BY_CLIENT: dict[str, tuple[str, ...]] = {
    "Claude Code: reminders, output of commands that run on the user's machine, hooks, the editor, other agents": (
        "system-reminder",
        "local-command-caveat",
        "local-command-stdout",
        "local-command-stderr",
        "bash-stdout",
        "bash-stderr",
        "command-message",
        "user-prompt-submit-hook",
        "session-start-hook",
        "ide_opened_file",
        "ide_selection",
        "ide_diagnostics",
        "new-diagnostics",
        "task-notification",
        "teammate-message",
        "available-deferred-tools",
    ),
    "Codex: its environment, the AGENTS.md of the project, and what became of a turn": (
        "environment_context",
        "user_instructions",
        "turn_aborted",
        "subagent_notification",
        "recommended_plugins",
    ),
    "Cline, Roo Code and Kilo Code: open files, terminals and the time, at the end of every message": (
        "environment_details",
    ),
    "Cursor: reminders, files that are open or attached, the tree of the project, rules from its settings": (
        "system_reminder",
        "open_and_recently_viewed_files",
        "attached_files",
        "project_layout",
        "always_applied_workspace_rules",
        "agent_requestable_workspace_rules",
        "agent_transcripts",
        "mcp_file_system",
    ),
    "Copilot: the machine, the workspace, the editor, and reminders of its own": (
        "environment_info",
        "workspace_info",
        "editorcontext",
        "reminderinstructions",
    ),
    "Gemini CLI: the workspace at the start of a session, and the output of hooks": (
        "session_context",
        "hook_context",
    ),
    "OpenHands: hosts, directories and the instructions of the repository": (
        "runtime_information",
        "repository_info",
        "repository_instructions",
    ),
}

PROGRAM_TAGS = frozenset(chain.from_iterable(_BY_CLIENT.values()))
"""In lower case."""


MAX_TYPED = 1_500
"""Characters of a later message without marked blocks: nearly all typed messages are shorter, and most
pasted texts are longer."""
MAX_TYPED_LINES = 25
MAX_FIRST = 240
"""Characters of a first paragraph above a longer text: one or two sentences."""
MAX_AFTER_QUESTION = 400
"""Characters below a question that may still be an afterthought of the user; the subject of a question is
longer."""
MAX_LINES_AFTER_QUESTION = 6
MAX_TASK = 16_000
"""Characters of a task: prompts that people or programs prepare have up to ten thousand."""

_CLOSING = frozenset("”“»」』")
_PLACEHOLDER = "\0"
"""Placeholder line for a marked block that was removed."""
_FENCE = re.compile(r" {0,3}(```|~~~)")
_TAG = re.compile(
    r"[ \t]{0,200}+<(?!(?:b|i|u|em|strong)>)(!--|!doctype|!\[cdata|\?xml|[a-z][\w.:-]{0,40}+)(?![@\w])[^<>]{0,400}+>?",
    re.IGNORECASE,
)
_OPENING_TAG = re.compile(
    r"^[ \t]{0,20}+<([a-z][\w.:-]{0,40}+)(?:\s[^<>]{0,400}+)?>", re.IGNORECASE | re.MULTILINE
)
_CLOSING_TAG = re.compile(r"</([a-z][\w.:-]{0,40}+)[ \t]*+>", re.IGNORECASE)
_RULER = re.compile(r"\s{0,200}+(?:-{3,}+|={3,}+|\*{3,}+|_{3,}+|\+{3,}+|\.{4,}+|[–—]{2,}+)\s{0,200}+")
_BRACKET = re.compile(
    r"\s{0,200}+(?:\"{3}|'{3}|<{3,}+|>{3,}+|~{4,}+)\s{0,200}+|[^\[<{(=*-]{0,80}+[\[<{(=*-]{1,40}+ ?(?:BEGIN|START|END)\b[ A-Z_]{0,40}+\W{0,40}+"
    r"|\s{0,200}+(?:#\+(?:begin|end)_\w{1,20}+|\[/?(?:quote|code|spoiler)\b)[^\n]{0,200}+"
)
_COMMENT_OPENINGS = {"/*": "*/", '"""': '"""', "'''": "'''"}
"""How a comment or a text of several lines begins in code, and how it ends."""
_CLAUSE = re.compile(
    r"\s*+(?:§{1,2}\s?[0-9]|(?:section|article|clause|annex|schedule|abschnitt|artikel|artículo)\s[0-9]{1,3}(?:\.[0-9]{1,3}){0,3}(?:[.)]|\s?[–—-]|\s\([0-9]{1,3}\))\s"
    r"|(?:clause|article) [0-9]{1,3}(?:\.[0-9]{1,3}){0,3}:\s|section [0-9]{1,3}\.[0-9]{1,3}(?:\.[0-9]{1,3}){0,2}:\s|art\. ?[0-9]"
    r"|\[?(?:req|srs|nfr|fr)[-_ ]?[0-9]{1,5}\]?[:.]?\s|[0-9]{1,3}(?:\.[0-9]{1,3}){1,3}\.?\s++(?-i:[A-Z]))",
    re.IGNORECASE,
)
"""The beginning of a clause of a contract, a law or a specification."""
_QUOTED = re.compile(r"\s*+(?:>|&gt;)")
_POINT = re.compile(r"\s*+(?:[-*•]|[0-9]{1,3}[.)])\s")
_HEADING = re.compile(
    r" {0,3}(?:#{1,6}\s|={1,6} \S|h[1-6]\. |bq\. |\.\. \w{1,30}::|\\(?:(?:sub){0,2}section|chapter|begin|documentclass|title|paragraph)\b)"
)
"""A heading of Markdown, wikis, Textile, reStructuredText or LaTeX."""
_INDENTED = ("    ", "\t")
_WRAPPED = 60
"""A quoted line of at least this many characters may have been wrapped, so the next line may be its
continuation."""
_OPENING = {"“": "”", "„": "“”", "«": "»", "「": "」", "『": "』"}
_INSTRUCTIONS = frozenset(
    (
        "instructions",
        "instruction",
        "task",
        "rules",
        "requirements",
        "constraints",
        "guidelines",
        "request",
        "prompt",
        "goal",
    )
)

# --- Signs of a document ---

_MAIL = re.compile(
    r"\s*+(?:-{2,}+\s*+(?:original message|forwarded message|ursprüngliche nachricht|mensaje original)|begin forwarded message)",
    re.IGNORECASE,
)
_WROTE = (
    "wrote", "schrieb", "a écrit", "escribió", "ha scritto", "schreef", "escreveu", "skrev", "napisał", "написал", "пишет", "写道", "寫道",
)  # fmt: skip
_HEADER = re.compile(
    r"\s*+(?:from|to|cc|sent|date|subject|author|title|by|reported by|reporter|assignee|status|labels|version|published|created|updated|source|url|von|an|gesendet|datum|betreff|de|à|objet|para|asunto|от|кому|тема|发件人|收件人|主题|差出人|宛先|件名)"
    r"\s*+[:：]",
    re.IGNORECASE,
)
_DATA = re.compile(
    r"\s*+(?:[{}]|\"[^\"]{1,80}+\"\s*+:|diff --git |@@ -|\+\+\+ |--- |(?:index|commit) [0-9a-f]{7}|Traceback \(|(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER) [A-Z*'\"(]|[A-Z]\w{0,40}?(?:Error|Exception): )"
    r"|[^\x1b]{0,400}+\x1b\["
)
_TERMINAL = re.compile(
    r"\s*+(?:\$ [a-z./~]|PS(?: [A-Z]:[^>\n]{0,200}+)?> ?\S|[\w.-]{1,40}+@[\w.-]{1,40}+[: ][^\s#$%]{0,200}+[#$%](?:\s|$)|[A-Z]:\\[^>\n]{0,200}+>)"
)
"""A shell prompt followed by a command."""
_JSON = re.compile(r"\s*+(?:\{.*\}|\[[\"{\[].*\])\s*+")
_SECTION = re.compile(r"\s*+\[[\w. -]{1,40}+\]\s*+")
_CHANGE = re.compile(r"([+-])(?:[^\s+-]| ?(?:#|//|/\*))")
_STAMPED = re.compile(
    r"\s*+\[?[0-9]{1,4}[./-][0-9]{1,2}[./-][0-9]{1,4},?\s[^:\n]{0,20}[0-9]{1,2}:[0-9]{2}[^\n:]{0,40}(?::[0-9]{2}[^\n:]{0,40})?:\s"
    r"|[^\n—–]{1,40}[—–] (?:today|yesterday|[0-9./-]{6,10}) (?:at )?[0-9]{1,2}:[0-9]{2}",
    re.IGNORECASE,
)
"""A line of a chat that starts with its time, or a line with the name and time above a chat message."""
_FILE_LINE = re.compile(
    r"\s*+={3,}+ [^=\n]{1,200}+={3,}+\s*+|\s*+(?://|#|--|/\*) ?(?:file(?:name)?|path): ?\S[^\n]{0,200}+",
    re.IGNORECASE,
)
"""A line above the text of a file, as programs that print several files write it."""
_PRINTED = re.compile(
    r"\s*+(?:[0-9]{1,2}:[0-9]{2}(?::[0-9]{2}[,.][0-9]{3})? --> |HTTP/[0-9.]{1,3} [0-9]{3}|BEGIN:V[A-Z]{3,10}|[Pp]age [0-9]{1,5} (?:of|/) [0-9]{1,5}\s*+$"
    r"|[0-9]{2}:[0-9]{2}:[0-9]{2},[0-9]{3} --> |\[?[Tt]ool (?:[Rr]esult|[Oo]utput|[Rr]esponse)s?\]?(?::|\s*+$)"
    r"|[\[(*#]{0,3}\s?(?:SYSTEM|DEVELOPER|[Ss]ystem|[Dd]eveloper) (?:PROMPT|MESSAGE|INSTRUCTIONS?|[Pp]rompt|[Mm]essage|[Ii]nstructions?)\W{0,4}(?::|$)"
    r"|#{1,6} [Rr]ules the user gave\b)"
)
"""A line of subtitles, of an HTTP response, of a calendar, of a printed page, of a tool's output, of a prompt, or of a digest."""
_SPOKEN = re.compile(
    r"\s*+(?:[A-Z][\w.'-]{0,20}+(?: [A-Z][\w.'-]{0,20}+){1,2}(?:  ?| · )[0-9]{1,2}:[0-9]{2}(?: ?[AaPp][Mm])?"
    r"|\[[0-9]{1,2}:[0-9]{2}(?: ?[AaPp][Mm])?\] [A-Z][\w ,.'-]{0,40}+"
    r"|@[\w.-]{1,40}+ (?:commented|replied|wrote|· )[^\n]{0,40}+)\s*+"
)
"""A line with the name and the time, or the name and the age, above one message of a chat or a thread."""
_SYSTEM = re.compile(r"\s*+[\[(*#]{0,3}(?:system|assistant|developer)[\])*]{0,3}: ", re.IGNORECASE)
"""A speaker other than the user. In a task, `System:` may be a section about the user's machine."""
_FOUND = re.compile(r"\s*+\[[0-9]{1,3}\] \S")
"""A numbered result of a search."""
_LINKS = re.compile("[|·»›]")
"""The marks between the links at the top of a page."""
_LONGEST_LINK, _MOST_LINKS = 24, 20
_BULLET = re.compile(r"\s*+[•‣◦▪●]\s")
"""A point as programs set it; people type a hyphen or an asterisk."""
_SIGN_OFF = re.compile(
    r"\s*+(?:(?:best|kind|warm) (?:regards|wishes)|regards|(?:yours )?sincerely|yours (?:truly|faithfully)|mit freundlichen grüßen|viele grüße"
    r"|cordialement|saludos cordiales|cordiali saluti|atenciosamente|с уважением)[,.!]?+\s*+",
    re.IGNORECASE,
)
_MANUAL = re.compile(r"(?:NAME|SYNOPSIS|DESCRIPTION|OPTIONS|EXAMPLES?|SEE ALSO)\s*+")
_COLUMN = re.compile(r"\"?[A-Za-z_][\w ]{0,30}+\"?")
_HEREDOC = re.compile(r"[^\n<]{0,400}+<<[-~]?\s?(['\"]?)(\w{1,40}+)\1(?:\s[^\n]{0,200}+)?")
_SPACE = re.compile(r"[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
"""Blanks other than the usual one. Pages are full of them, and the patterns of this module name the usual one."""
_NAME_AND_TIME = re.compile(r"\S[^.!?:\n]{0,40}\s[0-9]{1,2}:[0-9]{2}(?: ?[AaPp][Mm])?\s*+")
_GREETING = re.compile(
    r"\s*+(?:dear|hi|hello|hey|hallo|liebe[rs]?|sehr geehrte|bonjour|hola|estimad|ciao|olá)\b(?:[^.!?]{0,40},\s*+$| [A-Z]\w{1,20}(?: [A-Z]\w{1,20})?$)",
    re.IGNORECASE,
)
_SETTING = re.compile(r"\s*+[\w.-]{1,40}+ ?= ?\S")
_TABLE = re.compile(r"\s*+\|")
_ROW = re.compile(r"\s*+\|(?:[^|\n]++\|){2,}+\s*+")
_LOG = re.compile(
    r"[\s\[(]{0,3}(?:[0-9]{4}-[0-9]{2}-[0-9]{2}|[0-9]{1,2}:[0-9]{2}|[A-Z][a-z]{2} [ 0-9][0-9] [0-9]{2}:|[A-Z]{4,8}[]: ])"
)
_NUMBERED = re.compile(r"\s*+[0-9]{1,6}[\s:|]\s*+\S")
_LABEL = re.compile(r"\s*+\[?([^\W\d_][\w .@'-]{0,30}?)\]?\s?[:：](?=\s)")
_KEY = re.compile(r"\s*+(?:- )?[a-z_][\w.-]{0,40}+:(?=\s|$)")
_COMMA = re.compile(r"[,;\t](?=\S)")
_SPEAKERS = frozenset(
    (
        "user",
        "human",
        "assistant",
        "system",
        "developer",
        "tool",
        "ai",
        "bot",
        "agent",
        "customer",
        "support",
        "you",
        "me",
        "q",
        "a",
    )
)
_NO_SPEAKERS = frozenset(
    ("note", "important", "rule", "reminder", "warning", "also", "edit", "update", "must", "always", "never")
)

# --- Lines that announce a text ---

_ORDER = re.compile(
    r"(?:\b(?:rules?|constraints?|requirements?|guidelines?|conventions?|restrictions?|instructions?|conditions?|criteria|preferences?|boundaries|steps|format|style|tone|length"
    r"|you to|please|remember(?: this| that)?|note(?: that)?|important|also|make sure|be sure|must|should|in mind|things?|now on|in addition"
    r"|do|do this|do the following|follow these|warning|reminder|(?:i|we) (?:want|need|expect)|plan|(?:it|this) should work|regeln|anforderungen|règles|reglas|правила|требования)"
    r"|规则|規則|要求|注意|请|記住|记住|ルール)$",
    re.IGNORECASE,
)
"""End of a line, before its colon, that announces wishes of the user."""
_TEXTS = (
    r"(?:web ?)?(?:page|site|article|document|documentation|docs|text|e-?mail|mail|letter|post|thread|chat|conversation|transcript|paper|report"
    r"|story|readme|excerpt|passage|paragraph|quotation|wiki|terms|contract|agreement|licen[cs]e|policy|review|manual|handbook|brochure|advert"
    r"|announcement|statement|press release|abstract|essay|poem|lyrics|recipe|tweet|newsletter|job|offer|proposal|draft)s?"
)
_OBJECTS = (
    r"(?:file|log|output|trace(?:back)?|error|message|comment|reply|answer|note|snippet|section|content|issue|ticket|table|csv|json|html|yaml"
    r"|data|code|diff|patch|prompt|example|result|input|context|source|list|record|dump)s?"
)
_THIS = r"(?:this|these|that|those|following|their|his|her|attached|pasted|copied|quoted|forwarded|enclosed)"
_STRONG = re.compile(
    rf"\b{_THIS}(?: [\w'’-]{{1,30}}){{0,2}} {_TEXTS}\b"
    rf"|\b(?:{_TEXTS}|{_OBJECTS})(?: [\w'’-]{{1,30}}){{0,2}} (?:below|attached|following)\b|\b(?:attached|pasted|following) {_OBJECTS}\b"
    r"|\b(?:summari[sz]e|translate|proofread|paraphrase|rephrase|shorten|transcribe|fact-?check|extract)\b|^tl;?dr$"
    r"|\b(?:fix|check|correct) (?:the |my )?(?:grammar|spelling|punctuation)\b"
    r"|\b(?:this|these|below|attached|the following|as follows)$"
    r"|\b(?:says?|said|writes?|wrote|reads|answered|repl(?:ied|ies)|claims?|post(?:ed|s)|tweet(?:ed|s))$"
    r"|\b(?:sent|forwarded|gave|mailed|emailed) (?:me|us)$|\b(?:reply|respond|answer)(?: to)? (?:this|these|him|her|them)\b"
    r"|\b(?:fasse|übersetze|kürze|résume[rz]?|tradui[rst]\w{0,2}|resum[ea]|traduc[ei]|traduza|riassumi|перевед\w{1,3}|перескаж\w{1,3}|сократи\w{0,2})\b"
    r"|\b(?:diese[nmrs]?|folgende[nmrs]?|cet|cette|ces|esta|este|estas|estos|questa|questo|эт[аиоу]\w{0,2}|следующ\w{2,3}) \w{3,20}$"
    r"|以下|下面|下列|这篇|這篇|这段|這段|这个页面|翻译|翻譯|总结|總結|次の|要約|翻訳|この(?:ページ|文章|記事|メール)|هذا النص|هذه الصفحة|التالي|لخص|ترجم",
    re.IGNORECASE,
)
"""Words about a text that follows: people do not write them and then continue with their own rules in the
next paragraph."""
_ABOVE = re.compile(
    rf"\W*+(?:(?:please|can you|could you|now|and) ){{0,2}}(?:summari[sz]e|translate|proofread|paraphrase|rephrase|shorten)\b[^.!?]{{0,40}}\babove\b"
    rf"|\^++(?:\s|$)|[^.!?]{{0,20}}\bwhat (?:the|this|that|their|his|her) (?:{_TEXTS}) (?:says?|said)\b|\W*+tl;?dr\b|[^.!?]{{0,60}}\b(?:the )?above (?:{_TEXTS})\b|[^.!?]{{0,60}}\b(?:{_TEXTS}) above\b",
    re.IGNORECASE,
)
"""A last line that refers to a text above it."""
_OWN_RULES = re.compile(
    r"(?:(?:my|our|the|some|a few|new|house|ground) ){0,2}(?:rules|guidelines|constraints|conventions) for (?:the rest of )?(?:this|our|the) "
    r"(?:chat|conversation|session|talk)",
    re.IGNORECASE,
)
"""Words before a list of rules that name this conversation, and no text."""
_SAYS = re.compile(r"\b(?:says|said|writes|wrote|reads)$", re.IGNORECASE)
_ORIGIN = re.compile(
    r"fyi|fwd?|quote|quoting\b[^.!?\n]{0,60}|forward(?:ed|ing)\b[^.!?\n]{0,60}|here you go|here it is"
    r"|(?:i |we )?(?:just )?(?:got|saw|found|read|copied|pasted|taken|heard) (?:(?:this|these) )?(?:from|on|off|in|via|at) [^.!?\n]{1,60}"
    r"|from (?:(?:the|our|their|his|her|an?) )?(?!(?:now|here|this|that|today|tomorrow|then|scratch|start|beginning|top|bottom|time"
    r"|experience|memory|what|where|when|how|outside|inside|within)\b)[\w.@#'’-]{1,30}(?: [\w.@#'’-]{1,30}){0,3}"
    rf"|(?:their|his|her) (?:{_TEXTS}|answer|reply)|[\w-]{{1,30}}(?: [\w-]{{1,30}})?['’]s (?:{_TEXTS}|answer|reply|message|comment)",
    re.IGNORECASE,
)
"""A whole line above a pasted text that says where it comes from, without words such as `this page`."""
_ASKED_FIRST = re.compile(
    r"(?:any )?(?:thoughts|opinions|comments)(?: on (?:this|these))?|what do you (?:think|make) of (?:this|these)|what does this mean",
    re.IGNORECASE,
)
"""A whole first line that asks about the text below it: there is none above."""
_ASKED_OF_WORDS = re.compile(
    r"(?:is|are|does|do) (?:this|that|it|these)(?: (?:sentence|text|clause|mail|e-?mail|message|wording))?(?: look| sound)?"
    r" (?:grammatical|idiomatic|legal|spam|a scam|phishing|natural|(?:correct|good|proper) (?:english|german|french|spanish|grammar))",
    re.IGNORECASE,
)
"""A whole first line that asks about the wording of the text below it, with or without a blank line."""
_PAGE_TITLE = re.compile(
    r"(?:[\w'’&-]{1,30} ){0,3}(?:(?:company|privacy|refund|return|cookie|travel|acceptable use) policy|terms(?: (?:of|and) \w{1,20})?"
    r"|release notes|change ?log|onboarding check-?list|faq|code of conduct|handbook|manual|newsletter|press release|licen[cs]e|brochure)"
    r"(?: v?[0-9.]{1,12})?",
    re.IGNORECASE,
)
"""The title of a page that others publish, above a list of points. A wish of the user names its text with an article."""
_ARTICLE = re.compile(r"\b(?:the|my|our|this|that|your)\b", re.IGNORECASE)
_WEAK = re.compile(rf"\b{_THIS}(?: [\w'’-]{{1,30}}){{0,2}} {_OBJECTS}\b|https?://", re.IGNORECASE)
"""Words that may refer to a text that follows, if the text that follows is long."""
_STUDIED = re.compile(
    rf"\b(?:explain|review|read|look at|check|analy[sz]e|go through|compare|rate|comment on)\b[^.!?]{{0,40}} {_TEXTS}\b",
    re.IGNORECASE,
)
_HERE = re.compile(r"\bhere(?:['’]s| is| are)\b", re.IGNORECASE)
_TITLE = re.compile(
    r"\W*+(?:[\w'’.-]{1,30} ){0,3}(?:page|site|article|document|e-?mail|letter|transcript|contents?|context|readme|attachment|excerpt)",
    re.IGNORECASE,
)
"""A few words that name a text, before a colon."""
_NAMED = re.compile(rf"\b(?:{_TEXTS}|{_OBJECTS})\b", re.IGNORECASE)
_GIVEN = re.compile(
    rf"\b(?:{_TEXTS}|(?:context|source|content|result|input|data|log|output)s?)\b", re.IGNORECASE
)
"""Texts that a list can be taken from. A list of files or errors to look at is the user's own."""
_ASKS_ABOUT = re.compile(
    r"(?:what|which|who|whom|whose|when|where|why|how|is|are|was|were|does|do|did|has|have|any|thoughts|opinions?|ideas?)\b",
    re.IGNORECASE,
)
"""Beginning of a question that asks for information. A question that begins with `can you` asks for an
action."""
_SENTENCE = re.compile(r"[.!?]\s++|[。！？]\s*+")
_COLON = re.compile(r": |-> |→ ")
_LABEL_WORDS = 3
_TITLE_REQUEST = re.compile(
    r"\W{0,8}+(?:task:?\s{1,4})?(?:please )?(?:generate|write|create|provide|suggest|give)\b[^.:\n]{0,80}\btitle\b[^.:\n]{0,80}"
    r"\b(?:this|the|the following|our) (?:(?:coding|chat|user's) )?(?:conversation|session|chat|thread|history|dialogue|exchange)"
    r"(?=\s{0,4}(?:[.:,]|$|in \d|using\b|with\b|based\b))",
    re.IGNORECASE,
)
"""How chat programs ask a model for the title of a conversation: opencode, LibreChat, Open WebUI, Claude Code."""
_LONGEST_REQUEST = 200
_SUMMARY_REQUEST = re.compile(r"\W{0,8}+what did we do so far\W{0,8}+", re.IGNORECASE)
"""The user message that opencode puts before its own summary of a conversation."""
_CLIENT_SUMMARY = re.compile(
    r"\W{0,8}+(?:this session is being continued from a previous conversation"
    r"|another language model started to solve this problem and produced a summary)",
    re.IGNORECASE,
)
"""The beginning of the user message in which Claude Code or Codex hands its own summary over."""
_MAX_COLONS = 8
"""Only this many colons of a line are examined: a pasted text may begin after any of them."""


def said_by_user(message: Message) -> Message | None:
    """Return the part of a message that comes from the user, or None.

    A user message is returned itself. An Anthropic client sends text that the user types during a turn in one
    message with the tool results: that text is returned as a user message of its own. Text inside a tool
    result is never the user's.
    """
    if message.role != "tool":
        return message if message.role == "user" else None
    said = tuple(part for part in message.parts if isinstance(part, Text) and part.text.strip())
    return Message("user", said) if said else None


def typed_passages(message: Message, *, is_task: bool = False) -> tuple[str, ...]:
    """Return the passages of a message that its user typed, in order."""
    texts = [visible(part.text) for part in message.parts if isinstance(part, Text)]
    if is_task and (found := _instructions(texts)):
        return found
    stretches: list[str] = []
    is_announced = False
    for at, text in enumerate(texts, 1):
        reader = _Reader(text, is_task=is_task, is_announced=is_announced, is_last=at == len(texts))
        stretches += reader.typed_passages()
        is_announced = reader.is_announced
    return tuple(stretches)


def is_typed(message: Message) -> bool:
    """Return True if a message has text outside the blocks that programs are known to add, and is no request
    of a program: for a title, or for a summary.
    """
    text = request_text(message)
    return bool(text) and not _TITLE_REQUEST.match(text) and not _SUMMARY_REQUEST.fullmatch(text)


def client_summary(message: Message, before: Message | None) -> Message | None:
    """Return the text of a reply in which a client has summed up the conversation itself; None for any other
    message. `before` is the message before it.
    """
    if message.role != "assistant" or before is None or before.role != "user" or message.calls:
        return None
    if before.characters > _LONGEST_REQUEST or not _SUMMARY_REQUEST.fullmatch(request_text(before)):
        return None
    said = tuple(part for part in message.parts if isinstance(part, Text) and part.text.strip())
    return Message("assistant", said) if said else None


def is_client_summary(message: Message) -> bool:
    """Return True if a message is a client's own summary of a conversation: one that `client_summary` returned, or
    a user message that begins as such summaries do.
    """
    return message.role == "assistant" or _CLIENT_SUMMARY.match(message.text[:_LONGEST_REQUEST]) is not None


def request_text(message: Message, mark: str = "") -> str:
    """Return the text of a message without the blocks that programs are known to add to a user's message.

    More is kept than by `typed_passages`: text that a user pastes or writes between tags belongs to the request.
    `mark` replaces a removed block that had other text before and after it.
    """
    texts = [visible(part.text) for part in message.parts if isinstance(part, Text)]
    spans = [list(_program_blocks(text)) for text in texts]
    if not any(spans):
        whole = "\n".join(texts)
        return "" if whole.isspace() else whole
    outside: list[str] = []
    for text, blocks in zip(texts, spans, strict=True):
        at = 0
        for start, stop in (*blocks, (len(text), len(text))):
            if said := text[at:start].strip():
                outside.append(said)
            if start < stop and outside and outside[-1] != mark:
                outside.append(mark)
            at = stop
    while outside and outside[-1] == mark:
        outside.pop()
    return "\n".join(filter(None, outside))


def _program_blocks(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each block of a known program.

    A block ends at the first closing tag of its name.
    """
    if not is_within(text, "</"):
        return
    closed: dict[str, list[int]] = {}
    for found in _CLOSING_TAG.finditer(text):
        closed.setdefault(found[1].lower(), []).append(found.end())
    at = 0
    for found in _OPENING_TAG.finditer(text):
        name = found[1].lower()
        stops = closed.get(name, []) if name in PROGRAM_TAGS else []
        place = bisect_right(stops, found.end())
        if found.start() >= at and place < len(stops):
            at = stops[place]
            yield found.start(), at


def _instructions(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the text between tags that are named as instructions, if the message has no text outside of
    tags.

    The author of such a message wrote the tags, so code in it has its own fences, each closed by the next.
    """
    inner: list[str] = []
    for text in texts:
        at = 0
        for tag in _tags(text):
            if text[at : tag.start].strip():
                return ()
            if tag.name in _INSTRUCTIONS and tag.stop - tag.opened <= MAX_TASK:
                inner.append(text[tag.opened : tag.stop])
            at = tag.stop
        if text[at:].strip():
            return ()
    lines = [
        _without_quotes(_without_tags(_without_fences(text.split("\n"), pairwise=True))) for text in inner
    ]
    return tuple(stretch for own in lines for stretch in _split_passages(own))


class _Reader:
    """Reads one text from its beginning up to the first sign of text that was not typed."""

    def __init__(self, text: str, *, is_task: bool, is_announced: bool, is_last: bool) -> None:
        self.is_task, self.is_announced, self.is_last = is_task, is_announced, is_last
        text = _SPACE.sub(" ", text)
        lines = _without_heredocs([line.removesuffix("\r") for line in text.split("\n")])
        lines = _without_comments(_without_tags(_without_fences(lines)))
        lines = _without_quotes(_without_delimited(_without_quotations(lines), is_task=is_task))
        lines = lines if is_task else _without_indented(_without_clauses(lines))
        lines = _reference_to_above(_without_data(lines))
        lines, self.is_whole = _beginning(
            lines, *((MAX_TASK, MAX_TASK) if is_task else (MAX_TYPED, MAX_TYPED_LINES))
        )
        stop = _document_start(lines, is_task=is_task)
        self.lines, self.is_whole = lines[:stop], self.is_whole or stop < len(lines)
        self.heading = max((at for at, line in enumerate(self.lines) if _HEADING.match(line)), default=-1)

    def typed_passages(self) -> list[str]:
        """Return the typed passages.

        If the text is longer than people type, only a short first paragraph is returned.
        """
        kept: list[str] = []
        for at, line in enumerate(self.lines):
            if line == _PLACEHOLDER:
                self.is_announced = False
            elif line:
                if self.is_announced:
                    self.is_whole = True
                    break
                colon = _announcement_end(line)
                line, self.is_announced = line[:colon], colon < len(line) or self._is_announcement(at)
            kept.append(line)
        if not self.is_whole:
            kept = _first_paragraph(kept)
        return list(_split_passages(kept))

    def _is_announcement(self, at: int) -> bool:
        """Return True if line `at` announces the text that follows it."""
        if self.is_last and at == len(self.lines) - 1:
            return False
        line = self.lines[at].strip(" \t*_")
        said = _SENTENCE.split(line.rstrip(":：.!?。！？ ->→"))[-1].strip(" \t*_#")
        after = self.lines[at + 1 : at + 2 + 2 * MAX_LINES_AFTER_QUESTION]
        if line.endswith((":", "：", "->", "→")):
            return self._is_about_text(said, next(filter(None, after), ""))
        if not self.is_task and self._is_title_of_page(line, after):
            return True
        if _SAYS.search(line) and len(line.split()) <= _LABEL_WORDS:
            return True
        if not any(self.lines[:at]) and _ASKED_OF_WORDS.fullmatch(line.rstrip("?？ ")):
            return True
        if after and after[0] and after[0] != _PLACEHOLDER:  # it does not end a paragraph
            return False
        if _STRONG.search(bare := line.rstrip(".!?。！？ ")) or _HERE.search(bare):
            return True
        if not self.is_task and (
            _ORIGIN.fullmatch(bare) or (not any(self.lines[:at]) and _ASKED_FIRST.fullmatch(bare))
        ):
            return True
        if _STUDIED.search(line) and at < self.heading:
            return True
        return self._may_introduce(line, said) and (_is_long(after) or not self.is_whole)

    def _is_title_of_page(self, line: str, after: Sequence[str]) -> bool:
        """Return True for the title of a pasted page above a list of points."""
        if not _POINT.match(next(filter(None, after), "")) or _ARTICLE.search(line) or _ORDER.search(line):
            return False
        return _PAGE_TITLE.fullmatch(line) is not None

    def _is_about_text(self, said: str, following: str) -> bool:
        """Return True if the words before a colon announce a pasted text and not the user's wishes."""
        if _OWN_RULES.fullmatch(said):
            return False
        if _STRONG.search(said):
            return True
        if _ORDER.search(said):
            return False
        if _HERE.search(said):
            return True
        if _POINT.match(following):
            return _GIVEN.search(said) is not None
        is_label = len(said.split()) <= _LABEL_WORDS  # a task has sections, such as `Background:`
        return not (self.is_task and is_label) or _NAMED.search(said) is not None

    def _may_introduce(self, line: str, said: str) -> bool:
        """Return True if the line may introduce a long text: a question about it, a word for it, or its
        title.
        """
        if _STUDIED.search(line) or (line.endswith(("?", "？")) and _ASKS_ABOUT.match(said)):
            return True
        is_title = line[-1:].isalnum() and not _POINT.match(line)
        return not self.is_task and (line.endswith(("?", "？")) or is_title or _WEAK.search(line) is not None)


def _beginning(lines: Sequence[str], most: int, most_lines: int) -> tuple[list[str], bool]:
    """Return the first lines within both limits, and whether these are all lines.

    Consecutive blank lines become one, and blank lines are not counted.
    """
    found: list[str] = []
    for line in lines:
        if not line.strip():
            found += [""] if found and found[-1] else []
            continue
        if line != _PLACEHOLDER:
            most, most_lines = most - len(line), most_lines - 1
        if most < 0 or most_lines < 0:
            return found, False
        found.append(line)
    return found, True


def _first_paragraph(lines: Sequence[str]) -> list[str]:
    """Return the lines up to the first blank line, if there is one and they are as short as a typed
    introduction.
    """
    first = list(takewhile(lambda line: line and line != _PLACEHOLDER, lines))
    return first if len(first) < len(lines) and sum(map(len, first)) <= MAX_FIRST else []


def _announcement_end(line: str) -> int:
    """Return the position in a line after which a text begins that is announced before a colon or an arrow.

    The result is the length of the line if it announces none.
    """
    start = 0
    for colon in islice(_COLON.finditer(line), _MAX_COLONS):
        at = colon.start()
        for found in _SENTENCE.finditer(line, start, at):
            start = found.end()
        clause = line[start:at].rstrip()
        if (
            _STRONG.search(clause)
            or _TITLE.fullmatch(clause)
            or (_HERE.search(clause) and not _ORDER.search(clause))
        ):
            return at + (line[at] == ":")
    return len(line)


def _is_long(lines: Sequence[str]) -> bool:
    said = [line for line in lines if line and line != _PLACEHOLDER]
    return sum(map(len, said)) > MAX_AFTER_QUESTION or len(said) > MAX_LINES_AFTER_QUESTION


def _split_passages(lines: Sequence[str]) -> Iterator[str]:
    """Join lines to passages, split at the placeholders of marked blocks."""
    held: list[str] = []
    for line in (*lines, _PLACEHOLDER):
        if line != _PLACEHOLDER:
            held.append(line)
            continue
        if any(map(str.strip, held)):
            yield "\n".join(held)
        held = []


# --- Marked blocks ---


def _without_fences(lines: Sequence[str], *, pairwise: bool = False) -> list[str]:
    """Replace code between fences by a placeholder.

    A block reaches from the first fence to the last of its kind, or, with `pairwise`, from each fence to the
    next. An unpaired fence opens code that continues to the end.
    """
    found = list(lines)
    for kind in ("```", "~~~"):
        fences = [at for at, line in enumerate(found) if (mark := _FENCE.match(line)) and mark[1] == kind]
        if pairwise:
            fences += [len(found) - 1] if len(fences) % 2 else []
            spans = list(zip(fences[::2], fences[1::2], strict=True))
        else:
            spans = [(fences[0], fences[-1] if len(fences) > 1 else len(found) - 1)] if fences else []
        found = _replace_spans(found, spans)
    return found


def _without_comments(lines: list[str]) -> list[str]:
    """Replace comments and texts of code that have several lines, to the last mark that ends one."""
    for opening, closing in _COMMENT_OPENINGS.items():
        starts = [at for at, line in enumerate(lines) if line.lstrip().startswith(opening)]
        ends = [at for at, line in enumerate(lines) if closing in line]
        if starts and ends and ends[-1] > starts[0]:
            lines = _replace_spans(lines, [(starts[0], ends[-1])])
    return lines


def _without_clauses(lines: Sequence[str]) -> list[str]:
    """Replace numbered clauses of a contract, a law or a specification, each to the end of its paragraph."""
    found, is_clause = list[str](), False
    for line in lines:
        is_clause = bool(line.strip()) and (is_clause or _CLAUSE.match(line) is not None)
        found.append(_PLACEHOLDER if is_clause else line)
    return found


def _without_heredocs(lines: list[str]) -> list[str]:
    """Replace text that a shell command takes from the lines below it, up to the last line with the named word. If there is
    none, the line is no such command.
    """
    last = {line.strip(): at for at, line in enumerate(lines)}
    spans, end = list[tuple[int, int]](), -1
    for at, line in enumerate(lines):
        if at > end and (found := _HEREDOC.fullmatch(line)) and (stop := last.get(found[2], -1)) > at:
            spans.append((at, end := stop))
    return _replace_spans(lines, spans)


def _without_delimited(lines: list[str], *, is_task: bool) -> list[str]:
    """Replace text between lines of dashes or quotation marks. In a task, dashes part sections and stay."""
    for pattern in (_BRACKET,) if is_task else (_BRACKET, _RULER):
        places = [at for at, line in enumerate(lines) if pattern.fullmatch(line)]
        if places:
            lines = (
                _replace_spans(lines, [(places[0], places[-1])]) if len(places) > 1 else lines[: places[0]]
            )
    return lines


def _without_quotes(lines: Sequence[str]) -> list[str]:
    """Replace quoted lines and the lines right after them, because programs wrap quoted text."""
    found: list[str] = []
    is_wrapped = False
    for line in lines:
        is_quoted = line != _PLACEHOLDER and bool(_QUOTED.match(line) or (is_wrapped and line.strip()))
        is_wrapped = is_quoted and (is_wrapped or len(line) >= _WRAPPED)
        found.append(_PLACEHOLDER if is_quoted else line)
    return found


def _without_indented(lines: Sequence[str]) -> list[str]:
    """Replace code that only its indentation marks, as in Markdown: lines below a blank line that begin with four blanks or a
    tab. Points of a list have such lines as well, and a text that is indented as a whole is no code.
    """
    found, above, is_below_blank, is_code = list[str](), "", True, False
    if not any(line.strip() and not line.startswith(_INDENTED) for line in lines):
        return list(lines)
    for line in lines:
        if not line.strip():
            found.append(line)
            is_below_blank = True
            continue
        is_indented = line.startswith(_INDENTED)
        is_code = is_indented and (is_code or (is_below_blank and not _POINT.match(above)))
        above = above if is_indented else line
        is_below_blank = False
        found.append(_PLACEHOLDER if is_code else line)
    return found


def _without_quotations(lines: Sequence[str]) -> list[str]:
    """Replace lines from an unclosed opening quotation mark to the last line that closes it.

    Quotations within one line stay.
    """
    last = {mark: at for at, line in enumerate(lines) for mark in set(line) & _CLOSING}
    found, end = list[str](), -1
    for at, line in enumerate(lines):
        if at > end:
            opened = [mark for mark in _OPENING if mark in line and not _is_closed(line, mark)]
            end = max((last.get(close, -1) for mark in opened for close in _OPENING[mark]), default=-1)
        found.append(_PLACEHOLDER if at <= end else line)
    return found


def _is_closed(line: str, mark: str) -> bool:
    return any(line.rfind(close) > line.rfind(mark) for close in _OPENING[mark])


def _without_data(lines: Sequence[str]) -> list[str]:
    """Replace settings and JSON values that stand on lines of their own: the next line may be typed again."""
    is_set = [bool(_SETTING.match(line) or _SECTION.fullmatch(line)) for line in lines]
    found: list[str] = []
    for at, line in enumerate(lines):
        is_run = is_set[at] and (is_set[at - 1 : at] == [True] or is_set[at + 1 : at + 2] == [True])
        found.append(_PLACEHOLDER if is_run or _JSON.fullmatch(line) else line)
    return found


def _reference_to_above(lines: list[str]) -> list[str]:
    """Return only the last line if it refers to the text above it, else all lines."""
    last = next((at for at in range(len(lines) - 1, -1, -1) if lines[at].strip()), -1)
    return [_PLACEHOLDER, lines[last]] if last > 0 and _ABOVE.match(lines[last]) else lines


class _Tag(Struct, frozen=True):
    """A block between tags: its start, the end of its opening tag, and its end."""

    name: str
    start: int
    opened: int
    stop: int


def _without_tags(lines: Sequence[str]) -> list[str]:
    """Replace blocks between tags that begin a line."""
    text, parts, at = "\n".join(lines), list[str](), 0
    for tag in _tags(text):
        parts += [text[at : tag.start], f"\n{_PLACEHOLDER}\n"]
        at = tag.stop
    return "".join((*parts, text[at:])).split("\n")


def _tags(text: str) -> Iterator[_Tag]:
    """Yield the blocks from a tag at the beginning of a line to the last closing tag of its name.

    An unclosed block continues to the end of the text if its tag is alone on its line, otherwise to the end
    of the line.
    """
    closed = {found[1].lower(): found.end() for found in _CLOSING_TAG.finditer(text)}
    comment, at = text.rfind("-->") + 3, 0
    while at < len(text):
        line = text.find("\n", at)
        end = len(text) if line < 0 else line
        if found := _TAG.match(text, at):
            name = found[1].lower()
            stop = comment if name == "!--" else closed.get(name, 0)
            if stop < found.end():
                is_alone = name[0] in "!?" or not text[found.end() : end].strip()
                stop = len(text) if is_alone else max(end, found.end())
            yield _Tag(name, found.start(), found.end(), stop)
            at = stop
        else:
            at = end + 1


def _replace_spans(lines: list[str], spans: Sequence[tuple[int, int]]) -> list[str]:
    """Replace each span of lines, its last line included, by one placeholder."""
    found, at = list[str](), 0
    for start, stop in spans:
        found += [*lines[at:start], _PLACEHOLDER]
        at = stop + 1
    return [*found, *lines[at:]]


# --- Documents ---


def _document_start(lines: Sequence[str], *, is_task: bool) -> int:
    """Return the number of the first line that shows a document, which continues to the end; the number of
    lines if there is none.
    """
    signs = [
        *(
            at
            for at, line in enumerate(lines)
            if _MAIL.match(line)
            or _DATA.match(line)
            or _TERMINAL.match(line)
            or _STAMPED.match(line)
            or _FILE_LINE.fullmatch(line)
            or _PRINTED.match(line)
            or _SPOKEN.fullmatch(line)
            or _ROW.fullmatch(line)
            or _is_attribution(line)
        ),
        *_diff_start(lines),
        *[at for at, line in enumerate(lines) if _NAME_AND_TIME.fullmatch(line)][:-1],
        *_first_run(lines, _is_header, 2),
        *_first_run(lines, _TABLE.match, 2),
        *_first_run(lines, _LOG.match, 2),
        *_first_run(lines, _is_row, 2),
        *_small_table_start(lines),
        *_first_run(lines, _FOUND.match, 2),
        *[at for at, line in enumerate(lines) if _MANUAL.fullmatch(line)][:-1],
        *_first_run(lines, _KEY.match, 3),
        *_first_run(lines, _NUMBERED.match, 3),
        *(at for at, line in enumerate(lines) if at and _GREETING.match(line)),
        *_chat_start(lines),
    ]
    if not is_task:
        signs += [at for at, line in enumerate(lines) if _SYSTEM.match(line)][:1]
        signs += [at for at, line in enumerate(lines) if _is_menu(line)][:1]
        signs += _first_run(lines, _BULLET.match, 3)
        signs += _letter_start(lines)
        is_short = sum(map(len, lines)) <= MAX_AFTER_QUESTION  # then its first heading is the user's
        signs += [at for at, line in enumerate(lines) if (at or not is_short) and _HEADING.match(line)][:1]
    return min(signs, default=len(lines))


def _letter_start(lines: Sequence[str]) -> Iterator[int]:
    """Yield 0 if the text begins with a greeting and has the end of a letter, as people do not write to a model."""
    first = next((line for line in lines if line.strip()), "")
    if _GREETING.match(first) and any(map(_SIGN_OFF.fullmatch, lines)):
        yield 0


def _is_menu(line: str) -> bool:
    """Return True for the links at the top of a page, such as `Home | About | Contact`."""
    links = [link.strip() for link in _LINKS.split(line, _MOST_LINKS)]
    return len(links) > 2 and all(
        link.replace(" ", "").isalnum() and len(link) <= _LONGEST_LINK for link in links
    )


def _is_attribution(line: str) -> bool:
    """Return True for a line such as `On Monday Bob wrote:`, in some languages."""
    return line.rstrip().endswith((":", "：")) and len(line) < 400 and any(word in line for word in _WROTE)


def _is_header(line: str) -> bool:
    return _HEADER.match(line) is not None


def _is_row(line: str) -> bool:
    """Return True for a row of values that are separated by commas without blanks."""
    return len(_COMMA.findall(line[:400])) > 1


def _small_table_start(lines: Sequence[str]) -> Iterator[int]:
    """Yield the position of the first line that names columns and is followed by a row with as many values, if there is one."""
    for at in range(len(lines) - 1):
        commas = len(_COMMA.findall(lines[at][:400]))
        if commas and len(_COMMA.findall(lines[at + 1][:400])) >= commas:
            names = _COMMA.split(lines[at][:400].strip())
            if all(map(_COLUMN.fullmatch, names)):
                yield at
                return


def _first_run(lines: Sequence[str], is_one: Callable[[str], object], least: int) -> Iterator[int]:
    """Yield the first position at which `least` consecutive lines match, if there is one."""
    count = 0
    for at, line in enumerate(lines):
        count = count + 1 if is_one(line) else 0
        if count == least:
            yield at + 1 - least
            return


def _diff_start(lines: Sequence[str]) -> Iterator[int]:
    """Yield the first position at which a removed line of a diff is next to an added one, if there is one."""
    marks = [found[1] if (found := _CHANGE.match(line)) else "" for line in lines]
    for at in range(1, len(marks)):
        if marks[at] and marks[at - 1] and marks[at] != marks[at - 1]:
            yield at - 1
            return


def _chat_start(lines: Sequence[str]) -> Iterator[int]:
    """Yield the position at which the record of a chat begins, if there is one: at the first of two lines
    with the same speaker.

    The usual names of the sides of a chat with a model count as one speaker.
    """
    first: dict[str, int] = {}
    for at, line in enumerate(lines):
        found = _LABEL.match(line)
        name = found[1].strip().lower() if found else ""
        name = "speaker" if name in _SPEAKERS else name
        if not name or name in _NO_SPEAKERS:
            continue
        if name in first:
            yield first[name]
            return
        first[name] = at
