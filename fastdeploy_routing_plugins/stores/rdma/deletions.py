"""What a producer lets go of because the metadata service has it no more: ``Deletions``.

What a process deletes itself the service does not tell it of; and an answer may be lost, or a call be interrupted. So
the service is asked before a shelf is believed, and later where it is not known what became of a delete.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from ...errors import AbsentError, SupersededError
from .metadata.client import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ...errors import RoutingError
    from .held import Seen
    from .metadata.client import MetadataClient
    from .shelf import Shelf


class Deletions:
    """Deletes objects, and frees those of them that lie here. Methods may be called from several threads.

    Args:
        shelf: What is held here.
        client: The metadata service.
        is_ours: Whether what is held here is an owner's of this id.
    """

    def __init__(self, shelf: Shelf, client: MetadataClient, is_ours: Callable[[str], bool]) -> None:
        self._shelf = shelf
        self._client = client
        self._is_ours = is_ours
        self._lock = threading.Lock()
        self._doubtful: dict[str, bytes] = {}  # whose deletion may have happened

    def delete(self, names: Sequence[str], reason: str = "deleted") -> int:
        """Deletes objects, whoever holds them; returns how many there were."""
        items = self._shelf.seen(names)
        with self._doubting(items):
            count = self._client.delete(names, reason)
            self.free(items)
        return count

    def delete_prefix(self, prefix: str) -> int:
        """Deletes all objects under a prefix, as ``delete`` does."""
        with self._doubting(self._shelf.seen(prefix=prefix)):
            count = self._client.delete_prefix(prefix)
            self.let_go(self._shelf.seen(prefix=prefix))  # not what was put since
        return count

    @contextlib.contextmanager
    def _doubting(self, items: Sequence[Seen]) -> Iterator[None]:
        """Has ``make_good`` ask for objects that are being deleted, if it is not known what became of that."""
        try:
            yield
        except BaseException:
            self._doubt(items)
            raise

    def _doubt(self, items: Sequence[Seen]) -> None:
        with self._lock:
            self._doubtful.update({item.name: item.raw for item in items})

    def make_good(self) -> None:
        """Frees what a delete of which nobody knew the end has deleted."""
        if not self._doubtful:
            return
        with self._lock:
            doubtful, self._doubtful = self._doubtful, {}
        items = [item for item in self._shelf.seen(doubtful) if item.raw == doubtful[item.name]]
        with self._doubting(items):
            self.let_go(items)

    def let_go(self, items: Sequence[Seen]) -> int:
        """Frees what the service does not have any more of some objects; returns how many those are.

        Args:
            items: The objects, as they were before this is called.
        """
        entries = self._client.lookup([item.name for item in items], fresh=True)
        return self.free([item for item, entry in zip(items, entries, strict=True) if not self._may_be_ours(entry)])

    def free(self, items: Sequence[Seen]) -> int:
        """Frees what the service does not have; of what it was being told meanwhile, it is asked again later.

        Returns:
            How many objects are not held any more.
        """
        left = self._shelf.drop_seen(items)
        if left:
            self._doubt(left)
        return len(items) - len(left)

    def _may_be_ours(self, entry: Entry | RoutingError) -> bool:
        if isinstance(entry, Entry):
            return self._is_ours(entry.owner)
        return not isinstance(entry, (AbsentError, SupersededError))
