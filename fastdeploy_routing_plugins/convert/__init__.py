"""Routing in the formats of other systems, to and from arrays and records: one module for each format."""
