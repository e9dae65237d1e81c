"""The backend of ``rdma``: the service says who has what, the bytes come straight from who has them."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
import weakref
from typing import TYPE_CHECKING

from ...backend import Blob, BlockingBackend, Buffer, GetRequest, Ranges
from ...errors import (
    AbsentError,
    AlreadyExistsError,
    DeletedError,
    EvictedError,
    ProducerLostError,
    RoutingError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
)
from ...store.assemble import Attempts
from .host import host_id, make_endpoint
from .metadata.client import Entry, MetadataClient, Security
from .producing import Producer
from .pulling import Puller
from .shelf import ShelfText
from .succession import awaits_heir
from .transport.choose import Sources
from .unclosed import Unclosed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...arena.file import ArenaFile
    from ...backend import Choose, Deliver
    from ...spec import StoreContext
    from .config import RdmaConfig
    from .spares import Stored
    from .transport.rdma import RdmaEndpoint
    from .unclosed import Closes

_GONE: dict[str, tuple[type[RoutingError], str]] = {
    "deleted": (DeletedError, "it was here, and was deleted or released"),
    "evicted": (EvictedError, "it was here, and made room for others"),
    "closed": (EvictedError, "it was here, and went when its producer closed the store, or lingered long enough"),
    "lost": (ProducerLostError, "the process that held it died"),
}
_log = logging.getLogger("fastdeploy_routing_plugins.stores.rdma")


class RdmaBackend(BlockingBackend):
    """Objects stay with the process that put them, until readers release them; readers pull them.

    Args:
        context: What the store is opened with.
    """

    threads = 16
    digests_on_copy = True

    def __init__(self, context: StoreContext) -> None:
        self._config: RdmaConfig = context.config
        self._context = context
        self._lock = threading.Lock()
        self._client: MetadataClient | None = None
        self._sources: Sources | None = None
        self._puller: Puller | None = None
        self._endpoint: RdmaEndpoint | None = None
        self._producer: Producer | None = None
        self._unclosed: Unclosed | None = None
        self._closed = False
        self._pid = os.getpid()

    # --- opening and closing ------------------------------------------------------------------------------------

    def _open(self) -> None:
        config = self._config
        self._client = MetadataClient(
            config.address,
            self._context.namespace,
            Security(config.keys, config.secret),
            config.timeout,
        )
        self._client.open()
        self._host = host_id()
        self._endpoint = make_endpoint(config)
        self._sources = Sources(config, self._host, self._endpoint, lives=self._client.lives)
        self._puller = Puller(self._client, self._sources, config.timeout, self._own)
        self._unclosed = Unclosed(self, self._ends())

    def _inherit(self) -> None:
        if self._unclosed is not None:  # a store worker that ends in disorder leaves what it held to the next one
            self._unclosed.closed()
            self._unclosed = None
        if awaits_heir(self._config.arena_dir, self._shelf_text()):
            try:
                self._producing()
            except StoreError as err:
                _log.warning("what a dead store worker held is not taken over yet: %s", err)

    def _shelf_text(self) -> ShelfText:
        context = self._context
        return ShelfText(1, uuid.uuid4().hex, context.producer, context.namespace, self._config.server)

    def _close(self) -> None:
        with self._lock:
            self._closed = True
            producer, self._producer = self._producer, None
        if self._unclosed is not None:
            self._unclosed.closed()
        if os.getpid() != self._pid:
            if producer is not None:
                producer.forget()
            return
        if producer is not None:
            producer.stop()
        for each in self._ends():
            each.close()

    def _ends(self) -> list[Closes]:
        return [each for each in (self._sources, self._endpoint, self._client) if each is not None]

    def _make_room(self, arena: ArenaFile, nbytes: int) -> int:
        producer = self._own()
        return 0 if producer is None else producer.make_room(arena, nbytes)

    def _linger(self) -> None:
        producer = self._own()
        if producer is not None:
            producer.linger(self._config.linger)

    def _flush(self) -> None:
        producer = self._own()
        if producer is not None:
            producer.withdraw()

    def _metadata(self) -> MetadataClient:
        client = self._client
        if client is None or self._closed:
            raise StoreClosedError("the store is closed" if self._closed else "the store is not open")
        return client

    def _pulling(self) -> Puller:
        self._metadata()
        assert self._puller is not None
        return self._puller

    def _own(self) -> Producer | None:
        """Returns this process's producer, if it has one; a forked child has none."""
        return self._producer if os.getpid() == self._pid else None

    def _producing(self) -> Producer:
        """Returns this process's producer; makes it for the first put."""
        if os.getpid() != self._pid:
            raise StoreClosedError(
                "what this store keeps for readers lies with the process that opened it", hint="open it in the child"
            )
        producer = self._producer
        if producer is not None:
            return producer
        client = self._metadata()
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store is closed")
            if self._producer is None:
                producer = Producer(
                    self._config, self._shelf_text(), client, self._host, self._endpoint, _weakly(self._stored)
                )
                try:
                    producer.start()
                except BaseException:
                    producer.stop()
                    raise
                self._producer = producer
                if self._unclosed is not None:
                    self._unclosed.producer = producer
            return self._producer

    # --- writing ------------------------------------------------------------------------------------------------

    def _put(self, name: str, header: bytes, payload: Buffer) -> None:
        producer = self._producing()
        entry = producer.put(name, header, payload)
        if entry is None:
            return
        theirs: bytes | None = None
        try:
            stored = self._pulling().fetch([GetRequest(name, ())], view=False)[0]
            if isinstance(stored, AbsentError):
                raise StoreUnavailableError(f"{name} was stored by another producer, and is gone again") from stored
            theirs = stored.header
        finally:
            producer.settle(entry, theirs)
        raise AlreadyExistsError(f"{name} exists", header=theirs)

    def _stored(self, name: str) -> tuple[Entry, bytes] | None:
        """Returns who else holds an object, and its header; None if that cannot be had, or changes meanwhile."""
        before = self._metadata().lookup([name], fresh=True)[0]
        if not isinstance(before, Entry):
            return None
        blob = self._pulling().attempt(GetRequest(name, ()), before, time.monotonic() + self._config.timeout, False)
        return None if blob is None else (before, blob.header)

    def _delete(self, names: Sequence[str]) -> int:
        if not names:
            return 0
        metadata, producer = self._metadata(), self._own()
        return metadata.delete(names, "deleted") if producer is None else producer.deletions.delete(names)

    def _clear(self, prefix: str) -> int:
        metadata, producer = self._metadata(), self._own()
        if metadata.vacant(prefix):
            return 0
        return metadata.delete_prefix(prefix) if producer is None else producer.deletions.delete_prefix(prefix)

    def _release(self, names: Sequence[str]) -> None:
        self._delete(names)

    # --- reading ------------------------------------------------------------------------------------------------

    def _list(self, prefix: str) -> list[str]:
        return self._metadata().listed(prefix).names

    def _look(self, prefix: str, view: bool) -> tuple[list[str], Blob | None]:
        listing = self._metadata().listed(prefix)
        if not listing.steady or Attempts.sole(prefix, listing.names) is None:
            return listing.names, None  # what is not whole yet is not moved in vain
        entry = listing.entries[0]
        request, deadline = GetRequest(entry.name), time.monotonic() + self._config.timeout
        return listing.names, self._pulling().attempt(request, entry, deadline, view)

    def _collect(
        self,
        prefixes: Sequence[str],
        choose: Choose,
        deliver: Deliver,
    ) -> None:
        self._pulling().collect(prefixes, choose, deliver)

    def _list_many(self, prefixes: Sequence[str]) -> list[list[str]]:
        return [listing.names for listing in self._metadata().listing(prefixes)]

    def _absence(self, prefix: str) -> RoutingError | None:
        gone = _GONE.get(self._metadata().listing([prefix])[0].gone)
        return None if gone is None else gone[0](gone[1])

    def _wait(self, prefix: str, seen: Sequence[str], deadline: float) -> list[str]:
        return self._metadata().wait(prefix, seen, deadline).names

    def _get(self, name: str, ranges: Ranges | None = None) -> Blob:
        blob = self._pulling().fetch([GetRequest(name, ranges)], view=False)[0]
        if isinstance(blob, AbsentError):
            raise blob
        return blob

    def _get_many(self, requests: Sequence[GetRequest]) -> list[Blob | AbsentError]:
        return self._pulling().fetch(requests, view=False)

    def _view_many(self, requests: Sequence[GetRequest]) -> list[Blob | AbsentError]:
        return self._pulling().fetch(requests, view=True)


def _weakly(stored: Stored) -> Stored:
    """Returns a function that does the same as long as the method's object lives, and does not keep it alive."""
    method = weakref.WeakMethod(stored)

    def call(name: str) -> tuple[Entry, bytes] | None:
        found = method()
        return None if found is None else found(name)

    return call
