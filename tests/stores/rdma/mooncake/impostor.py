"""Something that answers like a Mooncake engine, up to a point."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

METADATA, PROBE = 1, 3
_FRAME = struct.Struct("<Q")


class Impostor:
    """Answers requests of new acquaintances, and is silent for ever at one kind.

    Args:
        silent_at: The kind of request.
    """

    def __init__(self, silent_at: int) -> None:
        self._silent_at = silent_at
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            peer, _ = self._listener.accept()
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError):
            (length,) = _FRAME.unpack(peer.recv(_FRAME.size, socket.MSG_WAITALL))
            kind = peer.recv(length, socket.MSG_WAITALL)[0]
            if kind == self._silent_at:
                self._open.append(peer)
                return
            reply = bytes([kind]) + b'{"status": "success"}\n'
            peer.sendall(_FRAME.pack(len(reply)) + reply)
        peer.close()
