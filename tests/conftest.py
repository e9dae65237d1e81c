"""Shared by all tests: how long the random ones run."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# FD_ROUTING_TEST_EXAMPLES=2000 makes the long form of every property test.
settings.register_profile(
    "routing",
    max_examples=int(os.environ.get("FD_ROUTING_TEST_EXAMPLES", "100")),
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("routing")
