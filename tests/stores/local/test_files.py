"""Files are safetensors that anybody can open, and hostile files are refused in time."""

from __future__ import annotations

import json
import os
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from fastdeploy_routing_plugins.backend import Buffer
from fastdeploy_routing_plugins.errors import CorruptDataError, InvalidRecordError
from fastdeploy_routing_plugins.stores.local import layout, safefile

from ..helpers import Item, opened, part, put, seal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fastdeploy_routing_plugins.stores.local.backend import LocalBackend

ITEM = part(tokens=40, total=40)


def file_of(store: Path, item: Item) -> Path:
    return store.joinpath(layout.place(item.name))


def bytes_of(item: Item) -> bytes:
    buffer = item.buffer()
    return safefile.compose_head(item.header, buffer) + bytes(buffer.data)


@pytest.mark.parametrize("experts", [8, 256, 257, 65_536, 65_537])
@pytest.mark.parametrize("tokens", [0, 1, 40])
def test_the_safetensors_library_reads_the_array(tmp_path: Path, experts: int, tokens: int) -> None:
    item = part(num_experts=experts, tokens=tokens)
    with opened(tmp_path) as backend:
        put(backend, item)
    loaded = load_file(file_of(tmp_path, item))["routing"]
    np.testing.assert_array_equal(loaded, item.array, strict=True)


def test_the_safetensors_library_reads_the_header(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        put(backend, ITEM)
    with safetensors.safe_open(file_of(tmp_path, ITEM), "np") as file:
        assert file.metadata() == {"fd_routing": ITEM.header.decode()}


def test_a_seal_is_an_empty_tensor(tmp_path: Path) -> None:
    with opened(tmp_path) as backend:
        put(backend, seal())
    assert load_file(file_of(tmp_path, seal()))["routing"].shape == (0,)


@pytest.mark.parametrize("extra", range(65))
def test_payloads_start_at_multiples_of_64(extra: int) -> None:
    assert len(safefile.compose_head(b"h" * extra, ITEM.buffer())) % 64 == 0


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_any_text_survives_as_header(text: str) -> None:
    head = safefile.compose_head(text.encode(), ITEM.buffer())
    assert safefile.parse_head(head, len(head) + ITEM.array.nbytes).header == text.encode()


@pytest.mark.parametrize(
    "buffer",
    [
        Buffer(memoryview(b"abc"), (1, 2, 1)),
        Buffer(memoryview(b"abc"), (3,), "float32"),
        Buffer(memoryview(b"abcd"), (1, 4, 1), "uint16"),
        Buffer(memoryview(b"a")),
    ],
)
def test_a_shape_that_does_not_fit_the_bytes_is_refused(buffer: Buffer) -> None:
    with pytest.raises(InvalidRecordError):
        safefile.compose_head(b"{}", buffer)


def test_a_header_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidRecordError):
        safefile.compose_head(b"\xff\xfe", ITEM.buffer())


# --- hostile files ---------------------------------------------------------------------------------------------------


def head(change: Callable[[dict[str, dict[str, object]]], object], *, length: int | None = None) -> bytes:
    """A file of ITEM whose JSON was changed."""
    whole = bytes_of(ITEM)
    size = int.from_bytes(whole[:8], "little")
    content = json.loads(whole[8 : 8 + size])
    changed = change(content)
    text = json.dumps(content if changed is None else changed).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + whole[8 + size :]


def tensor(**fields: object) -> bytes:
    return head(lambda content: content["routing"].update(fields))


