"""Replays of a stored conversation under other presets, and the page that shows them as the report of `refold replay` does.

A replay takes seconds to minutes, so it runs in a thread, one at a time, and its page looks again until it is done. The last results
are held in memory; one of a conversation that has grown since is shown, and says so. No model is asked and nothing is changed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence

from msgspec import Struct

from refold import svg
from refold.core.presets import PRESETS
from refold.dashboard.app import CONVERSATION, Redirect, RenderedPage, Visit, conversation_url
from refold.engine.conversation import Conversation
from refold.engine.recall import newest_reply
from refold.model.errors import MAX_TOKENS, MIN_WINDOW, ConfigError, RefoldError
from refold.model.message import Message
from refold.ports.records import read_stored
from refold.ports.store import Store
from refold.replay import Recording, Table
from refold.replay.cost import REFERENCE_TARIFFS, Tariff, tariff_for
from refold.replay.score import SentContext
from refold.text_work import run_text_work

MOST = 32
"""Replays that are held, waiting or done."""
MOST_CONTEXTS = 100_000
"""Contexts of all results that are held, about 25 MB; the newest result is held whatever its size."""
MOST_CHANGES = 200
"""Changes that the page lists, the newest; the picture and the twin have all of them."""
WINDOWS = (4_000, 8_000, 16_000, 32_000, 64_000, 128_000)


class ReplayOrder(Struct, frozen=True):
    """What is replayed: a branch, some presets, and a window."""

    owner: str
    conversation: str
    branch: str
    presets: tuple[str, ...]
    window: int


class ReplayJob:
    """One replay of the first `size` messages, from its order to its table, and what each preset would have sent."""

    def __init__(self, size: int) -> None:
        self.size, self.done, self.total = size, 0, 0
        self.table: Table | None = None
        self.sent: dict[str, tuple[SentContext, ...]] = {}
        self.problem = ""
        self.task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done()

    @property
    def state(self) -> str:
        return "running" if self.is_running else "failed" if self.problem else "done"


class ReplayJobs:
    """The replays of this process; the oldest result is forgotten first."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[ReplayOrder, ReplayJob] = OrderedDict()
        self._turn = asyncio.Semaphore(1)

    def find(self, order: ReplayOrder) -> ReplayJob | None:
        return self._jobs.get(order)

    def begin(self, order: ReplayOrder, recording: Recording, model: str) -> ReplayJob:
        """Replay, unless it is in progress or was done for as many messages."""
        known = self._jobs.get(order)
        if known is not None and (
            known.is_running or (not known.problem and known.size == len(recording.messages))
        ):
            return known
        if len([one for one in self._jobs.values() if one.is_running]) >= MOST:
            raise ConfigError("too many replays are waiting", hint="look again in a minute")
        self._jobs.pop(order, None)
        job = self._jobs[order] = ReplayJob(len(recording.messages))
        job.task = asyncio.create_task(self._run(job, order, recording, model))
        self._forget()
        return job

    async def _run(self, job: ReplayJob, order: ReplayOrder, recording: Recording, model: str) -> None:
        async with self._turn:
            try:
                await asyncio.to_thread(_replay, job, order, recording, model)
            except RefoldError as error:
                job.problem = error.message
            except Exception as error:  # noqa: BLE001  # the page says that it failed
                job.problem = f"the replay failed ({type(error).__name__})"
        self._forget()

    def _forget(self) -> None:
        """Forget the oldest results while there are too many, or too large ones."""
        for order, job in [*self._jobs.items()][:-1]:
            held = sum(len(sent) for one in self._jobs.values() for sent in one.sent.values())
            if len(self._jobs) <= MOST and held <= MOST_CONTEXTS:
                return
            if not job.is_running:
                del self._jobs[order]


def _replay(job: ReplayJob, order: ReplayOrder, recording: Recording, model: str) -> None:
    from refold.replay import CounterChoice, ReplayBudget, run, tabulate
    from refold.replay.candidate import candidates

    def note(done: int, total: int) -> None:
        job.done, job.total = done, total

    counting, budget = CounterChoice(model), ReplayBudget(model=model)
    cells = run(
        [recording],
        candidates(order.presets),
        [order.window],
        counting,
        note,
        tariffs=tariffs_of(model),
        budget=budget,
    )
    job.sent = {cell.candidate: cell.scores[0].sent for cell in cells if cell.scores}
    job.table = tabulate(cells, counting, budget=budget)


