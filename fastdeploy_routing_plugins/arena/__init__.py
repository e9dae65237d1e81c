"""Shared memory between an engine and its store worker: one file of blocks that describe themselves.

``arena.Arena`` is the engine's side, ``view.ArenaView`` everybody else's; ``layout`` says what lies where.
"""
