"""Writes a summary without a model.

The extractive summary carries the task and the user's rules word for word, and fills the rest of its room
with a digest of the leaving messages, chosen so that it does not repeat the messages that stay. The
mechanical summary is the fallback: statistics, files and rules, with the text of the previous summary. Both
have placeholders for secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain

from msgspec import structs

from refold.core.assemble import lead_of, summary_handle
from refold.core.budget import (
    BEFORE_CALL,
    Frame,
    Now,
    effective_for,
    fits,
)
from refold.core.digest.extract import CHARACTERS_PER_TOKEN, Digest, digest, render
from refold.core.digest.ledger import Ledger
from refold.core.digest.line_markers import quoted_lines
from refold.core.digest.pieces import head
from refold.core.digest.shorten import shorten
from refold.core.fold import FoldedBranch, UserRequest, unread_by_model
from refold.core.long_messages import seen_of, system_texts
from refold.core.plan import SummaryRequest, request_room, requests_for
from refold.core.secrets import redact
from refold.core.stage import handle_of
from refold.core.summary_text import (
    RULES_SHARE,
    TASK,
    KeptText,
    keep_ends,
    mechanical,
    request_lines,
    sections,
    with_requests,
    without_lists,
    without_questions,
)
from refold.model.message import user
from refold.model.summary import Summary, SummaryKind, joined
from refold.model.tokens import share_of, tokens_of

MAX_DIGEST = 16_000
"""Tokens. `recall` finds anything beyond this faster than reading does, and the selection stays fast in any window."""
PINNED_SHARE = 0.8
"""Share of the summary for the task and the lists; the rest is for the digest."""
CARRIED_SHARE = 0.5
"""Share of the summary for the text of an earlier model summary; the rest is for the events since."""
GAP_SHARE = 0.05
"""Least share of the room for a digest of the messages that a model's summary came too late for."""
_SHRINKING = (1.0, 0.75, 0.5, 0.35, 0.2, 0.0)
"""Factors for the room of the lists, tried in this order until the text fits."""
RULES_BESIDE_TASK = 0.75
"""Share of the room that the task leaves which the rules may take: in a small window the other lists give way first."""


def summarise(request: SummaryRequest, folded: FoldedBranch, frame: Frame) -> Summary:
    """Write the task, the rules and a digest, within the room of the request."""
    counter, is_own = folded.shown.counter, frame.policy.scope == "own"
    room = request.max_tokens - _framing(folded, frame)
    previous = None if is_own else joined(request.previous)
    known = previous is not None and previous.kind == "extractive"
    told = _carried_text(previous, room, folded) if previous else ""
    asked = _requests(request, folded, frame)
    pins = _pins(asked, request, folded, frame, int((room - counter.text(told)) * PINNED_SHARE))
    pins = "\n".join(part for part in (pins, told) if part)
    start = max(previous.last if previous and known else request.first, request.since)
    found = digest(
        folded.facts,
        first=start,
        last=request.last,
        budget=min(MAX_DIGEST, max(0, room - counter.text(f"{pins}\n"))),
        window=frame.budget.window,
        counter=counter,
        sight=seen_of(folded, request.kept, (*system_texts(frame), pins)),
        previous=Digest(
            reserve=(*(previous.reserve if previous else ()), *_left_over(request, folded, start))
        ),
        turn_from=request.turn_from,
        usual=min(
            MAX_DIGEST, share_of(frame.policy.summary_share.fraction, effective_for(frame, BEFORE_CALL))
        ),
    )
    asked, text = _task_told_once(asked, pins, found, request, folded, frame, room)
    first = request.first if is_own else 0
    made = _summary(text, first, request, folded, frame, found.reserve)
    opening = sum(len(line) + 1 for line in asked)
    made = _without_secrets(structs.replace(made, requests=opening), folded, frame)
    return unread_by_model(made, previous, folded, _first_number(request))


