"""What is moved: how many arrays of which size, and the rollout that is moved end to end."""

from __future__ import annotations

from dataclasses import dataclass

from fastdeploy_routing_plugins.convert.fastdeploy import DTYPES
from fastdeploy_routing_plugins.schema import RoutingSchema

EXPERTS = 256
_MAX_BYTES = 1 << 30  # of one array


@dataclass(frozen=True, slots=True)
class Work:
    """What is moved.

    Attributes:
        name: Of the preset, or ``custom``.
        files: Arrays that are put and got, one by one, in each round.
        layers: Of one array.
        tokens: Of one array.
        top_k: Experts of a token.
        rollout_layers: Of the rollout that is moved end to end; 0: none is.
        rollout_tokens: Tokens that it has.
        max_model_len: Tokens that FastDeploy's table of it has; the rest is -1.
        table_dtype: Of that table.
    """

    name: str
    files: int
    layers: int
    tokens: int
    top_k: int
    rollout_layers: int = 0
    rollout_tokens: int = 0
    max_model_len: int = 0
    table_dtype: str = "uint8"

    def __post_init__(self) -> None:
        if min(self.files, self.layers, self.tokens, self.top_k) < 1 or self.top_k > EXPERTS // 2:
            raise ValueError(f"files, layers, tokens and top-k must be at least 1, and top-k at most {EXPERTS // 2}")
        if max(self.nbytes, self.padded_bytes) > _MAX_BYTES:
            raise ValueError(f"an array must have at most {_MAX_BYTES >> 20} MiB")
        if self.rollout_tokens > self.max_model_len or self.table_dtype not in DTYPES:
            raise ValueError("the rollout has more tokens than max_model_len, or its dtype is not one of FastDeploy's")

    @property
    def nbytes(self) -> int:
        """Bytes of one array, which is uint8."""
        return self.layers * self.tokens * self.top_k

    @property
    def padded_bytes(self) -> int:
        """Bytes of FastDeploy's table of the rollout."""
        return self.rollout_layers * self.max_model_len * self.top_k * int(DTYPES[self.table_dtype][2:])

    @property
    def rollout_bytes(self) -> int:
        """Bytes of the rollout as this package stores it."""
        return self.rollout_layers * self.rollout_tokens * self.top_k

    @property
    def schema(self) -> RoutingSchema:
        """Of one array."""
        return RoutingSchema(EXPERTS, self.top_k, range(self.layers))

    @property
    def rollout_schema(self) -> RoutingSchema:
        """Of the rollout."""
        return RoutingSchema(EXPERTS, self.top_k, range(self.rollout_layers))


PRESETS = {
    # FastDeploy#5467 counts 37 files and says no sizes. In its code a file is a layer's int32 [max_model_len, top_k],
    # assumed to be 1 MiB: 32,768 tokens, top-8. As many bytes in the dtype that is stored are 131,072 tokens of uint8.
    "paper": Work("paper", 37, 1, 131_072, 8, 37, 8192, 32_768, "int32"),
    "glm45-air": Work("glm45-air", 16, 45, 8192, 8, 45, 8192, 32_768),
    "deepseek-v3": Work("deepseek-v3", 4, 58, 32_768, 8, 58, 32_768, 131_072),
}
