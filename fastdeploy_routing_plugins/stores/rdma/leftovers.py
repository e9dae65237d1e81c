"""Shelves from outside: which lie in a folder, whether their producers live, and whether anybody may still want them.

A dead producer's shelf is of use only to a store worker that writes as the same producer, see ``succession``; the page
of a metadata service (``metadata.page``) to nobody but that service. For ``fd-routing clean`` and ``doctor``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import msgspec

from ...arena import file as files
from ...arena.view import ArenaView
from ...errors import ArenaError, CorruptDataError
from ...writer.operations import Setup
from .card import decode_card
from .succession import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .shelf import ShelfText

_PAGE = re.compile(r"fd-routing-(\d+)-[0-9a-f]{16}\.versions", re.ASCII)

Line = tuple[str, str, str]  # producer, namespace and server, which are the same for who takes a shelf over


@dataclass(frozen=True, slots=True)
class LeftShelf:
    """A shelf of this user as it is now.

    Attributes:
        path: Where it is.
        nbytes: Its size.
        age: Age of the file in seconds.
        state: ``live``: its producer lives. ``dead``: it does not. ``damaged``: nor can the shelf be read.
        pid: Process id of its producer, dead or alive; 0 if it cannot be read.
        producer: The ``producer`` option.
        namespace: Which namespace it wrote.
        server: The metadata service's address; empty: that of this host and user.
        objects: How many objects of a dead producer lie there.
        problem: Why it cannot be read.
        kind: ``shelf``, or ``page``: a metadata service's, dead.
    """

    path: str
    nbytes: int
    age: float
    state: Literal["live", "dead", "damaged"]
    pid: int = 0
    producer: str = ""
    namespace: str = ""
    server: str = ""
    objects: int = 0
    problem: str = ""
    kind: Literal["shelf", "page"] = "shelf"

    @property
    def line(self) -> Line:
        """What a successor has in common with the producer."""
        return self.producer, self.namespace, self.server


def look(folder: str, *, tidy: bool = False) -> list[LeftShelf]:
    """Returns this user's shelves in a folder; ``tidy`` as in ``arena.file.find``."""
    found = [_inspect(each) for each in files.find(folder, tidy=tidy, kind=files.SHELF)]
    return [each for each in found if each is not None]


def dead_pages(folder: str) -> list[LeftShelf]:
    """Returns the pages of this user's dead metadata services in a folder."""
    found = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            match = _PAGE.fullmatch(name)
            path = os.path.join(folder, name)
            if match is not None and int(match[1]) == os.geteuid() and _unlocked(path):
                with contextlib.suppress(OSError):
                    status = os.lstat(path)
                    age = max(0.0, time.time() - status.st_mtime)
                    found.append(LeftShelf(path, status.st_size, age, "dead", kind="page"))
    return found


def _unlocked(path: str) -> bool:
    """Whether no process holds the lock of a file of this user, which a service keeps as long as it lives."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return os.fstat(fd).st_uid == os.geteuid()
    except OSError:
        return False
    finally:
        os.close(fd)


def _inspect(found: files.Found) -> LeftShelf | None:
    """Returns what a shelf is; None if it is gone meanwhile."""
    left = LeftShelf(found.path, found.nbytes, found.made, "live" if found.used else "damaged")
    try:
        file = files.peek(found.path)
    except FileNotFoundError:
        return None
    except (ArenaError, OSError) as err:
        return replace(left, problem=str(err))
    try:
        text = read_text(file)
        if text is None:
            return replace(left, pid=file.head.owner_pid, problem="its text does not say whose it is")
        left = _named(left, text, file.head.owner_pid)
        return left if found.used else replace(left, state="dead", objects=_count(file))
    finally:
        file.close()


def _named(left: LeftShelf, text: ShelfText, pid: int) -> LeftShelf:
    return replace(left, pid=pid, producer=text.producer, namespace=text.namespace, server=text.server)


def _count(file: files.ArenaFile) -> int:
    """Returns how many objects have their payload on the shelf itself; others go with the engine's arena."""
    count = 0
    for block in ArenaView(file).scan():
        try:
            count += decode_card(block.meta).inline
        except CorruptDataError:
            continue
    return count


def awaited(folders: Iterable[str]) -> set[Line]:
    """Returns the lines whose engine's arena is there: a store worker of it takes a dead one's shelf over."""
    lines = [line_of(found.path) for folder in folders for found in files.find(folder, tidy=False)]
    return {line for line in lines if line is not None}


def line_of(arena: str) -> Line | None:
    """Returns the line of an engine's arena; None if its store has no shelves, or it cannot be read."""
    try:
        file = files.peek(arena)
    except (ArenaError, OSError):
        return None
    try:
        wire = msgspec.json.decode(Setup.decode(file.text).store)
        options = wire["options"]
        line = str(options["producer"]), str(options["namespace"]), str(options.get("server", ""))
        return line if wire["store"] == "rdma" else None
    except (ArenaError, msgspec.DecodeError, LookupError, TypeError):
        return None
    finally:
        file.close()


def remove(path: str) -> bool:
    """Removes a shelf, with all that is on it, or a page that nobody uses; returns whether it did.

    Raises:
        OSError: the folder does not allow it.
    """
    return files.remove_unread(path)