def tariffs_of(model: str) -> tuple[Tariff, ...]:
    """The prices of the conversation's own model, if they are known, before those of the reference models."""
    try:
        return (tariff_for(model), *REFERENCE_TARIFFS)
    except ConfigError:
        return REFERENCE_TARIFFS


async def read_recording(talk: Conversation, store: Store) -> Recording:
    """A stored conversation as the replay reads it: all messages of the branch, those of closed sessions too, as they came, and the
    newest reply, as `refold export` writes them.

    Raises:
        ConfigError: the content was not stored.
        Damaged: a message cannot be read.
    """
    head, fixed = talk.journal.head, talk.state.frame.fixed
    stored = [*await store.messages(head), *await newest_reply(store, head)]

    def read() -> tuple[Message, ...]:
        return tuple(message for one in stored if (message := read_stored(one, head)) is not None)

    messages = await run_text_work(sum(len(one.body) for one in stored), read)
    if len(messages) < len(stored):
        raise ConfigError(
            "the content of this conversation was not kept", hint="only stored messages can be replayed"
        )
    return Recording(
        id=talk.id,
        source="stored",
        dialect=fixed.dialect,
        system=fixed.system,
        messages=messages,
        tools=fixed.tools,
    )


def _asked(text: str, presets: str, window: int) -> tuple[tuple[str, ...], int]:
    """The presets and the window of a form or a query.

    Raises:
        ConfigError: one of them does not exist, or the window is none.
    """
    chosen = tuple(dict.fromkeys(filter(None, presets.split(",")))) or tuple(PRESETS)
    for name in chosen:
        if name not in PRESETS:
            raise ConfigError("there is no such preset", hint=f"choose from: {', '.join(PRESETS)}")
    if text and not (
        text.isascii() and text.isdigit() and len(text) < 12 and MIN_WINDOW <= int(text) <= MAX_TOKENS
    ):
        raise ConfigError("the window must be a number of tokens", hint=f"{MIN_WINDOW} or more")
    return chosen, int(text) if text else window


# The page


class ReplayedChange(Struct, frozen=True):
    """What a preset did to a context, and why."""

    what: str
    why: str = ""


class ReplayedCall(Struct, frozen=True):
    """One call as a preset would have sent it."""

    number: int
    tokens: int
    before: int
    """Tokens of the context before, and of the messages since: its size without a change."""
    prompt: int
    cached: int
    """Tokens of the prompt, and those of them that the simulated cache had."""
    changes: tuple[ReplayedChange, ...]


_WORDS = {"summarise": "summarised", "reduce": "reduced"}


def replayed_calls(sent: Sequence[SentContext]) -> list[ReplayedCall]:
    found, before = list[ReplayedCall](), 0
    for number, one in enumerate(sent, 1):
        made = [ReplayedChange(_WORDS.get(each.decision, each.decision), each.reason) for each in one.changes]
        if one.is_rewritten and not made:
            made = [ReplayedChange("rewritten")]
        bill, changes = one.bill, tuple(dict.fromkeys(made))
        found.append(
            ReplayedCall(
                number, one.tokens, before + one.added, bill.prompt_tokens, bill.cached_tokens, changes
            )
        )
        before = one.tokens
    return found


async def show(visit: Visit) -> RenderedPage | Redirect:
    workspace = await visit.workspace()
    talk = await workspace.open(visit.name, visit.branch)
    presets, window = _asked(
        visit.query.get("window", ""), visit.query.get("presets", ""), talk.window.tokens
    )
    job = visit.replays.find(ReplayOrder(workspace.engine.owner, talk.id, talk.branch, presets, window))
    shown, number = visit.query.get("shown", ""), visit.count("call", 0, MAX_TOKENS)
    if job is not None and shown not in job.sent:
        shown = next(iter(job.sent), "")
    calls = replayed_calls(job.sent[shown]) if job is not None and shown else []
    data = {
        "name": talk.id,
        "branch": talk.branch,
        "messages": talk.size + len(await newest_reply(workspace.engine.store, talk.journal.head)),
        "replayed": job.size if job else 0,
        "presets": presets,
        "window": window,
        "state": job.state if job else "none",
        "done": job.done if job else 0,
        "total": job.total if job else 0,
        "problem": job.problem if job else "",
        "table": job.table if job else None,
        "shown": shown,
        "calls": calls,
    }
    page: dict[str, object] = {
        "all_presets": PRESETS,
        "sizes": sorted({*WINDOWS, window, talk.window.tokens}),
    }
    if job is not None and job.table is not None and calls:

        def url(preset: str, call: int = 0) -> str:
            return conversation_url(
                talk.id, "replay", branch=visit.branch, presets=",".join(presets), window=window,
                shown=preset, call=call,
            )  # fmt: skip

        changed = [one for one in calls if one.changes]
        page |= {
            **_compared(job.table),
            "over_time": _over_time(calls, window, shown, number, url),
            "call": next((one for one in calls if one.number == number), None),
            "changed": changed[-MOST_CHANGES:],
            "left_out": max(0, len(changed) - MOST_CHANGES),
            "url": url,
            "sign": svg.sign,
        }
    return RenderedPage("replay.html", data, f"Replay {talk.id}", page=page)


