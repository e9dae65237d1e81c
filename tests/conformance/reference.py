"""A store that keeps the contract in the simplest way: the base that ``broken`` damages, one fault at a time.

Each object is one file below a folder, at the path that its name spells: the length of the header, the header, the
payload. A temporary file is linked to its name, which fails if the name exists.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from fastdeploy_routing_plugins.backend import Backend, Blob, BlockingBackend
from fastdeploy_routing_plugins.errors import AlreadyExistsError, NotFoundError


@dataclass(frozen=True)
class FolderConfig:
    folder: str = field(default="routing", metadata={"doc": "where the objects are"})


class Folder(BlockingBackend):
    """All capabilities, in the simplest way."""

    def __init__(self, config):
        self.root = Path(config.folder)
        self.temporary = self.root / ".tmp"
        self.retained = {}
        self.lock = threading.Lock()

    def _open(self):
        self.temporary.mkdir(parents=True, exist_ok=True)

    def path(self, name):
        return self.root / name

    def _put(self, name, header, payload):
        target = self.path(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.temporary / secrets.token_hex(8)
        temporary.write_bytes(b"%08d" % len(header) + header + payload.data)
        try:
            self.publish(temporary, target)
        except FileExistsError:
            self.exists(name)
        finally:
            temporary.unlink()
        with self.lock:
            self.retained[name] = payload.retain()

    def publish(self, temporary, target):
        os.link(temporary, target)

    def exists(self, name):
        raise AlreadyExistsError(f"{name} exists", header=self._get(name).header) from None

    def _get(self, name, ranges=None):
        try:
            raw = memoryview(self.path(name).read_bytes())
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise NotFoundError(f"{name} is not there") from None
        start = 8 + int(raw[:8])
        payload = raw[start:]
        return Blob(bytes(raw[8:start]), (payload,) if ranges is None else tuple([payload[a:b] for a, b in ranges]))

    def _delete(self, names):
        self._release(names)
        return sum([self.unlink(self.path(name)) for name in names])

    def unlink(self, path):
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return 0
        return 1

    def _list(self, prefix):
        found = []
        for folder, _, files in os.walk(self.root):
            found += [str(Path(folder, file).relative_to(self.root)) for file in files]
        return sorted(name for name in found if name.startswith(prefix) and not name.startswith(".tmp"))

    def _wait(self, prefix, seen, deadline):
        while (names := self._list(prefix)) == list(seen) and time.monotonic() < deadline:
            time.sleep(max(0.0, min(0.005, deadline - time.monotonic())))
        return names

    def _release(self, names):
        for name in names:
            with self.lock:
                buffer = self.retained.pop(name, None)
            if buffer is not None:
                buffer.release()


class AsyncFolder(Backend):
    """The same with the verbs that every store has, and no capability but reading and listing."""

    def __init__(self, config):
        self.folder = Folder(config)

    async def _open(self):
        await asyncio.to_thread(self.folder._open)

    async def _put(self, name, header, payload):
        await asyncio.to_thread(self.folder._put, name, header, payload)
        self.folder._release([name])

    async def _get(self, name, ranges=None):
        return await asyncio.to_thread(self.folder._get, name)

    async def _list(self, prefix):
        return await asyncio.to_thread(self.folder._list, prefix)

    async def _delete(self, names):
        return await asyncio.to_thread(self.folder._delete, names)
