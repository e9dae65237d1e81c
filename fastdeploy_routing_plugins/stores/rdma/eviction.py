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
from .place import SHELF

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...arena.file import ArenaFile
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

    def evict(self, keep: str | None, arena: int | None = None) -> bool:
        """Lets the oldest rollout go; False if there is none but the one that is being put.

        Args:
            keep: A name of that one; None: there is none.
            arena: In which arena some of it must lie; None: in any.
        """
        names = self._shelf.oldest(keep, arena)
        if names:
            self._remember(names)
            self._deletions.delete(names, "evicted")
        return bool(names)

    def relieve(self, name: str, drop_spares: Callable[[], bool]) -> None:
        """Makes room in an engine's arena for what comes next, after something that lies there was put.

        Without this the engine would wait for room each time: a quarter of the arena is left to it, and at least twice
        as much as this took.

        Args:
            name: What was put.
            drop_spares: Lets go of copies of what others serve; returns whether there were any.
        """
        held = self._shelf.get(name)
        if held is None or held.place.arena == SHELF:
            return
        arena = held.place.arena
        nbytes = self._shelf.arenas.infos[arena].nbytes
        most = nbytes - max(nbytes // 4, 2 * held.block_bytes)
        while self._shelf.arenas.held_bytes(arena) > most and (drop_spares() or self.evict(name, arena)):
            pass

    def make_room(self, file: ArenaFile, nbytes: int, drop_spares: Callable[[], bool], *, evicts: bool) -> int:
        """Makes room in an engine's arena for what is waited for; returns how many bytes were given back.

        Args:
            file: The arena.
            nbytes: How much is waited for.
            drop_spares: See ``relieve``.
            evicts: Whether rollouts may go as well.
        """
        arena = self._shelf.arenas.find(file)
        if arena is None:
            return 0
        before, freed = self._shelf.arenas.returned_bytes(arena), 0
        while freed < nbytes and (drop_spares() or (evicts and self.evict(None, arena))):
            freed = self._shelf.arenas.returned_bytes(arena) - before
        return freed

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
