"""Listings that a client remembers, and may use for as long as the service's counters say that nothing changed."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .page import PageView
    from .values import Entry, Listing

_ENTRIES: Final = 100_000  # that are remembered
_LISTINGS: Final = 50_000


class _Kept:
    """A listing, and the counters that came with it."""

    __slots__ = ("bucket", "ground", "listing", "page", "version")

    def __init__(self, listing: Listing, page: PageView, bucket: int, version: int, ground: int) -> None:
        self.listing = listing
        self.page = page
        self.bucket = bucket
        self.version = version
        self.ground = ground


class Cache:
    """Listings by prefix; those not asked for longest go first. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._entries = 0

    def keep(self, prefix: str, listing: Listing, page: PageView, bucket: int, version: int, ground: int) -> None:
        """Remembers a listing that came with these counters."""
        kept = _Kept(listing, page, bucket, version, ground)
        with self._lock:
            before = self._kept.pop(prefix, None)
            if before is not None:
                self._entries -= len(before.listing.names)
            self._kept[prefix] = kept
            self._entries += len(listing.names)
            while self._entries > _ENTRIES or len(self._kept) > _LISTINGS:
                self._entries -= len(self._kept.popitem(last=False)[1].listing.names)

    def get(self, prefix: str) -> Listing | None:
        """Returns the listing of a prefix if it is remembered and still true."""
        kept = self._recalled(prefix)
        return kept.listing if kept is not None and kept.page.lives() else None

    def get_all(self, prefixes: Sequence[str]) -> dict[str, Listing | None]:
        """Returns the listings of several prefixes, each if it is remembered and still true."""
        found: dict[str, Listing | None] = dict.fromkeys(prefixes)
        pages: set[PageView] = set()
        for prefix in found:
            kept = self._recalled(prefix)
            if kept is not None:
                found[prefix] = kept.listing
                pages.add(kept.page)
        return found if all(page.lives() for page in pages) else dict.fromkeys(prefixes)

    def _recalled(self, prefix: str) -> _Kept | None:
        """Returns what is remembered if the counters say that nothing changed.

        Ask afterwards whether the service lives: one that died before they were read says nothing by them.
        """
        kept = self._kept.get(prefix)
        if kept is None or not kept.page.same(kept.bucket, kept.version, kept.ground):
            return None
        try:  # noqa: SIM105 - a context costs as much as all the rest
            self._kept.move_to_end(prefix)
        except KeyError:
            pass  # another thread removed it
        return kept

    def find(self, rollout: str, name: str) -> Entry | None:
        """Returns a name's entry if the listing of its rollout is remembered and still true."""
        listing = self.get(rollout)
        if listing is None:
            return None
        at = bisect_left(listing.names, name)
        return listing.entries[at] if at < len(listing.names) and listing.names[at] == name else None

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._kept.clear()
            self._entries = 0
