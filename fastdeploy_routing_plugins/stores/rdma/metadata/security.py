"""What a client and a service need to trust each other."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Security:
    """How both sides prove who they are.

    Attributes:
        keys: File with CURVE keys, made by ``fd-routing keygen``; empty: no encryption.
        secret: A secret that both sides know; empty: none.
        bound: Whether a service with keys or a secret holds its clients to the namespace that they name.
    """

    keys: str = ""
    secret: str = field(default="", repr=False)
    bound: bool = True


def prove(secret: str, nonce: bytes, namespace: str) -> bytes:
    """Returns what only who knows the secret can say: HMAC-SHA256 of the nonce and the encoded namespace."""
    return hmac.new(secret.encode(), nonce + namespace.encode(), hashlib.sha256).digest()
