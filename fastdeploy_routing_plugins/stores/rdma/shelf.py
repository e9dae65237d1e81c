"""A producer's shelf: an arena of its own, with a card for every object that it holds.

A card is a block whose meta text has the object's name and header (see ``card``). The payload follows in the same
block, or stays where it was lent from: in a block of an engine's arena, or of the shelf of a producer that died.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import msgspec

from ...arena.arena import Arena
from ...arena.file import SHELF as SHELF_KIND
from ...arena.layout import PAGE, block_size
from ...arena.room import MIN_ARENA, modest_size
from ...errors import AlreadyExistsError, ArenaFullError, ArenaRoomError, NotFoundError, StoreClosedError
from .arenas import Arenas
from .card import encode_card
from .held import Held, Lease, Seen
from .metadata.naming import rollout_of
from .place import SHELF, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ...arena.arena import Block
    from ...arena.file import ArenaFile
    from ...backend import Buffer
    from .place import ArenaInfo

MAX_AUTO = 256 << 20  # bytes of a shelf without a capacity at most; they are taken at once


class ShelfText(msgspec.Struct, frozen=True):
    """What a shelf's file says about itself, for who finds it when its producer is dead.

    Attributes:
        shelf: Version of this text.
        owner: The producer's id at the metadata service.
        producer: The ``producer`` option.
        namespace: Which namespace it wrote.
        server: The metadata service's address; empty: that of this host and user.
    """

    shelf: int
    owner: str
    producer: str
    namespace: str
    server: str

    @property
    def line(self) -> tuple[str, str, str]:
        """What a producer has in common with its heir."""
        return self.producer, self.namespace, self.server


class Shelf:
    """What a producer holds. Methods may be called from several threads.

    Args:
        folder: A tmpfs.
        nbytes: The shelf's size; 0: a quarter of the free room, at most 256 MiB.
        text: What the file says about itself.
        exposed: See ``Arenas``.

    Attributes:
        arenas: What it serves from.

    Raises:
        ArenaRoomError: there is not enough room.
        ArenaError: the folder does not allow it.
    """

    def __init__(self, folder: str, nbytes: int, text: ShelfText, exposed: Callable[[ArenaFile], ArenaInfo]) -> None:
        size = max(nbytes, MIN_ARENA) if nbytes else modest_size(folder, MAX_AUTO)
        try:
            self._arena = Arena.create(folder, size, msgspec.json.encode(text), SHELF_KIND)
        except ArenaRoomError as err:
            hint = "option capacity says how large a producer's shelf is, arena_dir where; a container gets 64 MiB of"
            hint += " /dev/shm unless told otherwise (docker run --shm-size=8g); `fd-routing clean` makes room"
            raise ArenaRoomError(err.message, hint=hint) from err
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}
        self.arenas = Arenas(self._arena.file, exposed)
        self._closed = False

    # --- holding ------------------------------------------------------------------------------------------------

    def hold(self, name: str, header: bytes, payload: Buffer, *, pending: bool = False) -> Held:
        """Takes an object; its payload is copied unless it lies in an arena and is lent.

        Args:
            name: Its full name.
            header: Its header.
            payload: Its payload.
            pending: Whether the service is told of it next; ``known`` or ``spare`` ends that.

        Raises:
            AlreadyExistsError: the name is held; carries its header.
            ArenaFullError: there is no room.
        """
        other = self._held.get(name)
        if other is not None:  # before room for it is looked for
            raise AlreadyExistsError(f"{name} exists", header=other.header)
        held = self._lent(name, header, payload) if payload.block is not None else self._copied(name, header, payload)
        with self._lock:
            other = self._held.get(name)
            if other is None and not self._closed:
                self._held[name] = held
                held.pending = pending
                self.arenas.took(held)
                if payload.lent:
                    held.buffer = payload.retain()
                return held
        self._arena.release(held.block)
        if other is None:
            raise StoreClosedError("the store is closed")
        raise AlreadyExistsError(f"{name} exists", header=other.header)

    def _copied(self, name: str, header: bytes, payload: Buffer) -> Held:
        block = self._card(encode_card(name, header, SHELF, 0, 0, 0, payload.nbytes), payload.nbytes)
        try:
            data = self._arena.file.data[block.payload_at : block.payload_at + payload.nbytes]
            header = payload.copy_into(data) or header
            block.meta = encode_card(name, header, SHELF, 0, 0, 0, payload.nbytes)
            self._publish(block)
        except BaseException:
            self._arena.release(block)
            raise
        place = Place(
            card=block.page,
            generation=block.generation,
            header_bytes=len(header),
            payload_bytes=payload.nbytes,
            arena=SHELF,
            page=block.page,
            block_generation=block.generation,
            payload_at=block.payload_at,
        )
        return Held(name, header, place, data.toreadonly(), block, None)

    def _lent(self, name: str, header: bytes, payload: Buffer) -> Held:
        lent = payload.block
        assert lent is not None
        with self._lock:
            arena = self.arenas.add(lent.arena)
        where = arena, lent.page, lent.generation, lent.payload_at
        block = self._card(encode_card(name, header, *where, payload.nbytes), 0)
        self._publish(block)
        place = Place(block.page, block.generation, len(header), payload.nbytes, *where)
        return Held(name, header, place, payload.data, block, None)

    def _card(self, meta: bytes, payload_bytes: int) -> Block:
        block = self._arena.allocate(meta, payload_bytes)
        if block is None:
            size, most = block_size(len(meta), payload_bytes)[0] * PAGE, self._arena.capacity
            if size > most:
                raise ArenaFullError(
                    f"{payload_bytes} bytes do not fit the shelf of this producer, which has {most} bytes in all",
                    hint="option capacity makes it larger; parts of fewer tokens or layers may be put one by one",
                    most=most,
                )
            raise ArenaFullError(
                f"the shelf of this producer ({self._arena.capacity >> 20} MiB) has no room for {payload_bytes} bytes",
                hint="reader.release(ids) or delete(ids) frees what is no longer needed; option capacity makes it "
                "larger, when_full='evict' lets the oldest rollouts go",
            )
        return block

    def _publish(self, block: Block) -> None:
        self._arena.publish(block)
        self._arena.restart_ring()  # nobody reads the ring of a shelf

    # --- looking ------------------------------------------------------------------------------------------------

    def get(self, name: str) -> Held | None:
        """Returns what is held under a name."""
        return self._held.get(name)

    def lease(self, name: str, card: int, generation: int) -> Lease:
        """See ``transport.base.Holdings``."""
        with self._lock:
            held = self._held.get(name)
            if held is None or (held.block.page, held.block.generation) != (card, generation):
                raise NotFoundError("it does not lie there any more", moved=True)
            held.leases += 1
        return Lease(self, held)

    def lease_own(self, name: str) -> Lease | None:
        """Returns a lease for this process's own reads; None if the name is not held."""
        with self._lock:
            held = self._held.get(name)
            if held is None:
                return None
            held.leases += 1
        return Lease(self, held)

    def seen(self, names: Iterable[str] | None = None, prefix: str = "") -> list[Seen]:
        """Returns what is held under some names, or, without the copies, under a prefix; ask this before the service.

        Args:
            names: Which ones; None: those under the prefix.
            prefix: What their names begin with.
        """
        with self._lock:
            if names is None:
                some = [held for held in self._held.values() if not held.spare and held.name.startswith(prefix)]
            else:
                some = [held for name in names if (held := self._held.get(name)) is not None]
            return [Seen(held.name, held.raw, -1 if held.pending else held.told) for held in some]

    def inventory(self) -> list[tuple[str, bytes]]:
        """Returns name and encoded place of all that is held and served."""
        with self._lock:
            return [(held.name, held.raw) for held in self._held.values() if not held.spare]

    def oldest(self, keep: str | None, arena: int | None = None) -> list[str]:
        """Returns the names of the rollout that was put first of all that are served.

        Args:
            keep: A name of the rollout that is not meant; None: all are.
            arena: In which arena some of it must lie; None: in any.
        """
        kept = None if keep is None else rollout_of(keep)
        with self._lock:
            for first, held in self._held.items():
                if held.spare or held.pending or (kept is not None and first.startswith(kept)):
                    continue
                if arena in (None, held.place.arena):
                    rollout = rollout_of(first)
                    some = [each for each in self._held.values() if each.name.startswith(rollout)]
                    return [each.name for each in some if not (each.spare or each.pending)]
        return []

    @property
    def count(self) -> int:
        """Number of objects held."""
        return len(self._held)

    @property
    def pending(self) -> bool:
        """Whether the service is being told of something."""
        with self._lock:
            return any(held.pending for held in self._held.values())

    @property
    def nbytes(self) -> int:
        """Payload bytes held, wherever they lie."""
        with self._lock:
            return sum(held.nbytes for held in self._held.values())

    # --- letting go ---------------------------------------------------------------------------------------------

    def drop(self, names: Sequence[str]) -> int:
        """Lets go of objects; their memory is used again when no reader looks at it. Returns how many were held."""
        return sum(self._take(name, lambda _: True) for name in names)

    def drop_seen(self, items: Sequence[Seen]) -> list[Seen]:
        """Lets go of objects as they were seen; not of what was put again since.

        Returns:
            Those that are left since the service was being told of them, then or since: nobody knows what it has now.
        """
        return [item for item in items if not self._drop(item.name, item)]

    def spare(self, name: str, held: Held) -> None:
        """Marks an object as one that another producer serves."""
        with self._lock:
            if self._held.get(name) is held:
                held.spare, held.pending = True, False

    def known(self, held: Held) -> None:
        """Takes note that the service was told of an object, and has it."""
        with self._lock:
            held.pending = False

    def serve(self, name: str) -> Held | None:
        """Takes that mark away, to tell the service next; returns the object, or None if it is not held with it."""
        with self._lock:
            held = self._held.get(name)
            if held is None or not held.spare:
                return None
            held.spare, held.pending = False, True
            held.told += 1
            return held

    def drop_spares(self, names: Iterable[str] | None = None) -> int:
        """Lets go of those objects that have the mark, all of them unless told which; returns how many."""
        with self._lock:
            some = [held.name for held in self._held.values() if held.spare] if names is None else list(names)
        return sum(self._take(name, lambda held: held.spare) for name in some)

    def _drop(self, name: str, seen: Seen) -> bool:
        """Lets go of an object as it was seen; False if it is left since nobody knows what the service has now."""
        left = False

        def is_meant(held: Held) -> bool:
            nonlocal left
            same = held.raw == seen.raw
            left = same and (held.pending or held.told != seen.told)
            return same and not left

        self._take(name, is_meant)
        return not left

    def _take(self, name: str, is_meant: Callable[[Held], bool]) -> bool:
        """Lets go of an object if it is the one that is meant; returns whether it was."""
        with self._lock:
            held = self._held.get(name)
            if held is None or not is_meant(held):
                return False
            del self._held[name]
            self.arenas.gave_back(held)
            held.gone = True
            free = held.leases == 0
        if free:
            self._free(held)
        return True

    def _return(self, held: Held) -> None:
        with self._lock:
            held.leases -= 1
            free = held.gone and held.leases == 0
        if free:
            self._free(held)

    def _free(self, held: Held) -> None:
        self._arena.release(held.block)
        buffer, held.buffer = held.buffer, None
        if buffer is not None:
            buffer.release()

    def close(self) -> None:
        """Lets go of everything and removes the shelf."""
        with self._lock:
            self._closed = True
            held, self._held = self._held, {}
        for each in held.values():  # the cards go with the shelf
            each.gone = True
            if each.buffer is not None and each.leases == 0:
                buffer, each.buffer = each.buffer, None
                buffer.release()
        self._arena.close(remove=True)

    def forget(self) -> None:
        """In a forked child, which is no producer: closes the descriptors."""
        self._lock = threading.Lock()
        self._closed = True
        self._held = {}
        self._arena.forget()
