"""Which pages of the heap are free: ``Extents``. Lives in the engine's own memory; blocks describe themselves."""

from __future__ import annotations

from bisect import bisect_left, insort


class Extents:
    """Free runs of pages. First fit, lowest address first: what was just used, and is in the caches, is used again.

    Args:
        first: First page.
        pages: Number of pages.
    """

    def __init__(self, first: int, pages: int) -> None:
        self._starts = [first] if pages else []
        self._sizes = {first: pages} if pages else {}
        self.pages = pages
        self.free = pages

    @property
    def largest(self) -> int:
        """Pages of the largest free run."""
        return max(self._sizes.values(), default=0)

    def take(self, pages: int) -> int | None:
        """Returns the first page of a free run of so many, or None if there is none."""
        if pages > self.free:
            return None
        for index, start in enumerate(self._starts):
            size = self._sizes[start]
            if size < pages:
                continue
            del self._sizes[start]
            if size == pages:
                del self._starts[index]
            else:
                self._starts[index] = start + pages
                self._sizes[start + pages] = size - pages
            self.free -= pages
            return start
        return None

    def give(self, start: int, pages: int) -> None:
        """Takes pages back and joins them with their free neighbours."""
        self.free += pages
        index = bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] == start + pages:
            pages += self._sizes.pop(self._starts.pop(index))
        if index and (before := self._starts[index - 1]) + self._sizes[before] == start:
            self._sizes[before] += pages
            return
        insort(self._starts, start)
        self._sizes[start] = pages
