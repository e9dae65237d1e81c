"""A question on its way through the service, and its refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from . import messages as m

if TYPE_CHECKING:
    from .sessions import Session
    from .unix_server import Caller

Identity: TypeAlias = "bytes | Caller"
"""A connection: as ZeroMQ calls it, or one of the unix socket."""


class RefusalError(Exception):
    """A question that is not answered. Attribute ``body``: what is said instead."""

    def __init__(self, code: m.Refusal, message: str) -> None:
        super().__init__(message)
        self.body = m.Refused(int(code), message)


class Asked:
    """A question on its way.

    Attributes:
        identity: The connection that it came by.
        session: That connection's session.
        id: The question's id.
        deadline: When its answer is of no use any more.
    """

    __slots__ = ("deadline", "id", "identity", "session")

    def __init__(self, identity: Identity, session: Session, number: int, deadline: float) -> None:
        self.identity = identity
        self.session = session
        self.id = number
        self.deadline = deadline
