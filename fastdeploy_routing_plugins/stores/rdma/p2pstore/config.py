"""Addresses and options of ``rdma`` over p2pstore, checked without p2pstore being installed.

An address is p2pstore's own with what p2pstore takes as separate arguments in its query::

    redis://[[USER:]PASSWORD@]HOST[:PORT][/DB][?protocol=tcp&device=mlx5_0]
    redis+sentinel://[[USER:]PASSWORD@]HOST:PORT,HOST:PORT/SERVICE[/DB][?...]
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from ....convert.fastdeploy import DTYPES
from ....errors import ConfigError, InvalidRecordError
from ....names import MAX_TOKENS
from ....schema import RoutingSchema

if TYPE_CHECKING:
    from ..config import RdmaConfig

SCHEMES = ("redis", "rediss", "redis+sentinel", "redis+cluster")
_EXAMPLE = "for example redis://10.0.0.5:6379/0?protocol=rdma"
_PORTS = {"redis": 6379, "redis+cluster": 6379, "redis+sentinel": 26379}
_PLACE = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")
_OWN = {"protocol": ("tcp", "rdma"), "device": None}
_LAYERS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class P2pAddress:
    """Where p2pstore's Redis is, and how p2pstore is to move bytes.

    Attributes:
        scheme: One of ``SCHEMES``.
        url: The address as p2pstore takes it, without what is this package's.
        places: Hosts and ports: one server, or the sentinels.
        database: Number of the database.
        username: For ``AUTH``, as written: p2pstore decodes no percent signs.
        password: For ``AUTH``, as written.
        service: What sentinels call the server.
        protocol: ``"tcp"``, ``"rdma"``, or nothing: whatever p2pstore has as default.
        device: p2pstore's ``device``; nothing: p2pstore's default.
    """

    scheme: str
    url: str = field(repr=False)
    places: tuple[tuple[str, int], ...]
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    service: str = "mymaster"
    protocol: str = ""
    device: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{','.join(f'{host}:{port}' for host, port in self.places)}"


def is_redis(server: str) -> bool:
    """Whether an address is one of Redis, well-formed or not."""
    return server.partition("://")[0].lower() in SCHEMES and "://" in server


def parse(text: str) -> P2pAddress:
    """Takes an address apart.

    Raises:
        ConfigError: it is none, or one that p2pstore does not take; the message says what is wrong.
    """
    scheme, _, rest = text.partition("://")
    scheme = scheme.lower()
    if scheme == "rediss":
        raise _bad("is Redis over TLS, which p2pstore does not speak", "redis:// through a TLS tunnel on each host")
    if scheme not in _PORTS:
        raise _bad(f"does not begin with {' or '.join(f'{each}://' for each in _PORTS)}")
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    secret, _, hosts = authority.rpartition("@")
    own = _query(query)
    places = _places(scheme, hosts)
    if scheme == "redis" and len(places) != 1:
        raise _bad("names several servers", "redis+sentinel:// for those")
    service, database = _path(scheme, path)
    username, colon, password = secret.partition(":")
    if not colon:  # a lone word is a user to urllib, and so to p2pstore, but the password in its other two forms
        username, password = (secret, "") if scheme == "redis" else ("", secret)
    protocol, device = own.get("protocol", ""), own.get("device", "")
    # p2pstore cuts a sentinel's user off at the first "@" from the right, as is done here.
    url = f"{scheme}://{rest}"
    return P2pAddress(scheme, url, places, database, username or None, password or None, service, protocol, device)


def _query(query: str) -> dict[str, str]:
    own: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OWN or name in own:
            raise _bad(f"has {name!r} in its query", "only protocol and device, once each")
        allowed = _OWN[name]
        if allowed is not None and value not in allowed:
            raise _bad(f"has {name}={value!r:.40}", f"one of {', '.join(allowed)}")
        own[name] = value
    return own


def _places(scheme: str, hosts: str) -> tuple[tuple[str, int], ...]:
    found = []
    for text in hosts.split(","):
        match = _PLACE.fullmatch(text)
        port = int(match[3]) if match and match[3] else _PORTS[scheme]
        if match is None or not 0 < port < 65_536 or (match[1] and scheme != "redis"):
            raise _bad(f"names no server HOST:PORT in {text!r:.60}")
        found.append((match[1] or match[2], port))
    return tuple(found)


def _path(scheme: str, path: str) -> tuple[str, int]:
    parts = [part for part in path.split("/") if part]
    service = parts.pop(0) if scheme == "redis+sentinel" and parts else "mymaster"
    if len(parts) > 1 or (parts and not re.fullmatch(r"[0-9]{1,4}", parts[0])):
        raise _bad(f"has a path {path!r:.40} that is no database's number")
    return service, int(parts[0]) if parts else 0


def _bad(what: str, instead: str = _EXAMPLE) -> ConfigError:
    problem = f"rdma_store_server {what}; write {instead}"
    return ConfigError(problem, problems=(problem,))


def parse_schema(text: str) -> RoutingSchema | None:
    """Returns the schema of ``experts=256,top_k=8,layers=3-60`` (layers also ``1+3+5-9``), or None for nothing.

    Raises:
        ConfigError: it is no schema.
    """
    if not text:
        return None
    try:
        pairs = dict(piece.strip().split("=", 1) for piece in text.split(","))
        if set(pairs) != {"experts", "top_k", "layers"}:
            raise ValueError("it has other fields")
        layers: list[int] = []
        for run in pairs["layers"].split("+"):
            match = _LAYERS.fullmatch(run)
            if match is None or int(match[2] or match[1]) - int(match[1]) > 100_000:
                raise ValueError(f"{run!r:.40} is no run of layers")
            layers += range(int(match[1]), int(match[2] or match[1]) + 1)
        return RoutingSchema(int(pairs["experts"]), int(pairs["top_k"]), layers)
    except (ValueError, InvalidRecordError) as err:
        problem = f"schema {text!r:.100} is not like experts=256,top_k=8,layers=3-60: {err}"
        raise ConfigError(problem, problems=(problem,)) from err


def problems_of(config: RdmaConfig) -> list[str]:
    """Returns what is wrong with the options of a configuration whose server is Redis."""
    found: list[str] = []
    try:
        address = parse(config.server)
    except ConfigError as err:
        found.append(str(err))
    else:
        if config.transport == "shm":
            found.append("transport: p2pstore has no shared memory; auto, tcp or rdma")
        said = [config.transport.replace("auto", ""), config.protocol, address.protocol]
        if config.transport != "shm" and len({*said} - {""}) > 1:
            names = zip(("transport", "protocol", "the address' protocol"), said, strict=True)
            found.append(f"{' contradicts '.join(f'{name}={value}' for name, value in names if value)}")
        if address.device and config.device and address.device != config.device:
            found.append(f"device {config.device!r} contradicts the address' device={address.device}")
    try:
        parse_schema(config.schema)
    except ConfigError as err:
        found.append(str(err))
    if config.dtype and config.dtype not in DTYPES:
        found.append(f"dtype must be one of {', '.join(DTYPES)}, got {config.dtype!r:.40}")
    if not 0 <= config.pad_to <= MAX_TOKENS:
        found.append(f"pad_to must be 0 to {MAX_TOKENS}, got {config.pad_to}")
    return found
