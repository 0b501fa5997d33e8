"""A replay as one page: made to be opened from a file, mailed and kept.

    cells ─▶ front, scale ─▶ page ◀─ data ◀─ cells
             pictures         │      numbers for
             drawn here       ▼      page.js
                          elements

One idea: the page needs nothing but itself. The comparison of all candidates is drawn here and can be read without any
script; what depends on a choice of the reader (one recording over time, the order of a table) is drawn by the small script
in it. The page may run that script and no other, and may load nothing.
"""

from __future__ import annotations

from refold.replay.report.page import page

__all__ = ["page"]
