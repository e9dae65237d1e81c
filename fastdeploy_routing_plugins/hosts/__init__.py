"""Engines that this package plugs into."""
