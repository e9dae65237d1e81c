"""``BackendConformance``: all tests of a store, put together."""

from __future__ import annotations

from importlib import import_module

from ..spec import Capability
from .concurrency import ConcurrencyTests
from .guard import require_unchanged
from .harness import Harness, conformance
from .honesty import HonestyTests
from .lifecycle import LifecycleTests
from .listing import ListingTests
from .objects import ObjectTests
from .rollouts import RolloutTests
from .waiting import WaitingTests


class BackendConformance(
    LifecycleTests, HonestyTests, ObjectTests, ListingTests, ConcurrencyTests, WaitingTests, RolloutTests
):
    """All tests of a store; see the package's docstring for what an author states."""
