"""Who speaks to the service: a session for each connection that said hello."""

from __future__ import annotations

import hmac
import os
from collections import OrderedDict
from typing import TYPE_CHECKING

from .security import prove

if TYPE_CHECKING:
    from .asked import Identity

_NONCES = 1024  # of connections that have not proved anything yet
_KEPT = 8 << 10  # bytes of an answer that is kept


class Memory:
    """The last question of a client that changed something, and its answer: asked again, it does nothing twice."""

    __slots__ = ("answer", "id")

    def __init__(self) -> None:
        self.id = 0
        self.answer = b""


class Session:
    """A connection that said hello.

    Attributes:
        namespace: The encoded namespace that it named.
        start: What every name that it may touch begins with; empty where nobody proves who they are, since a
            namespace that a client only claims keeps nobody out.
        token: The client's token.
        memory: What the client did last.
    """

    __slots__ = ("memory", "namespace", "start", "token")

    def __init__(self, namespace: str, start: str, token: bytes, memory: Memory) -> None:
        self.namespace = namespace
        self.start = start
        self.token = token
        self.memory = memory

    def may(self, namespace: str) -> bool:
        """Whether it may touch what is of a namespace."""
        return not self.start or namespace == self.namespace

    def did(self, number: int, answer: bytes) -> None:
        """Remembers the answer to a question that changed something."""
        self.memory.id = number
        self.memory.answer = answer if len(answer) <= _KEPT else b""


class Sessions:
    """All connections that are remembered; those that were silent for longest are forgotten first.

    Args:
        limit: How many.
        secret: What clients must prove to know; empty: nothing.
        bound: Whether clients are held to the namespace that they name.
    """

    def __init__(self, limit: int, secret: str, bound: bool) -> None:
        self._bound = bound
        self._limit = limit
        self._secret = secret
        self._sessions: OrderedDict[Identity, Session] = OrderedDict()
        self._memories: OrderedDict[bytes, Memory] = OrderedDict()
        self._nonces: OrderedDict[Identity, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, identity: Identity) -> Session | None:
        """Returns a connection's session; None if it did not say hello, or was forgotten."""
        session = self._sessions.get(identity)
        if session is not None:
            self._sessions.move_to_end(identity)
        return session

    def forget(self, identity: Identity) -> None:
        """Forgets a connection that ended."""
        self._sessions.pop(identity, None)
        self._nonces.pop(identity, None)

    def examine(self, identity: Identity, namespace: str, proof: bytes) -> bool | bytes:
        """Checks whether a connection knows the secret. Each nonce is good for one try.

        Returns:
            Whether it does; or a nonce to prove it with.
        """
        if not self._secret:
            return True
        nonce = self._nonces.pop(identity, None)
        if nonce is not None and proof:
            return hmac.compare_digest(prove(self._secret, nonce, namespace), proof)
        nonce = self._nonces[identity] = os.urandom(16)
        if len(self._nonces) > _NONCES:
            self._nonces.popitem(last=False)
        return nonce

    def greet(self, identity: Identity, namespace: str, token: bytes) -> None:
        """Takes a connection in."""
        memory = self._memories.get(token)
        if memory is None:
            memory = self._memories[token] = Memory()
        self._memories.move_to_end(token)
        self._sessions[identity] = Session(namespace, f"{namespace}/" if self._bound else "", token, memory)
        self._sessions.move_to_end(identity)
        if len(self._sessions) > self._limit:
            self._sessions.popitem(last=False)
        if len(self._memories) > self._limit:
            self._memories.popitem(last=False)
