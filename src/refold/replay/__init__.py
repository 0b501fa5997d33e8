"""Replay recorded conversations under any candidate, and measure what it would have sent.

    transcripts ─▶ script ─▶ score ─▶ table ─▶ render, report
    recordings     what is    one      means    text    a page
    from files     known of   replay                    with plots
                   them

`candidate` is what can be measured, `presets` our own, and `baselines` what people do today. Before every reply of a recording the candidate is
asked for its context; `validity` says whether a provider would take it, `demand` whether it holds what the reply needed (by
the `literals` in it), `rules` whether the user's rules survived, `billing` what it would have cost. `counting` says what a
token is. `run` does that for all recordings, candidates and windows. No model is needed, and nothing is sent anywhere.

With a model that writes the summaries, `chosen` says which, `author` asks it and counts every call, `authors` lets plain code
wait for it, and `kept` keeps what was paid for.
"""

from __future__ import annotations

from refold.replay.baselines import BASELINES
from refold.replay.candidate import CallsModels, Candidate, HasHandles, Maker, Recalls
from refold.replay.cost import REFERENCE_TARIFFS, Tariff, tariff_for
from refold.replay.recordings import CountedRecording, Progress, Recording, read_recordings
from refold.replay.run import WINDOWS, run
from refold.replay.score import Score, score
from refold.replay.table import Cell, Table, TableRow, document, render, tabulate
from refold.replay.token_counts import REFERENCE, Counting, ReferenceCounter

__all__ = [
    "BASELINES",
    "REFERENCE",
    "REFERENCE_TARIFFS",
    "WINDOWS",
    "CallsModels",
    "Candidate",
    "Cell",
    "CountedRecording",
    "Counting",
    "HasHandles",
    "Maker",
    "Progress",
    "Recalls",
    "Recording",
    "ReferenceCounter",
    "Score",
    "Table",
    "TableRow",
    "Tariff",
    "document",
    "read_recordings",
    "render",
    "run",
    "score",
    "tabulate",
    "tariff_for",
]
