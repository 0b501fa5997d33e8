"""Replays of a stored conversation under other presets, and the page that shows them as the report of `refold replay` does.

A replay takes seconds to minutes, so it runs in a thread, one at a time, and its page looks again until it is done. The last results
are held in memory. No model is asked and nothing is changed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from msgspec import Struct

from refold.core.presets import PRESETS
from refold.dashboard.app import Redirect, Rendered, Visit, conversation_url
from refold.engine.conversation import Conversation
from refold.engine.recall import newest_reply
from refold.model.errors import MAX_TOKENS, MIN_WINDOW, ConfigError, RefoldError
from refold.model.message import Message
from refold.ports.records import read_stored
from refold.ports.store import Store
from refold.replay import Recording, Table
from refold.text_work import run_text_work

MOST = 32
"""Replays whose results are held."""
WINDOWS = (4_000, 8_000, 16_000, 32_000, 64_000, 128_000)


class ReplayOrder(Struct, frozen=True):
    """What is replayed: a branch up to a message, some presets, and a window."""

    owner: str
    conversation: str
    branch: str
    size: int
    presets: tuple[str, ...]
    window: int


class ReplayJob:
    """One replay, from its order to its table."""

    def __init__(self) -> None:
        self.done = self.total = 0
        self.table: Table | None = None
        self.problem = ""
        self.task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done()


class ReplayJobs:
    """The replays of this process; the oldest result is forgotten first."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[ReplayOrder, ReplayJob] = OrderedDict()
        self._turn = asyncio.Semaphore(1)

    def find(self, order: ReplayOrder) -> ReplayJob | None:
        return self._jobs.get(order)

    def begin(self, order: ReplayOrder, recording: Recording, model: str) -> ReplayJob:
        known = self._jobs.get(order)
        if known is not None and not known.problem:
            return known
        if len([one for one in self._jobs.values() if one.is_running]) >= MOST:
            raise ConfigError("too many replays are waiting", hint="look again in a minute")
        job = self._jobs[order] = ReplayJob()
        while len(self._jobs) > MOST:
            self._jobs.popitem(last=False)
        job.task = asyncio.create_task(self._run(job, order, recording, model))
        return job

    async def _run(self, job: ReplayJob, order: ReplayOrder, recording: Recording, model: str) -> None:
        async with self._turn:
            try:
                job.table = await asyncio.to_thread(_replay, job, order, recording, model)
            except RefoldError as error:
                job.problem = error.message
            except Exception as error:  # noqa: BLE001  # the page says that it failed
                job.problem = f"the replay failed ({type(error).__name__})"


def _replay(job: ReplayJob, order: ReplayOrder, recording: Recording, model: str) -> Table:
    from refold.replay import Counting, ReplayBudget, run, tabulate
    from refold.replay.presets import candidates

    def note(done: int, total: int) -> None:
        job.done, job.total = done, total

    counting, budget = Counting(model), ReplayBudget(model=model)
    cells = run([recording], candidates(order.presets), [order.window], counting, note, budget=budget)
    return tabulate(cells, counting, budget=budget)


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


async def show(visit: Visit) -> Rendered | Redirect:
    workspace = await visit.workspace()
    talk = await workspace.open(visit.name, visit.branch)
    presets, window = _asked(
        visit.query.get("window", ""), visit.query.get("presets", ""), talk.window.tokens
    )
    size = talk.size + len(await newest_reply(workspace.engine.store, talk.journal.head))
    order = ReplayOrder(workspace.engine.owner, talk.id, talk.branch, size, presets, window)
    job = visit.replays.find(order)
    data = {
        "name": talk.id,
        "branch": talk.branch,
        "messages": size,
        "presets": presets,
        "window": window,
        "state": "none"
        if job is None
        else "running"
        if job.is_running
        else "failed"
        if job.problem
        else "done",
        "done": job.done if job else 0,
        "total": job.total if job else 0,
        "problem": job.problem if job else "",
        "table": job.table if job else None,
    }
    sizes = sorted({*WINDOWS, window, talk.window.tokens})
    page = {
        "all_presets": PRESETS,
        "sizes": sizes,
        "columns": _columns(job.table) if job and job.table else (),
    }
    return Rendered("replay.html", data, f"Replay {talk.id}", page=page)


def _columns(table: Table) -> list[tuple[str, str, list[str]]]:
    """The columns of the report: name, meaning, and a cell for every row."""
    from refold.replay.report import columns

    tariff = table.tariffs[0] if table.tariffs else ""
    return [
        (name, what, [show(row) for row in table.rows])
        for name, what, show in columns(tariff, by_model=False)
    ]


async def begin(visit: Visit) -> Rendered | Redirect:
    workspace = await visit.workspace()
    talk = await workspace.open(visit.name, visit.branch)
    chosen = ",".join(name.removeprefix("preset-") for name in visit.form if name.startswith("preset-"))
    presets, window = _asked(visit.form.get("window", ""), chosen, talk.window.tokens)
    recording = await read_recording(talk, workspace.engine.store)
    size = len(recording.messages)
    order = ReplayOrder(workspace.engine.owner, talk.id, talk.branch, size, presets, window)
    visit.replays.begin(order, recording, talk.model)
    return Redirect(
        conversation_url(talk.id, "replay", branch=visit.branch, presets=",".join(presets), window=window)
    )


VIEWS = (
    ("/conversations/{name}/replay", show, "GET"),
    ("/conversations/{name}/replay", begin, "POST"),
)
