"""One operation of a block, done to the store: ``Executor``."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from ..arena.copying import copy_into
from ..arena.layout import State
from ..backend import LentBlock
from ..errors import AbortedError, BackendError, NotFoundError, QuarantinedError, RoutingError, WorkerError
from ..keys import RolloutId, RoutingKey
from ..record import WeightSpan
from ..spec import Capability
from .givingup import GivingUp
from .honesty import Honesty, VanishedError
from .messages import Outcome, failed
from .operations import AbortOp, ClearOp, DeleteOp, DeletePrefixOp, FlushOp, PutOp, SealOp, Setup
from .spill import read_spilled, remove_spilled
from .tasks import LentBuffer, Retry, Task

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import numpy.typing as npt

    from ..arena.view import ArenaView
    from ..backend import Buffer
    from ..schema import RoutingSchema
    from ..status import PutOutcome, RolloutStatus
    from ..store.sync import SyncStore

_log = logging.getLogger("fastdeploy_routing_plugins.writer")

MAX_STARTS = 3  # a worker that dies so often over one block is not tried again


class Executor:
    """Does the operations of one arena's blocks to a store. Its calls may come from several threads.

    Args:
        store: The open store.
        view: The arena.
        setup: The arena's text.
        producer: Who handed the parts over.
        released: Called with a sequence when a backend gives a retained payload back.
        lends: Whether a backend may keep payloads in the arena; not in one that is removed right after.
    """

    def __init__(
        self,
        store: SyncStore,
        view: ArenaView,
        setup: Setup,
        producer: str,
        released: Callable[[int], None] = lambda sequence: None,
        *,
        lends: bool = True,
    ) -> None:
        self._store = store
        self._view = view
        self._setup = setup
        self._schema: RoutingSchema = setup.schema()
        self._producer = producer
        self._released = released
        self._has = store.resolved.spec.capabilities
        self._lends = lends and Capability.RETAIN in self._has
        self._honesty = Honesty()
        self._giving_up = GivingUp(store) if setup.abort_lost else None
        self._lane = threading.local()
        self._said = False
        self._only_last_turn = store.resolved.only_last_turn and Capability.LIST in self._has

    def run(self, task: Task) -> Outcome | Retry:
        """Does an operation; marks the block when that succeeds. Failures are outcomes, only bugs raise."""
        block = task.block
        starts = self._view.starts(block)
        if starts >= MAX_STARTS:
            err = QuarantinedError(
                f"given up after the store worker died or hung {starts} times while storing this",
                hint="the store's log, or the worker's last words in this log, may say why",
            )
            if starts == MAX_STARTS:  # once: this may hang or kill as well
                self._view.set_starts(block, starts + 1)
                self._lose(task, err)
            return failed(block.sequence, err)
        began = time.monotonic()
        task.tries += 1
        self._view.set_starts(block, starts + 1)
        try:
            outcome = self._do(task, began)
        except RoutingError as err:
            self._lane.memory = None  # a call that was given up may still look at it
            pause = task.pause_after(err, self._setup.retry_for)
            self._view.set_starts(block, 0)
            if pause is not None:
                self._say_once(err)
                return Retry(pause)
            self._lose(task, err)
            task.over = True
            return failed(block.sequence, err, time.monotonic() - began, retained=task.retained)
        except BaseException as err:  # noqa: BLE001 - whatever happens in a lane, the engine hears of it
            self._view.set_starts(block, 0)
            fault = WorkerError(f"the store worker failed: {type(err).__name__}: {err}")
            self._lose(task, fault)
            return failed(block.sequence, fault)
        task.over = True
        if isinstance(task.operation, PutOp):
            self._said = False
        self._view.mark(block, State.RETAINED if outcome.retained else State.DONE)
        self._view.set_starts(block, 0)  # later workers do what is retained again: that one died is not its fault
        if outcome.retained and not task.retained:
            self._view.mark(block, State.DONE)  # given back in between
            self._released(block.sequence)
        if isinstance(task.operation, PutOp) and task.operation.spill:
            remove_spilled(self._setup.spill_dir, task.operation.spill)
        if self._giving_up is not None:
            self._giving_up.catch_up(everything=isinstance(task.operation, FlushOp))
        return outcome

    def _say_once(self, err: RoutingError) -> None:
        """Tells the engine's log that parts wait for the store; again only after it took one."""
        if not self._said and not isinstance(err, BackendError):  # which has few tries
            self._said = True
            text = "the store takes nothing at the moment, each part is tried again for up to %g s: %s: %s"
            _log.warning(text, self._setup.retry_for, err.code, err)

    def _lose(self, task: Task, err: RoutingError) -> None:
        if self._giving_up is not None:
            self._giving_up.lost(task.operation, err)

    def _do(self, task: Task, began: float) -> Outcome:
        store, operation, sequence = self._store, task.operation, task.block.sequence
        count = 0
        if isinstance(operation, PutOp):
            return self._put(task, operation, began)
        if isinstance(operation, SealOp):
            store.seal(operation.key, operation.total_tokens, attempt=operation.attempt)
            self._check_marked(operation, lambda status: status.total_tokens is not None)
            self._drop_last_turn(operation.key)
        elif isinstance(operation, AbortOp):
            store.abort(operation.key, operation.reason, attempt=operation.attempt)
            self._check_marked(operation, lambda status: status.state == "aborted")
        elif isinstance(operation, DeleteOp):
            count = store.delete(operation.key)
        elif isinstance(operation, DeletePrefixOp):
            count = store.delete_prefix(operation.prefix)
        elif isinstance(operation, ClearOp):
            count = store.clear(everything=operation.everything)
        elif isinstance(operation, FlushOp):
            store.flush()
        return Outcome(sequence=sequence, count=count, seconds=time.monotonic() - began)

    def _put(self, task: Task, operation: PutOp, began: float) -> Outcome:
        key, block = operation.key, task.block
        if operation.spill:
            payload = read_spilled(self._setup.spill_dir, operation.spill, operation.nbytes)
        else:
            payload = self._view.payload(block)
        layers, tokens = (stop - start for start, stop in (operation.layers, operation.tokens))
        array = np.frombuffer(payload, np.dtype(operation.dtype))
        if operation.token_first:
            array = self._turned(array.reshape(tokens, layers, self._schema.top_k))
        else:
            array = array.reshape(layers, tokens, self._schema.top_k)
        in_place = not (operation.spill or operation.token_first)

        def given_back() -> None:
            if task.over and not task.retained:
                # The engine may hear of it only after this process died: its next worker must not store this again.
                if self._view.state(block) == State.RETAINED:
                    self._view.mark(block, State.DONE)
                self._released(block.sequence)

        place = LentBlock(self._view.file, block.page, block.generation, block.payload_at, task.again)

        def lend(data: memoryview, shape: tuple[int, ...], dtype: str) -> Buffer:
            task.lent.append(LentBuffer(data, shape, dtype, given_back, place))
            return task.lent[-1]

        how: dict[str, Any] = {
            "layers": operation.layers,
            "tokens": operation.tokens,
            "total_tokens": operation.total_tokens,
            "layout": "layer_first",
            "weight_versions": [WeightSpan(*span) for span in operation.weight_versions],
            "validate": self._setup.validate,
            "lend": lend if in_place and self._lends else None,
        }
        outcome = self._store.put_draft(key, array, self._schema, self._stamp(operation), **how)
        self._check_kept(operation, outcome)
        self._drop_last_turn(key)
        return Outcome(
            sequence=block.sequence,
            duplicate=outcome.duplicate,
            retained=task.retained,
            seconds=time.monotonic() - began,
        )

    def _turned(self, by_token: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns ``[layers, tokens, top_k]`` of ``[tokens, layers, top_k]``, in memory that this lane uses again."""
        memory: npt.NDArray[np.uint8] | None = getattr(self._lane, "memory", None)
        if memory is None or memory.nbytes < by_token.nbytes:
            memory = self._lane.memory = np.empty(by_token.nbytes, np.uint8)
        tokens, layers, top_k = by_token.shape
        turned = memory[: by_token.nbytes].view(by_token.dtype).reshape(layers, tokens, top_k)
        copy_into(turned, by_token.transpose(1, 0, 2))
        return turned

    def _stamp(self, operation: PutOp) -> dict[str, Any]:
        return {
            "namespace": self._store.namespace,
            "rollout_id": operation.rollout_id,
            "choice": operation.choice,
            "kind": operation.kind,
            "attempt": operation.attempt,
            "producer": self._producer,
            "time_ns": operation.time_ns,
        }

    def _check_kept(self, operation: PutOp, outcome: PutOutcome) -> None:
        """Raises BackendError if the store does not have what it said it took."""
        gone = not outcome.listed
        if self._setup.read_back and Capability.READ | Capability.LIST in self._has and not gone:
            try:
                self._store.get(
                    operation.key,
                    layers=operation.layers,
                    tokens=operation.tokens,
                    min_attempt=operation.attempt,
                )
            except NotFoundError:
                gone = True
            except AbortedError:
                pass
        if gone:
            self._check_honest(operation)

    def _check_marked(self, operation: SealOp | AbortOp, is_marked: Callable[[RolloutStatus], bool]) -> None:
        """Raises BackendError if the store does not have a mark that it said it took."""
        if Capability.LIST not in self._has:
            return
        try:
            status = self._store.status(operation.key)
        except NotFoundError:
            self._check_honest(operation)
            return
        # A contradiction, and a higher attempt, come from others.
        if status.attempt == operation.attempt and status.state != "conflict" and not is_marked(status):
            self._check_honest(operation)

    def _check_honest(self, operation: PutOp | SealOp | AbortOp) -> None:
        """Raises VanishedError unless it is all but certain that somebody deleted at once what is gone again."""
        if not self._honesty.holds(self._store):
            raise VanishedError(
                f"store {self._store.resolved.name!r} took part of {operation.key}, but does not have it",
                hint="the store does not keep all that it takes: `fd-routing try`",
            )

    def _drop_last_turn(self, key: RoutingKey) -> None:
        """With ``only_last_turn``: deletes the turn before a complete one, and this one if its next is complete.

        A trajectory that is produced again begins with turn 0: later turns of lower attempts are not its next ones.
        """
        rollout = RolloutId.parse(key.rollout_id)
        if not self._only_last_turn or rollout.turn is None:
            return
        this, before = self._status(key), _turn(rollout, key, rollout.turn - 1) if rollout.turn else None
        if this is not None and _follows(self._status(_turn(rollout, key, rollout.turn + 1)), this):
            self._store.delete(key)
        elif before is not None and this is not None and (old := self._status(before)) and _follows(this, old):
            self._store.delete(before)

    def _status(self, key: RoutingKey) -> RolloutStatus | None:
        return self._store.run(lambda store: store._known(key))


def _follows(later: RolloutStatus | None, turn: RolloutStatus) -> bool:
    return later is not None and later.state == "complete" and later.attempt >= turn.attempt


def _turn(rollout: RolloutId, key: RoutingKey, turn: int) -> RoutingKey:
    return RoutingKey(f"{rollout.trajectory}:{turn}:{rollout.segment}", key.choice, key.kind)
