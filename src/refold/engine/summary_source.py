"""The source of a summary: the original messages behind a plan's request, free of secrets.

A summary is made from the originals, whole and unmasked, regardless of their shown form. Sensitive messages
and secrets are removed here, before any summariser sees the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, structs

from refold.core import extractive_summary
from refold.core.assemble import NO_LEAD, Lead, assemble, native_messages, own_compaction
from refold.core.budget import Frame
from refold.core.digest.ledger import Ledger
from refold.core.digest.shorten import MAX_SOURCE, count_long, digested, is_short, source_bound
from refold.core.fold import FoldedBranch, has_thoughts, without_thoughts
from refold.core.plan import SummaryRequest, requests_for
from refold.core.policy import Policy
from refold.core.prompts import Passage
from refold.core.secrets import holds_secret, is_clean, redact, redact_message
from refold.core.stage import handle_of
from refold.core.summary_text import KeptText, without_shown
from refold.engine.state import Secrecy
from refold.model.message import Message, visible_message
from refold.model.summary import Summary, joined
from refold.model.window import Tool, Window
from refold.ports.models import SummaryTask

if TYPE_CHECKING:
    from refold.engine.state import State


HAS_COMPACTION = "the conversation holds a compaction already"
CLIENT_COMPACTS = "the client has the provider compact"
WITHHELD = "some messages are withheld from summaries, or too long"


class MessageSearch:
    """Tells which messages hold secrets, for one summary: a model and the provider are given the same messages, and each is
    searched once.
    """

    def __init__(self, known: frozenset[str]) -> None:
        self.known = known
        self._searched: dict[int, tuple[Message, bool]] = {}
        """By the `id()` of the message, which is held so that no other one gets it."""

    def is_clean(self, message: Message) -> bool:
        searched = self._searched.get(id(message))
        if searched is None:
            searched = self._searched[id(message)] = message, is_clean(message, self.known)
        return searched[1]


class SummarySource(Struct, frozen=True):
    """A snapshot of the values that a summary is made from. The conversation goes on while the summary is
    written, maybe in another thread, so the job reads nothing else.
    """

    folded: FoldedBranch
    frame: Frame
    secrecy: Secrecy
    sent: Window | None = None

    @classmethod
    def of(cls, state: State) -> SummarySource:
        return cls(state.folded, state.frame, state.secrecy, state.window)

    @property
    def text_size(self) -> int:
        """In characters."""
        return max(self.folded.branch.characters, self.folded.shown.characters)

    def task(self, request: SummaryRequest, focus: str = "") -> SummaryTask:
        return task_of(request, self.folded, self.frame, focus=focus, secrecy=self.secrecy, sent=self.sent)

    def shown_task(self, request: SummaryRequest, focus: str = "") -> SummaryTask:
        """The same for messages that leave the window: their provider may compact them itself."""
        secrecy, fixed = self.secrecy.search(self.folded), self.frame.fixed
        search = MessageSearch(secrecy.known)
        task = task_of(
            request, self.folded, self.frame, focus=focus, secrecy=secrecy, sent=self.sent, search=search
        )
        if self.folded.shown.progress.compaction >= 0:
            return structs.replace(task, not_native=HAS_COMPACTION)
        if not fixed.model:
            return structs.replace(task, not_native=CLIENT_COMPACTS)
        sent = self._sent_to_provider(request, secrecy, search)
        why = "" if sent is not None else WITHHELD
        window = sent or Window(fixed, ())
        return structs.replace(
            task,
            native_for=fixed.model,
            native_sent=window.sent,
            not_native=why,
            system=task.system or window.system,
            tools=task.tools or (fixed.tools if sent else ()),
        )

    def _sent_to_provider(
        self, request: SummaryRequest, secrecy: Secrecy, search: MessageSearch
    ) -> Window | None:
        """The messages up to the end of a request as the provider got them: after its own last compaction, or after the
        summary that stands there. None if something in them must not be stored, or is not loaded.
        """
        folded, fixed = self.folded, self.frame.fixed
        previous = request.previous[-1] if request.previous else None
        lead, start = folded.lead if previous else NO_LEAD, previous.last if previous else 0
        if previous and (own := own_compaction((previous,), fixed)):
            lead, start = Lead(native_messages(own[0]), is_native=True), previous.told_until
        if folded.origin > start:
            return None
        thinking = {item.seq for item in folded.items.items if has_thoughts(item.message)}
        messages = tuple(
            message if number in thinking else without_thoughts(message)
            for number, message in enumerate(folded.originals(start, request.last), start)
        )
        window = assemble(fixed, messages, lead)
        return window if _may_be_shared(window, secrecy, search, start, request.last) else None

    def with_text(self, summary: Summary, request: SummaryRequest) -> Summary:
        """A provider's compaction with a text that other models can read: a digest of the originals, if it has none."""
        if summary.native is None or summary.text:
            return summary
        policy = structs.replace(self.frame.policy, scope="cumulative")
        folded = structs.replace(self.folded, secrets=self.secrecy.search(self.folded).known)
        told = extractive_summary.summarise(request, folded, structs.replace(self.frame, policy=policy))
        return structs.replace(
            summary, text=told.text, requests=told.requests, tokens=told.tokens, is_digest=True
        )


