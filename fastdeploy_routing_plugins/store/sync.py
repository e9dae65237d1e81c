"""``SyncStore``: the store for plain code. Same verbs as ``RoutingStore``, safe to call from several threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from ..backend import Backend, BlockingBackend
from ..errors import StoreUnavailableError
from ..threads import begin
from .bridge import LoopThread, inline, moves_many, run_inline
from .direct import Direct
from .routing_store import RoutingStore

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from ..arena.file import ArenaFile
    from ..backend import Choose, Deliver
    from ..keys import RoutingKey
    from ..record import RoutingRecord, Versions
    from ..resolver import ResolvedStore
    from ..schema import RoutingSchema
    from ..status import PutOutcome, RolloutStatus
    from .inspection import RolloutStat, VerifyReport
    from .selection import Selection

T = TypeVar("T")


class SyncStore:
    """Routing by key, for plain code; ``open_store`` makes one. Close it, or use it as a context manager.

    A blocking backend runs in the caller's own thread; an asynchronous one in an event loop of its own.

    Attributes:
        resolved: Which store it is and how it is configured.
        namespace: The namespace that all keys belong to.
        producer: Who this handle writes as.
    """

    def __init__(self, resolved: ResolvedStore, schema: RoutingSchema | None = None) -> None:
        self.resolved = resolved
        self.namespace = resolved.namespace
        self.producer = resolved.producer
        backend = resolved.create_backend()
        self._moves_many = moves_many(backend)
        self._loop: LoopThread | None = None
        self._run: Callable[[Coroutine[Any, Any, Any]], Any]
        self._direct: Direct | None = None
        if isinstance(backend, BlockingBackend):
            self._store = RoutingStore(resolved, inline(backend), schema, call_limit=None, shared_loop=False)
            self._run = run_inline
            self._direct = Direct(self._store, backend)
        else:
            assert isinstance(backend, Backend)
            self._store = RoutingStore(resolved, backend, schema)
            self._loop = LoopThread()
            self._run = self._loop.run
        try:
            self._run(self._store.open())
        except BaseException:
            if self._loop is not None:
                self._loop.stop()
            raise

    @property
    def schema(self) -> RoutingSchema | None:
        """The schema that the store was opened with."""
        return self._store.schema

    def __enter__(self) -> SyncStore:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return self._store.__reduce__()

    def __del__(self) -> None:
        loop = getattr(self, "_loop", None)
        if loop is not None:
            loop.stop(0.0)  # a store that was dropped, not closed, leaves no thread behind

    def __repr__(self) -> str:
        return f"SyncStore({self.resolved.name!r}, namespace={self.namespace!r})"

    def close(self, timeout: float = 5.0) -> None:
        """Closes the store; harmless when already closed. Never hangs.

        Raises:
            StoreUnavailableError: it did not close within ``timeout`` seconds.
        """
        if self._loop is None:
            _run_bounded(lambda: run_inline(self._store.close()), timeout, self.resolved.name)
            return
        try:
            if self._loop.alive:
                self._loop.run(self._store.close(timeout), timeout + 1.0)
        finally:
            self._run = run_inline  # without its loop every verb ends at once, in StoreClosedError
            self._loop.stop()

    def run(self, job: Callable[[RoutingStore], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine over the asynchronous form of this store. It must await nothing but the store's verbs."""
        result: T = self._run(job(self._store))
        return result

    @property
    def moves_many(self) -> bool:
        """Whether this is a blocking backend that moves many objects in one go."""
        return self._loop is None and self._moves_many

    @property
    def loop(self) -> LoopThread | None:
        """Where the coroutines of an asynchronous backend run; a blocking one has none, but the caller's thread."""
        return self._loop

    def collect(
        self,
        prefixes: Sequence[str],
        choose: Choose,
        deliver: Deliver,
    ) -> None:
        """Hands over what a blocking backend has of several rollouts; see ``BlockingBackend._collect``."""
        if self._direct is not None:
            self._direct.collect(prefixes, choose, deliver)

    def inherit(self) -> None:
        """See ``RoutingStore.inherit``."""
        self._run(self._store.inherit())

    def make_room(self, arena: ArenaFile, nbytes: int) -> int:
        """See ``RoutingStore.make_room``."""
        freed: int = self._run(self._store.make_room(arena, nbytes))
        return freed

    def linger(self) -> None:
        """See ``RoutingStore.linger``."""
        self._run(self._store.linger())

    def flush(self) -> None:
        """See ``RoutingStore.flush``."""
        self._run(self._store.flush())

    def put(
        self,
        key: str | RoutingKey,
        routing: Any,
        *,
        schema: RoutingSchema | None = None,
        choice: int = 0,
        attempt: int = 0,
        layers: Selection = None,
        tokens: Selection = None,
        total_tokens: int | None = None,
        layout: str = "layer_first",
        weight_versions: Versions = (),
    ) -> PutOutcome:
        """See ``RoutingStore.put``."""
        outcome: PutOutcome = self._run(
            self._store.put(
                key,
                routing,
                schema=schema,
                choice=choice,
                attempt=attempt,
                layers=layers,
                tokens=tokens,
                total_tokens=total_tokens,
                layout=layout,
                weight_versions=weight_versions,
            )
        )
        return outcome

    def put_draft(
        self, key: RoutingKey, routing: Any, schema: RoutingSchema, stamp: Mapping[str, Any], **how: Any
    ) -> PutOutcome:
        """See ``RoutingStore.put_draft``."""
        outcome: PutOutcome = self._run(self._store.put_draft(key, routing, schema, stamp, **how))
        return outcome

    def keeps(self) -> bool:
        """See ``RoutingStore.keeps``."""
        return bool(self._run(self._store.keeps()))

    def seal(self, key: str | RoutingKey, total_tokens: int, *, choice: int = 0, attempt: int = 0) -> None:
        """See ``RoutingStore.seal``."""
        self._run(self._store.seal(key, total_tokens, choice=choice, attempt=attempt))

    def abort(self, key: str | RoutingKey, reason: str, *, choice: int = 0, attempt: int = 0) -> None:
        """See ``RoutingStore.abort``."""
        self._run(self._store.abort(key, reason, choice=choice, attempt=attempt))

    def get(
        self,
        key: str | RoutingKey,
        *,
        timeout: float = 0.0,
        choice: int = 0,
        layers: Selection = None,
        tokens: Selection = None,
        layer_ids: Sequence[int] | None = None,
        min_attempt: int = 0,
        verify: bool = True,
        view: bool = False,
    ) -> RoutingRecord:
        """See ``RoutingStore.get``."""
        if self._direct is not None and layers is None and tokens is None and layer_ids is None:
            there = self._direct.get(key, choice, timeout, min_attempt, verify, view)
            if there is not None:
                return there
        record: RoutingRecord = self._run(
            self._store.get(
                key,
                timeout=timeout,
                choice=choice,
                layers=layers,
                tokens=tokens,
                layer_ids=layer_ids,
                min_attempt=min_attempt,
                verify=verify,
                view=view,
            )
        )
        return record

    def wait(self, key: str | RoutingKey, *, timeout: float, choice: int = 0, min_attempt: int = 0) -> RolloutStatus:
        """See ``RoutingStore.wait``."""
        status: RolloutStatus = self._run(
            self._store.wait(key, timeout=timeout, choice=choice, min_attempt=min_attempt)
        )
        return status

    def status(self, key: str | RoutingKey, *, choice: int = 0) -> RolloutStatus:
        """See ``RoutingStore.status``."""
        status: RolloutStatus = self._run(self._store.status(key, choice=choice))
        return status

    def stat(self, key: str | RoutingKey, *, choice: int = 0) -> RolloutStat:
        """See ``RoutingStore.stat``."""
        stat: RolloutStat = self._run(self._store.stat(key, choice=choice))
        return stat

    def verify(self, key: str | RoutingKey, *, choice: int = 0) -> VerifyReport:
        """See ``RoutingStore.verify``."""
        report: VerifyReport = self._run(self._store.verify(key, choice=choice))
        return report

    def list(self, prefix: str | None = None) -> list[RolloutStatus]:
        """See ``RoutingStore.list``."""
        found: list[RolloutStatus] = self._run(self._store.list(prefix))
        return found

    def delete(self, *keys: str | RoutingKey, choice: int = 0) -> int:
        """See ``RoutingStore.delete``."""
        return int(self._run(self._store.delete(*keys, choice=choice)))

    def delete_prefix(self, prefix: str) -> int:
        """See ``RoutingStore.delete_prefix``."""
        return int(self._run(self._store.delete_prefix(prefix)))

    def clear(self, *, everything: bool = False) -> int:
        """See ``RoutingStore.clear``."""
        return int(self._run(self._store.clear(everything=everything)))


def _run_bounded(function: Callable[[], None], timeout: float, store: str) -> None:
    """Runs a function that may hang in a daemon thread, for at most ``timeout`` seconds."""
    failure: list[BaseException] = []

    def body() -> None:
        try:
            function()
        except BaseException as err:  # noqa: BLE001 - raised again in the caller's thread
            failure.append(err)

    thread = threading.Thread(target=body, name="fd-routing-close", daemon=True)
    try:
        begin(thread)
    except StoreUnavailableError:
        function()  # closing gives threads back
        return
    thread.join(timeout)
    if thread.is_alive():
        raise StoreUnavailableError(f"store {store!r} did not close within {timeout} s")
    if failure:
        raise failure[0]
