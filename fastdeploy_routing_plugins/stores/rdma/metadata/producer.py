"""A producer's connection to the metadata service: ``ProducerLink``."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from ....errors import StoreClosedError, StoreUnavailableError
from ....threads import begin
from .. import place
from . import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..place import OwnerInfo
    from .channel import Channel
    from .client import MetadataClient

_SIGN: Final = 0.5  # s between signs
_LISTEN: Final = 0.05  # s between looks at what the producer itself wants to say
_AT_ONCE: Final = 1000  # names in one question
_PAUSE: Final = 0.3  # s of silence after which the link asks again: a new connection is made before it is suspect
_PATIENCE: Final = 1.0  # s that one question of the link may take; it asks again
_FAREWELL: Final = 1.0  # s that unregistering may take

_log = logging.getLogger("fastdeploy_routing_plugins.stores.rdma")


class ProducerLink:
    """Keeps a producer known to the service, in a thread of its own.

    It registers the owner, gives a sign every 0.5 s, frees what others deleted, and registers and publishes everything
    again when the service was started again, or took the producer for lost.

    Args:
        client: An open client.
        info: What readers must know about the owner.
        inventory: Returns everything that the owner holds as ``(name, place)``; called in the link's thread.
        dropped: Is given name and place of what others deleted; called in the link's thread. They may come more than
            once, and a name may have been put again meanwhile, elsewhere.
        outdone: Is given name and place of what another producer put while the service took this one for lost; called
            in the link's thread. None: ``dropped`` is.
        succeeds: Ids of dead owners whose objects this one took over; what it does not publish again, is lost.
        answered: Called in the link's thread whenever the service has answered a sign; may ask it more.
    """

    def __init__(
        self,
        client: MetadataClient,
        info: OwnerInfo,
        inventory: Callable[[], Sequence[tuple[str, bytes]]],
        dropped: Callable[[Sequence[tuple[str, bytes]]], None],
        *,
        outdone: Callable[[Sequence[tuple[str, bytes]]], None] | None = None,
        succeeds: Sequence[str] = (),
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._info = info
        self._inventory = inventory
        self._dropped = dropped
        self._outdone = outdone or dropped
        self._succeeds = list(succeeds)
        self._answered = answered
        self._said = threading.Condition()
        self._epoch = 0  # of the service that knows everything; 0: none does
        self._failure: BaseException | None = None
        self._stopping = False
        self._unregister = True
        self._thread: threading.Thread | None = None
        self._freed = 0  # number of the last name that was freed

    def start(self) -> None:
        """Registers, publishes the inventory, and starts the thread; returns when the service knows the owner.

        Raises:
            StoreUnavailableError: the service does not answer.
        """
        thread = threading.Thread(target=self._run, name="fd-routing-link", daemon=True)
        begin(thread)
        self._thread = thread
        self._client.mine = (*self._client.mine, self._info.owner)
        with self._said:
            self._said.wait_for(lambda: self._epoch or self._failure, self._client.timeout + _FAREWELL)
        if not self._epoch:
            self.stop(unregister=False)
            raise self._failure or StoreUnavailableError(
                f"the metadata service did not register producer {self._info.producer}", owner=self._info.owner
            )

    def update(self, info: OwnerInfo) -> None:
        """Says something new about the owner, with a higher revision; returns when the service knows it.

        Raises:
            StoreUnavailableError: the service does not answer; it is told later.
        """
        self._info = info
        self._register(info)

    def stop(self, *, unregister: bool = True) -> None:
        """Ends the thread, and unregisters the owner: what it held is gone then.

        Args:
            unregister: Whether to; without it the owner becomes suspect, then lost, as if it had died.
        """
        self._unregister = unregister
        self._stopping = True
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._client.timeout + 2 * _FAREWELL)
        self._client.mine = tuple(owner for owner in self._client.mine if owner != self._info.owner)

    # --- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        channel: Channel | None = None
        try:
            channel = self._client.new_channel()
            channel.unasked = self._take
            channel.pause = _PAUSE
            while not self._stopping:
                try:
                    self._turn(channel)
                except StoreUnavailableError as err:
                    _log.debug("%s", err)
                except StoreClosedError:
                    raise
                except Exception as err:  # the backend's callbacks may raise anything
                    if not self._epoch:
                        raise
                    _log.exception("producer %s and the metadata service: %s", self._info.producer, err)
                    time.sleep(_SIGN)
            if self._unregister and self._epoch:
                self._ask(m.Unregister(self._info.owner), channel, _FAREWELL)
        except (StoreClosedError, StoreUnavailableError):
            pass
        except Exception as err:  # noqa: BLE001 - whoever starts the link is told
            with self._said:
                self._failure = err
                self._said.notify_all()
        finally:
            if channel is not None:
                channel.close()

    def _turn(self, channel: Channel) -> None:
        """Makes sure that the service knows everything, gives a sign, and listens for a while."""
        if not self._epoch or self._client.epoch != self._epoch:
            self._introduce(channel)
        answer = self._ask(m.Sign(self._info.owner, self._freed), channel)
        if type(answer) is m.Refused:
            self._epoch = 0
            self._freed = 0
            return
        end, freed = time.monotonic() + _SIGN, self._freed
        self._take(answer)
        self._answered()
        while self._at_rest() and freed == self._freed and time.monotonic() < end:
            channel.listen(min(end, time.monotonic() + _LISTEN))

    def _at_rest(self) -> bool:
        """Whether there is nothing to say: other threads of the client may have met another service."""
        return not self._stopping and self._client.epoch == self._epoch

    def _introduce(self, channel: Channel) -> None:
        """Tells a service that does not know the owner everything."""
        self._freed = 0
        answer = self._register(self._info, channel)
        epoch = self._client.epoch
        items = self._inventory()
        for at in range(0, len(items), _AT_ONCE):
            part = items[at : at + _AT_ONCE]
            names, places = [name for name, _ in part], [where for _, where in part]
            answer = self._ask(m.Publish(self._info.owner, names, places, True), channel)
            if type(answer) is not m.Published:
                return
            rows = list(zip(part, answer.which, strict=True))
            if deleted := [item for item, row in rows if row < -1]:
                self._drop(deleted)
            if elsewhere := [item for item, row in rows if row >= 0]:
                self._outdone(elsewhere)
        answer = self._ask(m.Inventory(self._info.owner), channel)
        if type(answer) is m.Done and self._client.epoch == epoch:
            with self._said:
                self._epoch = epoch
                self._said.notify_all()

    def _register(self, info: OwnerInfo, channel: Channel | None = None) -> Any:
        within = _PATIENCE if channel is not None else self._client.timeout
        answer = self._ask(m.Register(place.encode(info), self._succeeds), channel, within)
        if type(answer) is m.Refused:
            raise StoreUnavailableError(f"the metadata service does not register {info.producer}: {answer.message}")
        return answer

    def _ask(self, body: Any, channel: Channel | None, within: float = _PATIENCE) -> Any:
        return self._client.ask(body, deadline=time.monotonic() + within, channel=channel)

    def _take(self, answer: Any) -> None:
        """Frees what the service says that others deleted."""
        if type(answer) is m.Dropped and answer.names and answer.number > self._freed:
            self._drop(list(zip(answer.names, answer.places, strict=True)))
            self._freed = answer.number

    def _drop(self, items: list[tuple[str, bytes]]) -> None:
        self._dropped(items)
