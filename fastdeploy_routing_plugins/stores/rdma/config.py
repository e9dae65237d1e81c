"""Configuration of ``rdma``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ...errors import ConfigError
from .address import Address, parse

_REDIS = ("redis://", "rediss://", "redis+sentinel://", "redis+cluster://")


@dataclass(frozen=True, slots=True)
class RdmaConfig:
    """How ``rdma`` is configured.

    Attributes:
        server: Address of the metadata service, ``zmq://HOST:SYNC,HOST:COORD``; empty: one that the processes of this
            host, user and namespace share, which the first of them runs.
            ``redis://HOST:PORT/DB?protocol=tcp&device=NAME`` or
            ``redis+sentinel://`` is no service of this package, but p2pstore, for trainers that read from it.
        transport: How bytes come to readers. ``"auto"``: shared memory on the same host, RDMA where both sides have
            it, else TCP. A named one is never replaced.
        bind: Address that a producer's TCP server listens on and is reached by. Empty: loopback if the service is
            there, else the address from which this host reaches the service.
        port: Port of that server; 0: any free one.
        capacity: Bytes that a producer keeps outside of an engine's arena, taken at its first put; 0: a quarter of the
            free room, up to 256 MiB.
        when_full: What becomes of a put without room. ``"refuse"``: it fails. ``"evict"``: the oldest rollouts go, and
            their readers get ``EvictedError``.
        linger: Seconds for which a store worker whose engine is gone goes on serving what readers did not release.
        timeout: Seconds after which a call gives up on a service or producer that does not answer.
        arena_dir: A tmpfs for shared memory.
        secret: Shared secret: the service asks for it if it has one, and producers ask readers for it, by TCP.
        keys: File with the CURVE keys for the metadata service, made by ``fd-routing keygen``.
        device: RDMA devices to use, by name, parted by commas; empty: all.
        allow_tcp: Whether Mooncake may fall back to its own TCP mode, which is meant for tests.
        protocol: Over p2pstore: its protocol, as ``transport`` or the address' query may state it, too; empty: its own
            default.
        value: Over p2pstore: whole rollouts as ``"raw"`` bytes, as FastDeploy puts them, or as an ``"array"``.
        header: Over p2pstore: whether what this package knows of an object is kept in Redis beside the value, so that
            readers verify it. Without, only what FastDeploy's own store can say is there.
        exclusive: Over p2pstore: whether clearing a namespace clears all of p2pstore, whoever put it.
        schema: Over p2pstore: the model, ``experts=256,top_k=8,layers=3-60``, to read values without a header.
        dtype: Over p2pstore: dtype of ids in values; empty: the one that FastDeploy would choose.
        pad_to: Over p2pstore: tokens that values are padded to with -1, as FastDeploy does to its ``max_model_len``.
    """

    server: str = field(
        default="",
        metadata={
            "doc": "metadata service, `zmq://HOST:SYNC,HOST:COORD`; empty: one shared by this host, user and namespace"
        },
    )
    transport: Literal["auto", "shm", "tcp", "rdma"] = field(
        default="auto", metadata={"doc": "how bytes come to readers; a named transport is never replaced"}
    )
    bind: str = field(
        default="", metadata={"doc": "address of a producer's TCP server; empty: as near as the service"}
    )
    port: int = field(default=0, metadata={"doc": "port of that server; 0: any free one"})
    capacity: int = field(
        default=0,
        metadata={
            "doc": "bytes for what no engine's arena keeps, taken at the first put; 0: a quarter of the room, "
            "at most 256 MiB"
        },
    )
    when_full: Literal["refuse", "evict"] = field(
        default="refuse", metadata={"doc": "whether a put without room fails, or the oldest rollouts go"}
    )
    linger: float = field(
        default=60.0, metadata={"doc": "seconds that unreleased routing is served after the engine is gone"}
    )
    timeout: float = field(
        default=5.0, metadata={"doc": "seconds after which a service or producer that is silent is given up"}
    )
    arena_dir: str = field(default="/dev/shm", metadata={"doc": "a tmpfs for shared memory"})  # noqa: S108 - one is needed
    secret: str = field(
        default="", metadata={"doc": "shared secret of service, producers and readers", "secret": True}
    )
    keys: str = field(default="", metadata={"doc": "file of CURVE keys, made by `fd-routing keygen`"})
    device: str = field(default="", metadata={"doc": "RDMA devices by name, parted by commas; empty: all"})
    allow_tcp: bool = field(
        default=False, metadata={"doc": "whether transport `rdma` may run over Mooncake's TCP mode, for tests"}
    )

    protocol: Literal["", "tcp", "rdma"] = field(
        default="", metadata={"doc": "over p2pstore: its protocol, also in the address' query; empty: its default"}
    )
    value: Literal["raw", "array"] = field(
        default="raw",
        metadata={"doc": "over p2pstore: whole rollouts as raw bytes, as FastDeploy has them, or as array"},
    )
    header: bool = field(
        default=True, metadata={"doc": "over p2pstore: whether headers are kept beside values, so that readers verify"}
    )
    exclusive: bool = field(
        default=False, metadata={"doc": "over p2pstore: whether clearing takes everything, whoever put it"}
    )
    schema: str = field(
        default="",
        metadata={"doc": "over p2pstore: `experts=256,top_k=8,layers=3-60`, to read values without a header"},
    )
    dtype: str = field(default="", metadata={"doc": "over p2pstore: dtype of ids; empty: what FastDeploy chooses"})
    pad_to: int = field(
        default=0, metadata={"doc": "over p2pstore: tokens that values are padded to, FastDeploy's `max_model_len`"}
    )

    def __post_init__(self) -> None:
        problems = []
        if self.redis:
            from .p2pstore.config import problems_of  # noqa: PLC0415 - only what is over p2pstore needs it

            problems += problems_of(self)
        elif self.server:
            try:
                address = parse(self.server)
                if address.everywhere:
                    problems.append("server: all interfaces is where a service listens, not where it is reached")
            except ConfigError as err:
                problems.append(str(err))
        if self.keys and not self.server:
            problems.append("keys are for a service at an address: state server, too")
        for name in ("capacity", "port", "linger"):
            if getattr(self, name) < 0:
                problems.append(f"{name} must not be negative, got {getattr(self, name)}")
        if self.port > 65_535:
            problems.append(f"port must be at most 65535, got {self.port}")
        if not 0.1 <= self.timeout <= 3600:
            problems.append(f"timeout must be 0.1 to 3600 seconds, got {self.timeout}")
        if problems:
            raise ConfigError("; ".join(problems), problems=tuple(problems))

    @property
    def redis(self) -> bool:
        """Whether the address is Redis: routing goes over p2pstore then."""
        return self.server.lower().startswith(_REDIS)

    @property
    def shows_layers(self) -> bool:
        """Whether others may look for the layers of a rollout one by one, as trainers with a p2pstore client do."""
        return bool(self.redis)

    @property
    def address(self) -> Address | None:
        """The service's address, or None for the one of this host and user, and without any over p2pstore."""
        return parse(self.server) if self.server and not self.redis else None
