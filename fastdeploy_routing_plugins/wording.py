"""How messages speak of numbers."""

from __future__ import annotations


def counted(number: int, word: str, several: str = "") -> str:
    """Returns ``1 rollout`` or ``2 rollouts``.

    Args:
        number: How many.
        word: What one is called.
        several: What more are called, unless that is ``word`` with an s.
    """
    return f"{number} {word if number == 1 else several or word + 's'}"
