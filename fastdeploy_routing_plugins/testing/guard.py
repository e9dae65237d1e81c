"""Keeps the kit whole: its tests cannot be replaced or deleted without saying why."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

_KIT = __name__.rpartition(".")[0]


class Guarded:
    """Base of the kit's classes. A subclass adds tests freely; one of ours it only changes under an xfail mark.

    For example, for a fault that is known and filed::

        @pytest.mark.xfail(reason="upstream issue 12: listings lag behind", strict=True)
        def test_listings_are_sorted(self, tmp_path):
            super().test_listings_are_sorted(tmp_path)

    Attributes:
        kit_tests: The kit's own tests by name, filled in as the kit's classes are made.
    """

    kit_tests: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__ == _KIT or cls.__module__.startswith(f"{_KIT}."):
            cls.kit_tests = {name: value for name, value in _members(cls).items() if name.startswith("test_")}
            return
        require_unchanged(cls)


def require_unchanged(cls: type[Guarded]) -> None:
    """Raises TypeError if a class replaces or deletes a test of the kit without an xfail mark that gives a reason."""
    members = _members(cls)
    ours = {name: value for base in cls.__mro__ for name, value in base.__dict__.get("kit_tests", {}).items()}
    changed = [
        name
        for name, original in ours.items()
        if members.get(name) is not original and not _excused(members.get(name))
    ]
    if changed:
        raise TypeError(
            f"{cls.__name__} replaces or deletes {', '.join(sorted(changed))} of the conformance kit: mark the "
            'replacement with @pytest.mark.xfail(reason="...") if the store has a known fault'
        )


def _members(cls: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        found.update(base.__dict__)
    return found


def _excused(member: Any) -> bool:
    marks = getattr(member, "pytestmark", ())
    return inspect.isfunction(member) and any(
        mark.name == "xfail" and str(mark.kwargs.get("reason", "")).strip() for mark in marks
    )