NBYTES = ITEM.array.nbytes
HOSTILE = {
    "empty": b"",
    "one byte": b"x",
    "seven bytes": b"\0" * 7,
    "no JSON": (0).to_bytes(8, "little"),
    "no text": (4).to_bytes(8, "little") + b"\xff\xfe\xfd\xfc",
    "cut off in the head": bytes_of(ITEM)[:100],
    "cut off by one byte": bytes_of(ITEM)[:-1],
    "one byte too many": bytes_of(ITEM) + b"x",
    "only the head": bytes_of(ITEM)[: -ITEM.array.nbytes],
    "a pickle": b"\x80\x04\x95\x1e\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.",
    "length of 2**64 - 1": b"\xff" * 8 + bytes_of(ITEM)[8:],
    "length of 2**40": (1 << 40).to_bytes(8, "little") + bytes_of(ITEM)[8:],
    "length beyond the file by one": (len(bytes_of(ITEM)) - 7).to_bytes(8, "little") + bytes_of(ITEM)[8:],
    "length too short": head(lambda _: None, length=100),
    "deep nesting": (100_000).to_bytes(8, "little") + b"[" * 100_000,
    "a list": head(lambda content: [content]),
    "no metadata": head(lambda content: content.pop("__metadata__") and content),
    "no tensor": head(lambda content: content.pop("routing") and content),
    "another tensor": head(lambda content: content.update(other=content["routing"])),
    "metadata without the header": head(lambda content: content.update(__metadata__={})),
    "header is a number": head(lambda content: content.update(__metadata__={"fd_routing": 5})),
    "header with a lone surrogate": head(lambda content: content.update(__metadata__={"fd_routing": "\ud800"})),
    "dtype of objects": tensor(dtype="O"),
    "dtype of floats": tensor(dtype="F32"),
    "wider dtype": tensor(dtype="U32"),
    "negative dimension": tensor(shape=[-3, -40, 4]),
    "huge dimension": tensor(shape=[1 << 40, 1, 1]),
    "product beyond 64 bits": tensor(shape=[1 << 62, 1 << 62, 1 << 62]),
    "dimension of 10**400": tensor(shape=[10**400, 1, 1]),
    "fractional dimension": tensor(shape=[3.5, 40, 4]),
    "no dimension": tensor(shape=[]),
    "four dimensions": tensor(shape=[3, 40, 4, 1]),
    "zero times much": tensor(shape=[0, 1 << 60, 4]),
    "offset beyond the file": tensor(data_offsets=[0, NBYTES + 1]),
    "offset short of the end": tensor(data_offsets=[0, NBYTES - 1]),
    "offset not from the start": tensor(data_offsets=[1, NBYTES]),
    "offsets reversed": tensor(data_offsets=[NBYTES, 0]),
    "offsets three": tensor(data_offsets=[0, NBYTES, NBYTES]),
    "unknown field": tensor(strides=[1, 1, 1]),
}


def write(store: Path, data: bytes) -> None:
    path = file_of(store, ITEM)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize("ranges", [None, (), [(0, 4)]], ids=["whole", "header", "range"])
@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_corrupt(tmp_path: Path, data: bytes, ranges: list[tuple[int, int]] | None) -> None:
    with opened(tmp_path) as backend:
        write(tmp_path, data)
        with pytest.raises(CorruptDataError):
            backend._get(ITEM.name, ranges)


@pytest.mark.parametrize("ranges", [None, ()], ids=["whole", "header"])
def test_a_sparse_file_of_a_terabyte_costs_no_memory(tmp_path: Path, ranges: tuple[()] | None) -> None:
    with opened(tmp_path) as backend:
        write(tmp_path, (1 << 39).to_bytes(8, "little") + b"{")
        os.truncate(file_of(tmp_path, ITEM), 1 << 40)
        tracemalloc.start()
        with pytest.raises(CorruptDataError):
            backend._get(ITEM.name, ranges)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_payload_beyond_4_gib_is_read_by_range(tmp_path: Path) -> None:
    size = (1 << 32) + 4096
    with opened(tmp_path) as backend:
        start = safefile.compose_head(ITEM.header, _Pretended(size))
        write(tmp_path, start)
        with file_of(tmp_path, ITEM).open("r+b") as file:  # sparse
            file.seek(len(start) + size - 3)
            file.write(b"end")
        assert bytes(backend._get(ITEM.name, [(size - 4, size)]).payload[0]) == b"\0end"


class _Pretended(Buffer):
    """A buffer of which only the size exists."""

    def __init__(self, size: int) -> None:
        super().__init__(memoryview(b""), (1, size, 1))
        self._size = size

    @property
    def nbytes(self) -> int:
        return self._size


@given(st.data())
def test_a_damaged_file_is_corrupt_or_what_its_header_says(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = bytearray(bytes_of(ITEM))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - NBYTES - 1))
        how = data.draw(st.sampled_from(["set", "insert", "delete", "copy"]))
        if how == "set":
            whole[at] = data.draw(st.integers(0, 255))
        elif how == "insert":
            whole[at:at] = data.draw(st.binary(max_size=9))
        elif how == "delete":
            del whole[at : at + data.draw(st.integers(1, 9))]
        else:
            whole[at : at + 8] = whole[at // 2 : at // 2 + 8]
    store = tmp_path_factory.mktemp("damaged")
    with opened(store) as backend:
        write(store, bytes(whole))
        assert _corrupt(backend) or bytes(backend._get(ITEM.name).payload[0]) == bytes(whole[-NBYTES:])


def _corrupt(backend: LocalBackend) -> bool:
    try:
        backend._get(ITEM.name)
    except CorruptDataError:
        return True
    return False
