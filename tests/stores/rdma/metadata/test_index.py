"""The ordered names and owners, against a plain model."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fastdeploy_routing_plugins.stores.rdma.metadata.index import Index
from fastdeploy_routing_plugins.stores.rdma.metadata.messages import Reason, State
from fastdeploy_routing_plugins.stores.rdma.metadata.owners import Owner

from .helpers import name, owner_info

NAMES = [name(rollout, what) for rollout in ("a", "a=3a1", "a=3a10", "b") for what in ("p-1", "s-2", "x")]
names = st.sampled_from(NAMES)
places = st.binary(max_size=4)
whose = st.integers(0, 2)


class Model(RuleBasedStateMachine):
    """Owners publish, die, come back and close; what is listed, found and refused follows from that."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = count()
        self.told: dict[str, tuple[str, bytes]] = {}
        self.counts: Counter[str] = Counter()
        self.index = Index(10**9, self.on_change, self.on_count)
        self.owners = [Owner("ns", b"", owner_info(str(i) * 32), b"", 0.0) for i in range(3)]
        for owner in self.owners:
            self.index.owners[owner.id] = owner
        self.held: dict[str, tuple[int, bytes]] = {}
        self.gone: dict[str, Reason] = {}

    def on_change(self, name: str, owner: Owner | None, place: bytes) -> None:
        if owner is None:
            self.told.pop(name, None)
        else:
            self.told[name] = owner.id, place

    def on_count(self, name: str, more: int) -> None:
        self.counts[name] += more

    @invariant()
    def every_name_is_counted_once(self) -> None:
        assert +self.counts == Counter(list(self.held))

    def alive(self, name: str) -> bool:
        return name in self.held and not self.owners[self.held[name][0]].dead

    @rule(who=whose, name=names, place=places, again=st.booleans())
    def publish(self, who: int, name: str, place: bytes, again: bool) -> None:
        owner = self.owners[who]
        if owner.dead:
            return
        expected: Any = None
        if name not in self.held:
            if name in self.gone and again:
                expected = self.gone[name]
        elif self.held[name][0] == who:
            expected = owner if self.held[name][1] != place and not again else None
        else:
            holder = self.owners[self.held[name][0]]
            expected = None if holder.dead or holder.heir == owner.id else holder
        assert self.index.publish(owner, name, place, again) == expected
        if expected is None:
            self.gone.pop(name, None)
            self.held[name] = who, place

    @rule(name=names, reason=st.sampled_from([Reason.DELETED, Reason.EVICTED, Reason.SUPERSEDED]))
    def delete(self, name: str, reason: Reason) -> None:
        expected = self.held[name][1] if self.alive(name) else None
        assert self.index.delete(name, reason, float(next(self.clock))) == expected
        if name in self.held:
            del self.held[name]
            self.gone[name] = reason

    @rule(who=whose, state=st.sampled_from(list(State)))
    def turn(self, who: int, state: State) -> None:
        self.index.set_state(self.owners[who], state, float(next(self.clock)))

    @rule(who=whose, heir=whose)
    def succeed(self, who: int, heir: int) -> None:
        self.owners[who].heir = self.owners[heir].id if who != heir else ""

    @precondition(lambda self: any(owner.dead for owner in self.owners))
    @rule()
    def forget(self) -> None:
        """Everything that is gone is forgotten."""
        self.index._budget = 0
        while self.index.forget(3):
            pass
        self.index._budget = 10**9
        self.gone.clear()
        for each in [each for each in self.held if not self.alive(each)]:
            del self.held[each]
            self.told.pop(each, None)

    @invariant()
    def names_are_held_as_the_model_says(self) -> None:
        found = {each: (owner.id, owner.places[each]) for each, owner in self.index.under("ns/")}
        assert found == {each: (str(who) * 32, place) for each, (who, place) in self.held.items()}
        assert list(found) == sorted(found)

    @invariant()
    def what_is_alive_is_counted(self) -> None:
        assert len(self.index) == sum(map(self.alive, self.held))

    @invariant()
    def what_is_gone_is_remembered(self) -> None:
        assert {each: self.index.why_not(each) for each in self.gone} == self.gone

    @invariant()
    def changes_were_told(self) -> None:
        assert {each: told for each, told in self.told.items() if self.alive(each)} == {
            each: (str(who) * 32, place) for each, (who, place) in self.held.items() if self.alive(each)
        }

    @rule(
        prefix=st.sampled_from(["", "ns/", "ns/a", "ns/a/", "ns/a=3a1/", name("b")]),
        after=st.sampled_from(["", *NAMES]),
    )
    def list_from(self, prefix: str, after: str) -> None:
        expected = sorted(each for each in self.held if each.startswith(prefix) and (not after or each > after))
        assert [each for each, _ in self.index.under(prefix, after)] == expected


TestIndex = Model.TestCase
TestIndex.settings = settings(max_examples=max(20, settings().max_examples // 5), stateful_step_count=40)
