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


LONG = (  # files with few tests that take long: begun last, they would keep the other processes waiting
    "reader/test_interleavings.py",
    "stores/rdma/test_through_writer.py",
    "conformance/test_broken_stores.py",
    "writer/test_crash.py",
    "demo/test_demo.py",
    "stores/rdma/mooncake/test_conformance.py",
    "writer/test_order.py",
    "stores/rdma/test_faults_producers.py",
    "writer/test_soak.py",
    "stores/rdma/p2pstore/test_outages.py",
    "cli/test_bench.py",
    "reader/test_r3_training.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Random tests reach the same lines many times over, which takes twice as long if coverage counts them."""
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONG))
    for item in items:
        if item.get_closest_marker("hypothesis"):
            item.add_marker("no_cover")
