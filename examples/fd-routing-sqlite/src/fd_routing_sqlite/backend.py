"""The store itself: one table of named blobs."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from fastdeploy_routing_plugins.backend import Blob, BlockingBackend, Buffer, Ranges
from fastdeploy_routing_plugins.errors import (
    AlreadyExistsError,
    CorruptDataError,
    NotFoundError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
    UnsupportedError,
)

# An ordinary table, not WITHOUT ROWID: payloads stay out of the key's index, so a listing reads names only.
TABLE = """
    CREATE TABLE IF NOT EXISTS routing_objects (
        name TEXT NOT NULL PRIMARY KEY COLLATE BINARY, header BLOB NOT NULL, payload BLOB NOT NULL
    )"""
# A range of the key uses the index and compares bytes. LIKE takes "_" and "%" for wildcards and ignores case.
PREFIXED = "FROM routing_objects WHERE name >= ? AND name < ?"
BEYOND = "\x7f"  # sorts after every character of a name


class SqliteBackend(BlockingBackend):
    """Named blobs in one SQLite file. The store calls the methods from several threads at once."""

    def __init__(self, path: str, busy_timeout: float) -> None:
        self._path = os.path.abspath(os.path.expanduser(path))
        self._busy_timeout = busy_timeout
        self._closed = False
        # By process: a forked child must neither use nor close its parent's connections.
        self._idle: dict[int, list[sqlite3.Connection]] = {}

    def _open(self) -> None:
        with self._connection() as db:
            self._use_wal(db)
            db.execute(TABLE)

    def _close(self) -> None:
        self._closed = True
        self._close_idle()

    def _flush(self) -> None:
        with self._connection() as db:
            db.execute("PRAGMA wal_checkpoint").fetchone()

    def _put(self, name: str, header: bytes, payload: Buffer) -> None:
        with self._connection() as db:
            while True:
                insert = "INSERT INTO routing_objects VALUES (?, ?, ?) ON CONFLICT (name) DO NOTHING"
                if db.execute(insert, (name, header, payload.data)).rowcount == 1:
                    return
                row = db.execute("SELECT header FROM routing_objects WHERE name = ?", (name,)).fetchone()
                if row is not None:  # else it was deleted in between, and the name is free
                    raise AlreadyExistsError(f"{name} exists", header=row[0])

    def _get(self, name: str, ranges: Ranges | None = None) -> Blob:
        # One stretch that holds all ranges: SQLite would load the payload again for every further substr().
        first, last = (ranges[0][0], ranges[-1][1]) if ranges else (0, 0)
        payload = "payload" if ranges is None else "substr(payload, :first, :size)" if ranges else "x''"
        query = f"SELECT header, {payload} FROM routing_objects WHERE name = :name"
        with self._connection() as db:
            row = db.execute(query, {"name": name, "first": first + 1, "size": last - first}).fetchone()
        if row is None:
            raise NotFoundError(f"{name} is not stored")
        header, stretch = row
        if ranges is None:
            return Blob(header, (stretch,))
        view = memoryview(stretch)
        return Blob(header, tuple(view[start - first : stop - first] for start, stop in ranges))

    def _delete(self, names: Sequence[str]) -> int:
        # One statement, so one transaction, however many names.
        query = "DELETE FROM routing_objects WHERE name IN (SELECT value FROM json_each(?))"
        with self._connection() as db:
            return db.execute(query, (json.dumps(list(names)),)).rowcount

    def _list(self, prefix: str) -> list[str]:
        with self._connection() as db:
            return [name for (name,) in db.execute(f"SELECT name {PREFIXED} ORDER BY name", (prefix, prefix + BEYOND))]

    def _clear(self, prefix: str) -> int:
        with self._connection() as db:
            return db.execute(f"DELETE {PREFIXED}", (prefix, prefix + BEYOND)).rowcount

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """Lends a connection to one call and turns SQLite's errors into the store's."""
        if self._closed:
            raise StoreClosedError(f"{self._path}: the store is closed")
        idle = self._idle.setdefault(os.getpid(), [])
        try:
            try:
                db = idle.pop()
            except IndexError:
                db = sqlite3.connect(
                    self._path, timeout=self._busy_timeout, isolation_level=None, check_same_thread=False
                )
            try:
                db.execute("PRAGMA synchronous = NORMAL")  # survives a killed process; _flush, a killed machine
                yield db
            finally:
                idle.append(db)
                if self._closed:
                    self._close_idle()
        except sqlite3.Error as err:
            raise _typed(err, self._path) from err

    def _use_wal(self, db: sqlite3.Connection) -> None:
        # Processes that make the same new file meet here, and this is the one lock SQLite does not wait for by itself.
        deadline = time.monotonic() + self._busy_timeout
        while True:
            try:
                db.execute("PRAGMA journal_mode = WAL").fetchone()
                return
            except sqlite3.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.001)

    def _close_idle(self) -> None:
        idle = self._idle.get(os.getpid(), [])
        with suppress(IndexError):  # another thread may take the last one
            while True:
                idle.pop().close()


def _typed(err: sqlite3.Error, path: str) -> StoreError | sqlite3.Error:
    if isinstance(err, sqlite3.OperationalError):
        return StoreUnavailableError(f"{path}: {err}", hint="locked, full, read-only, or no such folder")
    if isinstance(err, sqlite3.DataError):
        return UnsupportedError(f"{path}: {err}", hint="SQLite stores up to 1 GB an object; put it in parts")
    if type(err) is sqlite3.DatabaseError:
        return CorruptDataError(f"{path}: {err}", hint="not a database, or a damaged one")
    return err
