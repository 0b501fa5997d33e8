"""Measures the time of a compaction, the time of a turn, and the memory of a conversation.

The figures are processor time, so that other programs on the machine do not count. Every compaction is a
first one: the conversation is decoded anew for each, and decoding is timed separately, because in use it is
spread over the conversation.
"""

import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

from benchmarks.compaction_peers import peers, tokens
from benchmarks.conversation import Writer, conversation, turn

MESSAGES, SCALE = 2_000, 0.7
"""About 200,000 tokens in 2,000 messages."""
TRIGGER, KEEP = 100_000, 20_000
GOAL = (
    "GOAL-7F3A: move the invoice export to the new ledger, keep the public API, do not touch billing/tax.py."
)
SIZES = (100, 1_000, 10_000)


def history(messages: int = MESSAGES) -> list[dict]:
    """A conversation whose first question states the goal, and which waits for a reply."""
    out = conversation(messages, scale=SCALE)
    first = next(message for message in out if message["role"] == "user")
    first["content"] = f"{GOAL}\n{first['content']}"
    while out[-1]["role"] != "user":
        out.pop()
    return out


def spent(run: Callable[[], object]) -> tuple[float, object]:
    """Milliseconds of processor time, and the result."""
    gc.collect()
    start = time.process_time()
    result = run()
    return (time.process_time() - start) * 1_000, result


def compaction(repeat: int = 5) -> dict[str, dict]:
    """The first compaction of the whole conversation, preset by preset."""
    from refold.core.presets import PRESETS

    request = _decoded(history())
    return {name: _compacted(policy, request, repeat) for name, policy in PRESETS.items()}


def _compacted(policy, request, repeat: int) -> dict:
    from msgspec import structs

    from refold.engine import actions

    reading, folding, window, state = [], [], None, None
    for _ in range(repeat):
        empty = _state(request.fixed, structs.replace(policy, enabled=False), TRIGGER)
        took, read = spent(partial(actions.add, empty, request.messages))
        reading.append(took)
        state = structs.replace(read.state, frame=_state(request.fixed, _keeping(policy), TRIGGER).frame)
        took, done = spent(partial(actions.compact, state))
        folding.append(took)
        window = done.sendable
    sent = [_flat(message) for message in (*window.system, *window.summaries, *window.messages)]
    return {
        "messages": len(request.messages),
        "tokens": state.folded.branch.tokens.tokens,
        "read_ms": statistics.median(reading),
        "compact_ms": statistics.median(folding),
        "compact_ms_min": min(folding),
        "compact_ms_max": max(folding),
        "out_tokens": tokens(sent),
        **evidence(sent),
    }


def evidence(messages: list[tuple[str, list[str], list[str]]]) -> dict:
    """Whether the goal was kept, and calls and results are paired. A message is its text, the ids it calls,
    and the ids it answers.
    """
    open_calls, orphans = set(), 0
    for _, calls, results in messages:
        orphans += sum(call not in open_calls for call in results)
        open_calls = open_calls.difference(results).union(calls)
    return {"goal": any(GOAL in text for text, _, _ in messages), "orphans": orphans + len(open_calls)}


def _flat(message) -> tuple[str, list[str], list[str]]:
    text = "\n".join((message.text, *(result.text for result in message.results)))
    return text, [call.id for call in message.calls], [result.call_id for result in message.results]


def one_turn(repeat: int = 30) -> dict[int, float]:
    """One more turn of eight messages, with the context before each reply, far below every threshold."""
    from refold.core.presets import PRESETS
    from refold.engine import actions
    from refold.model.dialect import CHAT
    from refold.wire import decode_message

    policy, found = next(iter(PRESETS.values())), {}
    for size in SIZES:
        request = _decoded(history(size))
        state = actions.add(_state(request.fixed, policy, 10**8), request.messages).state
        writer, times = Writer(99), []
        for number in range(repeat):
            new = [decode_message(json.dumps(each).encode(), CHAT) for each in turn(writer, size + number)]
            took, state = spent(partial(_live, state, new))
            times.append(took)
        found[size] = statistics.median(times)
    return found


def _live(state, messages):
    """The state after messages that are added one by one, with a window before each reply."""
    from refold.engine import actions

    for message in messages:
        if message.role == "assistant":
            done = actions.context(state)
            assert done.problem is None
            state = done.state
        state = actions.add(state, (message,)).state
    return state


