"""Classification of a provider's answers as overflow of the window or another error.

`classify` reads an answer, `classify_finish` a finish reason with its usage. `sentences` recognises the known
sentences of providers and has their tables.
"""

from __future__ import annotations

from refold.core.overflow.classify import classify, classify_finish

__all__ = ["classify", "classify_finish"]
