"""Every preset, in every dialect, on the conversations where compaction elsewhere breaks.

An outcome is written the way the comparison with other libraries writes it: `ok`, or a letter for each thing that went
wrong. No cell of either table may be anything but `ok`.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import product

import pytest
from msgspec import structs

from refold.core.policy import Policy
from refold.core.presets import PRESETS
from refold.core.verify import is_refused, verify_window
from refold.model.dialect import DIALECTS, Dialect
from refold.model.errors import RefoldError
from refold.model.message import Message, Reasoning, system
from refold.model.tokens import Budget, Tokens
from refold.model.window import FixedFields, Window
from refold.tokens import FittedCounter
from tests.engine.action_player import Played
from tests.engine.probes import GOAL, LATEST, LONG, PROBES, RULES, Script, latest_turns, sweep

WINDOW = 4_000
KEEPS = (200, 400, 600, 800, 1_000, 1_500, 2_000, 2_500, 3_000)
"""Tokens that a cut leaves: from less than one exchange to most of the window."""
TOKENS_A_MESSAGE = 80
"""What turns such a size into messages, for policies that count those."""
COUNTER = FittedCounter()

every_preset = pytest.mark.parametrize("preset", PRESETS)
every_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)


def dialects_in_turn(**columns: Mapping[str, object]) -> pytest.MarkDecorator:
    """Every combination of a dialect and one entry of each column, given by its name.

    The fast run has one dialect for each combination of the others. The dialects take turns, so each of them meets every
    entry of every column. The rest is run by `make test-all`.
    """
    return _in_turn(DIALECTS, columns, lambda dialect, *others: sum(others) % len(DIALECTS) == dialect)


def dialects_and_ways_in_turn(**columns: Mapping[str, object]) -> pytest.MarkDecorator:
    """The same with one dialect and one way for each preset and probe: each way meets every preset, probe and dialect."""
    return _in_turn(
        DIALECTS,
        columns,
        lambda dialect, preset, probe, way: (
            (preset + probe) % len(DIALECTS) == dialect and (preset // len(DIALECTS) + probe) % 2 == way
        ),
    )


def _in_turn(
    dialects: Mapping[str, Dialect], columns: Mapping[str, Mapping[str, object]], is_fast: Callable[..., bool]
) -> pytest.MarkDecorator:
    """All combinations; slow are those whose places in their columns are not in the fast run."""
    cases = []
    for chosen in product(*(enumerate(column.items()) for column in (dialects, *columns.values()))):
        places, entries = zip(*chosen, strict=True)
        names, values = zip(*entries, strict=True)
        marks = () if is_fast(*places) else pytest.mark.slow
        cases.append(pytest.param(*values, id="-".join(names), marks=marks))
    return pytest.mark.parametrize(("dialect", *columns), cases)


MEANINGS = {
    "O": "a result without its call",
    "o": "a call without its result",
    "G": "the goal is lost",
    "L": "the last message is lost",
    "B": "over budget",
    "S": "the system prompt is lost",
    "T": "thinking was altered",
    "V": "a rule of the dialect is broken",
}


def talk(policy: Policy, dialect: Dialect, window: int = WINDOW) -> Played:
    return Played(FixedFields(dialect, (system(RULES),)), Budget(window=window), policy, COUNTER)


def at_once(policy: Policy, dialect: Dialect, messages: list[Message], window: int = WINDOW) -> Window:
    """Hand over a whole history, as a client does that was stopped and started again."""
    memory = talk(policy, dialect, window)
    memory.add(*messages)
    return memory.context()


def step_by_step(policy: Policy, dialect: Dialect, messages: list[Message], window: int = WINDOW) -> Window:
    """Ask for a context before every reply, as an agent does."""
    memory = talk(policy, dialect, window)
    for before, message in zip([None, *messages], messages, strict=False):
        if before is not None and message.role == "assistant" and before.role != "assistant":
            memory.context()
        memory.add(message)
    return memory.context()


def keeping(policy: Policy, tokens: int) -> Policy:
    """The same policy with another size of what a cut leaves."""
    messages = max(1, tokens // TOKENS_A_MESSAGE)
    sizes = {"keep": Tokens(tokens), "messages": messages, "keep_messages": messages, "turns": messages // 8}
    fields = policy.cut.__struct_fields__
    cut = structs.replace(policy.cut, **{name: size for name, size in sizes.items() if name in fields})
    return structs.replace(policy, cut=cut)


def outcome(window: Window, messages: list[Message]) -> str:
    """`ok`, or what went wrong, as letters of MEANINGS."""
    sent = (*window.system, *window.summaries, *window.messages)
    seen = "\n".join(map(everything, sent))
    results, calls = orphans(window.messages)
    wrong = {
        "O": results,
        "o": calls,
        "G": GOAL in everything(messages[0]) and GOAL not in seen,
        "L": not keeps_last(window, messages[-1]),
        "B": sum(map(COUNTER.message, sent)) > WINDOW,
        "S": RULES not in "\n".join(message.text for message in window.fixed.system),
        "T": not thoughts(window.messages) <= thoughts(messages),
        # What the provider of a format accepts leaves as it came.
        "V": [found for found in verify_window(window) if is_refused(found, window.fixed.dialect)],
    }
    return "".join(letter for letter, is_wrong in wrong.items() if is_wrong) or "ok"


def keeps_last(window: Window, last: Message) -> bool:
    """The last message leaves as it came; one that is too large keeps its end, its role and its calls' ids."""
    sent = window.messages[-1] if window.messages else None
    if sent is None or sent.role != last.role:
        return False
    ids = [result.call_id for result in last.results]
    whole = COUNTER.message(last) > WINDOW // 8 or sent == last
    return whole and LATEST in everything(sent) and [result.call_id for result in sent.results] == ids


