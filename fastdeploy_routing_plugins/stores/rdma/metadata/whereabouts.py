"""Where a client finds its service: at an address, or by the rendezvous of this host and user."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ..address import Address
    from .security import Security


@dataclass(frozen=True, slots=True)
class Spot:
    """A service to speak to.

    Attributes:
        coord: ZeroMQ's name of its socket of questions.
        sync: The same of its stream of changes.
        keys: File of CURVE keys; empty: none.
        secret: Shared secret; empty: none.
        hint: What to do if it does not answer.
    """

    coord: str
    sync: str
    keys: str
    secret: str = field(repr=False)
    hint: str = ""


class Whereabouts(Protocol):
    """Knows where the service is.

    Attributes:
        wanders: Whether it may go elsewhere, and somebody else's may be where it was.
    """

    wanders: bool

    def spot(self) -> Spot:
        """Returns where the service is.

        Raises:
            StoreUnavailableError: nobody knows.
        """
        ...

    def silent(self) -> Spot:
        """Takes note that it does not answer; returns where it is now. Raises as ``spot``."""
        ...

    def close(self) -> None:
        """Frees everything."""

    def in_child(self) -> None:
        """In a forked child: leaves what is its parent's alone."""


class Fixed:
    """A service at an address."""

    wanders = False

    def __init__(self, address: Address, security: Security) -> None:
        keys = " --keys DIR/server.json" if security.keys else ""
        hint = f"start one with: fd-routing serve {address}{keys} (ports: changes, then questions); "
        hint += "wrong keys look the same" if security.keys else "one that wants keys does not answer without"
        sync, coord = address.endpoints
        self._spot = Spot(coord, sync, security.keys, security.secret, hint)

    def spot(self) -> Spot:
        """See ``Whereabouts``."""
        return self._spot

    def silent(self) -> Spot:
        """See ``Whereabouts``."""
        return self._spot

    def close(self) -> None:
        """See ``Whereabouts``."""

    def in_child(self) -> None:
        """See ``Whereabouts``."""
