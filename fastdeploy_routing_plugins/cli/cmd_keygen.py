"""``fd-routing keygen``: makes the CURVE keys of a metadata service and its clients."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from fastdeploy_routing_plugins.cli.failures import Failure, UsageProblem
from fastdeploy_routing_plugins.cli.options import common_options
from fastdeploy_routing_plugins.stores.rdma.metadata.curve import (
    CLIENTS_FILE,
    SERVER_FILE,
    ClientKeys,
    Clients,
    ServerKeys,
    read_keys,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastdeploy_routing_plugins.cli.output import Output

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_RESERVED = (Path(SERVER_FILE).stem, Path(CLIENTS_FILE).stem)


@click.command("keygen")
@click.argument("folder", metavar="DIR")
@click.argument("names", nargs=-1, metavar="[CLIENT]...")
@common_options
@click.pass_obj
def command(out: Output, folder: str, names: Sequence[str]) -> int:
    """Make CURVE keys for a metadata service and its clients, files for this user alone (0600).

    DIR/server.json is for `fd-routing serve --keys`, and says who it is; DIR/clients.json beside it lists who is let
    in. Each CLIENT ("client" unless said) gets DIR/CLIENT.json, for the option `keys` of the store rdma; carry it to
    the client's hosts safely, it contains a secret. In a DIR that has keys, further clients are added; a service that
    runs lets them in at once. No file of keys is ever overwritten.
    """
    if not folder:
        raise UsageProblem("DIR is empty", "name a folder; is a variable not set?")
    base = Path(os.path.expanduser(folder))
    for name in names:
        if not _NAME.fullmatch(name) or name in _RESERVED:
            raise UsageProblem(f"no client can be called {name!r}", "letters, digits, '-', '_' and '.', at most 64")
    server_file, clients_file = base / SERVER_FILE, base / CLIENTS_FILE
    adding = server_file.exists()
    if adding and not names:
        raise UsageProblem(f"{server_file} exists", "name clients to add, or another folder")
    clients = list(dict.fromkeys(names)) or ["client"]
    for path in [base / f"{name}.json" for name in clients] + ([] if adding else [clients_file]):
        if path.exists():
            raise UsageProblem(f"{path} exists", "keys are never overwritten: remove the file to make them anew")
    try:
        made = _add(base, clients) if adding else _make(base, clients)
    except OSError as err:
        raise Failure("unwritable", f"cannot write keys in {base}: {err.strerror}") from err
    if not out.document({"folder": str(base), "files": [str(path) for path in made]}):
        for path in made:
            out.line(str(path))
    return 0


def _make(base: Path, names: Sequence[str]) -> list[Path]:
    """Makes a folder of keys, whole or not at all."""
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    public, secret = _pair()
    made: list[Path] = []
    try:
        listed = _clients(base, names, public, made)
        _write(base / CLIENTS_FILE, Clients(listed), made)
        _write(base / SERVER_FILE, ServerKeys(public, secret), made)
    except BaseException:
        _remove(made)
        raise
    return made[::-1]


def _add(base: Path, names: Sequence[str]) -> list[Path]:
    """Adds clients to a folder of keys."""
    server, known = read_keys(str(base / SERVER_FILE)), read_keys(str(base / CLIENTS_FILE))
    if not isinstance(server, ServerKeys) or not isinstance(known, Clients):
        raise Failure("foreign", f"{base} holds other keys than this command makes")
    if twice := [name for name in names if name in known.clients]:
        raise Failure(
            "exists", f"client {twice[0]!r} is listed already", f"remove it from {base / CLIENTS_FILE} first"
        )
    made: list[Path] = []
    part = base / f".{CLIENTS_FILE}.{os.getpid()}"
    try:
        listed = _clients(base, names, server.public, made)
        _write(part, Clients({**known.clients, **listed}), [])
        part.replace(base / CLIENTS_FILE)
    except BaseException:
        _remove([*made, part])
        raise
    return made


def _clients(base: Path, names: Sequence[str], server: str, made: list[Path]) -> dict[str, str]:
    """Makes clients' files; returns their public keys."""
    listed = {}
    for name in names:
        public, secret = _pair()
        _write(base / f"{name}.json", ClientKeys(server, public, secret), made)
        listed[name] = public
    return listed


def _pair() -> tuple[str, str]:
    import zmq  # noqa: PLC0415 - --help does not need it

    try:
        public, secret = zmq.curve_keypair()
    except zmq.ZMQError as err:
        raise Failure(
            "no_curve", f"this build of ZeroMQ cannot make CURVE keys: {err}", "pip install -U pyzmq"
        ) from err
    return public.decode("ascii"), secret.decode("ascii")


def _write(path: Path, keys: msgspec.Struct, made: list[Path]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    made.append(path)
    with open(fd, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(keys)) + b"\n")
        file.flush()
        os.fsync(fd)


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink()
