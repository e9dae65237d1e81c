"""Mistakes of a store's author; each line with a comment is an error, and there are no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastdeploy_routing_plugins.backend import Backend, Blob, BlockingBackend, Buffer, Ranges
from fastdeploy_routing_plugins.resolver import check, resolve
from fastdeploy_routing_plugins.spec import Capability, StoreContext, StoreSpec


@dataclass
class Config:
    path: str = ""


class NoDelete(Backend):
    async def _put(self, name: str, header: bytes, payload: Buffer) -> None: ...


class ReturnsNone(BlockingBackend):
    def _put(self, name: str, header: bytes, payload: Buffer) -> None: ...

    def _delete(self, names: Sequence[str]) -> None: ...  # E: [override]

    def _get(self, name: str, ranges: Ranges | None = None) -> Blob | None:  # E: [override]
        return None


class NotAsync(Backend):
    def _put(self, name: str, header: bytes, payload: Buffer) -> None: ...  # E: [override]

    async def _delete(self, names: str) -> int:  # E: [override]
        return 0


class WritesPayload(BlockingBackend):
    def _put(self, name: str, header: bytes, payload: Buffer) -> None:
        payload.data = b""  # E: [assignment]
        payload.bytes()  # E: [attr-defined]

    def _delete(self, names: Sequence[str]) -> int:
        return len(names)


def make(context: StoreContext) -> WritesPayload:
    context.namespace = "other"  # E: [misc]
    return WritesPayload()


backend = NoDelete()  # E: [abstract]
StoreSpec("x", "1.0", "", lambda: Config, make)  # E: [arg-type]
StoreSpec("x", (1, 0, 0), "", lambda: Config, make)  # E: [arg-type]
StoreSpec("x", (1, 0), "", Config(), make)  # E: [arg-type]
StoreSpec("x", (1, 0), "", lambda: Config, lambda: WritesPayload())  # E: [arg-type] [misc]
StoreSpec("x", (1, 0), "", lambda: Config, lambda context: Config())  # E: [arg-type] [return-value]
StoreSpec("x", (1, 0), "", lambda: Config, make, capabilities=1)  # E: [arg-type]
StoreSpec("x", (1, 0), "", lambda: Config, make, host_keys=["a"])  # E: [arg-type]
StoreSpec("x", (1, 0), "", lambda: Config, make, colour="red")  # E: [call-arg]
StoreSpec("x", (1, 0), "", lambda: Config)  # E: [call-arg]
Capability.READ + Capability.LIST  # E: [operator]
resolve(7)  # E: [arg-type]
resolve({}, host_api="1.0")  # E: [arg-type]
print(resolve({}).config_class)  # E: [attr-defined]
resolve({}).namespace = "other"  # E: [misc]
check()  # E: [call-arg]