def task_of(
    request: SummaryRequest,
    folded: FoldedBranch,
    frame: Frame,
    *,
    focus: str = "",
    secrecy: Secrecy | None = None,
    sent: Window | None = None,
    search: MessageSearch | None = None,
) -> SummaryTask:
    """Build the task of a request. A sensitive message appears by its number only.

    If a window was `sent` before, a provider may have most of it in its cache. So a summariser that reads
    messages like the conversation's own model also gets the originals since the last summary as they came,
    after that summary. It does not get them if something had to be redacted, because the originals still hold it, nor
    if a text is too long for a summariser; the passages then hold a plain digest of that text.

    If a text without a model stands for earlier messages, the summariser gets the last model's summary and
    all messages since, not that text: it must read all that its summary covers.
    """
    secrecy, policy = (secrecy or Secrecy()).search(folded), frame.policy
    known, previous = secrecy.known, joined(request.previous)
    search = search or MessageSearch(known)
    is_reread = previous is not None and _is_reread(previous, folded, policy)
    end = 0 if previous is None else previous.read_until if is_reread else previous.told_until
    start = 0 if policy.source == "all" else end
    messages = _covered_messages(folded, request, start)
    bound = source_bound(messages.values())
    long = sum(
        count_long(message, bound) for number, message in messages.items() if number not in secrecy.numbers
    )
    # Behind an earlier summary, the messages are sent as the conversation's own model last got them.
    raw = messages if end == start else _covered_messages(folded, request, end)
    # A digest among them was made from messages that are given as they came: they are no prefix of it.
    may_share = sent is not None and not long and (previous is None or end == previous.told_until)
    window = _window(folded, frame, end, tuple(raw.values())) if may_share else None
    window = window if window and _may_be_shared(window, secrecy, search, end, request.last) else None
    before = "" if previous is None else previous.model_text if is_reread else previous.text
    lines, counter = requests_for(folded, request.kept, request.last, frame, request), folded.shown.counter
    beside = KeptText.of((item.message for item in request.kept), folded.tools)
    return SummaryTask(
        passages=_passages(messages, bound, secrecy.numbers, search),
        first=request.first,
        last=request.last,
        max_tokens=max(1, request.max_tokens - counter.text("\n".join(lines))),
        scope=policy.scope,
        previous=redact(before, known=known) if policy.scope == "cumulative" else "",
        turn_from=request.turn_from,
        ledger=_cleaned_ledger(without_shown(folded.ledger, beside), known),
        word_for_word=tuple(redact(line, known=known) for line in lines),
        focus=redact(focus, known=known),
        sent=window.sent if window else (),
        system=window.system if window else (),
        tools=frame.fixed.tools if window else (),
        recipe=policy.recipe,
        digested=long,
    )


