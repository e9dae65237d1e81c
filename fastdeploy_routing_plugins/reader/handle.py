"""A reader as a thing: what it was opened with, open in each process that uses it, closed once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import InvalidRecordError, StoreClosedError
from ..keys import as_int, shown
from ..schema import RoutingSchema
from .opened import Opened, made
from .ranges import RankLayout

if TYPE_CHECKING:
    from ..resolver import ResolvedStore
    from ..store.sync import SyncStore

H = TypeVar("H", bound="ReaderHandle")

PREFETCH_BYTES = 1 << 30
PREFETCH_RECORDS = 128


class ReaderHandle:
    """What ``RoutingReader`` is made of apart from reading; see there."""

    def __init__(
        self,
        resolved: ResolvedStore,
        schema: RoutingSchema,
        layout: RankLayout | None = None,
        *,
        prefetch_bytes: int = PREFETCH_BYTES,
        prefetch_records: int = PREFETCH_RECORDS,
    ) -> None:
        _check(schema, layout, prefetch_bytes, prefetch_records)
        self.resolved = resolved
        self.schema = schema
        self.layout = layout
        self._bounds = prefetch_bytes, prefetch_records
        self._lock = threading.Lock()
        self._closed = False
        self._opened: Opened | None = None
        made(self)

    def open(self: H) -> H:
        """Opens the store now, and not when it is first used; returns the reader itself."""
        self._own()
        return self

    def __enter__(self: H) -> H:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return _again, (type(self), self.resolved, self.schema, self.layout, *self._bounds)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.resolved.name!r}, namespace={self.resolved.namespace!r}, {self.schema})"

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The model's indices of the layers that this rank reads; empty for a stage without a router."""
        return self.schema.layer_ids if self.layout is None else self.layout.layer_ids(self.schema)

    @property
    def store(self) -> SyncStore:
        """The store as this process has it open: for ``status``, ``list``, ``delete`` and so on.

        Raises:
            StoreClosedError: The reader is closed.
        """
        return self._own().store

    def _own(self) -> Opened:
        """Returns what this process has open, and opens it first if need be."""
        opened = self._opened
        if opened is not None and not self._closed:
            return opened
        with self._lock:
            if self._closed:
                raise StoreClosedError("the reader is closed", hint="use it inside `with open_reader(...)`")
            if self._opened is None:
                self._opened = Opened(self.resolved, self.schema, *self._bounds)
            return self._opened

    def forked(self) -> Opened | None:
        """For a forked child: forgets what the parent has open, and returns it."""
        opened, self._opened = self._opened, None
        self._lock = threading.Lock()  # a thread that only the parent has may hold the old one
        return opened

    def close(self, timeout: float = 5.0) -> None:
        """Ends what is under way and closes the store; harmless when already closed. Never hangs.

        Raises:
            StoreUnavailableError: It did not close within ``timeout`` seconds.
        """
        with self._lock:
            self._closed = True
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close(timeout)


def _again(
    kind: type[ReaderHandle],
    resolved: ResolvedStore,
    schema: RoutingSchema,
    layout: RankLayout | None,
    nbytes: int,
    records: int,
) -> ReaderHandle:
    return kind(resolved, schema, layout, prefetch_bytes=nbytes, prefetch_records=records)


def _check(schema: object, layout: object, nbytes: object, records: object) -> None:
    if not isinstance(schema, RoutingSchema):
        raise InvalidRecordError(f"{shown(schema)} is no RoutingSchema", hint="RoutingSchema(num_experts=…, …)")
    if layout is not None and not isinstance(layout, RankLayout):
        raise InvalidRecordError(f"{shown(layout)} is no RankLayout", hint="ParallelLayout(…).rank(rank)")
    for name, value, low in (("prefetch_bytes", nbytes, 0), ("prefetch_records", records, 1)):
        number = as_int(value)
        if number is None or number < low:
            raise InvalidRecordError(f"{name} must be an integer from {low} on, got {shown(value)}")
    if layout is not None:
        layout.layout.check(schema)
