"""The restricted loader: arrays come out as ``paddle.load`` would have them, and nothing in a file is ever run."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import struct
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdeploy_routing_plugins.convert import opcodes, paddlepickle
from fastdeploy_routing_plugins.errors import InvalidRecordError

ARRAYS = {
    "uint8": np.arange(24, dtype="u1").reshape(2, 3, 4),
    "two axes": np.arange(12, dtype="<i4").reshape(3, 4),
    "one axis": np.arange(7, dtype="<u2"),
    "columns first": np.arange(24, dtype="<i4").reshape(2, 3, 4).transpose(),
    "strides": np.arange(48, dtype="<i8").reshape(4, 3, 4)[::2],
    "big-endian": np.arange(24, dtype=">u4").reshape(2, 3, 4),
    "int8": np.arange(-12, 12, dtype="i1").reshape(2, 3, 4),
    "no tokens": np.zeros((45, 0, 8), "u1"),
    "every byte": np.arange(256, dtype="u1").reshape(4, 8, 8),
    "large": np.random.default_rng(0).integers(0, 256, (46, 400, 8)).astype("u1"),
}
PROTOCOLS = [2, 3, 4]


def array_pickle(protocol: int = 4) -> bytes:
    """What ``paddle.save`` writes of an array, which is a plain pickle of it; see ``test_paddle_saves_...``."""
    return pickle.dumps(ARRAYS["uint8"], protocol)


@pytest.fixture(scope="module")
def paddle() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("paddle")


def saved(paddle: Any, value: Any, protocol: int) -> bytes:
    file = io.BytesIO()
    paddle.save(value, file, protocol=protocol)
    return file.getvalue()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_paddle_saves_an_array_as_a_plain_pickle(paddle: Any, protocol: int) -> None:
    assert saved(paddle, ARRAYS["uint8"], protocol) == array_pickle(protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_comes_out_exactly(name: str, protocol: int) -> None:
    data = pickle.dumps(ARRAYS[name], protocol)
    loaded = paddlepickle.load(data)
    assert (loaded.array.dtype, loaded.array.tolist(), loaded.end) == (
        ARRAYS[name].dtype,
        ARRAYS[name].tolist(),
        len(data),
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_a_tensor_comes_out_as_paddle_loads_it(paddle: Any, dtype: str, protocol: int) -> None:
    data = saved(paddle, paddle.to_tensor(ARRAYS["uint8"]).astype(dtype), protocol)
    loaded = paddlepickle.load(data)
    assert (loaded.tensor, loaded.array.tolist()) == (True, paddle.load(io.BytesIO(data)).tolist())


def test_a_tensor_of_paddles_uint16_is_bit_patterns(paddle: Any) -> None:
    loaded = paddlepickle.load(saved(paddle, paddle.full([2, 3], 200, dtype="uint16"), 4))
    assert (loaded.tensor, loaded.array.dtype, loaded.array.max()) == (True, np.uint16, 17224)


def test_numpy_1_calls_its_module_otherwise() -> None:
    data = pickle.dumps(ARRAYS["uint8"], 2)
    old = data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert paddlepickle.load(old).array.tolist() == ARRAYS["uint8"].tolist()


def test_the_array_lies_in_the_files_own_memory() -> None:
    data = pickle.dumps(ARRAYS["large"], 4)
    assert np.shares_memory(paddlepickle.load(data).array, np.frombuffer(data, "u1"))


def test_the_array_cannot_be_written_to() -> None:
    assert not paddlepickle.load(bytearray(array_pickle())).array.flags.writeable


def test_the_table_of_opcodes_agrees_with_pickletools() -> None:
    known = {ord(opcode.code): opcode.proto for opcode in pickletools.opcodes}
    assert {code for code in opcodes._HANDLERS if known.get(code, 9) > 4} == set()


def test_no_opcode_that_makes_objects_otherwise_is_in_the_table() -> None:
    making = {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID"}
    codes = {ord(opcode.code) for opcode in pickletools.opcodes if opcode.name in making}
    assert (len(codes), codes & set(opcodes._HANDLERS)) == (len(making), set())


# --- pickles that would run something ---------------------------------------------------------------------------


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path, how: str) -> None:
        self.path = str(path)
        self.how = how

    def __reduce__(self) -> Any:
        return {
            "open": (open, (self.path, "w")),
            "system": (os.system, (f"touch {self.path}",)),
            "eval": (eval, (f"open({self.path!r}, 'w')",)),
            "exec": (exec, (f"open({self.path!r}, 'w').close()",)),
            "write": (Path.write_text, (Path(self.path), "x")),
        }[self.how]


BOMBS = ["open", "system", "eval", "exec", "write"]


def explodes(data: bytes, path: Path) -> bool:
    """Whether a pickle that runs would create the file; in a process of its own."""
    code = "import pickle, sys\ntry:\n    pickle.loads(sys.stdin.buffer.read())\nexcept Exception:\n    pass"
    subprocess.run([sys.executable, "-c", code], input=data, check=True, timeout=60)
    found = path.exists()
    path.unlink(missing_ok=True)
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("how", BOMBS)
def test_a_bomb_is_refused_and_runs_nothing(tmp_path: Path, how: str, protocol: int) -> None:
    data = pickle.dumps(Bomb(tmp_path / "bomb", how), protocol)
    with pytest.raises(InvalidRecordError):
        paddlepickle.load(data)
    assert not (tmp_path / "bomb").exists()


@pytest.mark.parametrize("how", BOMBS)
def test_the_bombs_are_real(tmp_path: Path, how: str) -> None:
    assert explodes(pickle.dumps(Bomb(tmp_path / "bomb", how), 4), tmp_path / "bomb")


@pytest.mark.parametrize("wrap", [lambda bomb: ("t", bomb), lambda bomb: (ARRAYS["uint8"], bomb), lambda bomb: [bomb],
                                  lambda bomb: {"a": bomb}, lambda bomb: np.array([bomb], object)])  # fmt: skip
def test_a_bomb_among_other_things_runs_nothing(tmp_path: Path, wrap: Any) -> None:
    data = pickle.dumps(wrap(Bomb(tmp_path / "bomb", "open")), 4)
    with pytest.raises(InvalidRecordError):
        paddlepickle.load(data)
    assert not (tmp_path / "bomb").exists()


def test_a_bomb_before_an_array_runs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    bomb = f"cbuiltins\neval\n(Vopen({str(path)!r}, 'w')\ntR0".encode()
    data = b"\x80\x02" + bomb + array_pickle(2)[2:]
    assert explodes(data, path)
    with pytest.raises(InvalidRecordError, match="'builtins eval', which does not belong"):
        paddlepickle.load(data)
    assert not path.exists()


@pytest.mark.parametrize("code", [b"i", b"o", b"\x81", b"\x92", b"\x82", b"\x83", b"\x84", b"P", b"Q"])
def test_every_other_way_to_make_an_object_is_refused(code: bytes) -> None:
    with pytest.raises(InvalidRecordError, match="opcode"):
        paddlepickle.load(b"\x80\x04(X\x01\0\0\0aX\x01\0\0\0b" + code + b"os\nsystem\n.")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("numpy", "load"),
        ("numpy", "ndarray.tofile"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy._core.multiarray", "fromfile"),
        ("_codecs", "decode"),
        ("codecs", "encode"),
        ("os", "system"),
        ("", ""),
    ],
)
@pytest.mark.parametrize("form", ["global", "stack"])
def test_every_other_name_is_refused(module: str, name: str, form: str) -> None:
    texts = [b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)]
    data = f"c{module}\n{name}\n".encode() if form == "global" else b"".join(texts) + b"\x93"
    with pytest.raises(InvalidRecordError, match="does not belong in one"):
        paddlepickle.load(b"\x80\x04" + data + b")R.")


def test_a_dense_tensor_of_paddle_is_refused_since_it_calls_eval() -> None:
    class DenseTensor:
        def __reduce__(self) -> Any:
            return eval, ("data", {"data": ARRAYS["uint8"]})  # as paddle/framework/io.py reduces one

    with pytest.raises(InvalidRecordError, match="builtins eval"):
        paddlepickle.load(pickle.dumps(DenseTensor(), 4))


# --- pickles of something else ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "text",
        b"bytes",
        (),
        ("t", 1),
        [1],
        {"a": ARRAYS["uint8"]},
        [ARRAYS["uint8"]],
        (ARRAYS["uint8"], ARRAYS["uint8"]),
        np.zeros((2, 3)),
        np.zeros((2, 3), bool),
        np.zeros((2, 3), "c8"),
        np.zeros((2, 3), "M8[s]"),
        np.zeros((2, 3), "S4"),
        np.zeros(3, [("a", "i4")]),
        np.array([None]),
        np.zeros((1, 1, 1, 1), "u1"),
        np.array(7),
        np.int64(7),
        np.dtype("u1"),
        np.ma.masked_array([1, 2]),
    ],
    ids=str,
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_other_values_are_refused(value: Any, protocol: int) -> None:
    with pytest.raises(InvalidRecordError, match=r"no array as paddle\.save writes it"):
        paddlepickle.load(pickle.dumps(value, protocol))


@pytest.mark.parametrize("protocol", [0, 1, 5])
def test_other_protocols_are_refused(protocol: int) -> None:
    with pytest.raises(InvalidRecordError):
        paddlepickle.load(pickle.dumps(ARRAYS["uint8"], protocol))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_cut_is_refused(protocol: int) -> None:
    data = array_pickle(protocol)
    for size in range(len(data)):
        with pytest.raises(InvalidRecordError):
            paddlepickle.load(data[:size])


def rebuilt(shape: bytes, raw: bytes = bytes(24), *, dtype: bytes = b"u1", tail: bytes = b".") -> bytes:
    """An array's pickle with another shape (opcodes) and other bytes."""
    data = array_pickle()
    start, stop = data.index(b"K\x02K\x03K\x04\x87"), data.index(b"C\x18")
    data = data[:start] + shape + data[start + 7 : stop] + b"B" + struct.pack("<I", len(raw)) + raw + data[stop + 26 :]
    return data.replace(b"\x95" + data[3:11], b"").replace(b"\x8c\x02u1", b"\x8c\x02" + dtype)[:-1] + tail


