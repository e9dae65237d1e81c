"""``BackendConformance``: all tests of a store, put together."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING

from ..spec import Capability
from .concurrency import ConcurrencyTests
from .guard import require_unchanged
from .harness import Harness
from .honesty import HonestyTests
from .lifecycle import LifecycleTests
from .listing import ListingTests
from .objects import ObjectTests
from .outcomes import OutcomeTests
from .rollouts import RolloutTests
from .waiting import WaitingTests

if TYPE_CHECKING:
    from pathlib import Path


class BackendConformance(
    OutcomeTests,
    RolloutTests,
    WaitingTests,
    ConcurrencyTests,
    ListingTests,
    ObjectTests,
    HonestyTests,
    LifecycleTests,  # pytest begins with the last base, so that a simple fault shows at a simple test
):
    """All tests of a store. A subclass states ``store`` and ``config``; see ``ConformanceBase`` for the rest."""

    def test_random_operations_agree_with_a_dict(self, tmp_path: Path) -> None:
        """Random puts, gets, listings, deletes and clears through two handles do what they do to a dict."""
        kit = Harness(self, tmp_path)
        missing = (Capability.READ | Capability.LIST) & ~kit.capabilities
        if missing:
            asyncio.run(kit.assert_refused(missing))
            return
        try:
            stateful = import_module(".stateful", __package__)
        except ModuleNotFoundError as err:
            raise ImportError(
                "random operations need Hypothesis: pip install 'fastdeploy-routing-plugins[testing]'"
            ) from err
        stateful.run_stateful(kit.resolved.create_backend, kit.namespace, settle=kit.settle)

    def test_kit_is_whole(self) -> None:
        """No test of the kit was replaced after the class was made."""
        require_unchanged(type(self))
