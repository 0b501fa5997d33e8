"""Settings for the whole suite: the feature gate, and how hard hypothesis tries.

The fast profile always tries the same examples, so that a change and its test run never disagree by chance; new ones are
looked for by the thorough one (`make test-all`).
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester", "tests.feature_gate"]

settings.register_profile(
    "fast", max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("fast"), max_examples=500, derandomize=False)
settings.load_profile(os.environ.get("REFOLD_HYPOTHESIS", "fast"))