def test_the_rebuilt_pickle_is_right_as_such() -> None:
    assert paddlepickle.load(rebuilt(b"K\x02K\x03K\x04\x87")).array.shape == (2, 3, 4)


@pytest.mark.parametrize(
    "shape",
    [
        b"K\x02K\x03K\x05\x87",  # another product
        b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x18\x87",  # -1 x -1 x 24
        b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\x00\x87",
        b"\x8a\x09\0\0\0\0\0\0\0\0\1K\x03K\x04\x87",
        b"K\x02K\x03\x88\x87",  # True
        b"K\x02K\x03N\x87",
        b"K\x18)\x86",
        b")",
        b"K\x18",
        b"C\x02\x02\x0c",  # bytes, which are a sequence too
        b"(K\x02K\x03K\x02K\x02t",
    ],
)
def test_a_shape_that_lies_is_refused(shape: bytes) -> None:
    with pytest.raises(InvalidRecordError):
        paddlepickle.load(rebuilt(shape))


@pytest.mark.parametrize("dtype", [b"O8", b"f4", b"V8", b"i3", b"i\xc2", b"S8", b"M8", b"b1"])
def test_a_dtype_that_is_no_integer_is_refused(dtype: bytes) -> None:
    with pytest.raises(InvalidRecordError):
        paddlepickle.load(rebuilt(b"K\x02K\x03K\x04\x87", dtype=dtype))


