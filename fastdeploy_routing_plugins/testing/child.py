"""The other process of the kit: opens a store and does what it is told, line by line. Run by path, never imported.

The first line on stdin is the resolved store, each further one a JSON object with the command's name under ``do``.
Each answer is a line on stdout. Bytes travel as base64. Whatever the store itself prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from fastdeploy_routing_plugins.backend import Backend, Buffer
from fastdeploy_routing_plugins.errors import RoutingError
from fastdeploy_routing_plugins.opening import open_store
from fastdeploy_routing_plugins.resolver import ResolvedStore
from fastdeploy_routing_plugins.store.bridge import as_async

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


def pack(data: Any) -> str:
    """Returns bytes as text."""
    return base64.b64encode(bytes(data)).decode()


async def put(backend: Backend, name: str, header: str, shape: list[int], dtype: str, payload: Any, at: float) -> None:
    """Puts an object; a payload that is a number is that many bytes which follow from the name."""
    raw = base64.b64decode(payload) if isinstance(payload, str) else hashlib.shake_128(name.encode()).digest(payload)
    while time.monotonic() < at:  # a sleep would blur the start of a race
        await asyncio.sleep(0)
    await backend._put(name, base64.b64decode(header), Buffer(memoryview(raw), tuple(shape), dtype))


async def get(backend: Backend, name: str) -> list[str]:
    """Returns header and payload."""
    blob = await backend._get(name)
    return [pack(blob.header), *map(pack, blob.payload)]


async def names(backend: Backend, prefix: str) -> list[str]:
    """Returns the names under a prefix."""
    return await backend._list(prefix)


async def wait(backend: Backend, prefix: str, seen: list[str], seconds: float) -> list[str]:
    """Waits for a change."""
    return await backend._wait(prefix, seen, time.monotonic() + seconds)


async def delete(backend: Backend, names: list[str]) -> int:
    """Deletes."""
    return await backend._delete(names)


async def put_until_killed(backend: Backend, objects: list[dict[str, Any]], beat: str) -> None:
    """Puts one object after the other and notes each in a file when it is put."""
    for item in objects:
        await put(backend, **item, at=0.0)
        with open(beat, "a", encoding="utf-8") as file:
            file.write(f"{item['name']}\n")


async def rollout(backend: Backend, resolved: str, rollout_id: str) -> list[Any]:
    """Reads a whole rollout as a trainer does; returns dtype, shape and bytes."""
    with open_store(ResolvedStore.from_json(resolved)) as store:
        record = await asyncio.to_thread(store.get, rollout_id, timeout=10.0)
        return [str(record.routing.dtype), list(record.routing.shape), pack(record.routing.tobytes())]


COMMANDS: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
    "put": put,
    "get": get,
    "list": names,
    "wait": wait,
    "delete": delete,
    "put_until_killed": put_until_killed,
    "rollout": rollout,
}


async def answer(backend: Backend, command: dict[str, Any]) -> dict[str, Any]:
    """Does one command."""
    try:
        result = await COMMANDS[command.pop("do")](backend, **command)
    except RoutingError as err:
        header = err.facts.get("header")
        return {"error": err.code, "header": None if header is None else pack(header), "time": time.monotonic()}
    return {"result": result, "time": time.monotonic()}


async def serve(resolved: ResolvedStore, answers: int) -> None:
    """Opens the store and does commands until stdin ends."""
    backend = as_async(resolved.create_backend(), bare=True)
    loop = asyncio.get_running_loop()
    await backend._open()
    try:
        os.write(answers, b'{"result": "open"}\n')
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            reply = json.dumps(await answer(backend, json.loads(line))).encode() + b"\n"
            view = memoryview(reply)
            while view:
                view = view[os.write(answers, view) :]
    finally:
        await backend._close()


if __name__ == "__main__":
    channel = os.dup(1)
    os.dup2(2, 1)
    asyncio.run(serve(ResolvedStore.from_json(sys.stdin.readline()), channel))
