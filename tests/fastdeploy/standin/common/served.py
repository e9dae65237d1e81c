"""Stand-in: a request as the engine has it; what its client gave as ``user`` is dropped where it is made."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field


@dataclass
class RequestMetrics:
    arrival_time: float | None = None


@dataclass
class Request:
    request_id: str
    prompt_token_ids: list[int] = field(default_factory=list)
    prompt_token_ids_len: int = 0
    eos_token_ids: list[int] = field(default_factory=list)
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    output_token_ids: list[int] = field(default_factory=list)
    block_tables: list[int] = field(default_factory=list)
    prefill_start_index: int = 0
    idx: int | None = None
    user: str | None = None

    @classmethod
    def from_dict(cls, d: dict):
        """Makes it of the server's dictionary, or of another engine's."""
        return cls(
            request_id=d["request_id"],
            metrics=RequestMetrics(d["metrics"].get("arrival_time")),
            prefill_start_index=d.get("prefill_start_index", 0),
        )

    def to_dict(self) -> dict:
        return {
            "request_id": self.request_id,
            "metrics": asdict(self.metrics),
            "prefill_start_index": self.prefill_start_index,
        }
