"""A producer's memory without a producer: arenas as bytes, and a plan carried out on them."""

from __future__ import annotations

from dataclasses import dataclass

from fastdeploy_routing_plugins.arena.layout import PAGE, TAIL_BYTES, block_size, write_block
from fastdeploy_routing_plugins.stores.rdma.card import encode_card
from fastdeploy_routing_plugins.stores.rdma.place import SHELF, ArenaInfo, OwnerInfo, Place
from fastdeploy_routing_plugins.stores.rdma.transport.rdma_plan import Plan, Span

KEYS = (0x1234567890ABCDEF, 0x0FEDCBA987654321)
ADDRESSES = (1 << 40, 1 << 41)
PAGES = 128


@dataclass
class Memory:
    """Two arenas, a shelf and an engine's, with one object in them."""

    name: str
    header: bytes
    payload: bytes
    lent: bool
    card_page: int = 3
    page: int = 40
    generation: int = 17
    engine_meta: bytes = b"engine's own"

    def __post_init__(self) -> None:
        self.arenas = [bytearray(PAGES * PAGE) for _ in KEYS]
        if self.lent:
            generation = self.generation + 1000
            at = self._write(1, self.page, generation, self.engine_meta, self.payload)
            meta = encode_card(self.name, self.header, 1, self.page, generation, at, len(self.payload))
            self._write(SHELF, self.card_page, self.generation, meta, b"")
            arena, page, block = 1, self.page, generation
        else:
            meta = encode_card(self.name, self.header, SHELF, 0, 0, 0, len(self.payload))
            at = self._write(SHELF, self.card_page, self.generation, meta, self.payload)
            arena, page, block = SHELF, self.card_page, self.generation
        sizes = len(self.header), len(self.payload)
        self.place = Place(self.card_page, self.generation, *sizes, arena, page, block, at)
        infos = [ArenaInfo("", PAGES * PAGE, key, address) for key, address in zip(KEYS, ADDRESSES, strict=True)]
        self.info = OwnerInfo("0" * 32, "", "", 1, "test", tuple(infos), "", "x:1", 1)

    def _write(self, arena: int, page: int, generation: int, meta: bytes, payload: bytes) -> int:
        pages, offset = block_size(len(meta), len(payload))
        data = memoryview(self.arenas[arena])
        at = page * PAGE + offset
        data[at : at + len(payload)] = payload
        write_block(data, data.cast("Q"), KEYS[arena], page, pages, generation, 5, meta, offset, len(payload))
        return at

    def reuse(self, junk: bytes) -> None:
        """Uses the pages of the payload's block for something else, as an owner does: head and end go first."""
        place = self.place
        data = memoryview(self.arenas[place.arena])[place.page * PAGE :]
        pages = block_size(place.payload_at - place.page * PAGE - 128, place.payload_bytes)[0]
        data[:8] = bytes(8)
        data[pages * PAGE - TAIL_BYTES : pages * PAGE - TAIL_BYTES + 8] = bytes(8)
        data[PAGE : PAGE + len(junk)] = junk

    def read(self, span: Span) -> bytes:
        """Returns the bytes of a span; fails if it lies outside."""
        for address, arena in zip(ADDRESSES, self.arenas, strict=True):
            if address <= span.remote and span.remote + span.nbytes <= address + len(arena):
                start = span.remote - address
                return bytes(arena[start : start + span.nbytes])
        raise AssertionError(f"{span} lies outside of the arenas")

    def carry_out(self, plan: Plan) -> bytearray:
        """Returns a piece into which all of a plan was read."""
        piece = bytearray(plan.nbytes)
        for span in (*plan.spans, *([] if plan.again is None or plan.head else [plan.again])):
            assert 0 <= span.at <= span.at + span.nbytes <= plan.nbytes
            piece[span.at : span.at + span.nbytes] = self.read(span)
        return piece
