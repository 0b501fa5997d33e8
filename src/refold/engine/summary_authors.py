"""Authors of summaries, and the reasons for which a configured model did not write one."""

from __future__ import annotations

from msgspec import Struct, structs

from refold.core.fold import Folded
from refold.model.summary import Author, Summary

NO_SUMMARISER = "no summariser is configured"
STILL_WRITING = "the model is still writing"
RECOVERY = "recovery from an overflow asks no model"
NO_ROOM = "the window was full, and the policy asks no model then"
UNUSABLE = "the model's summary could not be used"
MODEL_FAILED = "the model failed"
OUT_OF_MONEY = "max_spend is reached"
READY = "model summary ready"
WROTE_NONE = "the model wrote none"


class SummaryAuthor(Struct, frozen=True):
    """The author of the text that stands for messages which left the window."""

    author: Author = ""
    model: str = ""
    """The model that wrote it, if known."""
    why: str = ""
    """Why no model wrote it; empty if one did."""

    @classmethod
    def of(cls, summary: Summary) -> SummaryAuthor:
        return cls(summary.author, summary.model, summary.why)

    @property
    def text(self) -> str:
        """The author in a line, such as `model gpt-4o-mini` or `digest; the model is still writing`."""
        if self.author == "model":
            return f"model {self.model}".rstrip()
        return f"{self.author}; {self.why}" if self.why else self.author


def author_of(shown: Folded, *, has_late: bool = False, is_writing: bool = False) -> SummaryAuthor:
    """Return the author of the summary that a window shows. `has_late` says that a model's summary of the
    same messages is ready, `is_writing` that a model writes one.
    """
    if not shown.summaries:
        if shown.lead.tokens:
            return SummaryAuthor("mechanical", why=NO_ROOM)
        return SummaryAuthor("native" if shown.shown.progress.compaction >= 0 else "")
    found = SummaryAuthor.of(shown.summaries[-1])
    if has_late:
        return structs.replace(found, why=READY)
    if found.why == STILL_WRITING and not is_writing:
        return structs.replace(found, why=WROTE_NONE)
    return found