def _compared(table: Table) -> dict[str, object]:
    """The chart and the columns of the report: for each column its name, its meaning, and a cell for every row."""
    from refold.replay.report import HOW_TO_READ, columns, figure, front, points

    tariff = table.tariffs[0] if table.tariffs else ""
    found, window = points(table.rows, tariff), table.rows[0].window
    return {
        "figure": figure(window, table.rows, tariff) if found else "",
        "how_to_read": HOW_TO_READ,
        "best": {point.name for point in front(found)},
        "columns": [
            (name, what, [show(row) for row in table.rows])
            for name, what, show in columns(tariff, by_model=False)
        ],
    }


_LINES = (svg.Level("window", "window"),)


def _over_time(
    calls: Sequence[ReplayedCall], window: int, preset: str, chosen: int, url: Callable[[str, int], str]
) -> svg.Markup:
    """The size of every context, with its changes as marks and the simulated cache below."""
    bars = []
    for group in svg.thinned(len(calls), svg.MOST_BARS):  # before their texts and addresses are made
        own = calls[group.start : group.stop]
        one = max(own, key=lambda each: (each.number == chosen, each.tokens))
        made = [change.what for each in own for change in each.changes]
        bars.append(
            svg.Bar(
                f"{one.number:,}",
                (one.tokens,),
                (window,),
                (one.cached, one.prompt - one.cached),
                _told(one, own),
                f"{url(preset, one.number)}#over-time",
                one.number == chosen,
                tuple(dict.fromkeys("summarise" if what == "summarised" else "reduce" for what in made)),
            )
        )
    label = f"The contexts that {preset} would have sent, call by call. Arrow keys move through them."
    return svg.stacked_bars(
        bars, ("context",), _LINES, label=label, lanes=("read", "fresh"), lane_name="cache", axis="call"
    )


def _told(one: ReplayedCall, own: Sequence[ReplayedCall]) -> str:
    """A call in a few lines, and for how many calls its bar stands."""
    lines = [f"call {one.number:,}: {one.tokens:,} tokens"]
    if len(own) > 1:
        lines.append(f"one of the calls {own[0].number:,} to {own[-1].number:,}")
    if one.prompt:
        lines.append(f"{100 * one.cached / one.prompt:.0f} % read from the cache")
    if one.changes:
        lines.append(f"{one.before:,} tokens without a change")
    return "\n".join(
        (*lines, *(f"{each.what}: {each.why}" if each.why else each.what for each in one.changes))
    )


async def begin(visit: Visit) -> RenderedPage | Redirect:
    workspace = await visit.workspace()
    talk = await workspace.open(visit.name, visit.branch)
    chosen = ",".join(name.removeprefix("preset-") for name in visit.form if name.startswith("preset-"))
    presets, window = _asked(visit.form.get("window", ""), chosen, talk.window.tokens)
    recording = await read_recording(talk, workspace.engine.store)
    order = ReplayOrder(workspace.engine.owner, talk.id, talk.branch, presets, window)
    visit.replays.begin(order, recording, talk.model)
    return Redirect(
        conversation_url(talk.id, "replay", branch=visit.branch, presets=",".join(presets), window=window)
    )


VIEWS = (
    (f"{CONVERSATION}/replay", show, "GET"),
    (f"{CONVERSATION}/replay", begin, "POST"),
)
