"""Replays recorded conversations under candidates, and measures the contexts that they would have sent.

    recordings ─▶ facts ─▶ score ─▶ table ─▶ render, report
    from files    of each   of one   means    text    a page
                  message   replay                    with plots

A `candidate` is one way to keep a conversation inside a window: the simple ways in common use, and Refold's
presets. Before every reply of a recording the candidate is asked for its context.
`score` checks whether a provider would accept it, whether it holds the literals that the reply needed, and
whether the user's rules survived; `cost` computes its price; `facts` defines a token. `run` covers all
recordings, candidates and windows. No model is needed, and nothing is sent.

With a model that writes the summaries, `summarisers` opens it, counts every call, limits the spending, and
caches paid summaries.
"""

from __future__ import annotations

from refold.replay.candidate import (
    BASELINES,
    WHOLE_WINDOW,
    CallsModels,
    Candidate,
    CandidateMaker,
    HasHandles,
    Recalls,
    ReplayBudget,
)
from refold.replay.cost import REFERENCE_TARIFFS, Tariff, tariff_for
from refold.replay.facts import REFERENCE, CounterChoice, ReferenceCounter
from refold.replay.recordings import CountedRecording, ProgressFunction, Recording, read_recordings
from refold.replay.run import WINDOWS, run
from refold.replay.score import Score, score
from refold.replay.table import Cell, ReplayRow, Table, document, render, tabulate

__all__ = [
    "BASELINES",
    "REFERENCE",
    "REFERENCE_TARIFFS",
    "WHOLE_WINDOW",
    "WINDOWS",
    "CallsModels",
    "Candidate",
    "CandidateMaker",
    "Cell",
    "CountedRecording",
    "CounterChoice",
    "HasHandles",
    "ProgressFunction",
    "Recalls",
    "Recording",
    "ReferenceCounter",
    "ReplayBudget",
    "ReplayRow",
    "Score",
    "Table",
    "Tariff",
    "document",
    "read_recordings",
    "render",
    "run",
    "score",
    "tabulate",
    "tariff_for",
]
