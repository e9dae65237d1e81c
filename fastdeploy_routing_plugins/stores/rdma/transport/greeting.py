"""How a reader begins a connection to a producer's TCP server: who is meant, which version, who knows the secret."""

from __future__ import annotations

import hmac
import os
from typing import TYPE_CHECKING

from ....errors import ConfigError, CorruptDataError, RoutingError, StoreUnavailableError, UnsupportedError
from . import frames
from .frames import Answer, Hello

if TYPE_CHECKING:
    from .stream import Stream


def shake_hands(stream: Stream, where: str, owner: str, secret: str, deadline: float) -> None:
    """Finds out that the right producer is there, and lets it know who asks.

    Args:
        stream: A new connection.
        where: Where it leads, for messages.
        owner: The producer that is meant.
        secret: What both know; empty: nothing.
        deadline: When to give up, in ``time.monotonic()``.

    Raises:
        TimeoutError: the deadline passed.
        OSError: the connection broke.
        StoreUnavailableError: somebody else listens there, or the producer has too many readers.
        ConfigError: one side has a secret that the other has not.
        UnsupportedError: the other side speaks another version.
    """
    hello = Hello(owner, bool(secret), os.urandom(frames.NONCE)).encode()
    stream.send(hello, deadline)
    raw = stream.exactly(frames.CHALLENGE_BYTES, deadline)
    try:
        challenge = frames.decode_challenge(raw)
    except CorruptDataError:
        raise StoreUnavailableError(f"what listens at {where} is no producer of routing") from None
    if challenge.answer == Answer.OTHER_VERSION or challenge.version != frames.VERSION:
        raise UnsupportedError(
            f"the producer at {where} speaks version {challenge.version} of the TCP protocol, "
            f"this side {frames.VERSION}",
            hint="install the same version of fastdeploy-routing-plugins on both sides",
        )
    answer = challenge.answer
    if answer == Answer.PROVE and secret:
        stream.send(frames.prove(secret, b"reader", hello, raw), deadline)
        answer, proof = frames.decode_verdict(stream.exactly(frames.VERDICT_BYTES, deadline))
        expected = frames.prove(secret, b"producer", hello, raw)
        if answer == Answer.WELCOME and not hmac.compare_digest(proof, expected):
            answer = Answer.WRONG_SECRET
    elif answer == Answer.WELCOME and secret:
        answer = Answer.HAS_NO_SECRET
    if answer != Answer.WELCOME:
        raise _refusal(answer, where)


def _refusal(answer: int, where: str) -> RoutingError:
    """Returns why a producer turned this reader away."""
    if answer in (Answer.NEEDS_SECRET, Answer.HAS_NO_SECRET, Answer.WRONG_SECRET, Answer.PROVE):
        why = {
            Answer.HAS_NO_SECRET: "has no secret, but this side has one",
            Answer.WRONG_SECRET: "has another secret than this side",
        }.get(Answer(answer), "wants a secret, and this side has none")
        problem = f"the producer at {where} {why}"
        return ConfigError(problem, hint="set the same option secret on both sides", problems=(problem,))
    if answer == Answer.OTHER_OWNER:
        return StoreUnavailableError(f"another producer than the one that is meant listens at {where}")
    if answer == Answer.BUSY:
        return StoreUnavailableError(f"the producer at {where} has too many readers at the moment")
    return StoreUnavailableError(f"the producer at {where} does not welcome this reader (answer {answer})")