def _is_reread(previous: Summary, folded: FoldedBranch, policy: Policy) -> bool:
    """Whether the new summary replaces a text that no model wrote, and the messages that no model has read are
    loaded.
    """
    is_replaced = policy.scope == "cumulative" and previous.kind != "model" and previous.model_read >= 0
    return is_replaced and folded.origin <= previous.read_until


def _covered_messages(folded: FoldedBranch, request: SummaryRequest, start: int) -> dict[int, Message]:
    """Return the messages that the summary covers, by number: the originals, and the shown form of messages
    whose originals are not loaded. These are messages of an earlier session that goes on, and those that
    stayed in the window when an earlier summary took the messages around them.
    """
    earlier = {
        item.seq: item.message
        for item in request.items
        if item.seq < folded.origin and (item.seq >= start or item in request.leaving)
    }
    earlier |= {
        item.seq: folded.original(item.seq).message
        for item in request.leaving
        if folded.origin <= item.seq < start
    }
    first = max(start, folded.origin)
    messages = {**earlier, **dict(enumerate(folded.originals(first, request.last), first))}
    return {number: message for number, message in messages.items() if _is_covered(number, message, request)}


def _is_covered(number: int, message: Message, request: SummaryRequest) -> bool:
    """Whether the summary covers this message, and not a provider's own compaction."""
    return number not in request.apart and (number >= request.since or message.role == "user")


def _passages(
    messages: dict[int, Message], bound: int, hidden: frozenset[int], search: MessageSearch
) -> tuple[Passage, ...]:
    return tuple(
        Passage(number, _cleaned_message(message, number, bound, hidden, search))
        for number, message in messages.items()
    )


def _cleaned_message(
    message: Message, number: int, bound: int, hidden: frozenset[int], search: MessageSearch
) -> Message:
    """Return a message as it came, or redacted and without the fields that only its provider reads. Texts
    longer than the bound are replaced by plain digests.

    Invisible characters go first: one in the middle of a secret would hide it from the search.
    """
    message, known = visible_message(message), search.known
    if number in hidden:
        return redact_message(message.bare(), number, hidden, known)
    handle = handle_of(number)
    short = digested(message, bound, handle, lambda text: redact(text, handle, known))
    if short is message and is_short(message) and search.is_clean(message):
        return message
    return redact_message(short.bare(), number, hidden, known)


def _window(folded: FoldedBranch, frame: Frame, start: int, messages: tuple[Message, ...]) -> Window:
    """Return the originals as messages, after the summaries that cover the messages before them."""
    return assemble(frame.fixed, messages, folded.lead if start else NO_LEAD)


def _may_be_shared(window: Window, secrecy: Secrecy, search: MessageSearch, first: int, last: int) -> bool:
    sent = (*window.system, *window.summaries, *window.messages)
    is_bounded = all(map(is_short, sent)) and sum(one.characters for one in sent) <= MAX_SOURCE
    return is_bounded and not secrecy.covers(window, first, last) and _is_clean(window, search)


def _is_clean(window: Window, search: MessageSearch) -> bool:
    """Whether nothing in the window looks like a secret."""
    sent = (*window.system, *window.sent)
    return all(map(search.is_clean, sent)) and not any(
        holds_secret(text, search.known) for tool in window.fixed.tools for text in _texts(tool)
    )


def _texts(tool: Tool) -> tuple[str, ...]:
    return tool.description, tool.schema, bytes(tool.raw or b"").decode("utf-8", "replace")


def _cleaned_ledger(ledger: Ledger, known: frozenset[str]) -> Ledger:
    """Redact the ledger, because its words come from the conversation."""
    return Ledger(
        **{
            name: tuple(redact(line, known=known) for line in lines)
            for name, lines in structs.asdict(ledger).items()
        }
    )
