"""Routing by key over any backend: what every store has in common. The door is ``RoutingStore``."""

from __future__ import annotations

from .routing_store import RoutingStore

__all__ = ["RoutingStore"]
