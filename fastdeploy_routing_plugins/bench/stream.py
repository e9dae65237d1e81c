"""The physical bounds, measured as if they were a way: a copy into memory, and one plain TCP stream out of it."""

from __future__ import annotations

import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdeploy_routing_plugins.bench.peers import PeerKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastdeploy_routing_plugins.bench.arrays import Array
    from fastdeploy_routing_plugins.bench.peers import Site

_PORT = "stream.port"
_ASK = struct.Struct("<2Q")  # place, length
_PATIENCE = 60.0  # s


class Stream:
    """A put copies behind what was put before; a get asks for its range, which is received into warm memory."""

    def __init__(self, site: Site) -> None:
        self._memory = np.ones(site.nbytes, np.uint8)
        self._at = 0
        path = site.folder / _PORT
        if site.writing:
            self._socket = socket.create_server(("127.0.0.1", 0))
            path.write_text(str(self._socket.getsockname()[1]))
            threading.Thread(target=self._serve, daemon=True).start()
        else:
            self._socket = socket.create_connection(("127.0.0.1", int(path.read_text())), _PATIENCE)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _serve(self) -> None:
        try:
            peer, _ = self._socket.accept()
        except OSError:  # closed before anybody came
            return
        with peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while len(asked := peer.recv(_ASK.size, socket.MSG_WAITALL)) == _ASK.size:
                start, nbytes = _ASK.unpack(asked)
                peer.sendall(self._memory[start : start + nbytes].data)

    def prepare(self, arrays: Sequence[Array]) -> None:
        """Needs nothing."""

    def put(self, key: str, array: Array) -> object:
        """See ``Peer``."""
        np.copyto(self._memory[self._at : self._at + array.nbytes], array.reshape(-1))
        self._at += array.nbytes
        return None

    def put_many(self, items: Sequence[tuple[str, Array]]) -> object:
        """See ``Peer``."""
        for key, array in items:
            self.put(key, array)
        return None

    def get(self, key: str) -> Any:
        """Gets the array whose number the key ends with; all are of the same size."""
        number, nbytes = (int(text) for text in key.rsplit("-", 2)[1:])
        return self.read(number * nbytes, nbytes)

    def read(self, start: int, nbytes: int) -> Any:
        """Gets a range."""
        self._socket.sendall(_ASK.pack(start, nbytes))
        target, got = self._memory[:nbytes], 0
        while got < nbytes:
            received = self._socket.recv_into(target.data[got:], 0, socket.MSG_WAITALL)
            if not received:
                raise RuntimeError("the plain stream ended")
            got += received
        return target

    def delete(self, keys: Sequence[str]) -> None:
        """See ``Peer``."""
        self._at = 0

    def close(self) -> None:
        """See ``Peer``."""
        self._socket.close()


KIND = PeerKind("bounds", "memory copy", "one plain TCP stream", Stream)
