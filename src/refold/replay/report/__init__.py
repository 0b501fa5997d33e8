"""A replay as one HTML page, to be opened from a file, mailed and kept.

    cells ─▶ chart ─▶ page ─▶ page.js
             drawn     │       drawn in
             here      ▼       the browser
                     HTML

The page is self-contained. The comparison of all candidates is drawn here and needs no script; views that
depend on the reader's choice (one recording over time, the order of a table) are drawn by the small script in
the page. The page may run that script and no other, and may load nothing.
"""

from __future__ import annotations

from refold.replay.report.page import page

__all__ = ["page"]
