"""Arena files: how they are made, and what damaged ones and other files of the same folder lead to."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import stat
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdeploy_routing_plugins.arena import file as files
from fastdeploy_routing_plugins.arena import head as heads
from fastdeploy_routing_plugins.arena.arena import Arena
from fastdeploy_routing_plugins.arena.layout import FILE_HEAD, PAGE, VERSION, WORD, pages_for
from fastdeploy_routing_plugins.arena.view import ArenaView
from fastdeploy_routing_plugins.errors import ArenaError

from .helpers import FEWER, SIZE, TEXT, Child, published
from .small_tmpfs import answer


def name(uid: int | None = None, number: int = 1) -> str:
    """Returns a name as arenas have it."""
    return f"fd-routing-{os.geteuid() if uid is None else uid}-{number:016x}.arena"


def found(folder: str) -> list[str]:
    """Returns the names of the arenas that are found in a folder."""
    return [os.path.basename(each.path) for each in files.find(folder)]


# --- made ---------------------------------------------------------------------------------------------------------


def test_an_arena_is_for_its_user_alone(arena: Arena) -> None:
    assert stat.S_IMODE(os.stat(arena.file.path).st_mode) == 0o600


def test_pins_are_for_their_user_alone(arena: Arena) -> None:
    assert stat.S_IMODE(os.stat(files.pins_path(arena.file.path)).st_mode) == 0o600


def test_an_arena_has_all_its_memory_from_the_start(folder: str) -> None:
    file = files.create(folder, 40 << 20, TEXT)
    blocks = os.fstat(file.fd).st_blocks * 512
    file.close()
    assert blocks >= 40 << 20


def test_an_existing_file_is_never_taken_over(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Path(folder, name(number=0))
    taken.write_bytes(b"somebody's")
    numbers = iter([bytes(8), bytes(7) + b"\1", b"a key..."])
    monkeypatch.setattr(os, "urandom", lambda size: next(numbers))
    file = files.create(folder, SIZE, TEXT)
    file.close()
    assert (os.path.basename(file.path), taken.read_bytes()) == (name(number=1), b"somebody's")


def test_a_symlink_of_that_name_is_not_followed(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    os.symlink(os.path.join(folder, "target"), os.path.join(folder, name(number=0)))
    numbers = iter([bytes(8), bytes(7) + b"\1", b"a key..."])
    monkeypatch.setattr(os, "urandom", lambda size: next(numbers))
    files.create(folder, SIZE, TEXT).close()
    assert not os.path.exists(os.path.join(folder, "target"))


def test_the_text_is_kept_for_adopters(folder: str) -> None:
    text = bytes(range(256)) * 40
    file = files.create(folder, SIZE, text)
    kept = file.text
    file.close()
    assert kept == text


@pytest.mark.parametrize(("size", "text"), [(SIZE, bytes((1 << 20) + 1)), (PAGE, b""), (SIZE, bytes(SIZE - 8192))])
def test_an_arena_that_cannot_be_leaves_nothing(folder: str, size: int, text: bytes) -> None:
    with pytest.raises(ArenaError):
        files.create(folder, size, text)
    assert not os.listdir(folder)


@pytest.mark.parametrize("question", ["create", "create_late"])
def test_no_room_leaves_nothing(folder: str, question: str) -> None:
    said = answer(question, folder, 40, 41 << 20)
    assert (said["message"], said["left"]) == (f"{folder} has no room for {41 << 20} bytes", [])


def test_no_room_for_the_pins_leaves_nothing(folder: str) -> None:
    said = answer("create_arena", folder, 40, 40 << 20)
    assert ("40 MiB and a little more" in said["message"], said["left"]) == (True, [])


def test_a_folder_that_takes_no_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ArenaError, match=r"no arena can be made in .*file.*arena_dir"):
        files.create(str(tmp_path / "file"), SIZE, TEXT)


def test_removing_takes_the_pins_too(folder: str) -> None:
    Arena.create(folder, SIZE, TEXT).close(remove=True)
    assert not os.listdir(folder)


def test_removing_twice_is_harmless(arena: Arena) -> None:
    arena.file.remove()
    arena.file.remove()
    assert not os.path.exists(arena.file.path)


# --- found --------------------------------------------------------------------------------------------------------


def test_an_own_arena_is_found(arena: Arena, folder: str) -> None:
    assert found(folder) == [os.path.basename(arena.file.path)]


def test_size_and_use_of_an_arena_are_told(arena: Arena, folder: str) -> None:
    (each,) = files.find(folder)
    assert (each.path, each.nbytes, each.used) == (arena.file.path, SIZE, True)


def test_a_folder_that_does_not_exist_has_none(folder: str) -> None:
    assert found(f"{folder}/none") == []


@pytest.mark.parametrize(
    "foreign",
    [
        "x",
        "fd-routing.arena",
        "fd-routing-{uid}-0123456789abcdef.arena.pins.bak",
        "fd-routing-{uid}-0123456789abcdef.arenas",
        "fd-routing-{uid}-0123456789ABCDEF.arena",
        "fd-routing-{uid}-123.arena",
        "xfd-routing-{uid}-0123456789abcdef.arena",
        "fd-routing-{uid}-0123456789abcdef.arena\n",
        "fd-routing-{uid}1-0123456789abcdef.arena",
    ],
)
def test_other_names_are_left_alone(folder: str, foreign: str) -> None:
    path = Path(folder, foreign.format(uid=os.geteuid()))
    path.write_bytes(bytes(PAGE))
    assert (found(folder), path.exists()) == ([], True)


def symlink(path: str) -> None:
    target = f"{os.path.dirname(path)}/target"
    Path(target).write_bytes(bytes(PAGE))
    os.symlink(target, path)


def foreign_file(path: str) -> None:
    """Makes another user's file under a name of ours; without the right to do so, another user's name."""
    if os.geteuid() == 0:
        Path(path).write_bytes(bytes(PAGE))
        os.chown(path, 12_345, 12_345)
    else:
        Path(path).with_name(name(os.geteuid() + 1)).write_bytes(bytes(PAGE))


@pytest.mark.parametrize("make", [symlink, os.mkdir, os.mkfifo, foreign_file])
@pytest.mark.parametrize("suffix", ["", ".pins"])
def test_only_own_regular_files_are_looked_at(folder: str, make: Callable[[str], None], suffix: str) -> None:
    make(os.path.join(folder, name() + suffix))
    before = sorted(os.listdir(folder))
    assert (found(folder), sorted(os.listdir(folder))) == ([], before)


@pytest.mark.parametrize("make", [symlink, os.mkdir, os.mkfifo])
def test_only_regular_files_are_taken(folder: str, make: Callable[[str], None]) -> None:
    make(os.path.join(folder, name()))
    assert files.take(os.path.join(folder, name())) is None


def test_what_is_gone_is_not_taken(folder: str) -> None:
    assert files.take(os.path.join(folder, name())) is None


def test_pins_without_an_arena_are_removed(folder: str) -> None:
    Path(folder, name() + ".pins").write_bytes(b"")
    list(files.find(folder))
    assert not os.listdir(folder)


def test_pins_of_an_arena_stay(arena: Arena, folder: str) -> None:
    list(files.find(folder))
    assert os.path.exists(files.pins_path(arena.file.path))


def test_who_only_looks_removes_nothing(folder: str) -> None:
    Path(folder, name()).write_bytes(b"")
    Path(folder, name(number=2) + ".pins").write_bytes(b"")
    list(files.find(folder, tidy=False))
    assert len(os.listdir(folder)) == 2


# --- half-made ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, PAGE, SIZE])
def test_a_half_made_arena_of_a_dead_process_is_removed(folder: str, size: int) -> None:
    with Child("half", folder, size, 1) as child:
        child.line()
        child.kill()
        assert (found(folder), os.listdir(folder)) == ([], [])


@pytest.mark.parametrize("size", [0, SIZE])
def test_a_half_made_arena_of_a_living_process_stays(folder: str, size: int) -> None:
    with Child("half", folder, size, 1) as child:
        path = child.line()
        list(files.find(folder))
        assert os.path.exists(path)


def test_a_file_that_somebody_looks_at_before_it_is_locked_is_given_up(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, looking = fcntl.flock, []

    def look_first(fd: int, kind: int) -> None:
        if not looking:
            looking.append(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))
            lock(looking[0], fcntl.LOCK_SH)
        lock(fd, kind)

    monkeypatch.setattr(fcntl, "flock", look_first)
    file = files.create(folder, SIZE, TEXT)
    os.close(looking[0])
    file.close()
    assert os.listdir(folder) == [os.path.basename(file.path)]


# --- damaged ------------------------------------------------------------------------------------------------------


class Content(bytes):
    """A file's bytes, which failures do not print."""

    def __repr__(self) -> str:
        return f"Content of {len(self)} bytes"


