"""Every error of the package: a code for programs, a message for people, a hint that says what to do.

All errors pickle, so that they cross process borders unchanged. Extra facts travel as attributes (see each class) and
survive pickling too.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

E = TypeVar("E", bound="RoutingError")


class RoutingError(Exception):
    """Base of all errors.

    Attributes:
        code: A stable identifier for programs, for example ``"not_found"``.
        message: One sentence for people.
        hint: What to do about it; may be empty.
        facts: Extra keyword facts, also readable as attributes.
    """

    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts = facts

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.facts)

    def with_facts(self: E, **facts: Any) -> E:
        """Returns a copy of this error that carries further facts, such as ``waited`` seconds."""
        return type(self)(self.message, hint=self.hint, **{**self.facts, **facts})


def _rebuild(cls: type[RoutingError], message: str, hint: str, facts: dict[str, Any]) -> RoutingError:
    return cls(message, hint=hint, **facts)


# --- choosing a store ---------------------------------------------------------------------------------------------


class ResolveError(RoutingError):
    """A store could not be chosen; subclasses say why."""

    code = "resolve"


class UnknownStoreError(ResolveError):
    """No installed distribution offers a store of this name."""

    code = "unknown_store"


class DuplicateStoreError(ResolveError):
    """More than one distribution offers the name."""

    code = "duplicate_store"


class StoreLoadError(ResolveError):
    """The plugin's module could not be imported; the cause is chained."""

    code = "store_load"


class MissingDependencyError(ResolveError):
    """The store needs a module that is not installed. Fact: ``module``."""

    code = "missing_dependency"


class InvalidPluginError(ResolveError):
    """The plugin does not follow the contract."""

    code = "invalid_plugin"


class IncompatibleStoreError(ResolveError):
    """The plugin was written for another version of the store API."""

    code = "incompatible_store"


class StoreDisabledError(ResolveError):
    """An administrator's variable forbids the store."""

    code = "store_disabled"


class ConfigError(ResolveError):
    """The configuration is wrong. Fact: ``problems``, every problem found, in order."""

    code = "config"


# --- data that callers hand in ------------------------------------------------------------------------------------


class InvalidKeyError(RoutingError, ValueError):
    """An id, namespace, kind, choice, attempt or part that cannot be stored."""

    code = "invalid_key"


class InvalidRecordError(RoutingError, ValueError):
    """Routing that does not fit its schema: rank, shape, dtype, range of ids."""

    code = "invalid_record"


class SchemaMismatchError(RoutingError, ValueError):
    """Stored routing follows another schema than the reader states. Facts: ``stored``, ``expected``."""

    code = "schema_mismatch"


class LengthMismatchError(SchemaMismatchError):
    """Stored routing has another number of tokens than the reader states. Facts: ``stored``, ``expected``."""

    code = "length_mismatch"


# --- outcomes of store operations ---------------------------------------------------------------------------------


class StoreError(RoutingError):
    """Base of what can happen in a store."""

    code = "store"


class AbsentError(StoreError, LookupError):
    """The routing cannot be had; subclasses say why. Fact ``waited``: seconds spent before giving up."""

    code = "absent"


class NotFoundError(AbsentError):
    """Nobody ever put anything under this key, as far as the store knows."""

    code = "not_found"


class PendingError(AbsentError):
    """Parts exist, but the total number of tokens is not known yet. Fact: ``parts``."""

    code = "pending"


class IncompleteError(AbsentError):
    """The total is known and parts are missing. Fact ``missing``: a list of ``Part`` still absent."""

    code = "incomplete"


class AbortedError(AbsentError):
    """The producer gave the rollout up. Fact: ``reason``."""

    code = "aborted"


class DeletedError(AbsentError):
    """The routing existed and was deleted."""

    code = "deleted"


class EvictedError(AbsentError):
    """The routing existed and made room for others."""

    code = "evicted"


class ExpiredError(AbsentError):
    """The routing existed and outlived its time."""

    code = "expired"


class AlreadyExistsError(StoreError):
    """A backend holds an object of this name. Fact ``header``: the stored object's header bytes."""

    code = "already_exists"


class ConflictError(StoreError):
    """Different routing is stored, or was handed in, for the same place."""

    code = "conflict"


class SupersededError(StoreError):
    """A higher attempt of this rollout exists. Fact: ``attempt``."""

    code = "superseded"


class StaleError(StoreError):
    """The routing is there, but older weights made it than the reader accepts. Facts: ``key``, ``spans``."""

    code = "stale"


class CorruptDataError(StoreError):
    """Stored bytes are not what was written."""

    code = "corrupt_data"


class UnsupportedError(StoreError):
    """The store cannot do this."""

    code = "unsupported"


class StoreUnavailableError(StoreError):
    """The store does not answer at the moment; a retry may succeed."""

    code = "store_unavailable"


class ProducerLostError(StoreError):
    """The process that held the routing is gone."""

    code = "producer_lost"


class BackendError(StoreError):
    """The store's backend failed in a way that its contract does not have, or answered something impossible."""

    code = "backend"


class StoreClosedError(StoreError):
    """The store, or the writer, was closed."""

    code = "store_closed"


# --- the engine side ----------------------------------------------------------------------------------------------


class ArenaError(StoreError):
    """The shared memory between engine and worker cannot be used."""

    code = "arena"


class ArenaRoomError(ArenaError):
    """There is not enough shared memory for an arena; the hint says how to make some."""

    code = "arena_room"


class ArenaFullError(ArenaError):
    """The arena has no room for a part, and waiting did not help. The part was not taken."""

    code = "arena_full"


class WorkerError(StoreError):
    """The store worker cannot be started, or keeps dying."""

    code = "worker"


class QuarantinedError(StoreError):
    """A part was given up because the worker died or hung each time that it tried to store it."""

    code = "quarantined"