def everything(message: Message) -> str:
    calls = (call.arguments for call in message.calls)
    return "\n".join((message.text, *calls, *(result.text for result in message.results)))


def thoughts(messages) -> set[Reasoning]:
    return {part for message in messages for part in message.parts if isinstance(part, Reasoning)}


def orphans(messages) -> tuple[Counter, Counter]:
    """Results that follow no open call, and calls that no result follows."""
    open_calls, results = Counter(), Counter()
    for message in messages:
        for result in message.results:
            if open_calls[result.call_id]:
                open_calls[result.call_id] -= 1
            else:
                results[result.call_id] += 1
        open_calls.update(call.id for call in message.calls)
    return results, +open_calls


def attempt(way, policy: Policy, dialect: Dialect, messages: list[Message]) -> str:
    try:
        return outcome(way(policy, dialect, messages), messages)
    except RefoldError as error:
        return f"{type(error).__name__}: {error.message}"


@pytest.mark.feature("N1")
@every_preset
@every_dialect
@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)], ids=["a-sixth", "all"])
def test_no_cut_of_any_size_breaks_a_conversation(preset, dialect, every):
    # A sixth of them is another one in each dialect and in the presets with even and odd places, so that the 18 runs try
    # every conversation with every size three times.
    shift = 2 * list(DIALECTS.values()).index(dialect) + list(PRESETS).index(preset) % 2
    tried = [
        (number, tokens)
        for number in range(8)
        for at, tokens in enumerate(KEEPS)
        if (number + at + shift) % every == 0
    ]
    found = Counter(
        attempt(at_once, keeping(PRESETS[preset], tokens), dialect, sweep(dialect, number))
        for number, tokens in tried
    )
    assert found == {"ok": len(tried)}


@pytest.mark.feature("N1")
@dialects_and_ways_in_turn(
    preset=PRESETS, probe=PROBES, way={"at-once": at_once, "step-by-step": step_by_step}
)
def test_every_probe_ends_well(preset, dialect, probe, way):
    messages = probe(Script(dialect))
    assert attempt(way, preset, dialect, messages) == "ok"


@pytest.mark.slow
@every_preset
@every_dialect
@pytest.mark.parametrize("probe", [probe for probe in PROBES if probe.startswith(("huge", "one_message"))])
@pytest.mark.parametrize("way", [at_once, step_by_step], ids=["at-once", "step-by-step"])
def test_texts_five_times_as_large_as_the_window_end_well(preset, dialect, probe, way):
    messages = PROBES[probe](Script(dialect, long=2_000))
    assert attempt(way, PRESETS[preset], dialect, messages) == "ok"


@pytest.mark.feature("C15")
@dialects_in_turn(
    preset=PRESETS,
    window={str(tokens): tokens for tokens in (1, 10, 25, 50)},
    probe={name: PROBES[name] for name in ("parallel", "one_message", "thinking", "multimodal")},
)
@pytest.mark.parametrize(
    ("turns", "long"), [(6, LONG), pytest.param(100, 2_000, marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_a_window_too_small_for_anything_is_a_clear_error(preset, dialect, window, probe, turns, long):
    # A few turns are enough: each is far above such a window, as the whole conversation is.
    messages = latest_turns(probe(Script(dialect, long=long)), turns)
    with pytest.raises(RefoldError) as caught:
        at_once(preset, dialect, messages, window)
    assert caught.value.hint
    assert type(caught.value) is not RefoldError