@pytest.fixture(scope="module")
def sound() -> bytes:
    """The bytes of an arena with three blocks."""
    with tempfile.TemporaryDirectory() as folder:
        arena = Arena.create(folder, SIZE, TEXT)
        for number in range(3):
            published(arena, b"meta %d" % number, bytes(5000 * number))
        content = Content(Path(arena.file.path).read_bytes())
        arena.close(remove=True)
    return content


def use(path: str) -> None:
    """Takes an arena and reads everything in it, or hears with an ArenaError that it is none."""
    try:
        file = files.take(path)
    except ArenaError:
        return
    assert file is not None
    try:
        view = ArenaView(file)
        assert len(file.text) <= len(file.data)
        for block in [*view.scan(), *view.published()]:
            assert len(view.payload(block)) == block.payload_bytes
    finally:
        del view
        file.close()


INTERESTING = (
    st.sampled_from([0, 1, 2, 3, 34, 35, 36, 254, 255, 256, 257, 2**20, 2**20 + 1, 2**52, 2**63, 2**64 - 1])
    | st.integers(0, 300)
    | st.integers(0, 2**64 - 1)
)
CHANGES = st.lists(st.tuples(st.integers(0, 9) | st.sampled_from([512, 520]), INTERESTING), max_size=6)


@given(CHANGES)
def test_whatever_numbers_the_head_states_it_is_used_safely_or_refused(
    sound: bytes, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(sound)
    for word, number in changes:
        content[word * WORD : (word + 1) * WORD] = struct.pack("<Q", number)
    use(write(tmp_path_factory, content))


@FEWER
@given(st.lists(st.tuples(st.integers(0, FILE_HEAD.size * 8 - 1)), min_size=1, max_size=5))
def test_flipped_bits_of_the_head_are_used_safely_or_refused(
    sound: bytes, tmp_path_factory: pytest.TempPathFactory, bits: list[tuple[int]]
) -> None:
    content = bytearray(sound)
    for (bit,) in bits:
        content[bit // 8] ^= 1 << bit % 8
    use(write(tmp_path_factory, content))


@FEWER
@given(
    st.binary(max_size=PAGE).filter(lambda noise: noise[:WORD] != heads.FILE_MAGIC.to_bytes(WORD, "little")),
    st.booleans(),
)
def test_random_bytes_are_refused(
    sound: bytes, tmp_path_factory: pytest.TempPathFactory, noise: bytes, whole: bool
) -> None:
    path = write(tmp_path_factory, noise + sound[len(noise) :] if whole and len(noise) >= WORD else noise)
    with pytest.raises(ArenaError, match=r"is no arena|of version|damaged"):
        files.take(path)


@FEWER
@given(st.integers(0, 2 * SIZE).filter(lambda size: size != SIZE))
def test_a_file_of_another_size_is_refused(sound: bytes, tmp_path_factory: pytest.TempPathFactory, size: int) -> None:
    path = write(tmp_path_factory, sound)
    os.truncate(path, size)
    with pytest.raises(ArenaError, match=r"is no arena: it has|its head contradicts its size"):
        files.take(path)


def write(factory: pytest.TempPathFactory, content: bytes | bytearray) -> str:
    """Writes a file with an arena's name, over the last one, which nobody uses any more."""
    path = os.path.join(factory.getbasetemp(), name())
    Path(path).unlink(missing_ok=True)
    Path(path).write_bytes(content)
    return path


def test_another_version_is_named(sound: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    content = bytearray(sound)
    content[WORD : 2 * WORD] = struct.pack("<Q", VERSION + 1)
    with pytest.raises(ArenaError, match=f"of version {VERSION + 1}, not {VERSION}.*fd-routing clean"):
        files.take(write(tmp_path_factory, content))


def test_a_damaged_arena_is_not_left_locked(sound: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write(tmp_path_factory, sound[:-1])
    with pytest.raises(ArenaError):
        files.take(path)
    assert files.remove_unread(path)


def test_a_file_too_large_to_map_is_refused(folder: str) -> None:
    size = 1 << 48
    path = os.path.join(folder, name())
    with open(path, "wb") as file:
        file.truncate(size)
        heads.write_head(file.fileno(), heads.plan(size, b"", 1, 1), b"")
    with pytest.raises(ArenaError, match="cannot be mapped"):
        files.take(path)


def test_a_text_longer_than_any_is_not_read(folder: str) -> None:
    size, text = 8 << 20, (1 << 20) + 1
    head = heads.plan(size, b"", 1, 1)
    beyond = dataclasses.replace(
        head, text_bytes=text, ring_page=head.ring_page + pages_for(text), heap_page=head.heap_page + pages_for(text)
    )
    path = os.path.join(folder, name())
    with open(path, "wb") as file:
        file.truncate(size)
        heads.write_head(file.fileno(), beyond, b"")
    with pytest.raises(ArenaError, match="damaged"):
        files.take(path)


def test_a_sound_arena_is_read_in_full(sound: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = files.take(write(tmp_path_factory, sound))
    assert file is not None
    blocks = [block.meta for block in ArenaView(file).scan()]
    file.close()
    assert blocks == [b"meta 0", b"meta 1", b"meta 2"]
