"""What can be the matter with objects, producers and questions; numbers as they travel."""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """Why something is not there."""

    UNKNOWN = 0
    DELETED = 1
    EVICTED = 2
    SUPERSEDED = 3
    LOST = 4
    CLOSED = 5


class State(IntEnum):
    """What is known of an owner."""

    ALIVE = 0
    SUSPECT = 1
    LOST = 2
    CLOSED = 3


class Refusal(IntEnum):
    """Why a question is not answered."""

    GREET = 1
    """The service does not know this connection: say hello first."""
    VERSION = 2
    SECRET = 3
    NAMESPACE = 4
    MALFORMED = 5
    UNREGISTERED = 6
    """The owner is not registered, or was taken for lost: register, and publish everything again."""
    FULL = 7
    REVISION = 8
    """The owner has not said that much about itself yet."""
    LATE = 9
    """The question's time was over before it could be answered."""
