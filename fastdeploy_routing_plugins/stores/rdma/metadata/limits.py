"""What a service allows, and how patient it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Times are in seconds.

    Attributes:
        suspect: Time without a sign after which a producer is suspect.
        lease: Time without a sign after which it is lost.
        settle: Time after the start in which clients of an earlier start are kept waiting instead of being told that
            something is not there: producers look for the service every 0.2 s at least. Up to three times as long if
            not as many came back as the service's predecessor had.
        strict: Whether everybody is kept waiting then, not only where a predecessor is known to have left producers.
        tombstones: Bytes for the memory of what is gone.
        names: How many names there may be.
        owners: How many owners.
        connections: How many connections are remembered; who was forgotten has to greet again.
        unix: How many of them may be by the unix socket for clients of the same host and user; 0: there is none.
        waiting: How many questions may wait for a change.
        early: Bytes of questions that may wait while the service settles.
        unread: Bytes that the process may grow by while questions come faster than they are answered; then those that
            wait to be read are thrown away, and who needs an answer asks again.
    """

    suspect: float = 2.0
    lease: float = 10.0
    settle: float = 1.0
    strict: bool = False
    tombstones: int = 64 << 20
    names: int = 10_000_000
    owners: int = 10_000
    connections: int = 16_384
    unix: int = 1024
    waiting: int = 100_000
    early: int = 64 << 20
    unread: int = 1 << 30
