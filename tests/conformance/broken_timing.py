"""Stores with one fault each, in what happens when: opening, closing, waiting, and several things at once."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time

from reference import AsyncFolder, Folder

from fastdeploy_routing_plugins.backend import Blob
from fastdeploy_routing_plugins.errors import AlreadyExistsError, NotFoundError, StoreUnavailableError

# --- opening and closing ------------------------------------------------------------------------------------------


class OpensOnce(Folder):
    def _open(self):
        super()._open()
        os.close(os.open(self.temporary / "lock", os.O_CREAT | os.O_EXCL))

    def _close(self):
        (self.temporary / "lock").unlink(missing_ok=True)


class HangsOnClose(AsyncFolder):
    async def _close(self):
        await asyncio.Event().wait()


class ClosesAfterItsReaders(AsyncFolder):
    """Waits for whoever waits."""

    def __init__(self, config):
        super().__init__(config)
        self.waiting = set()

    async def _wait(self, prefix, seen, deadline):
        self.waiting.add(asyncio.current_task())
        while (names := await self._list(prefix)) == list(seen) and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        self.waiting.discard(asyncio.current_task())
        return names

    async def _close(self):
        if self.waiting:
            await asyncio.wait(self.waiting)


class ClosesOnlyIfOpen(Folder):
    def _open(self):
        super()._open()
        self.connection = object()

    def _close(self):
        del self.connection


class WipesAtOpen(Folder):
    def _open(self):
        super()._open()
        for path in self.root.iterdir():
            if path != self.temporary:
                shutil.rmtree(path)


class ForgetsAtClose(Folder):
    def __init__(self, config):
        super().__init__(config)
        self.mine = []

    def _put(self, name, header, payload):
        super()._put(name, header, payload)
        self.mine.append(name)

    def _close(self):
        self._delete(self.mine)


class KnowsOneLoop(AsyncFolder):
    loop = None

    async def _put(self, name, header, payload):
        cls = type(self)
        cls.loop = cls.loop or asyncio.get_running_loop()
        await cls.loop.run_in_executor(None, self.folder._put, name, header, payload)


class BlocksTheLoop(AsyncFolder):
    async def _put(self, name, header, payload):
        time.sleep(0.1)
        await super()._put(name, header, payload)


class Leaks(Folder):
    def _open(self):
        super()._open()
        self.leaked = os.open(self.root, os.O_RDONLY)


# --- at the same time ---------------------------------------------------------------------------------------------


class DropsEveryThird(Folder):
    """Says that it stored what it did not."""

    count = 0

    def _put(self, name, header, payload):
        self.count += 1
        if self.count % 3 or self.path(name).exists():
            super()._put(name, header, payload)


class ListsFromCache(Folder):
    def __init__(self, config):
        super().__init__(config)
        self.cache = {}

    def _list(self, prefix):
        if prefix not in self.cache or time.monotonic() > self.cache[prefix][0]:
            self.cache[prefix] = time.monotonic() + 0.2, super()._list(prefix)
        return self.cache[prefix][1]


class TakesFewAtOnce(Folder):
    threads = 32
    flying = 0

    def _put(self, name, header, payload):
        with self.lock:
            self.flying += 1
            busy = self.flying > 16
        try:
            if busy:
                raise StoreUnavailableError("too many requests")
            time.sleep(0.2)
            super()._put(name, header, payload)
        finally:
            with self.lock:
                self.flying -= 1


class StaysInItsProcess(Folder):
    """Objects in memory that all handles of one process share."""

    objects = {}  # noqa: RUF012 - shared on purpose

    def _put(self, name, header, payload):
        stored = self.objects.setdefault(name, Blob(header, (bytes(payload.data),)))
        if stored.header != header or stored.payload != (payload.data,):
            raise AlreadyExistsError(name, header=stored.header)
        self.retained[name] = payload.retain()

    def _get(self, name, ranges=None):
        if name not in self.objects:
            raise NotFoundError(name)
        blob = self.objects[name]
        return blob if ranges is None else Blob(blob.header, tuple(blob.payload[0][a:b] for a, b in ranges))

    def _delete(self, names):
        self._release(names)
        return sum(self.objects.pop(name, None) is not None for name in names)

    def _list(self, prefix):
        return sorted(name for name in list(self.objects) if name.startswith(prefix))


class WritesInPlace(Folder):
    """Half of an object can be read, and stays if the writer dies."""

    def publish(self, temporary, target):
        data = temporary.read_bytes()
        with open(target, "xb", buffering=0) as file:
            file.write(data[: len(data) // 2])
            time.sleep(0.02 if len(data) > 100_000 else 0.0)
            file.write(data[len(data) // 2 :])


class CancelsInTheMiddle(AsyncFolder):
    async def _put(self, name, header, payload):
        path = self.folder.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = b"%08d" % len(header) + header + payload.data
        try:
            with open(path, "xb", buffering=0) as file:
                file.write(data[: len(data) // 2])
                await asyncio.sleep(0.003 if len(data) > 100_000 else 0.0)
                file.write(data[len(data) // 2 :])
        except FileExistsError:
            self.folder.exists(name)


class ClearsFolders(Folder):
    """Takes folders away under the feet of a put."""

    def publish(self, temporary, target):
        time.sleep(0.002)
        super().publish(temporary, target)

    def _clear(self, prefix):
        names = self._list(prefix)
        shutil.rmtree(self.root / prefix, ignore_errors=True)
        return len(names)


class CountsBeforeItDeletes(Folder):
    def _delete(self, names):
        count = sum(self.path(name).is_file() for name in names)
        time.sleep(0.01)
        super()._delete(names)
        return count


# --- waiting ------------------------------------------------------------------------------------------------------


class WakesLate(Folder):
    def _wait(self, prefix, seen, deadline):
        return super()._wait(prefix, seen, deadline + 3.0)


class WaitsThoughItIsLate(Folder):
    def _wait(self, prefix, seen, deadline):
        late = deadline < time.monotonic()
        return super()._wait(prefix, seen, time.monotonic() + 2.0 if late else deadline)


class WaitsForTheNextChange(Folder):
    """An event queue that starts with the call: what happened before is missed."""

    def _wait(self, prefix, seen, deadline):
        return super()._wait(prefix, self._list(prefix), deadline)


class WakesForPutsOnly(AsyncFolder):
    async def _wait(self, prefix, seen, deadline):
        while not set(names := await self._list(prefix)) - set(seen) and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        return names


class PollsSlowly(Folder):
    def _wait(self, prefix, seen, deadline):
        while (names := self._list(prefix)) == list(seen) and time.monotonic() < deadline:
            time.sleep(max(0.0, min(0.4, deadline - time.monotonic())))
        return names


class WaitsInTurn(Folder):
    """One wait at a time."""

    turn = threading.Lock()

    def _wait(self, prefix, seen, deadline):
        with self.turn:
            names = super()._wait(prefix, seen, deadline)
            time.sleep(0.25)
            return names
