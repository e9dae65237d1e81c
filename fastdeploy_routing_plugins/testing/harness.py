"""What a test of the kit works with: ``Harness``, and the decorator that makes plain test functions."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import secrets
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pytest

from ..backend import Backend, BlockingBackend
from ..errors import AbsentError, AlreadyExistsError, UnsupportedError
from ..resolver import ResolvedStore, resolve
from ..spec import Capability
from ..store.bridge import as_async
from .guard import Guarded
from .peer import Peer, clean_environ
from .samples import Sample, cut, pieces, root, sample

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

LIMIT = 90.0  # s that one test may take before it counts as hung
CLOSE_LIMIT = 5.0  # s that closing may take


class ConformanceBase(Guarded):
    """What an author states about a store.

    Attributes:
        store: The store's name; it is resolved through its real entry point.
        persistent: Whether what was put outlives every process that has the store open.
    """

    store: ClassVar[str] = ""
    persistent: ClassVar[bool] = True

    def config(self, tmp_path: Path) -> dict[str, Any]:
        """Returns the store's own options, the same for the same folder; the folder is the store's to fill."""
        return {}

    async def settle(self) -> None:
        """Waits until what one process put is seen by all, for a store that needs a moment."""

    def raw_names(self, config: dict[str, Any]) -> list[str] | None:
        """Returns the names that are really stored, found without the store's methods; None: not offered."""
        return None

    def directory(self, config: dict[str, Any]) -> Path | None:
        """Returns the one folder that the store may write to, for stores that live in a folder."""
        return None


class Harness:
    """One test's view of the store.

    Attributes:
        owner: The author's class.
        tmp_path: The test's folder.
        home: The folder within that the store's configuration was made from; some levels deep, so that a store that
            climbs out of it is still seen.
        options: The store's own options.
        namespace: A namespace of this test alone.
    """

    def __init__(self, owner: ConformanceBase, tmp_path: Path) -> None:
        assert owner.store, f'{type(owner).__name__} must say which store it tests: store = "name"'
        self.owner = owner
        self.tmp_path = tmp_path
        self.home = tmp_path / "kit" / "deep" / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        self.options = owner.config(self.home)
        self.namespace = f"kit{secrets.token_hex(4)}"
        self.resolved = self.resolve()

    def configuration(self, *, namespace: str | None = None, producer: str = "kit") -> dict[str, Any]:
        """Returns the whole configuration in the normal form."""
        own = {**self.options, "namespace": namespace or self.namespace, "producer": producer}
        return {"routing_store_type": self.owner.store, "routing_store_config": own}

    def resolve(self, *, namespace: str | None = None, producer: str = "kit") -> ResolvedStore:
        """Resolves the store as an engine does."""
        return resolve(self.configuration(namespace=namespace, producer=producer), environ=clean_environ())

    @property
    def capabilities(self) -> Capability:
        """What the store declares."""
        return self.resolved.spec.capabilities

    @property
    def root(self) -> str:
        """The prefix of every name in the test's namespace."""
        return root(self.namespace)

    @contextlib.asynccontextmanager
    async def backend(self) -> AsyncIterator[Backend]:
        """Opens one more handle on the store and closes it at the end."""
        backend = as_async(self.resolved.create_backend(), bare=True)
        try:
            await backend._open()
            yield backend
        finally:
            await close_quietly(backend)

    def peer(self, *, cwd: Path | None = None) -> Peer:
        """Returns another process that opens the store."""
        return Peer(self.resolved, cwd=cwd)

    async def settle(self) -> None:
        """Waits as the author says, between a put and a look from elsewhere."""
        await self.owner.settle()

    async def assert_refused(self, missing: Capability) -> None:
        """Asserts that verbs behind undeclared capabilities raise ``UnsupportedError``."""
        item = sample(self.namespace)
        async with self.backend() as backend:
            await backend._put(item.name, item.header, item.buffer())
            if Capability.READ in missing:
                with pytest.raises(UnsupportedError):
                    await backend._get(item.name)
            if Capability.LIST in missing:
                with pytest.raises(UnsupportedError):
                    await backend._list(self.root)
            if Capability.RANGE in missing:
                assert not await cuts_ranges(backend, item), "the store cuts ranges out without declaring it"


