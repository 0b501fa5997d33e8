"""What a provider's answer means for the window.

`classify` reads an answer and `classify_finish` a finish reason with its usage. `body` finds what an answer says,
`phrases` recognises sentences, `refusals` and `sentences` are the table of what providers say.
"""

from __future__ import annotations

from refold.core.overflow.classify import classify, classify_finish

__all__ = ["classify", "classify_finish"]
