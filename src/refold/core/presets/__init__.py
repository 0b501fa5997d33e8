"""Presets: six systems of compaction as settings of one engine.

No other module names a preset. `PRESETS` finds one by its name; what a preset does differently from the system it is named
after is listed in `docs/presets.md`.
"""

from __future__ import annotations

from refold.core.policy import Policy
from refold.core.presets.librechat import LIBRECHAT
from refold.core.presets.lis import LIS
from refold.core.presets.llms import LLMS
from refold.core.presets.opal import OPAL
from refold.core.presets.picoclaw import PICOCLAW
from refold.core.presets.refold import REFOLD

PRESETS: dict[str, Policy] = {
    policy.name: policy for policy in (REFOLD, LIS, OPAL, LLMS, PICOCLAW, LIBRECHAT)
}
