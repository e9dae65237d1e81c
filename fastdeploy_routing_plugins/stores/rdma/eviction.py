"""Option ``when_full``: "evict": the oldest rollouts go where there is no room for a new one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from ...errors import EvictedError, InvalidKeyError
from ...keys import RoutingKey
from ...names import AbortName, parse_object
from ...store.assemble import Attempts
from .metadata.naming import rollout_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .deletions import Deletions
    from .shelf import Shelf

_REMEMBERED: Final = 65_536  # unfinished attempts that went
_ANY: Final = RoutingKey("any")


class Eviction:
    """Lets the oldest rollouts go. Methods may be called from several threads.

    What comes of an attempt after its first parts went could never be read: it is refused, so that its producer learns
    of it, and not each reader at its deadline. A higher attempt may be put.

    Args:
        shelf: What is held.
        deletions: Deletes it.
    """

    def __init__(self, shelf: Shelf, deletions: Deletions) -> None:
        self._shelf = shelf
        self._deletions = deletions
        self._lock = threading.Lock()
        self._unfinished: OrderedDict[str, None] = OrderedDict()  # what the names of attempts that went begin with

    def check(self, name: str) -> None:
        """Raises EvictedError for what continues an attempt that went before it was complete; abort marks do not."""
        if not self._unfinished:
            return
        attempt, _, what = name.rpartition("/")
        with self._lock:
            went = attempt in self._unfinished
        if went and not _is_abort(what):
            raise EvictedError(
                f"what {name} continues was evicted before it was complete",
                hint="put the rollout again under a higher attempt; a larger capacity, or releasing what was read, "
                "keeps rollouts that are still written",
            )

    def evict(self, keep: str) -> bool:
        """Lets the oldest rollout go; False if there is none but the one that is being put.

        Args:
            keep: A name of that one.
        """
        names = self._shelf.oldest(keep)
        if names:
            self._remember(names)
            self._deletions.delete(names, "evicted")
        return bool(names)

    def _remember(self, names: Sequence[str]) -> None:
        found = Attempts.parse(rollout_of(names[0]), names)
        if found.highest < 0 or found.status(_ANY).state in ("complete", "aborted"):
            return
        with self._lock:
            self._unfinished[f"{found.prefix}{found.highest:019d}"] = None
            while len(self._unfinished) > _REMEMBERED:
                self._unfinished.popitem(last=False)


def _is_abort(what: str) -> bool:
    try:
        return isinstance(parse_object(what), AbortName)
    except InvalidKeyError:
        return False
