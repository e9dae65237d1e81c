"""Shared by all tests: how long the random ones run, and that they are not measured."""

from __future__ import annotations

import os

import pytest
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


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Random tests reach the same lines many times over, which takes twice as long if coverage counts them."""
    for item in items:
        if item.get_closest_marker("hypothesis"):
            item.add_marker("no_cover")
