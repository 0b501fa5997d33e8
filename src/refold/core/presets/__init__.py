"""Presets: six compaction systems as settings of one engine.

No other module names a preset. `PRESETS` maps names to policies. The differences between a preset and the
system it is named after are listed in `docs/presets.md`.
"""

from __future__ import annotations

from refold.core.policy import Policy
from refold.core.presets.librechat import LIBRECHAT, PresetBlock, policy_of_block, read_block, takes_block
from refold.core.presets.librechat import VARIANTS as _LIBRECHAT_VARIANTS
from refold.core.presets.policies import LIS, LLMS, OPAL, PICOCLAW, REFOLD

__all__ = [
    "LIBRECHAT",
    "LIS",
    "LLMS",
    "OPAL",
    "PICOCLAW",
    "PRESETS",
    "REFOLD",
    "VARIANTS",
    "PresetBlock",
    "policy_of_block",
    "read_block",
    "takes_block",
]

PRESETS: dict[str, Policy] = {
    policy.name: policy for policy in (REFOLD, LIS, OPAL, LLMS, PICOCLAW, LIBRECHAT)
}
VARIANTS: dict[str, dict[str, Policy]] = {LIBRECHAT.name: _LIBRECHAT_VARIANTS}
"""The variants of a preset, by its name and theirs."""
