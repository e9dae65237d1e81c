"""The producer's side of ``rdma``: a shelf, the servers that readers fetch from, and the link to the service."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from ...backend import Buffer
from ...errors import (
    AbsentError,
    AlreadyExistsError,
    ArenaFullError,
    RoutingError,
    StoreUnavailableError,
)
from .deletions import Deletions
from .eviction import Eviction
from .host import is_loopback, local_address
from .metadata.client import Entry
from .metadata.producer import ProducerLink
from .place import ArenaInfo, OwnerInfo
from .shelf import Shelf, ShelfText
from .spares import Spares, Stored, same_content
from .succession import estates
from .transport.tcp_server import TcpServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...arena.file import ArenaFile
    from .config import RdmaConfig
    from .held import Held
    from .metadata.client import MetadataClient
    from .succession import Heirloom
    from .transport.rdma import RdmaEndpoint

_log = logging.getLogger("fastdeploy_routing_plugins.stores.rdma")
_TURNS = 64  # puts at the same time at most, of different names
_PENDING = 0.001  # s between looks what has become of what the service is being told


class Producer:
    """What one process holds for readers.

    Args:
        config: The store's configuration.
        text: What the shelf says about itself; its owner is this producer's id.
        client: The metadata service.
        host: This running system's id.
        endpoint: The RDMA engine, or None.
        stored: See ``Spares``.
    """

    def __init__(
        self,
        config: RdmaConfig,
        text: ShelfText,
        client: MetadataClient,
        host: str,
        endpoint: RdmaEndpoint | None,
        stored: Stored,
    ) -> None:
        self.owner = text.owner
        self._config = config
        self._text = text
        self._client = client
        self._host = host
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._turns = [threading.Lock() for _ in range(_TURNS)]
        self._revision = 0
        self._withdrawn: set[str] = set()
        self._predecessors: list[str] = []  # dead: what they had is ours
        self._exposed: list[ArenaFile] = []  # mapped as long as readers may be told of them
        self._server: TcpServer | None = None
        self._link: ProducerLink | None = None
        self.shelf = Shelf(config.arena_dir, config.capacity, text, self._expose)
        self.deletions = Deletions(self.shelf, client, self._is_ours)
        self._eviction = Eviction(self.shelf, self.deletions)
        self._spares = Spares(self.shelf, client, self.owner, stored)

    def start(self) -> None:
        """Takes over what a dead predecessor held, begins to serve, and registers.

        Raises:
            StoreUnavailableError: the service does not answer, or the address to listen on is not free.
        """
        left = list(estates(self._config.arena_dir, self._text))
        try:
            self._predecessors += [estate.owner for estate in left]
            copied = [heirloom for estate in left for heirloom in estate.heirlooms() if self._copies(heirloom)]
            self._serve()
        except BaseException:
            for estate in left:
                estate.leave()
            raise
        for heirloom in copied:
            heirloom.payload.release()
        for estate in left:
            estate.settle()

    def _serve(self) -> None:
        if self._config.transport in ("auto", "tcp"):
            self._server = TcpServer(
                self.shelf, self._bind(), self._config.port, self._config.secret, owner=self.owner
            )
        self._link = ProducerLink(
            self._client,
            self._info(),
            self.shelf.inventory,
            self._dropped,
            outdone=self._outdone,
            succeeds=tuple(self._predecessors),
            answered=self._answered,
        )
        self._link.start()

    def _copies(self, heirloom: Heirloom) -> bool:
        """Holds what a dead producer held; returns whether it need not stay where it is."""
        name, header, payload = heirloom.name, heirloom.header, heirloom.payload
        try:
            self.shelf.hold(name, header, Buffer(payload.data))
        except AlreadyExistsError:
            pass  # an heir that died, too, had copied it
        except ArenaFullError:
            try:
                self.shelf.hold(name, header, payload)
            except ArenaFullError as err:
                _log.error("%s, which a dead store worker held, is lost: %s", name, err)
            else:
                return False
        return True

    def _bind(self) -> str:
        address = self._config.address
        if self._config.bind:
            bind = self._config.bind
        elif address is None or address.loopback:
            return "127.0.0.1"
        else:
            bind = local_address(address.host, address.coord)
        if not self._config.secret and not is_loopback(bind):
            _log.warning("whoever reaches %s can read the routing of this producer; option secret ends that", bind)
        return bind

    def _expose(self, file: ArenaFile) -> ArenaInfo:
        address = 0 if self._endpoint is None else self._endpoint.expose(file.map)
        self._exposed.append(file)
        return ArenaInfo(file.path, file.nbytes, file.head.key, address)

    def _info(self) -> OwnerInfo:
        server = self._server
        return OwnerInfo(
            owner=self.owner,
            host=self._host,
            node=os.uname().nodename,
            pid=os.getpid(),
            producer=self._text.producer,
            arenas=tuple(self.shelf.arenas.infos),
            tcp=server.address if server is not None else "",
            rdma="" if self._endpoint is None else self._endpoint.segment,
            revision=self._revision,
        )

    # --- putting ------------------------------------------------------------------------------------------------

    def put(self, name: str, header: bytes, payload: Buffer) -> Entry | None:
        """Holds an object and tells the service; returns who else has the name, or None if it is ours now.

        Who gets an entry calls ``settle``.

        Raises:
            AlreadyExistsError: this producer holds the name; carries its header.
            ArenaFullError: there is no room.
            EvictedError: it continues what was evicted before it was complete.
            StoreUnavailableError: the service does not answer; nobody can get the object then.
        """
        self.withdraw()
        self._eviction.check(name)
        with self._turns[hash(name) % _TURNS]:  # who comes second hears that it exists when readers can get it
            return self._put(name, header, payload)

    def _put(self, name: str, header: bytes, payload: Buffer) -> Entry | None:
        arenas = len(self.shelf.arenas.infos)
        held = self._hold(name, header, payload)
        try:
            if len(self.shelf.arenas.infos) != arenas:
                self._update()
            answer = self._publish(held, payload.block is not None and payload.block.again)
        except BaseException:
            # Whether the service took it is not known: it is taken back, as soon as it can be.
            with self._lock:
                self._withdrawn.add(name)
            self.shelf.drop([name])
            raise
        if answer is None:
            self.shelf.known(held)
            with self._lock:
                self._withdrawn.discard(name)
            if self._config.when_full == "evict":
                self._eviction.relieve(name, self._spares.drop)
            return None
        if isinstance(answer, AbsentError):
            self.shelf.drop([name])
            return None
        self.shelf.spare(name, held)
        return answer

    def settle(self, entry: Entry, stored: bytes | None) -> None:
        """Keeps an object that another producer has as a spare, if it is the same.

        Args:
            entry: Who has it, and where.
            stored: The other's header; None if it could not be had.
        """
        held = self.shelf.get(entry.name)
        if held is None or not held.spare:
            return
        if stored is not None and same_content(held.header, stored):
            self._spares.keep(entry)
        else:
            self.shelf.drop_spares([entry.name])

    def _answered(self) -> None:
        self.withdraw()
        self._spares.look()

    def _publish(self, held: Held, again: bool) -> Entry | AbsentError | None:
        """Tells the service; returns why it refuses what was there before, or who else has the name."""
        for repeated in (again, True):
            answer = self._client.publish(self.owner, [(held.name, held.raw)], again=repeated)[0]
            if answer is None or (again and isinstance(answer, AbsentError)):
                return answer
            if isinstance(answer, RoutingError):
                raise answer
            if not self._is_ours(answer.owner):
                return answer
        raise StoreUnavailableError(f"the metadata service has another place of {held.name} than its own producer")

    def _is_ours(self, owner: str) -> bool:
        return owner == self.owner or owner in self._predecessors

    def _hold(self, name: str, header: bytes, payload: Buffer) -> Held:
        deadline = time.monotonic() + self._config.timeout
        while True:
            try:
                return self.shelf.hold(name, header, payload, pending=True)
            except AlreadyExistsError:
                # Whoever deleted it may not have reached this process yet, or never will.
                items = self.shelf.seen([name])
                if items and items[0].told < 0 and time.monotonic() < deadline:
                    time.sleep(_PENDING)  # a copy that the service is being told of: readers cannot have it yet
                elif items and not self.deletions.let_go(items):
                    raise
            except ArenaFullError as err:
                if "most" not in err.facts and self._spares.drop():
                    continue
                if self._config.when_full != "evict" or "most" in err.facts:
                    raise
                if not self._eviction.evict(name):  # what others are putting at the moment may go once it is there
                    if not self.shelf.pending or time.monotonic() > deadline:
                        raise
                    time.sleep(_PENDING)

    def make_room(self, file: ArenaFile, nbytes: int) -> int:
        """See ``Backend._make_room``. Copies of what others serve go in any case."""
        return self._eviction.make_room(file, nbytes, self._spares.drop, evicts=self._config.when_full == "evict")

    def _update(self) -> None:
        with self._lock:
            self._revision += 1
            info = self._info()
        if self._link is not None:
            self._link.update(info)

    def withdraw(self) -> None:
        """Makes good, at the service, for puts and deletes that failed because it did not answer."""
        self.deletions.make_good()
        if not self._withdrawn:
            return
        for name in list(self._withdrawn):
            with self._turns[hash(name) % _TURNS]:  # nobody puts it meanwhile
                if self.shelf.get(name) is None:
                    entry = self._client.lookup([name])[0]
                    if isinstance(entry, Entry) and entry.owner == self.owner:
                        self._client.delete([name], "deleted")
                with self._lock:
                    self._withdrawn.discard(name)

    def _dropped(self, items: Sequence[tuple[str, bytes]]) -> None:
        meant = set(items)
        self.deletions.free([item for item in self.shelf.seen([name for name, _ in items]) if item[:2] in meant])

    def _outdone(self, items: Sequence[tuple[str, bytes]]) -> None:
        """Keeps as copies what others serve since this producer was taken for lost."""
        for name, raw in items:
            held = self.shelf.get(name)
            if held is not None and held.raw == raw and not held.pending:
                self.shelf.spare(name, held)
                self._spares.doubt(name)

    # --- ending -------------------------------------------------------------------------------------------------

    def linger(self, seconds: float) -> None:
        """Returns when nothing is held any more, or after so many seconds."""
        end = time.monotonic() + seconds
        while self.shelf.count and time.monotonic() < end:
            time.sleep(0.05)

    def stop(self) -> None:
        """Leaves the service, stops serving and removes the shelf."""
        if self._link is not None:
            self._link.stop()
        if self._server is not None:
            self._server.stop()
        self.shelf.close()

    def forget(self) -> None:
        """In a forked child, which is no producer."""
        self.shelf.forget()