def test_a_second_state_is_refused() -> None:
    data = array_pickle()
    again = data[data.index(b"(K\x01") : -1]
    with pytest.raises(InvalidRecordError):
        paddlepickle.load(data[:-1] + again + b".")


def test_endless_opcodes_end() -> None:
    with pytest.raises(InvalidRecordError, match="more than 256 opcodes"):
        paddlepickle.load(b"\x80\x04" + b"N" * 10_000_000)


def test_lengths_beyond_the_file_allocate_nothing() -> None:
    for code, width in ((b"B", "<I"), (b"\x8e", "<Q"), (b"X", "<I"), (b"\x8d", "<Q"), (b"\x95", "<Q")):
        with pytest.raises(InvalidRecordError):
            paddlepickle.load(b"\x80\x04" + code + struct.pack(width, (1 << 8 * struct.calcsize(width)) - 1) + b"abc.")


def test_a_text_that_is_asked_for_again_and_again_is_turned_into_bytes_once(measured: Any) -> None:
    text = b"X" + struct.pack("<I", 4 << 20) + b"a" * (4 << 20) + b"q\x00"
    encode = b"c_codecs\nencode\nh\x00X\x06\0\0\0latin1\x86R"
    with measured(32 << 20), pytest.raises(InvalidRecordError):
        paddlepickle.load(b"\x80\x02" + text + encode * 30 + b".")


GUARDED = """
import random, sys
from fastdeploy_routing_plugins.convert import paddlepickle
from fastdeploy_routing_plugins.errors import InvalidRecordError
from tests.convert.helpers import mutants

data, refused = bytes.fromhex(sys.argv[1]), 0
try:
    paddlepickle.load(data)
except InvalidRecordError:
    pass
watching = []
def hook(event, arguments):
    if watching and event not in ("object.__getattr__",):
        print(event, arguments, flush=True)
        raise SystemExit(3)
cases = list(mutants(data, 3000, random.Random(7)))
sys.addaudithook(hook)
for case in cases:
    watching.append(1)
    try:
        paddlepickle.load(case)
    except InvalidRecordError:
        refused += 1
    finally:
        watching.clear()
print("refused", refused)
"""


def test_the_interpreter_sees_no_import_call_or_file_while_damaged_bombs_are_read(tmp_path: Path) -> None:
    bomb = pickle.dumps(("t", ARRAYS["uint8"], Bomb(tmp_path / "bomb", "system")), 4)
    done = subprocess.run(
        [sys.executable, "-c", GUARDED, bomb.hex()],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "refused 3000\n", "")
