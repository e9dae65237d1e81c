"""Which pages of the heap are free: ``Extents``. Lives in the engine's own memory; blocks describe themselves."""

from __future__ import annotations

from bisect import bisect_left


class Extents:
    """Free runs of pages. First fit, lowest address first: what was just used, and is in the caches, is used again.

    Every change is one assignment to a slice: a signal's handler that raises finds, and leaves, all of it or none.

    Args:
        first: First page.
        pages: Number of pages.
    """

    def __init__(self, first: int, pages: int) -> None:
        self._runs = [(first, pages)] if pages else []  # (first page, number of pages), in order
        self.pages = pages

    @property
    def free(self) -> int:
        """Free pages."""
        return sum([size for _, size in self._runs])

    @property
    def largest(self) -> int:
        """Pages of the largest free run."""
        return max([size for _, size in self._runs], default=0)

    def take(self, pages: int) -> int | None:
        """Returns the first page of a free run of so many, or None if there is none."""
        runs = self._runs
        for index, (start, size) in enumerate(runs):
            if size >= pages:
                left = [(start + pages, size - pages)] if size > pages else []
                runs[index : index + 1] = left
                return start
        return None

    def give(self, start: int, pages: int) -> None:
        """Takes pages back and joins them with their free neighbours."""
        runs = self._runs
        low = high = bisect_left(runs, (start, 0))
        if high < len(runs) and runs[high][0] == start + pages:
            pages += runs[high][1]
            high += 1
        if low and sum(runs[low - 1]) == start:
            low -= 1
            start, pages = runs[low][0], runs[low][1] + pages
        runs[low:high] = [(start, pages)]
