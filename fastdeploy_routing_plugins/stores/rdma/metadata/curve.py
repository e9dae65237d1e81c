"""CURVE keys: their files, and sockets that use them.

``fd-routing keygen`` makes a folder of them: ``server.json`` for the service, ``clients.json`` with the public keys of
the clients that it lets in, and a file for each client, with its own keys and the service's public one. The service
reads ``clients.json`` beside its own file again when it changed.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import zmq
from zmq.utils import z85

from ....errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

SERVER_FILE: Final = "server.json"
CLIENTS_FILE: Final = "clients.json"
_MAX_FILE: Final = 1 << 20
_ZAP: Final = "inproc://zeromq.zap.01"
_HINT: Final = "`fd-routing keygen DIR` makes keys where the service runs; a client needs a copy of its file there"

Key = Annotated[str, msgspec.Meta(min_length=40, max_length=40)]


class ServerKeys(msgspec.Struct, frozen=True, tag="server", forbid_unknown_fields=True):
    """The service's key pair."""

    public: Key
    secret: Key


class ClientKeys(msgspec.Struct, frozen=True, tag="client", forbid_unknown_fields=True):
    """A client's key pair, and the service's public key."""

    server: Key
    public: Key
    secret: Key


class Clients(msgspec.Struct, frozen=True, tag="clients", forbid_unknown_fields=True):
    """Names and public keys of the clients that are let in."""

    clients: dict[str, Key]


_decoder = msgspec.json.Decoder(ServerKeys | ClientKeys | Clients)


def read_keys(path: str) -> ServerKeys | ClientKeys | Clients:
    """Returns what a file of keys says.

    Raises:
        ConfigError: it is none, or others may read or change it.
    """
    problem = ""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o077:
                problem = "must be a file that belongs to this user and nobody else can read: chmod 600"
            else:
                keys: ServerKeys | ClientKeys | Clients = _decoder.decode(os.read(fd, _MAX_FILE))
                return keys
        finally:
            os.close(fd)
    except OSError as err:
        problem = f"cannot be read: {err.strerror}"
    except (msgspec.MsgspecError, UnicodeDecodeError) as err:
        problem = f"is no file of keys: {err}"
    text = f"keys {path} {problem}"
    raise ConfigError(text, hint=_HINT, problems=(text,))


def wrong_kind(path: str, wanted: str) -> ConfigError:
    """Returns the error for a file of keys that is of another kind."""
    text = f"keys {path} are not those of a {wanted}"
    return ConfigError(text, hint=f"a service takes {SERVER_FILE}, a client its own file", problems=(text,))


def arm_client(sock: zmq.Socket[bytes], path: str) -> None:
    """Lets a client's socket use the keys of a file; none if the path is empty. Raises ConfigError."""
    if not path:
        return
    keys = read_keys(path)
    if not isinstance(keys, ClientKeys):
        raise wrong_kind(path, "client")
    sock.setsockopt_string(zmq.CURVE_SERVERKEY, keys.server)
    sock.setsockopt_string(zmq.CURVE_PUBLICKEY, keys.public)
    sock.setsockopt_string(zmq.CURVE_SECRETKEY, keys.secret)


class Guard:
    """Lets in clients whose keys are listed: ZeroMQ asks it (ZAP, ZeroMQ RFC 27) for each connection.

    Args:
        context: Of the sockets that it guards; made before they listen.
        path: The service's file of keys.

    Raises:
        ConfigError: that file, or the list of clients beside it, cannot be used.
    """

    def __init__(self, context: zmq.Context[Any], path: str) -> None:
        keys = read_keys(path)
        if not isinstance(keys, ServerKeys):
            raise wrong_kind(path, "service")
        self._keys = keys
        self._list = os.path.join(os.path.dirname(os.path.abspath(path)), CLIENTS_FILE)
        self._read_at: tuple[int, int, int] | None = None
        self._known: dict[bytes, str] = {}
        self._reread()
        self.refused = 0
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(_ZAP)

    def arm(self, sock: zmq.Socket[bytes]) -> None:
        """Lets a service's socket use the keys."""
        sock.setsockopt(zmq.CURVE_SERVER, 1)
        sock.setsockopt_string(zmq.CURVE_PUBLICKEY, self._keys.public)
        sock.setsockopt_string(zmq.CURVE_SECRETKEY, self._keys.secret)
        sock.setsockopt(zmq.ZAP_DOMAIN, b"fd-routing")

    def _reread(self) -> None:
        try:
            found = os.stat(self._list)
        except OSError as err:
            text = f"keys {self._list} cannot be read: {err.strerror}"
            hint = f"{CLIENTS_FILE} lies beside {SERVER_FILE} and lists who is let in: copy it, too"
            raise ConfigError(text, hint=hint, problems=(text,)) from None
        mark = (found.st_mtime_ns, found.st_size, found.st_ino)
        if mark != self._read_at:
            listed = read_keys(self._list)
            if not isinstance(listed, Clients):
                raise wrong_kind(self._list, "list of clients")
            self._known = {z85.decode(key): name for name, key in listed.clients.items()}
            self._read_at = mark

    def answer(self, note: Callable[[str], None]) -> None:
        """Answers ZeroMQ's questions that came.

        Args:
            note: Is told why a question could not be answered well.
        """
        while True:
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._reread()
            except ConfigError as err:
                note(err.message)  # goes on with the list as it was
            number, mechanism, credentials = parts[1], parts[5] if len(parts) > 5 else b"", parts[6:]
            known = mechanism == b"CURVE" and len(credentials) == 1 and credentials[0] in self._known
            self.refused += not known
            verdict = [b"200", b"OK"] if known else [b"400", b"not one of the clients"]
            self.socket.send_multipart([b"1.0", number, *verdict, b"", b""])

    def close(self) -> None:
        """Closes its socket."""
        self.socket.close(0)