def kept_bytes() -> dict[int, float]:
    """Bytes of state per message, including the message, of a conversation that is compacted again and again."""
    from refold.core.presets import PRESETS

    policy, found = next(iter(PRESETS.values())), {}
    for size in (1_000, 2_000, 4_000):
        data = _decoded(history(size))
        # Warm up: what counters remember is bounded, and not ours.
        _live(_state(data.fixed, policy, KEEP), data.messages)
        gc.collect()
        tracemalloc.start()
        request = _decoded(history(size))
        state = _live(_state(request.fixed, policy, KEEP), request.messages)
        gc.collect()
        found[size] = tracemalloc.get_traced_memory()[0] / size
        del state
        tracemalloc.stop()
    return found


def _decoded(messages: list[dict]):
    from refold.model.dialect import CHAT
    from refold.wire import decode_request

    return decode_request(json.dumps({"model": "gpt-4o", "messages": messages}).encode(), CHAT)


def _state(fixed, policy, window: int):
    from refold.engine.state import State
    from refold.model.tokens import Budget
    from refold.tokens import counter_for

    return State.begin(fixed, Budget(window=window), policy, counter_for("gpt-4o"))


def _keeping(policy):
    """The policy with the verbatim tail that every candidate gets, if the policy has one."""
    from msgspec import structs

    from refold.model.tokens import Tokens

    sized = "keep" in policy.cut.__struct_fields__
    return structs.replace(policy, cut=structs.replace(policy.cut, keep=Tokens(KEEP))) if sized else policy


def measure() -> dict:
    return {
        "compaction": compaction(),
        "one_turn_ms": one_turn(),
        "kept_bytes": kept_bytes(),
        "peers": peers(history(), spent, evidence, trigger=TRIGGER, keep=KEEP),
    }


def report(figures: dict) -> str:
    ours = figures["compaction"]
    default = next(iter(ours.values()))
    lines = [
        f"compacting {default['messages']:,} messages, {default['tokens']:,} tokens, into {TRIGGER:,} with {KEEP:,} word for word",
        "(CPU; goal for the default preset, the first: 20 ms)",
        f"  {'':<42}  {'median':>8}      {'min':>6} {'max':>6}   goal  orphans  tokens left",
        *(_row(f"preset {name}", row) for name, row in ours.items()),
        f"  reading it before, once                     {default['read_ms']:8.0f} ms   {default['read_ms'] / default['messages']:.2f} ms a message",
    ]
    if figures["peers"]:
        lines.append("peers on the same conversation, in this run, with a summary that costs nothing")
    lines += [
        _row(name, row) + f"   {row['compact_ms'] / default['compact_ms']:,.1f} × ours"
        for name, row in figures["peers"].items()
    ]
    return "\n".join((*lines, *_growth(figures["one_turn_ms"], figures["kept_bytes"])))


def _growth(turns: dict[int, float], kept: dict[int, float]) -> list[str]:
    return [
        "one turn of 8 messages more, with a context before each reply (CPU)",
        *(
            f"  after {size:>6,} messages                       {took:8.3f} ms"
            for size, took in turns.items()
        ),
        f"  {_against(turns)}{turns[max(turns)] / turns[min(turns)]:8.2f} ×    (1: the time does not grow)",
        "state kept for a message, itself included, while the conversation is folded again and again",
        *(
            f"  {size:>6,} messages                             {held / 1_000:8.1f} KB"
            for size, held in kept.items()
        ),
        f"  {_against(kept)}{kept[max(kept)] / kept[min(kept)]:8.2f} ×    (1: the sum grows linearly)",
    ]


def _against(sizes: dict[int, float]) -> str:
    return f"{max(sizes):,} messages / {min(sizes):,} messages".ljust(44)


def _row(name: str, row: dict) -> str:
    goal = "kept" if row["goal"] else "LOST"
    return (
        f"  {name:<42}  {row['compact_ms']:8.1f} ms   {row['compact_ms_min']:6.1f} {row['compact_ms_max']:6.1f}   {goal}  "
        f"{row['orphans']:7}  {row['out_tokens']:11,}"
    )


if __name__ == "__main__":
    print(report(measure()))
