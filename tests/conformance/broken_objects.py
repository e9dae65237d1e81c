"""Stores with one fault each, in what they keep, name, list and delete."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

from reference import Folder

from fastdeploy_routing_plugins.backend import Blob, BlockingBackend, Buffer
from fastdeploy_routing_plugins.errors import AbsentError, AlreadyExistsError, NotFoundError, StoreUnavailableError
from fastdeploy_routing_plugins.keys import decode_component

# --- bytes --------------------------------------------------------------------------------------------------------


class LosesBytes(Folder):
    def _put(self, name, header, payload):
        data = payload.data[:-1] if payload.nbytes > 1 << 20 else payload.data
        super()._put(name, header, Buffer(data, payload.shape, payload.dtype))


class MangledHeaders(Folder):
    def _put(self, name, header, payload):
        super()._put(name, header.decode().encode("ascii", "replace"), payload)


class TypedPayload(Folder):
    def _get(self, name, ranges=None):
        blob = super()._get(name, ranges)
        four = len(blob.payload) == 1 and len(blob.payload[0]) % 4 == 0
        return Blob(blob.header, (blob.payload[0].cast("I"),)) if four else blob


class KeepsTheCallersMemory(Folder):
    def __init__(self, config):
        super().__init__(config)
        self.kept = {}

    def _put(self, name, header, payload):
        super()._put(name, header, payload)
        self.kept[name] = payload.data

    def _get(self, name, ranges=None):
        blob = super()._get(name, ranges)
        return Blob(blob.header, (self.kept[name],)) if name in self.kept and ranges is None else blob


class ReadsIntoOneBuffer(Folder):
    """Hands out views of a buffer that the next read fills again."""

    buffer = bytearray(4 << 20)

    def _get(self, name, ranges=None):
        blob = super()._get(name, ranges)
        if ranges is not None:
            return blob
        size = len(blob.payload[0])
        self.buffer[:size] = blob.payload[0]
        return Blob(blob.header, (memoryview(self.buffer)[:size],))

    def _put(self, name, header, payload):
        super()._put(name, header, payload)
        self._get(name)


# --- create-if-absent and absence ---------------------------------------------------------------------------------


class Overwrites(Folder):
    def publish(self, temporary, target):
        shutil.copyfile(temporary, target)


class RefusesWithoutHeader(Folder):
    def exists(self, name):
        raise AlreadyExistsError(f"{name} exists") from None


class LooksBeforeItWrites(Folder):
    """Two steps where one must be: two writers both see that there is nothing."""

    def publish(self, temporary, target):
        if target.exists():
            raise FileExistsError
        time.sleep(0.002)
        shutil.copyfile(temporary, target)


class LocksOnlyItsProcess(LooksBeforeItWrites):
    """The same under a lock that other processes do not share."""

    def publish(self, temporary, target):
        with self.lock:
            super().publish(temporary, target)


class ReturnsNone(Folder):
    def _get(self, name, ranges=None):
        try:
            return super()._get(name, ranges)
        except NotFoundError:
            return None


class DropsAbsences(Folder):
    def _get_many(self, requests):
        return [blob for blob in super()._get_many(requests) if not isinstance(blob, AbsentError)]


class ServesTheDeleted(Folder):
    """A cache that nobody invalidates."""

    def __init__(self, config):
        super().__init__(config)
        self.cache = {}

    def _get(self, name, ranges=None):
        if name not in self.cache or ranges is not None:
            return super()._get(name, ranges)
        return self.cache[name]

    def _delete(self, names):
        for name in names:
            try:
                self.cache[name] = super()._get(name)
            except NotFoundError:
                continue
        return super()._delete(names)

    def _put(self, name, header, payload):
        super()._put(name, header, payload)
        self.cache.pop(name, None)


class BuriesNames(Folder):
    """A tombstone that keeps the name from coming back."""

    def __init__(self, config):
        super().__init__(config)
        self.deleted = set()

    def _put(self, name, header, payload):
        if name in self.deleted:
            raise AlreadyExistsError(f"{name} was deleted", header=header)
        super()._put(name, header, payload)

    def _delete(self, names):
        self.deleted.update(names)
        return super()._delete(names)


# --- names --------------------------------------------------------------------------------------------------------


class DecodesNames(Folder):
    """Takes ids for paths again, after they were made safe."""

    def path(self, name):
        return Path(os.path.join(self.root, *[decode_component(part) or part for part in name.split("/")]))


class FoldsNames(Folder):
    def path(self, name):
        return super().path(name.replace(".2f", "_"))


class CutsNames(Folder):
    def path(self, name):
        return super().path(name[:360])


# --- listing ------------------------------------------------------------------------------------------------------


class ListsOutOfOrder(Folder):
    def _list(self, prefix):
        return super()._list(prefix)[::-1]


class ListsByPattern(Folder):
    """SQL's LIKE without escapes."""

    def _list(self, prefix):
        pattern = re.compile(re.escape(prefix).replace("_", ".").replace("%", ".*"))
        return [name for name in super()._list("") if pattern.match(name)]


class ListsNoEmptyPrefix(Folder):
    def _list(self, prefix):
        return super()._list(prefix) if prefix else []


# --- deleting -----------------------------------------------------------------------------------------------------


class Miscounts(Folder):
    def _delete(self, names):
        super()._delete(names)
        return len(names)


class CountsNoClear(Folder):
    def _clear(self, prefix):
        super()._clear(prefix)
        return 0


class DeletesFewNames(Folder):
    def _delete(self, names):
        if len(names) > 32_766:
            raise StoreUnavailableError("too many SQL variables")
        return super()._delete(names)


class DeletesNeighbours(Folder):
    """All parts of a rollout go with one of them."""

    def unlink(self, path):
        for neighbour in path.parent.glob("p-*"):
            if neighbour != path:
                super().unlink(neighbour)
        return super().unlink(path)


class DeletesFolders(Folder):
    def unlink(self, path):
        if path.is_dir():
            shutil.rmtree(path)
            return 1
        return super().unlink(path)


class HidesInsteadOfDeleting(Folder):
    def unlink(self, path):
        try:
            path.rename(path.with_name(f"{path.name}~"))
        except FileNotFoundError:
            return 0
        return 1

    def _list(self, prefix):
        return [name for name in super()._list(prefix) if not name.endswith("~")]


class ClearsEverything(Folder):
    def _clear(self, prefix):
        return self._delete(self._list(""))


class ClearsNeighbours(Folder):
    def _clear(self, prefix):
        return self._delete(self._list(prefix.rstrip("/")))


class ClearsWholeComponents(Folder):
    def _clear(self, prefix):
        return self._delete(self._list(prefix[: prefix.rfind("/") + 1]))


# --- capabilities -------------------------------------------------------------------------------------------------


class CannotRead(Folder):
    def _get(self, name, ranges=None):
        return BlockingBackend._get(self, name, ranges)


class CannotList(Folder):
    def _list(self, prefix):
        return BlockingBackend._list(self, prefix)


class IgnoresRanges(Folder):
    def _get(self, name, ranges=None):
        return super()._get(name)


class CannotWait(Folder):
    _wait = BlockingBackend._wait


class GivesBackAtOnce(Folder):
    def _put(self, name, header, payload):
        super()._put(name, header, payload)
        self._release([name])


class SharesOneInstance(Folder):
    """The factory hands out the same backend again and again."""

    instance = None

    def __new__(cls, config):
        cls.instance = cls.instance or super().__new__(cls)
        return cls.instance
