"""What holds for every preset, dialect, conversation and window."""

import re
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import structs

from refold.core.extractive_summary import summarise
from refold.core.presets import PRESETS
from refold.core.stage import HANDLE_PATTERN, part_of
from refold.core.verify import is_refused, verify_window
from refold.model.dialect import DIALECTS, Dialect
from refold.model.errors import BudgetError, DoesNotFit, NotFound, RecoverySpent, RefoldError
from refold.model.message import Message, Reasoning, Text, ToolResult, system, user
from refold.model.summary import Summary
from refold.model.tokens import Budget, Tokens, Usage, input_limit
from refold.model.window import FixedFields, Window
from refold.tokens import FittedCounter
from tests.engine.action_player import Played
from tests.engine.conversations import give_up
from tests.property.conversations import _unique, broken, sound

COUNTER = FittedCounter()
RULES = system("Answer in one line.")
TOO_LONG = {"error": {"code": "context_length_exceeded", "message": "too long"}}

every_preset = pytest.mark.parametrize("preset", PRESETS)
every_pair = pytest.mark.parametrize(
    ("preset", "dialect"),
    [
        pytest.param(preset, DIALECTS[name], marks=() if (at + place) % 2 == 0 else pytest.mark.slow)
        for at, preset in enumerate(PRESETS)
        for place, name in enumerate(DIALECTS)
    ],
    ids=[f"{preset}-{name}" for preset in PRESETS for name in DIALECTS],
)
"""Each preset with one or two dialects, each dialect with three presets; the other pairs are slow."""
is_thorough = settings.default.max_examples > 100
few = settings(max_examples=settings.default.max_examples // (1 if is_thorough else 2))
"""For properties that run with each of the six presets: 30 examples in all in the fast run."""
fewer = settings(max_examples=max(3, settings.default.max_examples // 4))
"""For properties that run with pairs of a preset and a dialect: 27 examples in all in the fast run."""
dialects = st.sampled_from(list(DIALECTS.values()))
windows = st.integers(40, 1_200)
"""From a window into which little more than the system prompt fits to one for most conversations."""


def longer(message: Message, times: int) -> Message:
    """The same message with more to say, so that windows fill."""
    return Message(message.role, tuple(_longer(part, times) for part in message.parts))


def _longer(part, times: int):
    match part:
        case Text():
            return Text("".join(f"{part.text} and {number} more\n" for number in range(times)))
        case ToolResult():
            lines = "".join(f"{part.text} line {number * 7} of the output\n" for number in range(times))
            return ToolResult(part.call_id, (Text(lines),))
    return part


@st.composite
def talks(draw, dialect: Dialect, parts=sound) -> list[Message]:
    """One to three conversations in a row, each message a few words or a page."""
    messages = [
        message for talk in draw(st.lists(parts(dialect), min_size=1, max_size=3)) for message in talk
    ]
    sizes = st.sampled_from([1, 2, 5, 25])
    return distinct([longer(message, draw(sizes)) for message in messages], dialect)


def distinct(messages: list[Message], dialect: Dialect) -> list[Message]:
    """The same messages, with the ids of calls told apart where the dialect wants that."""
    return _unique(messages) if dialect.unique_call_ids else messages


def memory(preset: str, dialect: Dialect, window: int, *, gives_up: bool = False, **budget) -> Played:
    summariser = give_up if gives_up else summarise
    return Played(
        FixedFields(dialect, (RULES,)), Budget(window=window, **budget), PRESETS[preset], COUNTER, summariser
    )


def sent(window: Window) -> tuple[Message, ...]:
    return (*window.system, *window.summaries, *window.messages)


def unmarked(window: Window) -> Window:
    """A window without its cache breakpoints: where they are best depends on what was sent before it."""
    return structs.replace(window, breakpoints=())


def size_of(window: Window) -> int:
    return sum(map(COUNTER.message, sent(window)))


def is_ready(talk: Played) -> bool:
    """Could a request leave now? The client has the last word, and no call waits for its result."""
    progress = talk.folded.branch.progress
    return progress.last in ("user", "tool") and not progress.open_calls


def assert_clear(error: RefoldError) -> None:
    assert type(error) is not RefoldError
    assert error.message
    assert error.hint


def contexts(talk: Played, messages: list[Message]):
    """The context before every reply, as an agent asks for it; where there is none, None."""
    for message in messages:
        talk.add(message)
        if is_ready(talk):
            try:
                yield talk.context()
            except DoesNotFit as error:
                assert_clear(error)
                yield None


@pytest.mark.feature("N1")
@every_pair
@fewer
@given(data=st.data(), window=st.integers(1, 1_200), gives_up=st.booleans(), output=st.integers(0, 200))
def test_every_context_is_valid_and_fits_or_there_is_a_typed_error(
    preset, dialect, data, window, gives_up, output
):
    messages = data.draw(talks(dialect))
    try:
        talk = memory(preset, dialect, window, gives_up=gives_up, max_output=output)
    except BudgetError as error:
        assert_clear(error)
        return
    for context in contexts(talk, messages):
        if context is not None:
            assert verify_window(context) == ()
            no_reserve = structs.replace(
                talk.frame.budget, reserve=Tokens(0)
            )  # it is filled before anything is refused
            assert size_of(context) <= input_limit(no_reserve, context.output)
            assert context.fixed.system == (RULES,)
            assert context.messages[-1].role == talk.folded.branch[-1].message.role


@every_preset
@few
@given(data=st.data(), dialect=dialects, window=windows)
def test_nothing_leaves_the_window_without_a_word_in_its_place(preset, data, dialect, window):
    talk = memory(preset, dialect, window)
    for _ in contexts(talk, data.draw(talks(dialect))):
        folded = talk.folded
        assert len(folded.shown) == folded.size or folded.summaries
        assert all(summary.text.strip() for summary in folded.summaries)


@every_preset
@few
@given(data=st.data(), dialect=dialects, window=st.integers(600, 2_000), gives_up=st.booleans())
def test_there_is_a_context_wherever_the_newest_exchange_leaves_room(preset, dialect, data, window, gives_up):
    messages = data.draw(talks(dialect))
    talk = memory(preset, dialect, window, gives_up=gives_up)
    for context in contexts(talk, messages):
        if context is None:
            assert newest_exchange(talk) > window // 4


def newest_exchange(talk: Played) -> int:
    """Tokens of the last reply and everything after it."""
    branch = talk.folded.branch
    return branch.tokens_between(branch.progress.batch, len(branch)).tokens


@every_preset
@few
@given(data=st.data(), dialect=dialects, window=windows)
def test_messages_that_arrive_broken_leave_whole_or_end_in_a_typed_error(preset, dialect, data, window):
    try:
        talk = memory(preset, dialect, window)
        for message in data.draw(talks(dialect, broken)):
            talk.add(message)
            if is_ready(talk):
                context = talk.context()
                # What the provider of a format accepts leaves as it came: see `is_refused`.
                assert not [found for found in verify_window(context) if is_refused(found, dialect)]
                assert size_of(context) <= window
    except RefoldError as error:
        assert_clear(error)


@every_pair
@fewer
@given(data=st.data(), window=windows, reports=st.booleans())
def test_two_contexts_in_a_row_share_their_prefix_unless_a_receipt_says_why(
    preset, dialect, data, window, reports
):
    talk = memory(preset, dialect, window)
    seen: list[tuple[Window, int]] = []
    for context in contexts(talk, data.draw(talks(dialect))):
        if context is not None:
            seen.append((context, len(talk.receipts)))
            if reports:
                talk.record(Usage(input=size_of(context), output=10))
    for (first, receipts), (second, later) in pairwise(seen):
        if receipts == later:
            assert sent(second)[: len(sent(first))] == sent(first)
    assert all(receipt.reason for receipt in talk.receipts)


@every_preset
@few
@given(data=st.data(), dialect=dialects, window=windows)
def test_asking_twice_changes_nothing(preset, dialect, data, window):
    talk = memory(preset, dialect, window)
    for context in contexts(talk, data.draw(talks(dialect))):
        if context is not None:
            receipts = len(talk.receipts)
            assert unmarked(talk.context()) == unmarked(context)
            assert len(talk.receipts) == receipts


@pytest.mark.feature("N1")
@every_pair
@fewer
@given(data=st.data(), window=windows)
def test_nothing_added_is_ever_unreachable(preset, dialect, data, window):
    messages = data.draw(talks(dialect))
    talk = memory(preset, dialect, window)
    acts = data.draw(st.lists(st.sampled_from(["compact", "undo", "recover", "nothing"]), max_size=6))
    for number, context in enumerate(contexts(talk, messages)):
        if context is not None:
            assert_handles_open(talk, context)
            assert_accounted_for(talk, context)
            act(talk, acts[number % len(acts)] if acts else "nothing")
    assert [talk.recall(f"#m{number}") for number in range(len(messages))] == messages
    for number, message in enumerate(messages):
        parts = [part for part in message.parts if not isinstance(part, Reasoning)]
        assert [talk.recall(f"#m{number}.{at}") for at in range(1, len(parts) + 1)] == parts
    with pytest.raises(NotFound):
        talk.recall(f"#m{len(messages)}")


def act(talk: Played, what: str) -> None:
    try:
        match what:
            case "compact":
                talk.compact()
            case "undo":
                talk.undo()
            case "recover":
                talk.recover(400, TOO_LONG)
    except (DoesNotFit, RecoverySpent) as error:
        assert_clear(error)


def assert_handles_open(talk: Played, context: Window) -> None:
    """Every handle that a model can read in the window leads to an original, or to a summary that was written."""
    for handle in re.findall(HANDLE_PATTERN, "\n".join(map(everything, sent(context)))):
        if handle.startswith("#s"):
            assert isinstance(talk.recall(handle), Summary)
            continue
        number, _, part = handle.removeprefix("#m").partition(".")
        original = talk.folded.branch[int(number)].message
        assert talk.recall(handle) == (part_of(original, int(part)) if part else original)


def everything(message: Message) -> str:
    calls = (call.arguments for call in message.calls)
    return "\n".join((message.text, *calls, *(result.text for result in message.results)))


def assert_accounted_for(talk: Played, context: Window) -> None:
    """Every original is in the window, in the range of a summary, or named in a receipt."""
    shown = set(context.messages)
    named = {edit.seq for receipt in talk.receipts for edit in receipt.edits}
    covered = {number for summary in talk.folded.summaries for number in range(summary.first, summary.last)}
    for number, entry in enumerate(talk.folded.branch):
        assert entry.message in shown or number in named | covered


@every_pair
@fewer
@given(data=st.data(), window=st.integers(100, 20_000))
def test_compact_then_undo_gives_the_same_context_as_before(preset, dialect, data, window):
    talk = memory(preset, dialect, window)
    talk.add(*data.draw(talks(dialect)), user("and now?"))
    try:
        before, done = talk.context(), len(talk.receipts)
        talk.compact()
    except DoesNotFit:
        return
    for _ in range(len(talk.receipts) - done):
        assert talk.undo()
    assert unmarked(talk.context()) == unmarked(before)


@every_preset
@few
@given(data=st.data(), dialect=dialects)
def test_undo_keeps_what_was_said_since(preset, dialect, data):
    said = [*data.draw(talks(dialect)), user("now?")]
    told = distinct([*said, *data.draw(talks(dialect)), user("and now?")], dialect)
    first, since = told[: len(said)], told[len(said) :]
    talk, other = (memory(preset, dialect, 50_000) for _ in range(2))
    for each in (talk, other):
        each.add(*first)
        each.context()
    done = len(talk.receipts)
    talk.compact()
    for each in (talk, other):
        each.add(*since)
    assume(len(other.receipts) == done)
    for _ in range(len(talk.receipts) - done):
        assert talk.undo()
    assert unmarked(talk.context()) == unmarked(other.context())


@every_preset
@few
@given(data=st.data(), dialect=dialects, window=windows)
def test_undoing_everything_shows_everything_as_it_came(preset, dialect, data, window):
    talk, messages = memory(preset, dialect, window), data.draw(talks(dialect))
    for _ in contexts(talk, messages):
        pass
    while talk.undo():
        pass
    assert talk.folded.shown.messages() == tuple(messages)
    assert not talk.folded.summaries
