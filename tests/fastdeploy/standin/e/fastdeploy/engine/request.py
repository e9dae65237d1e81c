from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RequestMetrics:
    arrival_time: float | None = None


@dataclass
class Request:
    request_id: str
    prompt_token_ids: list[int]
    prompt_token_ids_len: int
    eos_token_ids: list[int]
    metrics: RequestMetrics
    output_token_ids: list[int] = field(default_factory=list)
    block_tables: list[int] = field(default_factory=list)