def _task_told_once(
    asked: tuple[str, ...],
    pins: str,
    found: Digest,
    request: SummaryRequest,
    folded: FoldedBranch,
    frame: Frame,
    room: int,
) -> tuple[tuple[str, ...], str]:
    """Return the lines of the user's requests, and the whole text. The room that the digest gave to quotations of a
    long task goes to the task's own line instead: two selections from one text are hard to read.
    """
    text = "\n".join(part for part in (pins, found.text) if part)
    task = {
        one.number
        for one in folded.task
        if any(line.startswith(f"{TASK} {handle_of(one.number)}:") for line in asked)
    }
    indexed = folded.facts.known.pieces if task else []
    pieces = [indexed[number] for number in found.chosen] if task else []
    others = [piece for piece in pieces if piece.seq not in task]
    if len(others) == len(pieces):
        return asked, text
    count, quoted = folded.shown.counter.text, render(others, request.turn_from, request.last)
    longer = _requests(request, folded, frame, more=room - count(f"{pins}\n{quoted}"))
    opening = len("\n".join(asked))
    whole = "\n".join(part for part in ("\n".join(longer) + pins[opening:], quoted) if part)
    return (longer, whole) if len(longer) == len(asked) and count(whole) <= room else (asked, text)


def extended(written: Summary, request: SummaryRequest, folded: FoldedBranch, frame: Frame) -> Summary:
    """Return a model's summary with a digest of the messages after it, up to the end of the request.

    The model wrote while the conversation went on. Its text stays word for word, and `told` keeps the end of
    the messages that it describes: the next model reads the others in full. The caller adds the question that is
    open now; the one that was open when the model was asked is left out.
    """
    if written.last >= request.last:
        return written
    written = without_questions(written, folded.shown.counter)
    counter, effective = folded.shown.counter, effective_for(frame, BEFORE_CALL)
    room = max(request.max_tokens - written.tokens, share_of(GAP_SHARE, effective))
    found = digest(
        folded.facts,
        first=max(written.last, request.since),
        last=request.last,
        budget=min(MAX_DIGEST, max(0, room)),
        window=frame.budget.window,
        counter=counter,
        sight=seen_of(folded, request.kept, (*system_texts(frame), written.text)),
        previous=Digest(reserve=()),
        turn_from=request.turn_from,
        usual=min(MAX_DIGEST, share_of(frame.policy.summary_share.fraction, effective)),
    )
    told = redact(found.text, known=folded.secrets)
    text = "\n".join(part for part in (written.text, told) if part)
    tokens = counter.text(text) + _framing(folded, frame)
    native = written.native and structs.replace(written.native, since=told)
    return structs.replace(
        written,
        text=text,
        last=request.last,
        tokens=tokens,
        told=written.told_until,
        reserve=found.reserve,
        native=native,
    )


def switch_summary(folded: FoldedBranch, frame: Frame, now: Now, written: Summary) -> FoldedBranch | None:
    """Return the branch with a model's summary in place of its newest summary, which covers at least the same
    messages; None if the window does not fit with it.
    """
    newest, items = folded.summaries[-1], folded.items.items
    request = SummaryRequest(
        first=written.first,
        last=newest.last,
        items=(),
        kept=items,
        previous=folded.summaries[:-1],
        max_tokens=newest.tokens,
    )
    if folded.origin <= written.last:
        whole = extended(written, request, folded, frame)
    else:
        whole = _with_digest_of(newest, written, folded, frame)
    lines = tuple(
        redact(line, known=folded.secrets)
        for line in requests_for(folded, items, newest.last, frame, request)
    )
    whole = with_requests(whole, lines, folded.shown.counter)
    whole = structs.replace(whole, read=newest.read, modified=newest.modified, gaps=newest.gaps)
    view, older = folded.shown, tokens_of(frame.policy.ancestors, frame.budget)
    summaries = (*folded.summaries[:-1], whole)
    fixed = folded.native_for(frame.fixed)
    lead = lead_of(summaries, frame.policy, view.dialect, view.counter, older, fixed)
    switched = structs.replace(folded.lead_by(summaries, lead), settled=folded.settled)
    return switched if fits(switched, frame, now) or not fits(folded, frame, now) else None