async def assert_absent(backend: Backend, name: str) -> None:
    """Asserts that ``_get`` of a name that is not stored raises ``AbsentError``."""
    __tracebackhide__ = True
    try:
        found: object = await backend._get(name)
    except AbsentError:
        return
    raise AssertionError(
        f"_get of a name that is not stored returned {found!r}: it must raise NotFoundError (or another AbsentError)"
    )


def assert_carries_header(refusal: AlreadyExistsError, header: bytes) -> None:
    """Asserts that a refused put says which header is stored."""
    __tracebackhide__ = True
    carried = refusal.facts.get("header")
    assert carried is not None, (
        "AlreadyExistsError came without the stored object's header: "
        "read it and raise AlreadyExistsError(message, header=stored_header)"
    )
    assert carried == header, "the header= of AlreadyExistsError must be the stored object's, not the refused one's"


async def close_quietly(backend: Backend) -> None:
    """Closes a backend at the end of a test about something else; ``test_close_returns_in_time`` is the strict one."""
    await in_time(backend._close(), CLOSE_LIMIT)


async def in_time(operation: Coroutine[Any, Any, Any], limit: float) -> bool:
    """Awaits an operation for a number of seconds; cancels it and returns False if it takes longer."""
    __tracebackhide__ = True
    task = asyncio.ensure_future(operation)
    try:
        done, _ = await asyncio.wait({task}, timeout=limit)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if done:
        task.result()
        return True
    task.cancel()
    await asyncio.wait({task}, timeout=CLOSE_LIMIT)
    return False


async def cuts_ranges(backend: Backend, item: Sample) -> bool:
    """Whether ``_get`` returns exactly the asked ranges of an object that is stored."""
    asked = ((1, 2), (5, len(item.payload) - 1))
    try:
        return pieces(await backend._get(item.name, asked)) == cut(item.payload, asked)
    except (UnsupportedError, TypeError):  # a store without ranges never sees any: it may not know the argument
        return False


def overrides(backend: Backend | BlockingBackend, verb: str) -> bool:
    """Whether a store has its own form of an optional verb."""
    base = Backend if isinstance(backend, Backend) else BlockingBackend
    return inspect.getattr_static(type(backend), verb) is not inspect.getattr_static(base, verb)


OwnerT = TypeVar("OwnerT", bound=ConformanceBase)


def conformance(
    needs: Capability = Capability.NONE,
) -> Callable[[Callable[[OwnerT, Harness], Coroutine[Any, Any, None]]], Callable[[OwnerT, Path], None]]:
    """Makes a plain test function of an asynchronous scenario.

    Args:
        needs: Capabilities that the scenario is about. For a store that does not declare them, the test asserts
            instead that they are refused.
    """

    def decorate(
        scenario: Callable[[OwnerT, Harness], Coroutine[Any, Any, None]],
    ) -> Callable[[OwnerT, Path], None]:
        def test(self: OwnerT, tmp_path: Path) -> None:
            __tracebackhide__ = True
            kit = Harness(self, tmp_path)
            missing = needs & ~kit.capabilities
            asyncio.run(_bounded(kit.assert_refused(missing) if missing else scenario(self, kit)))

        test.__name__ = scenario.__name__
        test.__qualname__ = scenario.__qualname__
        test.__module__ = scenario.__module__
        test.__doc__ = scenario.__doc__
        return test

    return decorate


async def _bounded(scenario: Coroutine[Any, Any, None]) -> None:
    __tracebackhide__ = True
    assert await in_time(scenario, LIMIT), f"not done after {LIMIT:.0f} s"