def _with_digest_of(newest: Summary, written: Summary, folded: FoldedBranch, frame: Frame) -> Summary:
    """Return a model's summary followed by the digest that it replaces, as far as there is room. After a
    restart the messages between the two are not in memory, and the digest has their facts.
    """
    if written.last >= newest.last:
        return written
    counter = folded.shown.counter
    written = without_questions(written, counter)
    room = max(newest.tokens - written.tokens, share_of(GAP_SHARE, effective_for(frame, BEFORE_CALL)))
    text = redact(newest.own_text, known=folded.secrets)
    while text and counter.text(text) > room:
        text = head(text, len(text) * 3 // 4)
    native = written.native and structs.replace(written.native, since=text)
    text = "\n".join(part for part in (written.text, text) if part)
    tokens = counter.text(text) + _framing(folded, frame)
    return structs.replace(
        written, text=text, last=newest.last, tokens=tokens, told=written.told_until, native=native
    )


def _left_over(request: SummaryRequest, folded: FoldedBranch, start: int) -> Iterable[int]:
    """Numbers of pieces from messages before `start` that leave only now: messages that were still shown when
    an earlier summary covered their neighbours, and the user's messages before a provider's own
    compaction.
    """
    kept = {item.seq for item in request.kept}
    early = [item.seq for item in request.items if item.seq < start]
    left = [seq for seq in early if seq not in kept and seq not in request.apart]
    return chain.from_iterable(folded.facts.numbers_of(left))


def _carried_text(previous: Summary, room: int, folded: FoldedBranch) -> str:
    """The last model summary within its share of the room, quoted so that none of its lines looks like one of our lists."""
    text = quoted_lines(without_lists(previous.model_text), "carried", begins_line=True)
    most, counter = int(room * CARRIED_SHARE), folded.shown.counter
    mark = f"[… {summary_handle(previous.number)} …]"
    length = len(text)
    while text and counter.text(text) > most:
        length = length * 3 // 4
        text = f"{head(text, length)}\n{mark}" if length > len(mark) else ""
    return text


def mechanical_summary(request: SummaryRequest, folded: FoldedBranch, frame: Frame) -> Summary:
    """Write the user's requests, message counts, files, rules and the previous summary's text, within the request's room.

    If the room is too small, the lists of files are cut first, then the previous summary (at the end of a
    line), then the rules. The task and the open question always stay.
    """
    counter, is_own = folded.shown.counter, frame.policy.scope == "own"
    opening = "".join(f"{line}\n" for line in _requests(request, folded, frame))
    room = max(0, request.max_tokens - _framing(folded, frame) - counter.text(opening))
    newest = request.previous[-1] if request.previous else None
    previous = newest if is_own else joined(request.previous)
    fitting = (text for text in _mechanical(request, previous, folded, room) if counter.text(text) <= room)
    first = request.first if is_own else 0
    text = f"{opening}{next(fitting, '')}"
    made = _summary(text, first, request, folded, frame, kind="mechanical")
    begins = _first_number(request)
    told = previous.told_until if previous else begins
    made = structs.replace(made, requests=len(opening), told=told)
    made = _without_secrets(made, folded, frame)
    return unread_by_model(made, previous, folded, begins)


def _first_number(request: SummaryRequest) -> int:
    return min((item.seq for item in request.items), default=request.first)


def _mechanical(
    request: SummaryRequest, previous: Summary | None, folded: FoldedBranch, room: int
) -> Iterator[str]:
    """Candidate texts, each shorter than the one before."""
    turn_from = request.last if request.turn_from is None else max(request.turn_from, request.first)
    write = partial(
        mechanical, folded.originals(request.first, turn_from), turn=folded.originals(turn_from, request.last)
    )
    before, number = (previous.own_text, previous.number) if previous else ("", 0)
    for share in _SHRINKING[:-1]:
        lists = int(room * share) * CHARACTERS_PER_TOKEN
        yield write(folded.ledger, previous=before, room=lists)
    left, lists = room * CHARACTERS_PER_TOKEN, int(room * RULES_SHARE) * CHARACTERS_PER_TOKEN
    rules = Ledger(rules=folded.ledger.rules)
    yield write(rules, previous=before, room=2 * lists)
    mark = f"\n[… {summary_handle(number)} …]"
    while before and left > len(mark):
        left = left * 3 // 4
        yield write(rules, previous=f"{head(before, left - len(mark))}{mark}", room=2 * lists)
    yield write(rules, room=2 * lists)
    yield write(folded.ledger, room=0)


def _summary(
    text: str,
    first: int,
    request: SummaryRequest,
    folded: FoldedBranch,
    frame: Frame,
    reserve: tuple[int, ...] = (),
    kind: SummaryKind = "extractive",
) -> Summary:
    tokens = folded.shown.counter.text(text) + _framing(folded, frame)
    return Summary(text, first, request.last, tokens, kind, frame.policy.scope, reserve)


def _without_secrets(made: Summary, folded: FoldedBranch, frame: Frame) -> Summary:
    """Return the summary with placeholders for secrets, as a model's has them. It is stored, and read by other
    models: after a resume, in the next summary, in another program.
    """
    lines = made.text[: made.requests].splitlines(keepends=True)
    opening = "".join(redact(line, known=folded.secrets) for line in lines)
    text = f"{opening}{redact(made.own_text, known=folded.secrets)}"
    if text == made.text:
        return made
    tokens = folded.shown.counter.text(text) + _framing(folded, frame)
    return structs.replace(made, text=text, tokens=tokens, requests=len(opening))


def _framing(folded: FoldedBranch, frame: Frame) -> int:
    """Tokens of the frame text around a summary, and one for the joint between them."""
    view = folded.shown
    empty = Summary("", 0, folded.size, 0)
    return lead_of((empty,), frame.policy, view.dialect, view.counter, 0, frame.fixed).tokens + 1


def _pins(
    asked: tuple[str, ...], request: SummaryRequest, folded: FoldedBranch, frame: Frame, most: int
) -> str:
    """The user's requests and the ledger's entries that the kept messages do not show, in at most `most` tokens.

    Shares count characters, and some texts take far more tokens per character than others: then the lists
    get less room.
    """
    room = request_room(frame, request.max_tokens)
    beside = KeptText.of((item.message for item in request.kept), folded.tools, *asked)
    count, room = folded.shown.counter.text, room * CHARACTERS_PER_TOKEN
    left = max(0, most - count("\n".join(asked))) * CHARACTERS_PER_TOKEN
    rules_room = min(int(room * RULES_SHARE), int(left * RULES_BESIDE_TASK))
    for share in _SHRINKING:
        more = sections(folded.ledger, int(room * share), beside=beside, rules_room=rules_room)
        text = "\n".join(part for part in (*asked, more) if part)
        if count(text) <= most:
            return text
    return "\n".join(asked)


def _requests(
    request: SummaryRequest, folded: FoldedBranch, frame: Frame, *, more: int = 0
) -> tuple[str, ...]:
    """The lines of the task and the open question that the kept messages do not show. Long ones keep their
    ends and the new parts between them; the task gets `more` tokens than its share.
    """
    counter, window = folded.shown.counter, frame.budget.window

    def short(asked: UserRequest, text: str, limit: int) -> str:
        if len(asked.message.parts) > 1:
            return keep_ends(asked.number, text, limit, counter)
        said = shorten(folded.facts, user(text), asked.number, limit=limit, window=window, counter=counter)
        return said.text

    room = request_room(frame, request.max_tokens)
    return request_lines(folded, request.kept, request.last, room, counter=counter, shorten=short, more=more)
